//! What a Wan transformer is made of.

use mcsparse::Error;
use serde::{Deserialize, Serialize};

use crate::check;
use crate::layers::{self, AXES};

const QK_NORM: &str = "rms_norm_across_heads";

/// Sizes and switches of a [`WanTransformer`](super::WanTransformer).
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
    /// Size of a token of the image encoder, in Wan 2.1 image-to-video; `None` elsewhere.
    pub image_dim: Option<usize>,
    /// Size of an embedded image token as cross-attention reads it, the hidden size; `None` where there is no image.
    pub added_kv_proj_dim: Option<usize>,
    /// The most tokens along one axis of the grid that the rotary embedding serves.
    pub rope_max_seq_len: usize,
}

impl WanConfig {
    /// Wan 2.1 text-to-video with 1.4 billion parameters: 30 blocks of 12 heads.
    pub fn t2v_1_3b() -> Self {
        Self { num_attention_heads: 12, ffn_dim: 8960, num_layers: 30, ..Self::t2v_14b() }
    }

    /// Wan 2.1 text-to-video with 14.3 billion parameters: 40 blocks of 40 heads. Each of the two experts of
    /// [Wan 2.2 A14B](Self::t2v_a14b) has this form too.
    pub fn t2v_14b() -> Self {
        Self::try_from(Fields::default()).expect("the defaults of diffusers are valid")
    }

    /// Wan 2.1 image-to-video with 16.4 billion parameters: reads the tokens of a CLIP image encoder and 20 channels
    /// beside the latents.
    pub fn i2v_14b() -> Self {
        Self { in_channels: 36, image_dim: Some(1280), added_kv_proj_dim: Some(5120), ..Self::t2v_14b() }
    }

    /// One expert of Wan 2.2 A14B text-to-video; see [`WanExperts`](super::WanExperts).
    pub fn t2v_a14b() -> Self {
        Self::t2v_14b()
    }

    /// One expert of Wan 2.2 A14B image-to-video: 20 channels beside the latents, no image encoder.
    pub fn i2v_a14b() -> Self {
        Self { in_channels: 36, ..Self::t2v_14b() }
    }

    /// Wan 2.2 text- and image-to-video with 5 billion parameters: 30 blocks of 24 heads, on latents of 48 channels.
    pub fn ti2v_5b() -> Self {
        Self {
            num_attention_heads: 24,
            ffn_dim: 14336,
            num_layers: 30,
            in_channels: 48,
            out_channels: 48,
            ..Self::t2v_14b()
        }
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
        let grid = layers::grid(size, self.patch_size)?;
        for axis in 0..3 {
            if grid[axis] > self.rope_max_seq_len {
                let most = format!("{} of at most {} tokens (rope_max_seq_len)", AXES[axis], self.rope_max_seq_len);
                return Err(check::tensor("latents", most, grid[axis]));
            }
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
        if self.image_dim.is_some() != self.added_kv_proj_dim.is_some() {
            let expected = "a number where image_dim is one, and null where it is null";
            return Err(check::config("added_kv_proj_dim", expected, format!("{:?}", self.added_kv_proj_dim)));
        }
        if let Some(size) = self.added_kv_proj_dim
            && size != self.inner_dim()
        {
            let expected = format!("{}, the size of an embedded image token", self.inner_dim());
            return Err(check::config("added_kv_proj_dim", expected, size));
        }
        if self.image_dim == Some(0) {
            return Err(check::config("image_dim", "at least 1", 0));
        }
        if self.in_channels < self.out_channels {
            return Err(check::config(
                "in_channels",
                format!("at least out_channels, {}", self.out_channels),
                self.in_channels,
            ));
        }
        if !(self.eps.is_finite() && self.eps > 0.0) {
            return Err(check::config("eps", "a positive number", self.eps));
        }
        Ok(())
    }
}

/// The fields as diffusers writes them, with one that only an unsupported variant uses.
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
        if let Some(value) = fields.pos_embed_seq_len {
            let expected = "null (first and last frame to video is not supported)";
            return Err(check::config("pos_embed_seq_len", expected, value));
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
            image_dim: fields.image_dim,
            added_kv_proj_dim: fields.added_kv_proj_dim,
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
            image_dim: config.image_dim,
            added_kv_proj_dim: config.added_kv_proj_dim,
            rope_max_seq_len: config.rope_max_seq_len,
            ..Self::default()
        }
    }
}
