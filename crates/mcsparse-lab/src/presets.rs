//! What each size of the shipped model is, and what a run of it does unless told otherwise.

use std::path::Path;

use clap::ValueEnum;
use mcsparse_dit::pretrained::ClipConfig;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// A size of the shipped model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Size {
    /// 16 frames of 128 x 128 pixels: 4,096 tokens.
    Small,
    /// 8 frames of 32 x 32 pixels: 512 tokens.
    Nano,
}

/// One row of the table of sizes.
///
/// The first part says what the network is, so that options can be checked before any file is read; the files are held
/// against it when they are.
#[derive(Debug)]
pub struct Preset {
    /// Name of the folder of weights and of the condition tensors.
    pub name: &'static str,
    /// Frames of a full clip.
    pub frames: usize,
    /// Height and width in pixels.
    pub side: usize,
    /// Channels that are denoised.
    pub channels: usize,
    /// Height and width of one token in pixels.
    pub patch: usize,
    /// Frames of one token.
    pub patch_frames: usize,
    /// Attention heads.
    pub heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Transformer blocks.
    pub layers: usize,
    /// Frames, rows and columns of a box of as many tokens as a group has queries.
    pub tile: [usize; 3],
    /// What options may change.
    pub defaults: Defaults,
}

/// The settings of a run without options.
#[derive(Debug)]
pub struct Defaults {
    /// Frames that are denoised.
    pub frames: usize,
    /// Denoising steps.
    pub steps: usize,
    /// Share of the keys that each group keeps.
    pub density: f64,
    /// Share of the steps that stay dense at the start.
    pub warm_up: f64,
    /// Queries in a group.
    pub group_size: usize,
    /// Strength of classifier-free guidance; 1 is none and halves the work.
    pub guidance: f64,
    /// What is denoised.
    pub condition: &'static str,
}

/// The size that runs without `--size`.
pub const DEFAULT_SIZE: Size = Size::Small;

static SMALL: Preset = Preset {
    name: "small",
    frames: 16,
    side: 128,
    channels: 3,
    patch: 8,
    patch_frames: 1,
    heads: 2,
    head_dim: 128,
    layers: 10,
    tile: [2, 8, 8],
    defaults: Defaults {
        frames: 16,
        steps: 20,
        density: 0.15,
        warm_up: 0.2,
        group_size: 128,
        guidance: 1.0,
        condition: "bunny",
    },
};

static NANO: Preset = Preset {
    name: "nano",
    frames: 8,
    side: 32,
    channels: 3,
    patch: 4,
    patch_frames: 1,
    heads: 4,
    head_dim: 32,
    layers: 4,
    tile: [2, 4, 4],
    defaults: Defaults {
        frames: 8,
        steps: 20,
        density: 0.15,
        warm_up: 0.2,
        group_size: 32,
        guidance: 1.0,
        condition: "bunny",
    },
};

/// The shape model: cubes of 64 voxels a side, whose layers count as frames, in 4,096 tokens.
pub static SHAPE: Preset = Preset {
    name: "shape",
    frames: 64,
    side: 64,
    channels: 1,
    patch: 4,
    patch_frames: 4,
    heads: 3,
    head_dim: 64,
    layers: 8,
    tile: [8, 4, 4],
    defaults: Defaults {
        frames: 64,
        steps: 20,
        density: 0.15,
        warm_up: 0.2,
        group_size: 128,
        guidance: 1.0,
        condition: "chair-0",
    },
};

impl Size {
    /// The row of this size.
    pub fn preset(self) -> &'static Preset {
        match self {
            Size::Small => &SMALL,
            Size::Nano => &NANO,
        }
    }
}

impl Preset {
    /// Tokens of a clip of `frames` frames.
    pub fn tokens(&self, frames: usize) -> usize {
        frames / self.patch_frames * (self.side / self.patch).pow(2)
    }

    /// Reads the configuration of this size from the folder of weights, and holds it against the table.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] naming what is missing or does not fit.
    pub fn config(&self, weights: &Path) -> Result<ClipConfig, Error> {
        let folder = weights.join(self.name);
        if !folder.is_dir() {
            return Err(Error::run(
                format!("weights {}", folder.display()),
                "no such folder; --weights names its parent",
            ));
        }
        let config = ClipConfig::from_folder(&folder)?;
        let ClipConfig { network, sampling } = &config;
        let [patch_frames, patch_height, patch_width] = network.patch_size;
        let checks = [
            ("frames", self.frames, sampling.frames),
            ("height", self.side, sampling.height),
            ("width", self.side, sampling.width),
            ("video_channels", self.channels, sampling.video_channels),
            ("frames of patch_size", self.patch_frames, patch_frames),
            ("height of patch_size", self.patch, patch_height),
            ("width of patch_size", self.patch, patch_width),
            ("num_attention_heads", self.heads, network.num_attention_heads),
            ("attention_head_dim", self.head_dim, network.attention_head_dim),
            ("num_layers", self.layers, network.num_layers),
        ];
        for (name, expected, got) in checks {
            if expected != got {
                let name = format!("weights {}: {name}", folder.display());
                return Err(Error::run(name, format!("expected {expected} for the {} model, got {got}", self.name)));
            }
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_documented_tokens() {
        assert_eq!(Size::Small.preset().tokens(16), 4096);
        assert_eq!(Size::Nano.preset().tokens(8), 512);
        assert_eq!(SHAPE.tokens(64), 4096);
    }
}
