//! The models by name: what they are made of and how their own pipelines run them.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use clap::ValueEnum;
use mcsparse_dit::CheckpointOptions;
use mcsparse_dit::hunyuan::{HunyuanVideo15Config, HunyuanVideoConfig};
use mcsparse_dit::minimax_h3::{MiniMaxH3Config, PackedLayout};
use mcsparse_dit::wan::{WanConfig, WanExperts};

use crate::error::Error;

/// Frames that the autoencoder of MiniMax-H3 takes together, and the latent frames that they become.
const H3_GROUP: [usize; 2] = [17, 5];
/// Audio latents of MiniMax-H3 for a frame of video: 40 a second to 24 frames.
const H3_AUDIO: f64 = 40.0 / 24.0;

/// Models whose form is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModelName {
    /// Wan 2.1 text-to-video, 1.3 billion parameters.
    #[value(name = "wan2.1-t2v-1.3b")]
    Wan21T2v1_3b,
    /// Wan 2.1 text-to-video, 14 billion parameters.
    #[value(name = "wan2.1-t2v-14b")]
    Wan21T2v14b,
    /// Wan 2.1 image-to-video, 14 billion parameters.
    #[value(name = "wan2.1-i2v-14b")]
    Wan21I2v14b,
    /// Wan 2.2 text-to-video, two experts of 14 billion parameters.
    #[value(name = "wan2.2-t2v-a14b")]
    Wan22T2vA14b,
    /// Wan 2.2 image-to-video, two experts of 14 billion parameters.
    #[value(name = "wan2.2-i2v-a14b")]
    Wan22I2vA14b,
    /// Wan 2.2 text-and-image-to-video, 5 billion parameters.
    #[value(name = "wan2.2-ti2v-5b")]
    Wan22Ti2v5b,
    /// HunyuanVideo, 13 billion parameters.
    #[value(name = "hunyuan-video")]
    HunyuanVideo,
    /// HunyuanVideo-1.5, 8 billion parameters.
    #[value(name = "hunyuan-video-1.5")]
    HunyuanVideo15,
    /// MiniMax-H3, 33 billion parameters.
    #[value(name = "minimax-h3")]
    MiniMaxH3,
    /// A very small Wan, to try the program with.
    #[value(name = "wan-tiny")]
    WanTiny,
}

/// What a transformer is made of.
#[derive(Debug, Clone, PartialEq)]
pub enum Form {
    /// Wan, with one expert or two.
    Wan {
        /// Of each expert.
        config: WanConfig,
        /// The timestep at which the second expert takes over, if there are two.
        boundary: Option<f64>,
    },
    /// HunyuanVideo.
    Hunyuan(HunyuanVideoConfig),
    /// HunyuanVideo-1.5.
    Hunyuan15(HunyuanVideo15Config),
    /// MiniMax-H3.
    H3(MiniMaxH3Config),
}

/// How the pipeline of a model runs it.
#[derive(Debug, Clone, PartialEq)]
pub struct Defaults {
    /// Width and height in pixels.
    pub size: [usize; 2],
    /// Frames.
    pub frames: usize,
    /// Steps; of MiniMax-H3 the points of its grid, one more than evaluations.
    pub steps: usize,
    /// Shift of the noise levels.
    pub shift: f64,
    /// Guidance.
    pub guidance: f64,
}

impl ModelName {
    /// What it is made of.
    pub fn form(self) -> Form {
        let wan = |config, boundary| Form::Wan { config, boundary };
        match self {
            Self::Wan21T2v1_3b => wan(WanConfig::t2v_1_3b(), None),
            Self::Wan21T2v14b => wan(WanConfig::t2v_14b(), None),
            Self::Wan21I2v14b => wan(WanConfig::i2v_14b(), None),
            Self::Wan22T2vA14b => wan(WanConfig::t2v_a14b(), Some(WanExperts::T2V_BOUNDARY)),
            Self::Wan22I2vA14b => wan(WanConfig::i2v_a14b(), Some(WanExperts::I2V_BOUNDARY)),
            Self::Wan22Ti2v5b => wan(WanConfig::ti2v_5b(), None),
            Self::HunyuanVideo => Form::Hunyuan(HunyuanVideoConfig::t2v()),
            Self::HunyuanVideo15 => Form::Hunyuan15(HunyuanVideo15Config::video()),
            Self::MiniMaxH3 => Form::H3(MiniMaxH3Config::h3()),
            Self::WanTiny => wan(
                WanConfig {
                    num_attention_heads: 2,
                    attention_head_dim: 32,
                    ffn_dim: 112,
                    num_layers: 2,
                    text_dim: 24,
                    freq_dim: 64,
                    ..WanConfig::t2v_14b()
                },
                None,
            ),
        }
    }
}

impl Form {
    /// Reads the form of the weights in `folder`, and says where each transformer is.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if there is no configuration that is known.
    pub fn of_folder(folder: &Path) -> Result<(Self, Vec<PathBuf>), Error> {
        let inner = folder.join("transformer");
        let first = if inner.is_dir() { inner } else { folder.to_owned() };
        let file = first.join("config.json");
        let text = std::fs::read_to_string(&file).map_err(|error| Error::run(file.display(), error))?;
        let json: serde_json::Value = serde_json::from_str(&text).map_err(|error| Error::run(file.display(), error))?;
        let class = json["_class_name"].as_str().unwrap_or("no _class_name");
        let second = folder.join("transformer_2");
        Ok(match class {
            "WanTransformer3DModel" => {
                let config = WanConfig::from_file(&file)?;
                let two = first != *folder && second.is_dir();
                let boundary = two.then(|| boundary(folder, &config)).transpose()?;
                (Self::Wan { config, boundary }, [first].into_iter().chain(two.then_some(second)).collect())
            }
            "HunyuanVideoTransformer3DModel" => (Self::Hunyuan(HunyuanVideoConfig::from_file(&file)?), vec![first]),
            "HunyuanVideo15Transformer3DModel" => {
                (Self::Hunyuan15(HunyuanVideo15Config::from_file(&file)?), vec![first])
            }
            "MiniMaxH3Transformer3DModel" => (Self::H3(MiniMaxH3Config::from_file(&file)?), vec![first]),
            other => {
                let why =
                    format!("expected a Wan, HunyuanVideo, HunyuanVideo-1.5 or MiniMax-H3 transformer, got {other}");
                return Err(Error::run(file.display(), why));
            }
        })
    }

    /// Writes a checkpoint with random values to `folder`.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if it cannot be written.
    pub fn write_random(&self, folder: &Path, options: &CheckpointOptions, device: &Device) -> Result<(), Error> {
        match self {
            Self::Wan { config, boundary: None } => config.write_random(folder, options, device)?,
            Self::Wan { config, boundary: Some(_) } => {
                config.write_random(folder.join("transformer"), options, device)?;
                let options = CheckpointOptions { seed: options.seed + 1, ..options.clone() };
                config.write_random(folder.join("transformer_2"), &options, device)?;
            }
            Self::Hunyuan(config) => config.write_random(folder, options, device)?,
            Self::Hunyuan15(config) => config.write_random(folder, options, device)?,
            Self::H3(config) => config.write_random(folder, options, device)?,
        }
        Ok(())
    }

    /// How its pipeline runs it.
    pub fn defaults(&self) -> Defaults {
        match self {
            Self::Wan { config, .. } if *config == WanConfig::ti2v_5b() => {
                Defaults { size: [1280, 704], frames: 121, steps: 50, shift: 5.0, guidance: 5.0 }
            }
            Self::Wan { boundary: Some(_), config } => {
                let (shift, guidance) = if config.in_channels > config.out_channels { (5.0, 3.5) } else { (12.0, 4.0) };
                Defaults { size: [832, 480], frames: 81, steps: 40, shift, guidance }
            }
            Self::Wan { config, .. } if config.inner_dim() <= 64 => {
                Defaults { size: [96, 64], frames: 9, steps: 8, shift: 5.0, guidance: 5.0 }
            }
            Self::Wan { config, .. } => {
                let (steps, shift) = if config.image_dim.is_some() { (40, 3.0) } else { (50, 5.0) };
                Defaults { size: [832, 480], frames: 81, steps, shift, guidance: 5.0 }
            }
            Self::Hunyuan(_) => Defaults { size: [1280, 720], frames: 129, steps: 50, shift: 7.0, guidance: 6.0 },
            Self::Hunyuan15(_) => Defaults { size: [848, 480], frames: 121, steps: 50, shift: 5.0, guidance: 6.0 },
            Self::H3(_) => Defaults { size: [1344, 768], frames: 124, steps: 50, shift: 12.0, guidance: 1.0 },
        }
    }

    /// Guidance of the second expert where its pipeline gives it one of its own.
    pub fn second_guidance(&self) -> Option<f64> {
        match self {
            Self::Wan { config, boundary: Some(_) } if config.in_channels == config.out_channels => Some(3.0),
            _ => None,
        }
    }

    /// Whether two forwards a step are led apart by guidance.
    pub fn is_guided(&self) -> bool {
        matches!(self, Self::Wan { .. } | Self::Hunyuan15(_))
    }

    /// Shape of the latents, `[1, channels, frames, rows, columns]`, for a video of `size` (width, height) and `frames`.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] for a size that the autoencoder or the patches of the model cannot serve.
    pub fn latents(&self, [width, height]: [usize; 2], frames: usize) -> Result<[usize; 5], Error> {
        let (channels, time, side, patch) = match self {
            Self::Wan { config, .. } => {
                let side = if config.out_channels == 48 { 16 } else { 8 };
                (config.out_channels, 4, side, config.patch_size[1])
            }
            Self::Hunyuan(config) => (config.out_channels, 4, 8, config.patch_size),
            Self::Hunyuan15(config) => (config.out_channels, 4, 16, config.patch_size),
            Self::H3(config) => (config.in_channels, 0, 16, config.patch_size[1]),
        };
        for (name, value) in [("width", width), ("height", height)] {
            if !value.is_multiple_of(side * patch) {
                return Err(Error::option("--size", format!("a {name} that is a multiple of {}", side * patch), value));
            }
        }
        let latent_frames = match time {
            0 => {
                let [group, latents] = H3_GROUP;
                if frames < latents || !(frames - latents).is_multiple_of(group) {
                    return Err(Error::option("--frames", format!("{group} n + {latents}"), frames));
                }
                latents * ((frames - latents) / group) + 2
            }
            time if (frames - 1).is_multiple_of(time) => (frames - 1) / time + 1,
            time => return Err(Error::option("--frames", format!("{time} n + 1"), frames)),
        };
        Ok([1, channels, latent_frames, height / side, width / side])
    }

    /// The packed sequence of MiniMax-H3 for `frames` frames, of which `latents` are the latents.
    pub fn h3_layout(text: usize, frames: usize, latents: [usize; 5]) -> PackedLayout {
        let [_, _, latent_frames, rows, columns] = latents;
        let audio = (frames as f64 * H3_AUDIO).round() as usize;
        PackedLayout::text_to_video(text, [latent_frames, rows, columns], audio)
    }

    /// Heads, head size and layers whose self-attention a method sees.
    pub fn attention(&self) -> [usize; 3] {
        match self {
            Self::Wan { config, .. } => [config.num_attention_heads, config.attention_head_dim, config.num_layers],
            Self::Hunyuan(config) => [config.num_attention_heads, config.attention_head_dim, config.layers()],
            Self::Hunyuan15(config) => [config.num_attention_heads, config.attention_head_dim, config.num_layers],
            Self::H3(config) => [config.num_attention_heads, config.attention_head_dim, config.num_layers],
        }
    }

    /// Size of the hidden state and of the feed-forward networks.
    pub fn widths(&self) -> [usize; 2] {
        match self {
            Self::Wan { config, .. } => [config.inner_dim(), config.ffn_dim],
            Self::Hunyuan(config) => [config.inner_dim(), (config.inner_dim() as f64 * config.mlp_ratio) as usize],
            Self::Hunyuan15(config) => [config.inner_dim(), (config.inner_dim() as f64 * config.mlp_ratio) as usize],
            Self::H3(config) => [config.inner_dim().max(config.hidden_size), 2 * config.ffn_dim],
        }
    }

    /// Patch of a token.
    pub fn patch(&self) -> [usize; 3] {
        match self {
            Self::Wan { config, .. } => config.patch_size,
            Self::Hunyuan(config) => [config.patch_size_t, config.patch_size, config.patch_size],
            Self::Hunyuan15(config) => [config.patch_size_t, config.patch_size, config.patch_size],
            Self::H3(config) => config.patch_size,
        }
    }

    /// Values in all weights.
    pub fn parameters(&self, device: &Device) -> usize {
        match self {
            Self::Wan { config, boundary } => config.parameters(device) * if boundary.is_some() { 2 } else { 1 },
            Self::Hunyuan(config) => config.parameters(device),
            Self::Hunyuan15(config) => config.parameters(device),
            Self::H3(config) => config.parameters(device),
        }
    }
}

/// The timestep at which the second expert takes over: what the pipeline's index says, or that of the released model.
fn boundary(folder: &Path, config: &WanConfig) -> Result<f64, Error> {
    let file = folder.join("model_index.json");
    let share = match std::fs::read_to_string(&file) {
        Ok(text) => {
            let json: serde_json::Value =
                serde_json::from_str(&text).map_err(|error| Error::run(file.display(), error))?;
            json["boundary_ratio"].as_f64()
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(Error::run(file.display(), error)),
    };
    let of_release =
        if config.in_channels > config.out_channels { WanExperts::I2V_BOUNDARY } else { WanExperts::T2V_BOUNDARY };
    Ok(share.map_or(of_release, |share| 1000.0 * share))
}
