//! Attention with a norm of every head.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::{Device, Tensor};
use mcsparse::{Error, SelfAttention};

use super::MiniMaxH3Config;
use crate::layers::{RotaryTables, dense, head_norm, linear, self_attend, split_heads};

/// Projections without bias, and an RMS norm of every head on queries and keys.
#[derive(Module, Debug)]
pub struct H3Attention {
    /// Query projection.
    pub to_q: Linear,
    /// Key projection.
    pub to_k: Linear,
    /// Value projection.
    pub to_v: Linear,
    /// Norm of the queries.
    pub norm_q: RmsNorm,
    /// Norm of the keys.
    pub norm_k: RmsNorm,
    /// Output projection; `to_out.0` in files.
    pub to_out: Linear,
    heads: usize,
}

impl H3Attention {
    pub(super) fn new(config: &MiniMaxH3Config, device: &Device) -> Self {
        let linear = |input, output| LinearConfig::new(input, output).with_bias(false).init(device);
        let norm = || RmsNormConfig::new(config.attention_head_dim).with_epsilon(config.qk_norm_eps).init(device);
        let (hidden, inner) = (config.hidden_size, config.inner_dim());
        Self {
            to_q: linear(hidden, inner),
            to_k: linear(hidden, inner),
            to_v: linear(hidden, inner),
            norm_q: norm(),
            norm_k: norm(),
            to_out: linear(inner, hidden),
            heads: config.num_attention_heads,
        }
    }

    fn project(&self, x: Tensor<3>, rotary: Option<&RotaryTables>) -> [Tensor<4>; 3] {
        let normed = |norm, layer| head_norm(norm, linear(layer, x.clone()), self.heads, rotary);
        let (query, key) = (normed(&self.norm_q, &self.to_q), normed(&self.norm_k, &self.to_k));
        [query, key, split_heads(linear(&self.to_v, x), self.heads)]
    }

    /// Attention within the packed sequence `x` `[batch, tokens, hidden_size]`, left to `attention`.
    pub(super) fn forward(
        &self,
        layer: usize,
        x: Tensor<3>,
        rotary: &RotaryTables,
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<3>, Error> {
        Ok(linear(&self.to_out, self_attend(layer, self.project(x, Some(rotary)), attention)?))
    }

    /// Dense attention within `x`, without positions: that of the text refiner.
    pub(super) fn refine(&self, x: Tensor<3>) -> Tensor<3> {
        let [query, key, value] = self.project(x, None);
        linear(&self.to_out, dense(query, key, value))
    }
}
