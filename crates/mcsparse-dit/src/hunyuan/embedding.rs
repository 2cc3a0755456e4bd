//! Embeddings of time, guidance, text as a whole, and images.

use burn::module::{Initializer, Module, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{
    Device, Tensor,
    activation::{gelu, silu},
};

use super::FREQUENCIES;
use crate::layers::{Projection, f32_norm, timestep_embedding};

/// Time and a text as a whole, added.
#[derive(Module, Debug)]
pub struct TimeTextEmbedder {
    /// From the sinusoids of the timestep, with SiLU.
    pub timestep_embedder: Projection,
    /// From the pooled text, with SiLU.
    pub text_embedder: Projection,
}

impl TimeTextEmbedder {
    pub(super) fn new(pooled: usize, inner: usize, device: &Device) -> Self {
        Self {
            timestep_embedder: Projection::new(FREQUENCIES, inner, device),
            text_embedder: Projection::new(pooled, inner, device),
        }
    }

    /// `[a, 1]` to `[a, 1, inner_dim]`.
    pub(super) fn time(&self, timesteps: Tensor<2>) -> Tensor<3> {
        timestep_embedding(&self.timestep_embedder, timesteps)
    }

    /// `[batch, 1, pooled size]` to `[batch, 1, inner_dim]`.
    pub(super) fn text(&self, pooled: Tensor<3>) -> Tensor<3> {
        self.text_embedder.forward(pooled, silu)
    }
}

/// Time, a text as a whole, and guidance where the model was distilled with it.
#[derive(Module, Debug)]
pub struct GuidedTimeEmbedder {
    /// From the sinusoids of the timestep, with SiLU.
    pub timestep_embedder: Projection,
    /// From the pooled text, with SiLU.
    pub text_embedder: Projection,
    /// From the sinusoids of a thousand times the guidance, with SiLU.
    pub guidance_embedder: Option<Projection>,
}

impl GuidedTimeEmbedder {
    pub(super) fn new(pooled: usize, inner: usize, guided: bool, device: &Device) -> Self {
        Self {
            timestep_embedder: Projection::new(FREQUENCIES, inner, device),
            text_embedder: Projection::new(pooled, inner, device),
            guidance_embedder: guided.then(|| Projection::new(FREQUENCIES, inner, device)),
        }
    }
}

/// Time alone.
#[derive(Module, Debug)]
pub struct TimeEmbedder {
    /// From the sinusoids of the timestep, with SiLU.
    pub timestep_embedder: Projection,
}

/// Three linear layers behind a norm, for the characters that a text encoder of bytes (ByT5) reads.
#[derive(Module, Debug)]
pub struct ByT5Embedder {
    /// Norm of the input.
    pub norm: LayerNorm,
    /// Into the hidden size.
    pub linear_1: Linear,
    /// Within the hidden size.
    pub linear_2: Linear,
    /// Into the inner size.
    pub linear_3: Linear,
}

impl ByT5Embedder {
    pub(super) fn new(input: usize, hidden: usize, inner: usize, device: &Device) -> Self {
        Self {
            norm: LayerNormConfig::new(input).init(device),
            linear_1: LinearConfig::new(input, hidden).init(device),
            linear_2: LinearConfig::new(hidden, hidden).init(device),
            linear_3: LinearConfig::new(hidden, inner).init(device),
        }
    }

    pub(super) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let x = gelu(self.linear_1.forward(f32_norm(&self.norm, x)));
        self.linear_3.forward(gelu(self.linear_2.forward(x)))
    }
}

/// Two linear layers between norms, for the tokens of an image encoder.
#[derive(Module, Debug)]
pub struct ImageEmbedder {
    /// Norm of the input.
    pub norm_in: LayerNorm,
    /// Within the size of the image encoder.
    pub linear_1: Linear,
    /// Into the inner size.
    pub linear_2: Linear,
    /// Norm of the output.
    pub norm_out: LayerNorm,
}

impl ImageEmbedder {
    pub(super) fn new(input: usize, inner: usize, device: &Device) -> Self {
        Self {
            norm_in: LayerNormConfig::new(input).init(device),
            linear_1: LinearConfig::new(input, input).init(device),
            linear_2: LinearConfig::new(input, inner).init(device),
            norm_out: LayerNormConfig::new(inner).init(device),
        }
    }

    pub(super) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let x = gelu(self.linear_1.forward(f32_norm(&self.norm_in, x)));
        f32_norm(&self.norm_out, self.linear_2.forward(x))
    }
}

/// What is added to a condition token for where it comes from.
#[derive(Module, Debug)]
pub struct ConditionTypes {
    /// `[3, inner_dim]`: for text, characters and image.
    pub weight: Param<Tensor<2>>,
}

impl ConditionTypes {
    pub(super) fn new(inner: usize, device: &Device) -> Self {
        Self { weight: Initializer::Normal { mean: 0.0, std: 1.0 }.init([3, inner], device) }
    }

    pub(super) fn add(&self, tokens: Tensor<3>, kind: usize) -> Tensor<3> {
        let weight = self.weight.val().slice_dim(0, kind..kind + 1).cast(tokens.dtype());
        tokens + weight.unsqueeze()
    }
}
