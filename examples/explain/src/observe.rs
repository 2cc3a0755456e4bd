//! Query, key and value as the layers of a running model see them.

use std::collections::BTreeMap;

use burn::tensor::{Device, Distribution, Tensor};
use indicatif::ProgressIterator;
use mcsparse::{DenseAttention, SelfAttention};
use mcsparse_dit::{
    VelocityModel,
    pretrained::ClipModel,
    sampler::{FlowEuler, Sampler},
};

use crate::Error;

/// Dense attention that keeps what some layers are given at some steps.
#[derive(Debug, Default)]
pub struct Tap {
    dense: DenseAttention,
    layers: Vec<usize>,
    steps: Vec<usize>,
    step: usize,
    taken: BTreeMap<(usize, usize), [Tensor<4>; 3]>,
}

impl Tap {
    /// Keeps what `layers` are given at `steps`.
    pub fn new(layers: &[usize], steps: &[usize]) -> Self {
        Self { layers: layers.to_vec(), steps: steps.to_vec(), ..Self::default() }
    }

    /// Query, key and value of a layer at a step, `[1, heads, tokens, head_dim]` each.
    pub fn taken(&self, layer: usize, step: usize) -> Option<&[Tensor<4>; 3]> {
        self.taken.get(&(layer, step))
    }
}

impl SelfAttention for Tap {
    fn attend(
        &mut self,
        layer: usize,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
    ) -> Result<Tensor<4>, mcsparse::Error> {
        if self.steps.contains(&self.step) && self.layers.contains(&layer) {
            self.taken.insert((layer, self.step), [query.clone(), key.clone(), value.clone()]);
        }
        self.dense.attend(layer, query, key, value)
    }

    fn begin_step(&mut self, step: usize) -> Result<(), mcsparse::Error> {
        self.step = step;
        Ok(())
    }
}

/// Runs the first `until + 1` of `steps` denoising steps, without guidance, and returns the clip that the model expects
/// at the end: noisy clip minus noise level times velocity, `[1, channels, frames, height, width]`.
///
/// # Errors
///
/// Those of the model and the sampler.
pub fn run(
    model: &ClipModel,
    condition: Tensor<3>,
    steps: usize,
    until: usize,
    seed: u64,
    tap: &mut Tap,
    device: &Device,
) -> Result<Tensor<5>, Error> {
    device.seed(seed);
    let mut clip = Tensor::random(model.shape(), Distribution::Normal(0.0, 1.0), device);
    let mut sampler = FlowEuler::uniform(steps, model.flow_shift())?;
    let (timesteps, sigmas) = (sampler.schedule().timesteps().to_vec(), sampler.schedule().sigmas().to_vec());
    let prepared = model.prepare(condition, model.shape())?;
    let mut expected = clip.clone();
    for step in (0..until + 1).progress() {
        tap.begin_step(step)?;
        let velocity = model.velocity(clip.clone(), timesteps[step], &prepared, tap)?;
        expected = clip.clone() - velocity.clone().mul_scalar(sigmas[step]);
        clip = sampler.step(velocity, clip)?;
    }
    Ok(expected)
}
