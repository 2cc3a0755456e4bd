//! One transformer block.

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use mcsparse::{Error, SelfAttention};

use super::{EPS, Hunyuan3dConfig, LatentAttention, LatentCrossAttention, Mixture, Mlp};
use crate::layers::{f32_norm, linear};

/// Self-attention, cross-attention to the image and a feed-forward network, each added to the hidden state.
#[derive(Module, Debug)]
pub struct LatentBlock {
    /// Brings the hidden state and the output of the mirror image together, in the second half of the blocks.
    pub skip_linear: Option<Linear>,
    /// Norm after it.
    pub skip_norm: Option<LayerNorm>,
    /// Norm before self-attention.
    pub norm1: LayerNorm,
    /// Self-attention.
    pub attn1: LatentAttention,
    /// Norm before cross-attention.
    pub norm2: LayerNorm,
    /// Cross-attention.
    pub attn2: LatentCrossAttention,
    /// Norm before the feed-forward network.
    pub norm3: LayerNorm,
    /// Feed-forward network, in the blocks without experts.
    pub mlp: Option<Mlp>,
    /// Mixture of experts, in the last blocks.
    pub moe: Option<Mixture>,
}

impl LatentBlock {
    pub(super) fn new(config: &Hunyuan3dConfig, layer: usize, device: &Device) -> Self {
        let hidden = config.hidden_size;
        let norm = || layer_norm(hidden, device);
        let (skip, mixture) = (config.has_skip(layer), config.has_mixture(layer));
        Self {
            skip_linear: skip.then(|| LinearConfig::new(2 * hidden, hidden).init(device)),
            skip_norm: skip.then(norm),
            norm1: norm(),
            attn1: LatentAttention::new(config, device),
            norm2: norm(),
            attn2: LatentCrossAttention::new(config, device),
            norm3: norm(),
            mlp: (!mixture).then(|| Mlp::new(hidden, device)),
            moe: mixture.then(|| Mixture::new(config, device)),
        }
    }

    /// `x` `[batch, tokens, hidden_size]` through the block; `mirrored` is the output of its mirror image where it has one.
    pub(super) fn forward(
        &self,
        layer: usize,
        x: Tensor<3>,
        mirrored: Option<Tensor<3>>,
        image: [Tensor<4>; 2],
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<3>, Error> {
        let x = match (&self.skip_linear, &self.skip_norm, mirrored) {
            (Some(skip), Some(norm), Some(mirrored)) => f32_norm(norm, linear(skip, Tensor::cat(vec![mirrored, x], 2))),
            _ => x,
        };
        let x = self.attn1.forward(layer, f32_norm(&self.norm1, x.clone()), attention)? + x;
        let x = self.attn2.forward(f32_norm(&self.norm2, x.clone()), image) + x;
        let normed = f32_norm(&self.norm3, x.clone());
        Ok(match (&self.mlp, &self.moe) {
            (Some(mlp), _) => mlp.forward(normed) + x,
            (None, Some(moe)) => moe.forward(normed)? + x,
            (None, None) => x,
        })
    }
}

pub(super) fn layer_norm(hidden: usize, device: &Device) -> LayerNorm {
    LayerNormConfig::new(hidden).with_epsilon(EPS).init(device)
}
