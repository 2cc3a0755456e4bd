//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, ValueEnum};
use mcsparse_lab::device::DType;
use mcsparse_lab::method_options::{MethodOptions, count, number};

use crate::shape::ModelName;

/// The attention that the blocks run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Method {
    /// Dense attention at every step, by the kernel that MC-Sparse runs on its own dense steps.
    Dense,
    /// MC-Sparse.
    McSparse,
    /// One after the other from the same noise, and the difference.
    Both,
}

/// Denoises latents with the weights of a video transformer.
///
/// In: a folder of weights (Wan 2.1 and 2.2, HunyuanVideo, HunyuanVideo-1.5, MiniMax-H3) and text embeddings. Out:
/// latents, for the decoder that belongs to the model. Says what memory it will take before it starts, and goes on
/// where it was interrupted. The device is the first that Burn finds; BURN_DEVICE names another.
#[derive(Debug, Clone, Parser)]
#[command(name = "generate", version)]
pub struct Options {
    /// Where the weights come from
    #[command(flatten)]
    pub source: Source,

    /// Text embeddings, a safetensors file with `text` [1, tokens, size] and what else the model takes (README.md)
    #[arg(long, value_name = "FILE", required_unless_present_any = ["random", "write_random", "random_conditions"])]
    pub conditions: Option<PathBuf>,

    /// Random conditions, for measurements with weights from files
    #[arg(long, conflicts_with = "conditions")]
    pub random_conditions: bool,

    /// Folder for latents, the report and the state of an unfinished run
    #[arg(long, value_name = "DIR", default_value = "out/generate")]
    pub out: PathBuf,

    /// Width and height of the video in pixels [default: that of the model]
    #[arg(long, value_name = "WxH", value_parser = size)]
    pub size: Option<[usize; 2]>,

    /// Frames of the video [default: those of the model]
    #[arg(long, value_name = "N", value_parser = count)]
    pub frames: Option<usize>,

    /// Denoising steps [default: those of the model]
    #[arg(long, value_name = "N", value_parser = count)]
    pub steps: Option<usize>,

    /// Guidance: of two forwards, or of a model that was distilled with it [default: that of the model]
    #[arg(long, value_name = "SCALE", value_parser = number)]
    pub guidance: Option<f64>,

    /// How far noise levels are moved towards 1 [default: that of the model]
    #[arg(long, value_name = "SHIFT", value_parser = number)]
    pub shift: Option<f64>,

    /// Seed of the noise, and of random weights and conditions
    #[arg(long, default_value_t = 0)]
    pub seed: u64,

    /// Float type of the transformer
    #[arg(long, value_enum, default_value_t = DType::Bf16)]
    pub dtype: DType,

    /// The attention of the blocks
    #[arg(long, value_enum, default_value_t = Method::McSparse)]
    pub method: Method,

    /// Share of the keys that each group of queries keeps, above 0 and at most 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.2, value_parser = number)]
    pub density: f64,

    /// Queries in a group
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = count)]
    pub group_size: usize,

    /// Dense steps at the start, the last of them an anchor [default: a fifth of all]
    #[arg(long, value_name = "STEPS")]
    pub warm_up: Option<usize>,

    /// Refresh the cache every so many steps after the warm-up
    #[arg(long, value_name = "STEPS", value_parser = count)]
    pub every: Option<usize>,

    // A comment of the documentation would be printed as help.
    #[allow(missing_docs)]
    #[command(flatten)]
    pub method_options: MethodOptions,

    /// Leave the first layer to MC-Sparse too; by default it is dense
    #[arg(long)]
    pub all_layers: bool,

    /// Memory that the run may take; more than that is refused before anything is loaded [default on a CPU: what is free]
    #[arg(long, value_name = "GIB", value_parser = number)]
    pub memory: Option<f64>,

    /// Keep the state every so many steps, to go on from after an interruption; 0 for never
    #[arg(long, value_name = "STEPS", default_value_t = 10)]
    pub save_every: usize,

    /// Say what would run and what memory it takes, and stop
    #[arg(long)]
    pub dry_run: bool,

    /// Do not run a step of every kind beforehand, in which kernels are compiled
    #[arg(long)]
    pub no_rehearsal: bool,

    /// Print the tables only
    #[arg(long)]
    pub quiet: bool,
}

/// Where weights come from.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = false)]
pub struct Source {
    /// Folder with `config.json` and safetensors, as diffusers keeps a transformer, or one with `transformer` (and for Wan
    /// 2.2 A14B `transformer_2`) in it
    #[arg(long, value_name = "DIR")]
    pub weights: Option<PathBuf>,

    /// A named model with random weights, made on the device: for measurements
    #[arg(long, value_enum, value_name = "NAME")]
    pub random: Option<ModelName>,

    /// Write a checkpoint with random values for a named model to --out, and stop
    #[arg(long, value_enum, value_name = "NAME")]
    pub write_random: Option<ModelName>,
}

fn size(text: &str) -> Result<[usize; 2], String> {
    let sides = text.split_once('x').and_then(|(w, h)| Some([w.trim().parse().ok()?, h.trim().parse().ok()?]));
    sides.filter(|sides| !sides.contains(&0)).ok_or_else(|| format!("expected width and height as 832x480, got {text}"))
}
