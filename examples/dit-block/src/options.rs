//! The command line.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Parser, ValueEnum};
use denoise::device::{DType, DeviceName};
use denoise::options::{KeyForm, List, ResidualForm, SelectBy};
use mcsparse::Placement;
use serde::Serialize;

use crate::shape::{Mlp, Model};

/// What hidden states, and with them queries and keys, are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Inputs {
    /// Objects that move through the frames: tokens of one object are alike, and attend to each other
    Structured,
    /// Independent normal values: the worst case for grouping and selection
    Random,
}

/// Three numbers with commas between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid(pub [usize; 3]);

/// Times the block of a diffusion transformer: its parts, dense attention, and the dense, anchor and reuse steps of
/// MC-Sparse; then says what a whole denoising run comes to.
///
/// Weights are random, so nothing is learnt about quality. Without options it runs a small block on the CPU. It prints a
/// table and writes block.json and block.svg.
#[derive(Debug, Clone, Parser)]
#[command(name = "dit-block", version)]
pub struct Options {
    /// Where to run; only devices whose cargo feature was compiled in work
    #[arg(long, value_enum, default_value_t = DeviceName::first_compiled())]
    pub device: DeviceName,

    /// Float type of the block [default: f32 on flex, bf16 elsewhere]
    #[arg(long, value_enum)]
    pub dtype: Option<DType>,

    /// The sizes to start from; the options after it change them one by one
    #[arg(long, value_enum, default_value_t = Model::Tiny)]
    pub model: Model,

    /// Frames, rows and columns of video tokens
    #[arg(long, value_name = "F,H,W")]
    pub grid: Option<Grid>,

    /// Joined tokens before the video tokens
    #[arg(long, value_name = "N")]
    pub prefix: Option<usize>,

    /// Joined tokens behind the video tokens
    #[arg(long, value_name = "N")]
    pub suffix: Option<usize>,

    /// Text tokens of the cross-attention; 0 for none
    #[arg(long, value_name = "N")]
    pub cross_text: Option<usize>,

    /// Attention heads
    #[arg(long, value_name = "N")]
    pub heads: Option<usize>,

    /// Size of a head
    #[arg(long, value_name = "N")]
    pub head_dim: Option<usize>,

    /// Size of the hidden state
    #[arg(long, value_name = "N")]
    pub hidden: Option<usize>,

    /// Size inside the feed-forward network
    #[arg(long, value_name = "N")]
    pub ffn: Option<usize>,

    /// The feed-forward network
    #[arg(long, value_enum)]
    pub mlp: Option<Mlp>,

    /// Blocks of the model
    #[arg(long, value_name = "N")]
    pub layers: Option<usize>,

    /// Steps of a run
    #[arg(long, value_name = "N")]
    pub steps: Option<usize>,

    /// Forwards of a step: 2 with classifier-free guidance
    #[arg(long, value_name = "N")]
    pub branches: Option<usize>,

    /// Share of the keys that each group of queries keeps
    #[arg(long, value_name = "SHARE", default_value_t = 0.15)]
    pub density: f64,

    /// Queries in a group
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub group_size: usize,

    /// Dense steps at the start, the last of them an anchor [default: a fifth of the steps]
    #[arg(long, value_name = "STEPS")]
    pub warm_up: Option<usize>,

    /// The steps that refresh the cache, counted from 0, for example 9,25
    #[arg(long, value_name = "STEPS", conflicts_with = "every")]
    pub anchors: Option<List>,

    /// Refresh the cache every so many steps after the warm-up
    #[arg(long, value_name = "STEPS")]
    pub every: Option<usize>,

    /// Layers that MC-Sparse leaves dense, counted from 0, or none
    #[arg(long, value_name = "LAYERS", default_value = "0")]
    pub dense_layers: List,

    /// How the kept keys are cached; all forms are exact
    #[arg(long, value_enum, default_value_t = KeyForm::Smallest)]
    pub key_form: KeyForm,

    /// How residuals are cached
    #[arg(long, value_enum, default_value_t = ResidualForm::Input)]
    pub residual_form: ResidualForm,

    /// By which log-sum-exps anchors select keys
    #[arg(long, value_enum, default_value_t = SelectBy::Exact)]
    pub selection: SelectBy,

    /// Bytes that temporary tensors of a stage may take: cached forms are decoded for as many heads at a time as they hold
    #[arg(long, value_name = "BYTES", default_value_t = 512 << 20)]
    pub workspace_bytes: usize,

    /// Where the caches of --full wait between their uses: device, host, or bytes that they may take on the device
    #[arg(long, value_name = "PLACE", default_value = "device", value_parser = place)]
    pub placement: Placement,

    /// What hidden states are made of
    #[arg(long, value_enum, default_value_t = Inputs::Structured)]
    pub inputs: Inputs,

    /// Bytes of scores that Burn's own attention may take; it is left out where it would need more. It may panic on CUDA at
    /// shapes that it does not take [default: 1 GiB on flex, 0 elsewhere]
    #[arg(long, value_name = "BYTES")]
    pub burn_bytes: Option<usize>,

    /// Calls that a time is the median of
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub samples: usize,

    /// Memory that the device has; what would take more is refused before anything is made
    #[arg(long, value_name = "GIB")]
    pub memory: Option<f64>,

    /// Say what memory it will take and stop
    #[arg(long)]
    pub dry_run: bool,

    /// Compare sampled rows of everything that is timed with sums in f64 first; stop if anything is wrong
    #[arg(long)]
    pub check: bool,

    /// Really run all steps and layers, dense and with MC-Sparse, in place of adding up times
    #[arg(long)]
    pub full: bool,

    /// Also time attention with the heads shared out over this many devices of the kind, one thread for each; a CPU is
    /// named several times
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub devices: usize,

    /// Folder for the files
    #[arg(long, value_name = "DIR", default_value = "out/dit-block")]
    pub out: PathBuf,

    /// Print the table only
    #[arg(long)]
    pub quiet: bool,
}

fn place(text: &str) -> Result<Placement, String> {
    match (text, text.parse()) {
        ("device", _) => Ok(Placement::Device),
        ("host", _) => Ok(Placement::Host),
        (_, Ok(bytes)) => Ok(Placement::Budget(bytes)),
        _ => Err(format!("expected device, host or a number of bytes, got {text}")),
    }
}

impl FromStr for Grid {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Result<Vec<usize>, _> = text.split(',').map(|part| part.trim().parse()).collect();
        match parts.map(<[usize; 3]>::try_from) {
            Ok(Ok(grid)) if grid.iter().all(|&n| n > 0) => Ok(Self(grid)),
            _ => Err(format!("expected three whole numbers of at least 1 with commas between them, got {text}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_well_formed() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }

    #[test]
    fn places() {
        assert_eq!(place("4096"), Ok(Placement::Budget(4096)));
        assert_eq!((place("host"), place("device")), (Ok(Placement::Host), Ok(Placement::Device)));
        assert!(place("disk").unwrap_err().ends_with("got disk"));
    }

    #[test]
    fn grids() {
        assert_eq!("21,45, 80".parse(), Ok(Grid([21, 45, 80])));
        for text in ["", "1,2", "1,2,3,4", "0,1,1", "a,1,1"] {
            assert!(text.parse::<Grid>().unwrap_err().ends_with(text), "{text}");
        }
    }
}
