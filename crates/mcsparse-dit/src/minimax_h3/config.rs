//! Sizes of the model.

use mcsparse::Error;
use serde::{Deserialize, Serialize};

use crate::check;

/// Sizes of a [`MiniMaxH3`](super::MiniMaxH3): the fields of the `config.json` of diffusers, with its defaults for fields
/// that are absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MiniMaxH3Config {
    /// Attention heads.
    pub num_attention_heads: usize,
    /// Size of one head.
    pub attention_head_dim: usize,
    /// Size of the hidden state, which is not heads times head size.
    pub hidden_size: usize,
    /// Number of blocks.
    pub num_layers: usize,
    /// Number of blocks of the text refiner.
    pub num_refiner_layers: usize,
    /// Hidden size of the feed-forward networks.
    pub ffn_dim: usize,
    /// Channels of the video latents.
    pub in_channels: usize,
    /// Channels of the audio latents.
    pub audio_in_channels: usize,
    /// Latent frames, rows and columns of one token.
    pub patch_size: [usize; 3],
    /// Size of one text token as it comes from the text encoder.
    pub text_dim: usize,
    /// Values of the sinusoids of a timestep; even.
    pub freq_dim: usize,
    /// Hidden size of the timestep embedding.
    pub time_embed_hidden_dim: usize,
    /// Size of the timestep embedding.
    pub time_embed_dim: usize,
    /// Rotary frequencies of one axis; six times as many values of a head turn.
    pub rope_freq_dim: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Added to the variance in the norms of a block.
    pub norm_eps: f64,
    /// Added to the variance in the norms of queries and keys.
    pub qk_norm_eps: f64,
    /// Added to the variance in the last norms.
    pub final_norm_eps: f64,
}

impl Default for MiniMaxH3Config {
    fn default() -> Self {
        Self {
            num_attention_heads: 56,
            attention_head_dim: 128,
            hidden_size: 5376,
            num_layers: 50,
            num_refiner_layers: 2,
            ffn_dim: 14336,
            in_channels: 24,
            audio_in_channels: 32,
            patch_size: [1, 2, 2],
            text_dim: 5120,
            freq_dim: 256,
            time_embed_hidden_dim: 5376,
            time_embed_dim: 2688,
            rope_freq_dim: 16,
            rope_theta: 10_000.0,
            norm_eps: 1e-5,
            qk_norm_eps: 1e-5,
            final_norm_eps: 1e-5,
        }
    }
}

impl MiniMaxH3Config {
    /// MiniMax-H3 with 33 billion parameters: 50 blocks of 56 heads.
    pub fn h3() -> Self {
        Self::default()
    }

    /// Size of all heads together.
    pub fn inner_dim(&self) -> usize {
        self.num_attention_heads * self.attention_head_dim
    }

    /// Values of one video token.
    pub fn video_dim(&self) -> usize {
        self.in_channels * self.patch_size.iter().product::<usize>()
    }

    /// Checks every value.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] naming the first field out of range.
    pub fn validate(&self) -> Result<(), Error> {
        for (argument, value) in [
            ("num_attention_heads", self.num_attention_heads),
            ("attention_head_dim", self.attention_head_dim),
            ("hidden_size", self.hidden_size),
            ("num_layers", self.num_layers),
            ("ffn_dim", self.ffn_dim),
            ("in_channels", self.in_channels),
            ("audio_in_channels", self.audio_in_channels),
            ("patch_size", self.patch_size.into_iter().min().unwrap_or(0)),
            ("text_dim", self.text_dim),
            ("freq_dim", self.freq_dim),
            ("time_embed_hidden_dim", self.time_embed_hidden_dim),
            ("time_embed_dim", self.time_embed_dim),
        ] {
            if value == 0 {
                return Err(check::config(argument, "at least 1", value));
            }
        }
        if !self.freq_dim.is_multiple_of(2) {
            return Err(check::config("freq_dim", "an even number", self.freq_dim));
        }
        if 6 * self.rope_freq_dim > self.attention_head_dim {
            let expected = format!("at most a sixth of attention_head_dim, {}", self.attention_head_dim);
            return Err(check::config("rope_freq_dim", expected, self.rope_freq_dim));
        }
        for (argument, value) in [
            ("rope_theta", self.rope_theta),
            ("norm_eps", self.norm_eps),
            ("qk_norm_eps", self.qk_norm_eps),
            ("final_norm_eps", self.final_norm_eps),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return Err(check::config(argument, "a positive number", value));
            }
        }
        Ok(())
    }
}
