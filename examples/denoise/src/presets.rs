//! What each size of the shipped model is, and what a run of it does unless told otherwise.

use clap::ValueEnum;
use serde::Serialize;

/// A size of the shipped model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
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
    /// Height and width of one token in pixels.
    pub patch: usize,
    /// Attention heads.
    pub heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Transformer blocks.
    pub layers: usize,
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
    patch: 8,
    heads: 2,
    head_dim: 128,
    layers: 10,
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
    patch: 4,
    heads: 4,
    head_dim: 32,
    layers: 4,
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
        frames * (self.side / self.patch).pow(2)
    }
}

/// The defaults of both sizes as a table for the help.
pub fn overview() -> String {
    let mut text = String::from("Defaults by size:\n");
    let heads = ["", "frames", "steps", "density", "warm-up", "group-size", "guidance", "condition"].map(str::to_owned);
    let rows = Size::value_variants().iter().map(|size| {
        let Preset { name, defaults: d, .. } = size.preset();
        [
            (*name).to_owned(),
            d.frames.to_string(),
            d.steps.to_string(),
            d.density.to_string(),
            format!("{:.0} %", d.warm_up * 100.0),
            d.group_size.to_string(),
            d.guidance.to_string(),
            d.condition.to_owned(),
        ]
    });
    for row in std::iter::once(heads).chain(rows) {
        let line: String = row.iter().map(|cell| format!("{cell:<12}")).collect();
        text += &format!("  {}\n", line.trim_end());
    }
    text + "\nA warm-up in percent is a share of the steps; --warm-up takes a number of steps."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_documented_tokens() {
        assert_eq!(Size::Small.preset().tokens(16), 4096);
        assert_eq!(Size::Nano.preset().tokens(8), 512);
    }
}
