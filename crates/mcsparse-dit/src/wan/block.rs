//! One transformer block.

use burn::module::{Initializer, Module, Param};
use burn::nn::{LayerNorm, LayerNormConfig};
use burn::tensor::{DType, Device, Tensor};
use mcsparse::{Error, SelfAttention};

use super::attention::ConditionKeysValues;
use super::{WanAttention, WanConfig};
use crate::layers::{FeedForward, RotaryTables, gated_add, layer_norm, modulated_norm, parts};

/// Self-attention, cross-attention to the condition and a feed-forward network, each added to the hidden state.
#[derive(Module, Debug)]
pub struct WanBlock {
    /// Self-attention.
    pub attn1: WanAttention,
    /// Cross-attention.
    pub attn2: WanAttention,
    /// Norm before the cross-attention, with weight and bias.
    pub norm2: Option<LayerNorm>,
    /// Feed-forward network.
    pub ffn: FeedForward,
    /// Added to the time projection: shift, scale and gate of the self-attention, then of the feed-forward network,
    /// `[1, 6, inner_dim]`; stays in f32 whatever the dtype of the model.
    pub scale_shift_table: Param<Tensor<3>>,
    eps: f64,
}

impl WanBlock {
    pub(super) fn new(config: &WanConfig, device: &Device) -> Self {
        Self {
            attn1: WanAttention::new(config, None, device),
            attn2: WanAttention::new(config, config.added_kv_proj_dim, device),
            norm2: config
                .cross_attn_norm
                .then(|| LayerNormConfig::new(config.inner_dim()).with_epsilon(config.eps).init(device)),
            ffn: FeedForward::new(config.inner_dim(), config.ffn_dim, device),
            scale_shift_table: table(6, config.inner_dim(), device),
            eps: config.eps,
        }
    }

    /// `x` `[batch, tokens, inner_dim]` through the block; `time` is the projection `[a, b, 6, inner_dim]`.
    pub(super) fn forward(
        &self,
        layer: usize,
        x: Tensor<3>,
        time: Tensor<4>,
        condition: &ConditionKeysValues,
        rotary: &RotaryTables,
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<3>, Error> {
        let table = self.scale_shift_table.val().cast(DType::F32);
        let [shift, scale, gate, ffn_shift, ffn_scale, ffn_gate] = parts(time + table.unsqueeze());

        let normed = modulated_norm(x.clone(), scale, shift, self.eps);
        let x = gated_add(x, self.attn1.self_attention(layer, normed, rotary, attention)?, gate);

        let normed = self.norm2.as_ref().map_or_else(|| x.clone(), |norm| layer_norm(norm, x.clone(), self.eps));
        let x = self.attn2.cross_attention(normed, condition) + x;

        let normed = modulated_norm(x.clone(), ffn_scale, ffn_shift, self.eps);
        Ok(gated_add(x, self.ffn.forward(normed), ffn_gate))
    }
}

/// A table of modulations, `[1, rows, inner]`, started at the scale that diffusers starts it at.
pub(super) fn table(rows: usize, inner: usize, device: &Device) -> Param<Tensor<3>> {
    Initializer::Normal { mean: 0.0, std: 1.0 / (inner as f64).sqrt() }.init([1, rows, inner], device)
}
