//! Self-attention over video tokens and cross-attention to text and image tokens.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::{Device, Tensor};
use mcsparse::{Error, SelfAttention};

use super::WanConfig;
use crate::layers::{RotaryTables, dense, head_norm, linear, self_attend, split_heads};

/// Keys and values of the conditions for one block, `[batch, tokens, heads, head_dim]` each.
#[derive(Debug, Clone)]
pub(super) struct ConditionKeysValues {
    text: [Tensor<4>; 2],
    image: Option<[Tensor<4>; 2]>,
}

impl ConditionKeysValues {
    pub(super) fn batch(&self) -> usize {
        self.text[0].dims()[0]
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
    /// Key projection of the image, in the cross-attention of Wan 2.1 image-to-video.
    pub add_k_proj: Option<Linear>,
    /// Value projection of the image.
    pub add_v_proj: Option<Linear>,
    /// Norm of the image's keys.
    pub norm_added_k: Option<RmsNorm>,
    heads: usize,
}

impl WanAttention {
    /// `image` is the size of embedded image tokens, for a cross-attention that reads some.
    pub(super) fn new(config: &WanConfig, image: Option<usize>, device: &Device) -> Self {
        let inner = config.inner_dim();
        let linear = |input: usize| LinearConfig::new(input, inner).init(device);
        let norm = || RmsNormConfig::new(inner).with_epsilon(config.eps).init(device);
        Self {
            to_q: linear(inner),
            to_k: linear(inner),
            to_v: linear(inner),
            to_out: linear(inner),
            norm_q: norm(),
            norm_k: norm(),
            add_k_proj: image.map(linear),
            add_v_proj: image.map(linear),
            norm_added_k: image.map(|_| norm()),
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
        let query = head_norm(&self.norm_q, linear(&self.to_q, x.clone()), self.heads, Some(rotary));
        let key = head_norm(&self.norm_k, linear(&self.to_k, x.clone()), self.heads, Some(rotary));
        let value = self.split(linear(&self.to_v, x));
        Ok(linear(&self.to_out, self_attend(layer, [query, key, value], attention)?))
    }

    /// Keys and values of embedded text and image tokens `[batch, tokens, inner_dim]`; they depend on nothing else.
    pub(super) fn keys_values(&self, text: Tensor<3>, image: Option<Tensor<3>>) -> ConditionKeysValues {
        let keys = head_norm(&self.norm_k, linear(&self.to_k, text.clone()), self.heads, None);
        let text = [keys, self.split(linear(&self.to_v, text))];
        let added = self.add_k_proj.as_ref().zip(self.add_v_proj.as_ref()).zip(self.norm_added_k.as_ref());
        let image = image.zip(added).map(|(image, ((to_k, to_v), norm))| {
            let keys = head_norm(norm, linear(to_k, image.clone()), self.heads, None);
            [keys, self.split(linear(to_v, image))]
        });
        ConditionKeysValues { text, image }
    }

    /// Attention of the video tokens `x` `[batch, tokens, inner_dim]` to the text and, apart from it, to the image.
    pub(super) fn cross_attention(&self, x: Tensor<3>, condition: &ConditionKeysValues) -> Tensor<3> {
        let query = head_norm(&self.norm_q, linear(&self.to_q, x), self.heads, None);
        let to = |[keys, values]: &[Tensor<4>; 2]| dense(query.clone(), keys.clone(), values.clone());
        let output = to(&condition.text);
        linear(
            &self.to_out,
            match &condition.image {
                Some(image) => output + to(image),
                None => output,
            },
        )
    }

    fn split(&self, x: Tensor<3>) -> Tensor<4> {
        split_heads(x, self.heads)
    }
}
