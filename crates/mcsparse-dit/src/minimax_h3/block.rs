//! The blocks of the packed sequence and of the text refiner.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::{DType, Device, Int, Tensor, activation::silu};
use mcsparse::{Error, SelfAttention};

use super::layout::MODALITIES;
use super::rotary::PackedRotary;
use super::{H3Attention, MiniMaxH3Config};
use crate::layers::linear;

/// Shift, scale and gate of attention and of feed-forward network.
const PARTS: usize = 6;

/// `down(value * silu(gate))`, without bias.
#[derive(Module, Debug)]
pub struct SwiGlu {
    /// To values, then gates; `net.0.proj` in files.
    pub up: Linear,
    /// Back; `net.2` in files.
    pub down: Linear,
}

impl SwiGlu {
    fn new(config: &MiniMaxH3Config, device: &Device) -> Self {
        let linear = |input, output| LinearConfig::new(input, output).with_bias(false).init(device);
        Self { up: linear(config.hidden_size, 2 * config.ffn_dim), down: linear(config.ffn_dim, config.hidden_size) }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let both = linear(&self.up, x);
        let (dtype, hidden) = (both.dtype(), both.dims()[2] / 2);
        let value = both.clone().slice_dim(2, 0..hidden).cast(DType::F32);
        let gate = both.slice_dim(2, hidden..2 * hidden).cast(DType::F32);
        linear(&self.down, (value * silu(gate)).cast(dtype))
    }
}

/// From the timestep embedding to the modulations of one block, for every modality.
#[derive(Module, Debug)]
pub struct Modulation {
    /// The projection.
    pub linear: Linear,
}

impl Modulation {
    /// `time` `[times, time_embed_dim]` to one row of each part for every token, `[1, tokens, hidden_size]`, in the dtype
    /// of the weights; `rows` has the row of every token.
    fn rows(&self, time: Tensor<2>, rows: Tensor<1, Int>) -> [Tensor<3>; PARTS] {
        let times = time.dims()[0];
        let all = self.linear.forward(silu(time).cast(self.linear.weight.val().dtype()));
        let hidden = all.dims()[1] / (PARTS * MODALITIES);
        let table = all.reshape([times * MODALITIES, PARTS * hidden]);
        std::array::from_fn(|part| {
            table.clone().slice_dim(1, part * hidden..(part + 1) * hidden).select(0, rows.clone()).unsqueeze_dim(0)
        })
    }
}

/// Attention within the packed sequence and a feed-forward network, each modulated by time and modality of a token.
#[derive(Module, Debug)]
pub struct H3Block {
    /// Norm before the attention.
    pub norm1: RmsNorm,
    /// Attention.
    pub attn: H3Attention,
    /// Norm before the feed-forward network.
    pub norm2: RmsNorm,
    /// Feed-forward network.
    pub ff: SwiGlu,
    /// Modulation.
    pub adaln_proj: Modulation,
}

impl H3Block {
    pub(super) fn new(config: &MiniMaxH3Config, device: &Device) -> Self {
        let norm = || RmsNormConfig::new(config.hidden_size).with_epsilon(config.norm_eps).init(device);
        let modulations = PARTS * MODALITIES * config.hidden_size;
        Self {
            norm1: norm(),
            attn: H3Attention::new(config, device),
            norm2: norm(),
            ff: SwiGlu::new(config, device),
            adaln_proj: Modulation { linear: LinearConfig::new(config.time_embed_dim, modulations).init(device) },
        }
    }

    pub(super) fn forward(
        &self,
        layer: usize,
        x: Tensor<3>,
        time: Tensor<2>,
        rows: Tensor<1, Int>,
        rotary: &PackedRotary,
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<3>, Error> {
        let [shift, scale, gate, ff_shift, ff_scale, ff_gate] = self.adaln_proj.rows(time, rows);
        let update = self.attn.forward(layer, modulated(&self.norm1, x.clone(), scale, shift), rotary, attention)?;
        let x = x + gate * update;
        let update = self.ff.forward(modulated(&self.norm2, x.clone(), ff_scale, ff_shift));
        Ok(x + ff_gate * update)
    }
}

/// `norm(x) * (1 + scale) + shift`.
pub(super) fn modulated(norm: &RmsNorm, x: Tensor<3>, scale: Tensor<3>, shift: Tensor<3>) -> Tensor<3> {
    norm.forward(x) * scale.add_scalar(1.0) + shift
}

/// A block of the text refiner, which knows neither time nor position. It is dense, whatever method runs in the others.
#[derive(Module, Debug)]
pub struct RefinerBlock {
    /// Norm before the attention.
    pub norm1: RmsNorm,
    /// Attention.
    pub attn: H3Attention,
    /// Norm before the feed-forward network.
    pub norm2: RmsNorm,
    /// Feed-forward network.
    pub ff: SwiGlu,
}

/// A small transformer over the text alone.
#[derive(Module, Debug)]
pub struct TokenRefiner {
    /// The blocks.
    pub refiner_blocks: Vec<RefinerBlock>,
    /// Norm of the result.
    pub final_norm: RmsNorm,
}

impl TokenRefiner {
    pub(super) fn new(config: &MiniMaxH3Config, device: &Device) -> Self {
        let norm = |eps| RmsNormConfig::new(config.hidden_size).with_epsilon(eps).init(device);
        let block = || RefinerBlock {
            norm1: norm(config.norm_eps),
            attn: H3Attention::new(config, device),
            norm2: norm(config.norm_eps),
            ff: SwiGlu::new(config, device),
        };
        Self {
            refiner_blocks: (0..config.num_refiner_layers).map(|_| block()).collect(),
            final_norm: norm(config.final_norm_eps),
        }
    }

    /// `[batch, text tokens, hidden_size]` to the same shape.
    pub(super) fn forward(&self, text: Tensor<3>) -> Tensor<3> {
        let refined = self.refiner_blocks.iter().fold(text, |x, block| {
            let x = x.clone() + block.attn.refine(block.norm1.forward(x));
            x.clone() + block.ff.forward(block.norm2.forward(x))
        });
        self.final_norm.forward(refined)
    }
}
