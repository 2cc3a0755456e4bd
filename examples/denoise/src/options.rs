//! The command line.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Parser, ValueEnum};
use mcsparse::{IndexFormat, ResidualFormat};
use mcsparse_dit::pretrained;
pub use mcsparse_lab::method_options::{MethodOptions, SelectBy, count, number, whole};
use serde::Serialize;

use crate::device::{DType, DeviceName};
use crate::overview::overview;
use crate::presets::{DEFAULT_SIZE, Size};

/// The method that denoises the dense clip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Baseline {
    /// The dense attention of mcsparse: the kernel that MC-Sparse itself runs on its dense steps.
    Ours,
    /// Burn's own attention.
    Burn,
}

/// The solver that walks from noise to clip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SamplerName {
    /// Flow-matching Euler, the sampler of the shipped model.
    Euler,
    /// UniPC of second order, the sampler of Wan.
    Unipc,
}

/// Which implementations of the stages may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KernelsName {
    /// The fastest that the device has.
    Auto,
    /// Tensor operations only.
    Reference,
}

/// How the kept keys are cached between steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyForm {
    /// The smallest of the others for the budget.
    Smallest,
    /// 32-bit indices.
    Plain,
    /// 16-bit offsets within blocks of 65,536 keys.
    Offsets,
    /// A bit for each key.
    Bitmap,
}

impl KeyForm {
    /// As the library names it.
    pub fn format(self) -> Option<IndexFormat> {
        match self {
            Self::Smallest => None,
            Self::Plain => Some(IndexFormat::Plain),
            Self::Offsets => Some(IndexFormat::Offsets),
            Self::Bitmap => Some(IndexFormat::Bitmap),
        }
    }
}

/// How residuals are cached between steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ResidualForm {
    /// In the float type of the network.
    Input,
    /// 8-bit floats, e4m3, with a scale for each token.
    Fp8,
    /// 8-bit integers with a scale for each token.
    Int8,
}

impl ResidualForm {
    /// As the library names it.
    pub fn format(self) -> ResidualFormat {
        match self {
            Self::Input => ResidualFormat::Input,
            Self::Fp8 => ResidualFormat::Fp8,
            Self::Int8 => ResidualFormat::Int8,
        }
    }
}

/// Whole numbers with commas between them, or `none`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct List(pub Vec<usize>);

/// Denoises one clip twice from the same noise, with dense attention and with MC-Sparse, and compares.
///
/// Without options it runs the shipped model on the CPU. It prints a table and writes side-by-side.gif,
/// contact-sheet.png and report.json.
#[derive(Debug, Clone, Parser)]
#[command(name = "denoise", version, after_help = overview())]
pub struct Options {
    /// Where to run; only devices whose cargo feature was compiled in work
    #[arg(long, value_enum, default_value_t = DeviceName::first_compiled())]
    pub device: DeviceName,

    /// Float type of the network
    #[arg(long, value_enum, default_value_t = DType::F32)]
    pub dtype: DType,

    /// The shipped model to run
    #[arg(long, value_enum, default_value_t = DEFAULT_SIZE)]
    pub size: Size,

    /// What to denoise; --list-conditions prints the names
    #[arg(long, value_name = "NAME")]
    pub condition: Option<String>,

    /// Image that the clip begins with, in place of a condition by name: PNG or GIF, cut to a square
    #[arg(long, value_name = "IMAGE", requires = "last", conflicts_with = "condition")]
    pub first: Option<PathBuf>,

    /// Image that the clip ends with
    #[arg(long, value_name = "IMAGE", requires = "first", conflicts_with = "condition")]
    pub last: Option<PathBuf>,

    /// The first frames of the clip only; the model was trained on all and does worse on fewer
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub frames: Option<usize>,

    /// Denoising steps
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub steps: Option<usize>,

    /// Share of the keys that each group of queries keeps, above 0 and at most 1
    #[arg(long, value_name = "SHARE", value_parser = number, allow_negative_numbers = true, conflicts_with = "keys")]
    pub density: Option<f64>,

    /// Number of keys that each group of queries keeps
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub keys: Option<usize>,

    /// Queries in a group
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub group_size: Option<usize>,

    /// Dense steps at the start, the last of them an anchor
    #[arg(long, value_name = "STEPS", value_parser = whole, allow_negative_numbers = true)]
    pub warm_up: Option<usize>,

    /// The steps that refresh the cache, counted from 0, for example 9,25
    #[arg(long, value_name = "STEPS", allow_negative_numbers = true, conflicts_with = "every")]
    pub anchors: Option<List>,

    /// Refresh the cache every so many steps after the warm-up
    #[arg(long, value_name = "STEPS", value_parser = count, allow_negative_numbers = true)]
    pub every: Option<usize>,

    // A comment of the documentation would be printed as help.
    #[allow(missing_docs)]
    #[command(flatten)]
    pub method: MethodOptions,

    /// Classifier-free guidance, at least 1; 1 is none and halves the work
    #[arg(long, value_name = "SCALE", value_parser = number, allow_negative_numbers = true)]
    pub guidance: Option<f64>,

    /// Seed of the noise, which is the same on every device
    #[arg(long, default_value_t = 0)]
    pub seed: u64,

    /// How to walk from noise to clip
    #[arg(long, value_enum, default_value_t = SamplerName::Euler)]
    pub sampler: SamplerName,

    /// Layers that MC-Sparse leaves dense, counted from 0, or none
    #[arg(long, value_name = "LAYERS", allow_negative_numbers = true, default_value = "0")]
    pub dense_layers: List,

    /// The dense attention that MC-Sparse is compared with
    #[arg(long, value_enum, default_value_t = Baseline::Ours)]
    pub baseline: Baseline,

    /// Kernels of the device, or tensor operations only
    #[arg(long, value_enum, default_value_t = KernelsName::Auto)]
    pub kernels: KernelsName,

    /// How the kept keys are cached; all forms are exact
    #[arg(long, value_enum, default_value_t = KeyForm::Smallest)]
    pub key_form: KeyForm,

    /// How residuals are cached; the 8-bit forms round them
    #[arg(long, value_enum, default_value_t = ResidualForm::Input)]
    pub residual_form: ResidualForm,

    /// Folder with the weights [default: those of this repository]
    #[arg(long, value_name = "DIR", default_value = pretrained::folder().as_os_str(), hide_default_value = true)]
    pub weights: PathBuf,

    /// Folder for the files
    #[arg(long, value_name = "DIR", default_value = "out/denoise")]
    pub out: PathBuf,

    /// File for the numbers [default: report.json in the folder for the files]
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Print the table only: no progress, no remarks
    #[arg(long)]
    pub quiet: bool,

    /// Print the names of the conditions and stop
    #[arg(long)]
    pub list_conditions: bool,
}

impl FromStr for List {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(Vec::new()));
        }
        let all: Result<_, _> = text.split(',').map(whole).collect();
        all.map(Self).map_err(|_| format!("expected whole numbers with commas between them, or none; got {text}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(arguments: &[&str]) -> String {
        let all = ["denoise"].iter().chain(arguments);
        Options::try_parse_from(all).unwrap_err().to_string()
    }

    #[test]
    fn the_command_is_well_formed() {
        use clap::CommandFactory;
        Options::command().debug_assert();
        let options = Options::try_parse_from(["denoise"]).unwrap();
        assert_eq!((options.size, options.dense_layers), (DEFAULT_SIZE, List(vec![0])));
    }

    #[test]
    fn lists() {
        assert_eq!("9, 25".parse(), Ok(List(vec![9, 25])));
        assert_eq!("none".parse(), Ok(List(vec![])));
        assert!("9,x".parse::<List>().unwrap_err().ends_with("got 9,x"));
        assert!("".parse::<List>().is_err());
    }

    #[test]
    fn refusals_name_option_expectation_and_value() {
        for (arguments, parts) in [
            (["--steps", "0"], ["--steps", "at least 1, got 0"]),
            (["--steps", "-4"], ["--steps", "at least 1, got -4"]),
            (["--density", "much"], ["--density", "expected a number, got much"]),
            (["--guidance", "NaN"], ["--guidance", "expected a number, got NaN"]),
            (["--warm-up", "1.5"], ["--warm-up", "at least 0, got 1.5"]),
            (["--anchors", "9;25"], ["--anchors", "got 9;25"]),
            (["--drift-bound", "far"], ["--drift-bound", "expected a number, got far"]),
            (["--tail-block", "0"], ["--tail-block", "at least 1, got 0"]),
            (["--size", "huge"], ["--size", "small, nano"]),
            (["--sampler", "ddim"], ["--sampler", "euler, unipc"]),
            (["--device", "tpu"], ["--device", "flex"]),
        ] {
            let message = message(&arguments);
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        }
        let both = message(&["--density", "0.1", "--keys", "4"]);
        assert!(both.contains("--density") && both.contains("--keys"), "{both}");
        let both = message(&["--anchors", "1", "--every", "4"]);
        assert!(both.contains("--anchors") && both.contains("--every"), "{both}");
    }
}
