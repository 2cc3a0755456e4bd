//! Joint self-attention of video and text.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::{Device, Tensor};
use mcsparse::{Error, SelfAttention};

use super::EPS;
use crate::layers::{RotaryTables, head_norm, linear, self_attend, split_heads};

/// Projections of video and text apart, with an RMS norm of every head on queries and keys.
#[derive(Module, Debug)]
pub struct DualAttention {
    /// Query projection of the video.
    pub to_q: Linear,
    /// Key projection of the video.
    pub to_k: Linear,
    /// Value projection of the video.
    pub to_v: Linear,
    /// Norm of the video's queries.
    pub norm_q: RmsNorm,
    /// Norm of the video's keys.
    pub norm_k: RmsNorm,
    /// Output projection of the video; `to_out.0` in files.
    pub to_out: Linear,
    /// Query projection of the text.
    pub add_q_proj: Linear,
    /// Key projection of the text.
    pub add_k_proj: Linear,
    /// Value projection of the text.
    pub add_v_proj: Linear,
    /// Norm of the text's queries.
    pub norm_added_q: RmsNorm,
    /// Norm of the text's keys.
    pub norm_added_k: RmsNorm,
    /// Output projection of the text.
    pub to_add_out: Linear,
    heads: usize,
}

impl DualAttention {
    pub(super) fn new(heads: usize, head_dim: usize, device: &Device) -> Self {
        let linear = || LinearConfig::new(heads * head_dim, heads * head_dim).init(device);
        let norm = || norm_of_heads(head_dim, device);
        Self {
            to_q: linear(),
            to_k: linear(),
            to_v: linear(),
            norm_q: norm(),
            norm_k: norm(),
            to_out: linear(),
            add_q_proj: linear(),
            add_k_proj: linear(),
            add_v_proj: linear(),
            norm_added_q: norm(),
            norm_added_k: norm(),
            to_add_out: linear(),
            heads,
        }
    }

    /// Attention of `video` and `text`, `[batch, tokens, inner_dim]` each, to one another; `rotary` turns the video and
    /// leaves the text.
    pub(super) fn forward(
        &self,
        layer: usize,
        video: Tensor<3>,
        text: Tensor<3>,
        rotary: &RotaryTables,
        attention: &mut dyn SelfAttention,
    ) -> Result<[Tensor<3>; 2], Error> {
        let tokens = video.dims()[1];
        let heads = |x: Tensor<3>| split_heads(x, self.heads);
        let joined = |video, text| Tensor::cat(vec![video, text], 1);
        let of_video = |norm, layer| head_norm(norm, linear(layer, video.clone()), self.heads, Some(rotary));
        let of_text = |norm, layer| head_norm(norm, linear(layer, text.clone()), self.heads, None);
        let query = joined(of_video(&self.norm_q, &self.to_q), of_text(&self.norm_added_q, &self.add_q_proj));
        let key = joined(of_video(&self.norm_k, &self.to_k), of_text(&self.norm_added_k, &self.add_k_proj));
        let value = joined(heads(linear(&self.to_v, video)), heads(linear(&self.add_v_proj, text)));
        let output = self_attend(layer, [query, key, value], attention)?;
        let [video, text] = apart(output, tokens);
        Ok([linear(&self.to_out, video), linear(&self.to_add_out, text)])
    }
}

/// One set of projections for the joined sequence.
#[derive(Module, Debug)]
pub struct SingleAttention {
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
    heads: usize,
}

impl SingleAttention {
    pub(super) fn new(heads: usize, head_dim: usize, device: &Device) -> Self {
        let linear = || LinearConfig::new(heads * head_dim, heads * head_dim).init(device);
        Self {
            to_q: linear(),
            to_k: linear(),
            to_v: linear(),
            norm_q: norm_of_heads(head_dim, device),
            norm_k: norm_of_heads(head_dim, device),
            heads,
        }
    }

    /// Attention within `x` `[batch, tokens, inner_dim]`, without an output projection.
    pub(super) fn forward(
        &self,
        layer: usize,
        x: Tensor<3>,
        rotary: &RotaryTables,
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<3>, Error> {
        let query = head_norm(&self.norm_q, linear(&self.to_q, x.clone()), self.heads, Some(rotary));
        let key = head_norm(&self.norm_k, linear(&self.to_k, x.clone()), self.heads, Some(rotary));
        let value = split_heads(linear(&self.to_v, x), self.heads);
        self_attend(layer, [query, key, value], attention)
    }
}

fn norm_of_heads(head_dim: usize, device: &Device) -> RmsNorm {
    RmsNormConfig::new(head_dim).with_epsilon(EPS).init(device)
}

/// Cuts a joined sequence after its first `tokens` tokens.
pub(super) fn apart(x: Tensor<3>, tokens: usize) -> [Tensor<3>; 2] {
    let all = x.dims()[1];
    [x.clone().slice_dim(1, 0..tokens), x.slice_dim(1, tokens..all)]
}
