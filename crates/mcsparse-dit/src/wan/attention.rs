//! Self-attention over video tokens and cross-attention to text tokens.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::{Device, Tensor, module::attention};
use mcsparse::{Error, SelfAttention};

use super::{RotaryTables, WanConfig};
use crate::check;

/// Keys and values of the text for one block, `[batch, heads, text tokens, head_dim]`.
#[derive(Debug, Clone)]
pub(super) struct TextKeysValues {
    keys: Tensor<4>,
    values: Tensor<4>,
}

impl TextKeysValues {
    pub(super) fn batch(&self) -> usize {
        self.keys.dims()[0]
    }
}

/// The projections of one attention, with an RMS norm over all heads on queries and keys.
///
/// `attn1` (self-attention) and `attn2` (cross-attention) of a block both have this form.
#[derive(Module, Debug)]
pub struct WanAttention {
    /// Query projection.
    pub to_q: Linear,
    /// Key projection.
    pub to_k: Linear,
    /// Value projection.
    pub to_v: Linear,
    /// Output projection; `to_out.0` in files.
    pub to_out: Linear,
    /// Norm of the queries, before they are split into heads.
    pub norm_q: RmsNorm,
    /// Norm of the keys, before they are split into heads.
    pub norm_k: RmsNorm,
    heads: usize,
}

impl WanAttention {
    pub(super) fn new(config: &WanConfig, device: &Device) -> Self {
        let inner = config.inner_dim();
        let linear = || LinearConfig::new(inner, inner).init(device);
        let norm = || RmsNormConfig::new(inner).with_epsilon(config.eps).init(device);
        Self {
            to_q: linear(),
            to_k: linear(),
            to_v: linear(),
            to_out: linear(),
            norm_q: norm(),
            norm_k: norm(),
            heads: config.num_attention_heads,
        }
    }

    /// Attention of the video tokens `x` `[batch, tokens, inner_dim]` to each other, left to `attention`.
    ///
    /// # Errors
    ///
    /// Those of `attention`, and [`Error::InvalidTensor`] if what it returns has another shape than its query.
    pub fn self_attention(
        &self,
        layer: usize,
        x: Tensor<3>,
        rotary: &RotaryTables,
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<3>, Error> {
        let query = rotary.rotate(self.split(self.norm_q.forward(self.to_q.forward(x.clone()))));
        let key = rotary.rotate(self.split(self.norm_k.forward(self.to_k.forward(x.clone()))));
        let value = self.split(self.to_v.forward(x));
        // Views: whoever needs heads before tokens in memory copies there, and only what it needs.
        let [query, key, value] = [query, key, value].map(|tensor| tensor.swap_dims(1, 2));
        let expected = query.dims();
        let output = attention.attend(layer, query, key, value)?;
        if output.dims() != expected {
            let got = format!("{:?} in layer {layer}", output.dims());
            return Err(check::tensor("attention output", format!("the shape of query, {expected:?}"), got));
        }
        Ok(self.merge(output))
    }

    /// Keys and values of text tokens `[batch, text tokens, inner_dim]`; they depend on nothing else.
    pub(super) fn text_keys_values(&self, text: Tensor<3>) -> TextKeysValues {
        let keys = self.split(self.norm_k.forward(self.to_k.forward(text.clone()))).swap_dims(1, 2);
        TextKeysValues { keys, values: self.split(self.to_v.forward(text)).swap_dims(1, 2) }
    }

    /// Attention of the video tokens `x` `[batch, tokens, inner_dim]` to text tokens.
    pub(super) fn cross_attention(&self, x: Tensor<3>, text: &TextKeysValues) -> Tensor<3> {
        let query = self.split(self.norm_q.forward(self.to_q.forward(x))).swap_dims(1, 2);
        self.merge(attention(query, text.keys.clone(), text.values.clone(), None, None, Default::default()))
    }

    /// `[batch, tokens, inner]` to `[batch, tokens, heads, head_dim]`.
    fn split(&self, x: Tensor<3>) -> Tensor<4> {
        let [batch, tokens, inner] = x.dims();
        x.reshape([batch, tokens, self.heads, inner / self.heads])
    }

    /// `[batch, heads, tokens, head_dim]` through the output projection to `[batch, tokens, inner]`.
    fn merge(&self, x: Tensor<4>) -> Tensor<3> {
        let [batch, heads, tokens, head_dim] = x.dims();
        self.to_out.forward(x.swap_dims(1, 2).reshape([batch, tokens, heads * head_dim]))
    }
}
