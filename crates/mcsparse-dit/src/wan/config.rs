//! What a Wan transformer is made of.

use std::path::Path;

use burn::tensor::Device;
use mcsparse::Error;
use serde::{Deserialize, Serialize};

use super::WanTransformer;
use crate::{LoadError, check};

const QK_NORM: &str = "rms_norm_across_heads";

/// Sizes and switches of a [`WanTransformer`].
///
/// Reads and writes the fields of the `config.json` that diffusers keeps beside the weights. Fields absent there get
/// the defaults of diffusers, and fields it does not know are ignored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct WanConfig {
    /// Latent frames, rows and columns of one token.
    pub patch_size: [usize; 3],
    /// Attention heads.
    pub num_attention_heads: usize,
    /// Size of one head; even.
    pub attention_head_dim: usize,
    /// Channels of the latents.
    pub in_channels: usize,
    /// Channels of the predicted velocity.
    pub out_channels: usize,
    /// Size of one text token as it comes from the text encoder.
    pub text_dim: usize,
    /// Size of the sinusoidal timestep embedding; even.
    pub freq_dim: usize,
    /// Hidden size of the feed-forward network.
    pub ffn_dim: usize,
    /// Number of blocks.
    pub num_layers: usize,
    /// Whether the input of cross-attention gets a layer norm with weight and bias.
    pub cross_attn_norm: bool,
    /// Added to the variance in every norm.
    pub eps: f64,
    /// The most tokens along one axis of the grid that the rotary embedding serves.
    pub rope_max_seq_len: usize,
}

impl WanConfig {
    /// Reads a `config.json` of diffusers.
    ///
    /// # Errors
    ///
    /// [`LoadError::Io`] if the file cannot be read; [`LoadError::Config`] if it is no such configuration, asks for a
    /// part that this crate does not have (image conditioning, another QK norm) or has a value out of range.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|source| LoadError::io(path, source))?;
        serde_json::from_str(&text).map_err(|error| LoadError::Config { path: path.into(), reason: error.to_string() })
    }

    /// Size of the hidden state: heads times head size.
    pub fn inner_dim(&self) -> usize {
        self.num_attention_heads * self.attention_head_dim
    }

    /// Values of one output token.
    pub(crate) fn output_dim(&self) -> usize {
        self.out_channels * self.patch_size.iter().product::<usize>()
    }

    /// Tokens along each axis for latents of `frames`, `height` and `width`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTensor`] on argument `latents` if a size is no multiple of the patch or makes more tokens than
    /// `rope_max_seq_len`.
    pub fn grid(&self, size: [usize; 3]) -> Result<[usize; 3], Error> {
        let mut grid = [0; 3];
        for axis in 0..3 {
            let (name, patch) = (["frames", "height", "width"][axis], self.patch_size[axis]);
            let (tokens, rest) = (size[axis] / patch, size[axis] % patch);
            if tokens == 0 || rest != 0 {
                return Err(check::tensor(
                    "latents",
                    format!("{name} a multiple of the patch size {patch}"),
                    size[axis],
                ));
            }
            if tokens > self.rope_max_seq_len {
                let most = format!("{name} of at most {} tokens (rope_max_seq_len)", self.rope_max_seq_len);
                return Err(check::tensor("latents", most, tokens));
            }
            grid[axis] = tokens;
        }
        Ok(grid)
    }

    /// Checks every value.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] naming the first field out of range.
    pub fn validate(&self) -> Result<(), Error> {
        let [frames, height, width] = self.patch_size;
        for (argument, value) in [
            ("patch_size", frames.min(height).min(width)),
            ("num_attention_heads", self.num_attention_heads),
            ("attention_head_dim", self.attention_head_dim),
            ("in_channels", self.in_channels),
            ("out_channels", self.out_channels),
            ("text_dim", self.text_dim),
            ("freq_dim", self.freq_dim),
            ("ffn_dim", self.ffn_dim),
            ("num_layers", self.num_layers),
            ("rope_max_seq_len", self.rope_max_seq_len),
        ] {
            if value == 0 {
                return Err(check::config(argument, "at least 1", value));
            }
        }
        // Rotation works on pairs, the timestep embedding has one sine for every cosine.
        for (argument, value) in [("attention_head_dim", self.attention_head_dim), ("freq_dim", self.freq_dim)] {
            if value % 2 != 0 {
                return Err(check::config(argument, "an even number", value));
            }
        }
        if !(self.eps.is_finite() && self.eps > 0.0) {
            return Err(check::config("eps", "a positive number", self.eps));
        }
        Ok(())
    }

    /// A transformer with random weights on `device`, in its default float dtype.
    ///
    /// # Panics
    ///
    /// If [`WanConfig::validate`] refuses the configuration; one that was read from a file is valid.
    pub fn init(&self, device: &Device) -> WanTransformer {
        WanTransformer::new(self, device)
    }
}

/// The fields as diffusers writes them, with those that only unsupported variants use.
#[derive(Clone, Serialize, Deserialize)]
#[serde(default)]
struct Fields {
    patch_size: [usize; 3],
    num_attention_heads: usize,
    attention_head_dim: usize,
    in_channels: usize,
    out_channels: Option<usize>,
    text_dim: usize,
    freq_dim: usize,
    ffn_dim: usize,
    num_layers: usize,
    cross_attn_norm: bool,
    qk_norm: Option<String>,
    eps: f64,
    image_dim: Option<usize>,
    added_kv_proj_dim: Option<usize>,
    rope_max_seq_len: usize,
    pos_embed_seq_len: Option<usize>,
}

impl Default for Fields {
    fn default() -> Self {
        Self {
            patch_size: [1, 2, 2],
            num_attention_heads: 40,
            attention_head_dim: 128,
            in_channels: 16,
            out_channels: Some(16),
            text_dim: 4096,
            freq_dim: 256,
            ffn_dim: 13824,
            num_layers: 40,
            cross_attn_norm: true,
            qk_norm: Some(QK_NORM.into()),
            eps: 1e-6,
            image_dim: None,
            added_kv_proj_dim: None,
            rope_max_seq_len: 1024,
            pos_embed_seq_len: None,
        }
    }
}

impl TryFrom<Fields> for WanConfig {
    type Error = Error;

    fn try_from(fields: Fields) -> Result<Self, Error> {
        for (argument, value) in [
            ("image_dim", fields.image_dim),
            ("added_kv_proj_dim", fields.added_kv_proj_dim),
            ("pos_embed_seq_len", fields.pos_embed_seq_len),
        ] {
            if let Some(value) = value {
                return Err(check::config(argument, "null (image conditioning is not supported yet)", value));
            }
        }
        if fields.qk_norm.as_deref() != Some(QK_NORM) {
            let got = fields.qk_norm.unwrap_or_else(|| "null".into());
            return Err(check::config("qk_norm", format!("{QK_NORM} (no other is supported yet)"), got));
        }
        let config = Self {
            patch_size: fields.patch_size,
            num_attention_heads: fields.num_attention_heads,
            attention_head_dim: fields.attention_head_dim,
            in_channels: fields.in_channels,
            out_channels: fields.out_channels.unwrap_or(fields.in_channels),
            text_dim: fields.text_dim,
            freq_dim: fields.freq_dim,
            ffn_dim: fields.ffn_dim,
            num_layers: fields.num_layers,
            cross_attn_norm: fields.cross_attn_norm,
            eps: fields.eps,
            rope_max_seq_len: fields.rope_max_seq_len,
        };
        config.validate()?;
        Ok(config)
    }
}

impl From<WanConfig> for Fields {
    fn from(config: WanConfig) -> Self {
        Self {
            patch_size: config.patch_size,
            num_attention_heads: config.num_attention_heads,
            attention_head_dim: config.attention_head_dim,
            in_channels: config.in_channels,
            out_channels: Some(config.out_channels),
            text_dim: config.text_dim,
            freq_dim: config.freq_dim,
            ffn_dim: config.ffn_dim,
            num_layers: config.num_layers,
            cross_attn_norm: config.cross_attn_norm,
            eps: config.eps,
            rope_max_seq_len: config.rope_max_seq_len,
            ..Self::default()
        }
    }
}
