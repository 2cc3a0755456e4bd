//! The two kinds of block.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor, activation::silu};
use mcsparse::{Error, SelfAttention};

use super::{DualAttention, EPS, SingleAttention};
use crate::layers::{FeedForward, RotaryTables, gated_add, gelu_tanh, linear, linear_of, modulated_norm, parts};

/// What the embedding of time and condition makes of a norm: shifts, scales and gates.
#[derive(Module, Debug)]
pub struct AdaptiveNorm {
    /// From the embedding to all of them.
    pub linear: Linear,
}

impl AdaptiveNorm {
    pub(super) fn new(inner: usize, parts: usize, device: &Device) -> Self {
        Self { linear: LinearConfig::new(inner, parts * inner).init(device) }
    }

    /// `embedding` `[batch, 1, inner_dim]` to `PARTS` tensors of that shape, in f32.
    pub(super) fn parts<const PARTS: usize>(&self, embedding: Tensor<3>) -> [Tensor<3>; PARTS] {
        let [batch, one, inner] = embedding.dims();
        let all = self.linear.forward(silu(embedding).cast(self.linear.weight.val().dtype()));
        parts(all.cast(DType::F32).reshape([batch, one, PARTS, inner]))
    }
}

/// A block with weights of their own for video and text.
#[derive(Module, Debug)]
pub struct DualBlock {
    /// Modulation of the video.
    pub norm1: AdaptiveNorm,
    /// Modulation of the text.
    pub norm1_context: AdaptiveNorm,
    /// Joint attention.
    pub attn: DualAttention,
    /// Feed-forward network of the video.
    pub ff: FeedForward,
    /// Feed-forward network of the text.
    pub ff_context: FeedForward,
}

impl DualBlock {
    pub(super) fn new(heads: usize, head_dim: usize, hidden: usize, device: &Device) -> Self {
        let inner = heads * head_dim;
        Self {
            norm1: AdaptiveNorm::new(inner, 6, device),
            norm1_context: AdaptiveNorm::new(inner, 6, device),
            attn: DualAttention::new(heads, head_dim, device),
            ff: FeedForward::new(inner, hidden, device),
            ff_context: FeedForward::new(inner, hidden, device),
        }
    }

    /// Video and text `[batch, tokens, inner_dim]` through the block; `embedding` is `[batch, 1, inner_dim]`.
    pub(super) fn forward(
        &self,
        layer: usize,
        [video, text]: [Tensor<3>; 2],
        embedding: Tensor<3>,
        rotary: &RotaryTables,
        attention: &mut dyn SelfAttention,
    ) -> Result<[Tensor<3>; 2], Error> {
        let [shift, scale, gate, ff_shift, ff_scale, ff_gate] = self.norm1.parts(embedding.clone());
        let [text_shift, text_scale, text_gate, text_ff_shift, text_ff_scale, text_ff_gate] =
            self.norm1_context.parts(embedding);
        let [to_video, to_text] = self.attn.forward(
            layer,
            modulated_norm(video.clone(), scale, shift, EPS),
            modulated_norm(text.clone(), text_scale, text_shift, EPS),
            rotary,
            attention,
        )?;
        let (video, text) = (gated_add(video, to_video, gate), gated_add(text, to_text, text_gate));
        let to_video = self.ff.forward(modulated_norm(video.clone(), ff_scale, ff_shift, EPS));
        let to_text = self.ff_context.forward(modulated_norm(text.clone(), text_ff_scale, text_ff_shift, EPS));
        Ok([gated_add(video, to_video, ff_gate), gated_add(text, to_text, text_ff_gate)])
    }
}

/// A block that runs attention and feed-forward network side by side over the joined sequence.
#[derive(Module, Debug)]
pub struct SingleBlock {
    /// Modulation.
    pub norm: AdaptiveNorm,
    /// Joint attention.
    pub attn: SingleAttention,
    /// Into the hidden size of the feed-forward network.
    pub proj_mlp: Linear,
    /// From attention output and hidden values together to `inner_dim`.
    pub proj_out: Linear,
}

impl SingleBlock {
    pub(super) fn new(heads: usize, head_dim: usize, hidden: usize, device: &Device) -> Self {
        let inner = heads * head_dim;
        Self {
            norm: AdaptiveNorm::new(inner, 3, device),
            attn: SingleAttention::new(heads, head_dim, device),
            proj_mlp: LinearConfig::new(inner, hidden).init(device),
            proj_out: LinearConfig::new(inner + hidden, inner).init(device),
        }
    }

    /// The joined sequence `[batch, tokens, inner_dim]` through the block; `embedding` is `[batch, 1, inner_dim]`.
    pub(super) fn forward(
        &self,
        layer: usize,
        x: Tensor<3>,
        embedding: Tensor<3>,
        rotary: &RotaryTables,
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<3>, Error> {
        let [shift, scale, gate] = self.norm.parts(embedding);
        let normed = modulated_norm(x.clone(), scale, shift, EPS);
        let attended = self.attn.forward(layer, normed.clone(), rotary, attention)?;
        let hidden = gelu_tanh(linear(&self.proj_mlp, normed));
        // The two parts of the last projection one by one: joined they would be copied, five times the size of `x`.
        let (weight, bias) = (self.proj_out.weight.val(), self.proj_out.bias.as_ref().map(|bias| bias.val()));
        let [all, inner] = weight.dims();
        let of = |rows: std::ops::Range<usize>| weight.clone().slice_dim(0, rows);
        let update = linear_of(attended, of(0..inner), None) + linear_of(hidden, of(inner..all), bias);
        Ok(gated_add(x, update, gate))
    }
}
