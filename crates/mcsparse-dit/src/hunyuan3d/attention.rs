//! Attention within the latents and to the image.
//!
//! The authors lay the projections side by side and cut the whole into heads before they cut each head into query, key and
//! value. So a head's query does not come from the rows of `to_q` that bear its number: with three heads of one value,
//! `to_q` holds the query, key and value of the first.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::{Device, Tensor};
use mcsparse::{Error, SelfAttention};

use super::{EPS, Hunyuan3dConfig};
use crate::layers::{dense, linear, self_attend, split_heads};

/// Self-attention with an RMS norm of every head on queries and keys.
#[derive(Module, Debug)]
pub struct LatentAttention {
    /// First third of the joined projection.
    pub to_q: Linear,
    /// Second third.
    pub to_k: Linear,
    /// Last third.
    pub to_v: Linear,
    /// Norm of the queries.
    pub q_norm: RmsNorm,
    /// Norm of the keys.
    pub k_norm: RmsNorm,
    /// Output projection.
    pub out_proj: Linear,
    heads: usize,
}

impl LatentAttention {
    pub(super) fn new(config: &Hunyuan3dConfig, device: &Device) -> Self {
        let (hidden, heads) = (config.hidden_size, config.num_heads);
        let linear = || LinearConfig::new(hidden, hidden).with_bias(config.qkv_bias).init(device);
        Self {
            to_q: linear(),
            to_k: linear(),
            to_v: linear(),
            q_norm: head_norm(config, device),
            k_norm: head_norm(config, device),
            out_proj: LinearConfig::new(hidden, hidden).init(device),
            heads,
        }
    }

    /// Attention within `x` `[batch, tokens, hidden_size]`, left to `attention`.
    pub(super) fn forward(
        &self,
        layer: usize,
        x: Tensor<3>,
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<3>, Error> {
        let parts = [&self.to_q, &self.to_k, &self.to_v].map(|part| linear(part, x.clone()));
        let [query, key, value] = joined_heads(parts, self.heads);
        let output = self_attend(layer, [self.q_norm.forward(query), self.k_norm.forward(key), value], attention)?;
        Ok(linear(&self.out_proj, output))
    }
}

/// Attention of the latents to the tokens of an image.
#[derive(Module, Debug)]
pub struct LatentCrossAttention {
    /// Query projection.
    pub to_q: Linear,
    /// First half of the joined projection of the image.
    pub to_k: Linear,
    /// Second half.
    pub to_v: Linear,
    /// Norm of the queries.
    pub q_norm: RmsNorm,
    /// Norm of the keys.
    pub k_norm: RmsNorm,
    /// Output projection.
    pub out_proj: Linear,
    heads: usize,
}

impl LatentCrossAttention {
    pub(super) fn new(config: &Hunyuan3dConfig, device: &Device) -> Self {
        let hidden = config.hidden_size;
        let linear = |input| LinearConfig::new(input, hidden).with_bias(config.qkv_bias).init(device);
        Self {
            to_q: linear(hidden),
            to_k: linear(config.context_dim),
            to_v: linear(config.context_dim),
            q_norm: head_norm(config, device),
            k_norm: head_norm(config, device),
            out_proj: LinearConfig::new(hidden, hidden).init(device),
            heads: config.num_heads,
        }
    }

    /// Keys and values of the image, `[batch, tokens, heads, head_dim]` each; they depend on nothing else.
    pub(super) fn keys_values(&self, image: Tensor<3>) -> [Tensor<4>; 2] {
        let parts = [&self.to_k, &self.to_v].map(|part| linear(part, image.clone()));
        let [key, value] = joined_heads(parts, self.heads);
        [self.k_norm.forward(key), value]
    }

    /// Attention of `x` `[batch, tokens, hidden_size]` to the image.
    pub(super) fn forward(&self, x: Tensor<3>, [key, value]: [Tensor<4>; 2]) -> Tensor<3> {
        let query = self.q_norm.forward(split_heads(linear(&self.to_q, x), self.heads));
        linear(&self.out_proj, dense(query, key, value))
    }
}

fn head_norm(config: &Hunyuan3dConfig, device: &Device) -> RmsNorm {
    RmsNormConfig::new(config.head_dim()).with_epsilon(EPS).init(device)
}

/// Lays `parts` `[batch, tokens, heads * head_dim]` side by side, cuts the whole into heads and each head into parts again.
fn joined_heads<const PARTS: usize>(parts: [Tensor<3>; PARTS], heads: usize) -> [Tensor<4>; PARTS] {
    let head_dim = parts[0].dims()[2] / heads;
    let whole = split_heads(Tensor::cat(parts.into(), 2), heads);
    std::array::from_fn(|part| whole.clone().slice_dim(3, part * head_dim..(part + 1) * head_dim))
}
