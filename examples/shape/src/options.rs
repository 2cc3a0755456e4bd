//! The command line.

use std::path::PathBuf;

use clap::Parser;
use denoise::options::{List, MethodOptions, count, number, whole};
use mcsparse_dit::pretrained;
use mcsparse_lab::device::{DType, DeviceName};
use mcsparse_lab::presets::SHAPE;

/// Denoises one shape twice from the same noise, with dense attention and with MC-Sparse, and compares.
///
/// The shape model sees two depth views of a solid and makes a volume of 64 x 64 x 64 voxels. Without options this runs on
/// the CPU; it prints a table and writes shapes.png, dense.obj, mc-sparse.obj and report.json.
#[derive(Debug, Clone, Parser)]
#[command(name = "shape", version)]
pub struct Options {
    /// Where to run; only devices whose cargo feature was compiled in work
    #[arg(long, value_enum, default_value_t = DeviceName::first_compiled())]
    pub device: DeviceName,

    /// Float type of the network
    #[arg(long, value_enum, default_value_t = DType::F32)]
    pub dtype: DType,

    /// The solid whose views the model sees, none of which it was trained on; --list-solids prints the names
    #[arg(long, value_name = "NAME", default_value = SHAPE.defaults.condition)]
    pub solid: String,

    /// Depth view from the front in place of a solid by name: 64 x 64 pixels, 255 near, 64 far, 0 where there is nothing
    #[arg(long, value_name = "IMAGE", requires = "left", conflicts_with = "solid")]
    pub front: Option<PathBuf>,

    /// Depth view from the left
    #[arg(long, value_name = "IMAGE", requires = "front", conflicts_with = "solid")]
    pub left: Option<PathBuf>,

    /// Denoising steps
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true, default_value_t = SHAPE.defaults.steps)]
    pub steps: usize,

    /// Share of the keys that each group of queries keeps, above 0 and at most 1
    #[arg(long, value_name = "SHARE", value_parser = number, allow_negative_numbers = true, default_value_t = SHAPE.defaults.density)]
    pub density: f64,

    /// Queries in a group
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true, default_value_t = SHAPE.defaults.group_size)]
    pub group_size: usize,

    /// Dense steps at the start, the last of them an anchor [default: a fifth of the steps]
    #[arg(long, value_name = "STEPS", value_parser = whole, allow_negative_numbers = true)]
    pub warm_up: Option<usize>,

    /// The steps that refresh the cache, counted from 0, for example 3,11
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
    #[arg(long, value_name = "SCALE", value_parser = number, allow_negative_numbers = true, default_value_t = SHAPE.defaults.guidance)]
    pub guidance: f64,

    /// Seed of the noise, which is the same on every device
    #[arg(long, default_value_t = 0)]
    pub seed: u64,

    /// Layers that MC-Sparse leaves dense, counted from 0, or none
    #[arg(long, value_name = "LAYERS", allow_negative_numbers = true, default_value = "0")]
    pub dense_layers: List,

    /// Folder with the weights [default: those of this repository]
    #[arg(long, value_name = "DIR", default_value = pretrained::folder().as_os_str(), hide_default_value = true)]
    pub weights: PathBuf,

    /// Folder for the files
    #[arg(long, value_name = "DIR", default_value = "out/shape")]
    pub out: PathBuf,

    /// Print the table only: no progress, no remarks
    #[arg(long)]
    pub quiet: bool,

    /// Print the names of the solids and stop
    #[arg(long)]
    pub list_solids: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_well_formed() {
        use clap::CommandFactory;
        Options::command().debug_assert();
        let options = Options::try_parse_from(["shape"]).unwrap();
        assert_eq!((options.steps, options.dense_layers), (20, List(vec![0])));
    }

    #[test]
    fn refusals_name_option_expectation_and_value() {
        for (arguments, parts) in [
            (["--steps", "0"], ["--steps", "at least 1, got 0"]),
            (["--density", "much"], ["--density", "expected a number, got much"]),
            (["--anchors", "9;25"], ["--anchors", "got 9;25"]),
            (["--front", "a.png"], ["--left", "required"]),
            (["--device", "tpu"], ["--device", "flex"]),
        ] {
            let message = Options::try_parse_from(["shape"].iter().chain(&arguments)).unwrap_err().to_string();
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        }
    }
}
