//! What the shape transformer is made of.

use mcsparse::Error;
use serde::{Deserialize, Serialize};

use crate::check;

/// Sizes of a [`Hunyuan3d`](super::Hunyuan3d).
///
/// Reads and writes the fields under `denoiser_cfg.params` of the authors' configuration files, as JSON. Fields that it
/// does not know are ignored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct Hunyuan3dConfig {
    /// Latents of a shape. Any number of them can be denoised: this one was trained.
    pub input_size: usize,
    /// Values of a latent.
    pub in_channels: usize,
    /// Size of the hidden state; even.
    pub hidden_size: usize,
    /// Values of a token of the image encoder.
    pub context_dim: usize,
    /// Number of blocks; odd, so that every block but the middle one has a mirror image.
    pub depth: usize,
    /// Attention heads.
    pub num_heads: usize,
    /// Whether the projections of queries, keys and values have biases.
    pub qkv_bias: bool,
    /// How many of the last blocks have a mixture of experts.
    pub num_moe_layers: usize,
    /// Experts of a mixture.
    pub num_experts: usize,
    /// Experts that a token goes to, beside the one for all.
    pub moe_top_k: usize,
}

impl Hunyuan3dConfig {
    /// Hunyuan3D-2.1: 21 blocks of 16 heads x 128 on 4,096 latents, 3.05 billion parameters.
    pub fn v2_1() -> Self {
        Self {
            input_size: 4096,
            in_channels: 64,
            hidden_size: 2048,
            context_dim: 1024,
            depth: 21,
            num_heads: 16,
            qkv_bias: false,
            num_moe_layers: 6,
            num_experts: 8,
            moe_top_k: 2,
        }
    }

    /// Size of a head.
    pub fn head_dim(&self) -> usize {
        self.hidden_size / self.num_heads
    }

    /// Whether block `layer` gets the output of its mirror image.
    pub(super) fn has_skip(&self, layer: usize) -> bool {
        layer > self.depth / 2
    }

    /// Whether block `layer` has a mixture of experts.
    pub(super) fn has_mixture(&self, layer: usize) -> bool {
        self.depth - layer <= self.num_moe_layers
    }

    /// Checks every value.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] naming the first field out of range.
    pub fn validate(&self) -> Result<(), Error> {
        for (argument, value) in [
            ("input_size", self.input_size),
            ("in_channels", self.in_channels),
            ("hidden_size", self.hidden_size),
            ("context_dim", self.context_dim),
            ("depth", self.depth),
            ("num_heads", self.num_heads),
            ("num_experts", self.num_experts),
            ("moe_top_k", self.moe_top_k),
        ] {
            if value == 0 {
                return Err(check::config(argument, "at least 1", value));
            }
        }
        if !self.hidden_size.is_multiple_of(2 * self.num_heads) {
            let expected = format!("a multiple of 2 * num_heads, {}", 2 * self.num_heads);
            return Err(check::config("hidden_size", expected, self.hidden_size));
        }
        if self.depth.is_multiple_of(2) {
            return Err(check::config("depth", "an odd number", self.depth));
        }
        for (argument, most, of, value) in [
            ("num_moe_layers", self.depth, "depth", self.num_moe_layers),
            ("moe_top_k", self.num_experts, "num_experts", self.moe_top_k),
        ] {
            if value > most {
                return Err(check::config(argument, format!("at most {of}, {most}"), value));
            }
        }
        Ok(())
    }
}

/// The fields as the authors write them, with those that only unsupported variants use.
#[derive(Clone, Serialize, Deserialize)]
struct Fields {
    input_size: usize,
    in_channels: usize,
    hidden_size: usize,
    context_dim: usize,
    depth: usize,
    num_heads: usize,
    #[serde(default = "yes")]
    qkv_bias: bool,
    #[serde(default = "six")]
    num_moe_layers: usize,
    #[serde(default = "eight")]
    num_experts: usize,
    #[serde(default = "two")]
    moe_top_k: usize,
    #[serde(default)]
    qk_norm: bool,
    #[serde(default = "rms")]
    qk_norm_type: String,
    #[serde(default = "layer")]
    norm_type: String,
    #[serde(default)]
    with_decoupled_ca: bool,
    #[serde(default)]
    use_pos_emb: bool,
    #[serde(default = "yes")]
    use_attention_pooling: bool,
    #[serde(default)]
    guidance_cond_proj_dim: Option<usize>,
}

fn yes() -> bool {
    true
}

fn two() -> usize {
    2
}

fn six() -> usize {
    6
}

fn eight() -> usize {
    8
}

fn rms() -> String {
    "rms".into()
}

fn layer() -> String {
    "layer".into()
}

impl TryFrom<Fields> for Hunyuan3dConfig {
    type Error = Error;

    fn try_from(fields: Fields) -> Result<Self, Error> {
        for (argument, expected, got) in [
            ("qk_norm", true, fields.qk_norm),
            ("with_decoupled_ca", false, fields.with_decoupled_ca),
            ("use_pos_emb", false, fields.use_pos_emb),
            ("use_attention_pooling", false, fields.use_attention_pooling),
            ("guidance_cond_proj_dim", false, fields.guidance_cond_proj_dim.is_some()),
        ] {
            if expected != got {
                let expected = match (argument, expected) {
                    ("guidance_cond_proj_dim", _) => "null (no other is supported)".into(),
                    (_, expected) => format!("{expected} (no other is supported)"),
                };
                return Err(check::config(argument, expected, got));
            }
        }
        for (argument, expected, got) in
            [("qk_norm_type", "rms", &fields.qk_norm_type), ("norm_type", "layer", &fields.norm_type)]
        {
            if got != expected {
                return Err(check::config(argument, format!("{expected} (no other is supported)"), got));
            }
        }
        let config = Self {
            input_size: fields.input_size,
            in_channels: fields.in_channels,
            hidden_size: fields.hidden_size,
            context_dim: fields.context_dim,
            depth: fields.depth,
            num_heads: fields.num_heads,
            qkv_bias: fields.qkv_bias,
            num_moe_layers: fields.num_moe_layers,
            num_experts: fields.num_experts,
            moe_top_k: fields.moe_top_k,
        };
        config.validate()?;
        Ok(config)
    }
}

impl From<Hunyuan3dConfig> for Fields {
    fn from(config: Hunyuan3dConfig) -> Self {
        Self {
            input_size: config.input_size,
            in_channels: config.in_channels,
            hidden_size: config.hidden_size,
            context_dim: config.context_dim,
            depth: config.depth,
            num_heads: config.num_heads,
            qkv_bias: config.qkv_bias,
            num_moe_layers: config.num_moe_layers,
            num_experts: config.num_experts,
            moe_top_k: config.moe_top_k,
            qk_norm: true,
            qk_norm_type: rms(),
            norm_type: layer(),
            with_decoupled_ca: false,
            use_pos_emb: false,
            use_attention_pooling: false,
            guidance_cond_proj_dim: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: fn(&mut Hunyuan3dConfig)) -> String {
        let mut config = Hunyuan3dConfig::v2_1();
        change(&mut config);
        config.validate().unwrap_err().to_string()
    }

    #[test]
    fn reads_what_the_authors_wrote() {
        // The values of `denoiser_cfg.params` for 4,096 latents.
        let text = r#"{"input_size": 4096, "in_channels": 64, "hidden_size": 2048, "context_dim": 1024, "depth": 21,
            "num_heads": 16, "qk_norm": true, "text_len": 1370, "with_decoupled_ca": false,
            "use_attention_pooling": false, "qk_norm_type": "rms", "qkv_bias": false, "use_pos_emb": false,
            "num_moe_layers": 6, "num_experts": 8, "moe_top_k": 2}"#;
        let config: Hunyuan3dConfig = serde_json::from_str(text).unwrap();
        assert_eq!((&config, config.head_dim()), (&Hunyuan3dConfig::v2_1(), 128));
        let skips: Vec<_> = (0..21).filter(|&layer| config.has_skip(layer)).collect();
        assert_eq!((skips[0], skips.len()), (11, 10));
        assert_eq!((0..21).find(|&layer| config.has_mixture(layer)), Some(15));
        let again: Hunyuan3dConfig = serde_json::from_value(serde_json::to_value(&config).unwrap()).unwrap();
        assert_eq!(again, config);
        for (field, expected) in [
            (r#""use_pos_emb": true"#, "use_pos_emb: expected false (no other is supported), got true"),
            (r#""qk_norm_type": "layer""#, "qk_norm_type: expected rms (no other is supported), got layer"),
            (r#""guidance_cond_proj_dim": 256"#, "guidance_cond_proj_dim: expected null"),
        ] {
            let name = field.split(':').next().unwrap();
            let kept: Vec<_> = text.trim_matches(['{', '}']).split(", ").filter(|f| !f.contains(name)).collect();
            let error = serde_json::from_str::<Hunyuan3dConfig>(&format!("{{{}, {field}}}", kept.join(", ")));
            let error = error.unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn fields_out_of_range_are_named() {
        assert_eq!(refused(|c| c.depth = 20), "depth: expected an odd number, got 20");
        assert_eq!(
            refused(|c| c.hidden_size = 2040),
            "hidden_size: expected a multiple of 2 * num_heads, 32, got 2040"
        );
        assert_eq!(refused(|c| c.num_moe_layers = 22), "num_moe_layers: expected at most depth, 21, got 22");
        assert_eq!(refused(|c| c.moe_top_k = 9), "moe_top_k: expected at most num_experts, 8, got 9");
        assert_eq!(refused(|c| c.context_dim = 0), "context_dim: expected at least 1, got 0");
    }
}
