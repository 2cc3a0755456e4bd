//! Sizes and switches of the two models.

use mcsparse::Error;
use serde::{Deserialize, Serialize};

use crate::check;

const QK_NORM: &str = "rms_norm";

/// Sizes and switches of a [`HunyuanVideo`](super::HunyuanVideo): the fields of the `config.json` of diffusers, with its
/// defaults for fields that are absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HunyuanVideoConfig {
    /// Channels of the latents.
    pub in_channels: usize,
    /// Channels of the predicted velocity.
    pub out_channels: usize,
    /// Attention heads.
    pub num_attention_heads: usize,
    /// Size of one head.
    pub attention_head_dim: usize,
    /// Number of dual blocks.
    pub num_layers: usize,
    /// Number of single blocks.
    pub num_single_layers: usize,
    /// Number of blocks of the text refiner.
    pub num_refiner_layers: usize,
    /// Hidden size of the feed-forward networks as a multiple of the inner size.
    pub mlp_ratio: f64,
    /// Latent rows and columns of one token.
    pub patch_size: usize,
    /// Latent frames of one token.
    pub patch_size_t: usize,
    /// The norm of queries and keys; `rms_norm` is the only one that is supported.
    pub qk_norm: String,
    /// Whether guidance is an input of the model.
    pub guidance_embeds: bool,
    /// Size of one text token as it comes from the text encoder.
    pub text_embed_dim: usize,
    /// Size of the pooled text.
    pub pooled_projection_dim: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Values of a head that turn with frame, row and column.
    pub rope_axes_dim: [usize; 3],
    /// How images come in: `latent_concat` needs nothing of the transformer, `token_replace` is not supported.
    pub image_condition_type: Option<String>,
}

impl Default for HunyuanVideoConfig {
    fn default() -> Self {
        Self {
            in_channels: 16,
            out_channels: 16,
            num_attention_heads: 24,
            attention_head_dim: 128,
            num_layers: 20,
            num_single_layers: 40,
            num_refiner_layers: 2,
            mlp_ratio: 4.0,
            patch_size: 2,
            patch_size_t: 1,
            qk_norm: QK_NORM.into(),
            guidance_embeds: true,
            text_embed_dim: 4096,
            pooled_projection_dim: 768,
            rope_theta: 256.0,
            rope_axes_dim: [16, 56, 56],
            image_condition_type: None,
        }
    }
}

impl HunyuanVideoConfig {
    /// HunyuanVideo text-to-video with 12.8 billion parameters: 20 dual and 40 single blocks of 24 heads.
    pub fn t2v() -> Self {
        Self::default()
    }

    /// Size of the hidden state: heads times head size.
    pub fn inner_dim(&self) -> usize {
        self.num_attention_heads * self.attention_head_dim
    }

    /// All blocks: those whose self-attention a method sees, dual ones first.
    pub fn layers(&self) -> usize {
        self.num_layers + self.num_single_layers
    }

    pub(super) fn patch(&self) -> [usize; 3] {
        [self.patch_size_t, self.patch_size, self.patch_size]
    }

    pub(super) fn hidden(&self) -> usize {
        (self.inner_dim() as f64 * self.mlp_ratio) as usize
    }

    /// Checks every value.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] naming the first field out of range.
    pub fn validate(&self) -> Result<(), Error> {
        positive(&[
            ("in_channels", self.in_channels),
            ("out_channels", self.out_channels),
            ("num_attention_heads", self.num_attention_heads),
            ("attention_head_dim", self.attention_head_dim),
            ("num_layers", self.num_layers),
            ("patch_size", self.patch_size),
            ("patch_size_t", self.patch_size_t),
            ("text_embed_dim", self.text_embed_dim),
            ("pooled_projection_dim", self.pooled_projection_dim),
        ])?;
        common(self.attention_head_dim, self.rope_axes_dim, self.rope_theta, self.mlp_ratio, &self.qk_norm)?;
        if self.in_channels < self.out_channels {
            let expected = format!("at least out_channels, {}", self.out_channels);
            return Err(check::config("in_channels", expected, self.in_channels));
        }
        match self.image_condition_type.as_deref() {
            None | Some("latent_concat") => Ok(()),
            Some(other) => Err(check::config("image_condition_type", "null or latent_concat", other)),
        }
    }
}

/// Sizes and switches of a [`HunyuanVideo15`](super::HunyuanVideo15): the fields of the `config.json` of diffusers, with
/// its defaults for fields that are absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HunyuanVideo15Config {
    /// Channels of the latents, those of a condition and of its mask included.
    pub in_channels: usize,
    /// Channels of the predicted velocity.
    pub out_channels: usize,
    /// Attention heads.
    pub num_attention_heads: usize,
    /// Size of one head.
    pub attention_head_dim: usize,
    /// Number of blocks.
    pub num_layers: usize,
    /// Number of blocks of the text refiner.
    pub num_refiner_layers: usize,
    /// Hidden size of the feed-forward networks as a multiple of the inner size.
    pub mlp_ratio: f64,
    /// Latent rows and columns of one token.
    pub patch_size: usize,
    /// Latent frames of one token.
    pub patch_size_t: usize,
    /// The norm of queries and keys; `rms_norm` is the only one that is supported.
    pub qk_norm: String,
    /// Size of one text token as it comes from the text encoder.
    pub text_embed_dim: usize,
    /// Size of one token of the encoder of characters (ByT5).
    pub text_embed_2_dim: usize,
    /// Hidden size of the embedding of characters; 2,048 in diffusers, which has no field for it.
    pub text_embed_2_hidden: usize,
    /// Size of one token of the image encoder.
    pub image_embed_dim: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Values of a head that turn with frame, row and column.
    pub rope_axes_dim: [usize; 3],
    /// Whether a second timestep is an input, as in models for super-resolution; not supported.
    pub use_meanflow: bool,
}

impl Default for HunyuanVideo15Config {
    fn default() -> Self {
        Self {
            in_channels: 65,
            out_channels: 32,
            num_attention_heads: 16,
            attention_head_dim: 128,
            num_layers: 54,
            num_refiner_layers: 2,
            mlp_ratio: 4.0,
            patch_size: 1,
            patch_size_t: 1,
            qk_norm: QK_NORM.into(),
            text_embed_dim: 3584,
            text_embed_2_dim: 1472,
            text_embed_2_hidden: 2048,
            image_embed_dim: 1152,
            rope_theta: 256.0,
            rope_axes_dim: [16, 56, 56],
            use_meanflow: false,
        }
    }
}

impl HunyuanVideo15Config {
    /// HunyuanVideo-1.5, text and image to video, with 8.3 billion parameters: 54 blocks of 16 heads.
    pub fn video() -> Self {
        Self::default()
    }

    /// Size of the hidden state: heads times head size.
    pub fn inner_dim(&self) -> usize {
        self.num_attention_heads * self.attention_head_dim
    }

    pub(super) fn patch(&self) -> [usize; 3] {
        [self.patch_size_t, self.patch_size, self.patch_size]
    }

    pub(super) fn hidden(&self) -> usize {
        (self.inner_dim() as f64 * self.mlp_ratio) as usize
    }

    /// Checks every value.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] naming the first field out of range.
    pub fn validate(&self) -> Result<(), Error> {
        positive(&[
            ("in_channels", self.in_channels),
            ("out_channels", self.out_channels),
            ("num_attention_heads", self.num_attention_heads),
            ("attention_head_dim", self.attention_head_dim),
            ("num_layers", self.num_layers),
            ("patch_size", self.patch_size),
            ("patch_size_t", self.patch_size_t),
            ("text_embed_dim", self.text_embed_dim),
            ("text_embed_2_dim", self.text_embed_2_dim),
            ("text_embed_2_hidden", self.text_embed_2_hidden),
            ("image_embed_dim", self.image_embed_dim),
        ])?;
        common(self.attention_head_dim, self.rope_axes_dim, self.rope_theta, self.mlp_ratio, &self.qk_norm)?;
        if self.in_channels < self.out_channels {
            let expected = format!("at least out_channels, {}", self.out_channels);
            return Err(check::config("in_channels", expected, self.in_channels));
        }
        if self.use_meanflow {
            return Err(check::config("use_meanflow", "false (a second timestep is not supported)", true));
        }
        Ok(())
    }
}

fn positive(fields: &[(&'static str, usize)]) -> Result<(), Error> {
    match fields.iter().find(|(_, value)| *value == 0) {
        Some((argument, value)) => Err(check::config(argument, "at least 1", value)),
        None => Ok(()),
    }
}

fn common(head_dim: usize, axes: [usize; 3], theta: f64, ratio: f64, qk_norm: &str) -> Result<(), Error> {
    if axes.iter().sum::<usize>() != head_dim || axes.iter().any(|axis| !axis.is_multiple_of(2)) {
        let expected = format!("even numbers that add up to attention_head_dim, {head_dim}");
        return Err(check::config("rope_axes_dim", expected, format!("{axes:?}")));
    }
    for (argument, value) in [("rope_theta", theta), ("mlp_ratio", ratio)] {
        if !(value.is_finite() && value > 0.0) {
            return Err(check::config(argument, "a positive number", value));
        }
    }
    if qk_norm != QK_NORM {
        return Err(check::config("qk_norm", QK_NORM, qk_norm));
    }
    Ok(())
}
