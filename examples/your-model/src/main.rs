//! MC-Sparse in a model of your own: a block as Burn users write it, its attention swapped, a schedule chosen by how far
//! its result drifts from the dense one. The weights are random, so the numbers say nothing about trained models.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::{Device, Distribution, Tensor, activation::gelu};
use mcsparse::{Anchors, DenseAttention, Error, McSparse, McSparseConfig, Schedule, SelfAttention, StepKind};

const LAYERS: usize = 3;
const HEADS: usize = 2;
const HEAD_DIM: usize = 32;
const TOKENS: usize = 1024;
const STEPS: usize = 20;
const DRIFT: f32 = 0.02; // the largest relative difference to the dense result that this model shall have

#[derive(Module, Debug)]
struct Block {
    norm: RmsNorm,
    qkv: Linear,
    out: Linear,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(device: &Device) -> Self {
        let (width, linear) = (HEADS * HEAD_DIM, |input, output| LinearConfig::new(input, output).init(device));
        let (qkv, out, norm) = (linear(width, 3 * width), linear(width, width), RmsNormConfig::new(width).init(device));
        Self { norm, qkv, out, up: linear(width, 2 * width), down: linear(2 * width, width) }
    }

    // (1) The block is handed its attention, and says which layer it is.
    fn forward(&self, layer: usize, x: Tensor<3>, attention: &mut dyn SelfAttention) -> Result<Tensor<3>, Error> {
        let [batch, tokens, width] = x.dims();
        let qkv = self.qkv.forward(self.norm.forward(x.clone())).reshape([batch, tokens, 3, HEADS, HEAD_DIM]);
        let [q, k, v] = [0, 1, 2].map(|i| qkv.clone().slice_dim(2, i..i + 1).squeeze_dim::<4>(2).swap_dims(1, 2));
        // (2) was: let y = attention(q, k, v, None, None, Default::default());
        let y = attention.attend(layer, q.mul_scalar(8.0), k, v)?;
        let x = x + self.out.forward(y.swap_dims(1, 2).reshape([batch, tokens, width]));
        Ok(x.clone() + self.down.forward(gelu(self.up.forward(self.norm.forward(x)))))
    }
}

/// A denoising loop: what it computes is the model's business, that it announces its steps is the method's.
fn denoise(blocks: &[Block], noise: Tensor<3>, attention: &mut dyn SelfAttention) -> Result<Tensor<3>, Error> {
    let mut x = noise;
    for step in 0..STEPS {
        attention.begin_step(step)?; // (3)
        let mut hidden = x.clone();
        for (layer, block) in blocks.iter().enumerate() {
            hidden = block.forward(layer, hidden, attention)?;
        }
        x = x.clone() - (x - hidden).div_scalar(STEPS as f64);
    }
    Ok(x)
}

/// Norm of the difference over the norm of `dense`.
fn drift(sparse: &Tensor<3>, dense: &Tensor<3>) -> f32 {
    let norm = |x: Tensor<3>| x.powi_scalar(2).sum().sqrt().into_scalar::<f32>();
    norm(sparse.clone() - dense.clone()) / norm(dense.clone())
}

fn main() -> Result<(), Error> {
    let device = Device::default();
    device.seed(0);
    let blocks: Vec<_> = (0..LAYERS).map(|_| Block::new(&device)).collect();
    let noise = Tensor::random([1, TOKENS, HEADS * HEAD_DIM], Distribution::Normal(0.0, 1.0), &device);
    let dense = denoise(&blocks, noise.clone(), &mut DenseAttention::default())?;

    // (4) Density 1 keeps every key: what differs from dense now is a mistake in the porting.
    let config = McSparseConfig::density(1.0).with_group_size(32).with_schedule(Schedule::warm_up(1));
    let mut method = McSparse::new(&config, STEPS)?;
    let exact = drift(&denoise(&blocks, noise.clone(), &mut method)?, &dense);
    assert!(exact < 1e-4 && method.report().count(StepKind::Reuse) > 0, "ported wrongly: {exact}");

    // (5) Schedules from cheap to dear; the first one that stays within the drift is taken.
    let mut candidates = Vec::new();
    for (warm_up, every) in [(1, STEPS), (2, STEPS), (4, STEPS), (2, 8), (4, 8), (4, 4)] {
        for density in [0.1, 0.25, 0.4] {
            let schedule = Schedule::warm_up(warm_up).with_anchors(Anchors::Every(every));
            let config = McSparseConfig::density(density).with_group_size(32).with_schedule(schedule);
            let work = config.effective_density(&config.schedule.plan(STEPS)?, LAYERS, TOKENS)?;
            candidates.push((work, config));
        }
    }
    candidates.sort_by(|(left, _), (right, _)| left.total_cmp(right));
    for (work, config) in candidates {
        let mut method = McSparse::new(&config, STEPS)?;
        let drift = drift(&denoise(&blocks, noise.clone(), &mut method)?, &dense);
        println!("{} -> attention work {work:.3} of dense, drift {drift:.4}", config.schedule.plan(STEPS)?);
        if drift <= DRIFT {
            println!("taken: {:?}\n{}", config.schedule, method.report());
            return Ok(());
        }
    }
    panic!("no schedule stays within {DRIFT}: raise the density")
}
