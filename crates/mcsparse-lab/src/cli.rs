//! The command line.

use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand};
use mcsparse_dit::pretrained;

use crate::{
    device::{DType, DeviceName},
    error::Error,
    experiment::{
        drift, lists, oracles,
        record::Record,
        report::{self, Page},
        runner, shapes,
        study::{Settings, Study},
    },
    findings,
    presets::{SHAPE, Size},
    probe::{self, Axes},
};

/// Measures sparse attention for video diffusion transformers: MC-Sparse, its parts, its rivals at matched density.
///
/// Every experiment denoises clips with the shipped model from the same noise as dense attention, and writes NAME.json, NAME.md
/// and plots to the folder for files. Run again it continues where it stopped.
#[derive(Debug, Clone, Parser)]
#[command(name = "mcsparse-lab", version)]
pub struct Cli {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// The paper's five rows, one idea more in each, and the residual on weaker selections
    Ablation(Common),
    /// MC-Sparse against rivals at matched density
    Versus {
        /// What experiments share
        #[command(flatten)]
        common: Common,
        /// Every rival once more with a residual
        #[arg(long)]
        residual: bool,
    },
    /// Where attention weight is lost: binding, selection, tail
    Oracles(Common),
    /// How residual, choice and output age after an anchor
    Drift(Common),
    /// Dense steps and anchors against quality
    Schedule(Common),
    /// Runs of few steps
    Fewstep {
        /// What experiments share
        #[command(flatten)]
        common: Common,
        /// Numbers of steps
        #[arg(long, value_delimiter = ',', default_value = "4,8,16,50")]
        counts: Vec<usize>,
    },
    /// Changes to MC-Sparse at equal work
    Improve {
        /// What experiments share
        #[command(flatten)]
        common: Common,
        /// Other clips on which the gain by layer and age is fitted; 0 leaves it out
        #[arg(long, default_value_t = 4)]
        fit: usize,
    },
    /// MC-Sparse and rivals on the shape model: Chamfer distance, IoU and F-score
    Shapes(ShapesArgs),
    /// Query, key and value of any model: kept weight, errors, a suggested density
    Probe(ProbeArgs),
    /// Writes docs/findings.md from the records
    Findings {
        /// Folder with the records
        #[arg(long, value_name = "DIR", default_value = "out/lab")]
        from: PathBuf,
        /// Folder for the page and its pictures
        #[arg(long, value_name = "DIR", default_value = "docs")]
        docs: PathBuf,
        /// Where the records were made, for the page: "2 cores of ..."
        #[arg(long, value_name = "TEXT")]
        machine: Option<String>,
    },
}

/// What experiments share.
#[derive(Debug, Clone, Args)]
pub struct Common {
    /// Where to run; only devices whose cargo feature was compiled in work
    #[arg(long, value_enum, default_value_t = DeviceName::first_compiled())]
    pub device: DeviceName,
    /// Float type of the network
    #[arg(long, value_enum, default_value_t = DType::F32)]
    pub dtype: DType,
    /// The shipped model
    #[arg(long, value_enum, default_value_t = Size::Nano)]
    pub size: Size,
    /// Clips; conditions take turns, and each has a noise of its own
    #[arg(long, default_value_t = 16)]
    pub clips: usize,
    /// Clips that are denoised together
    #[arg(long, default_value_t = 8)]
    pub batch: usize,
    /// Seed of the first clip's noise
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Denoising steps [default: 20]
    #[arg(long)]
    pub steps: Option<usize>,
    /// Shares of the keys on reuse steps, with commas between them [default: those of the experiment]
    #[arg(long, value_delimiter = ',', value_name = "SHARES")]
    pub densities: Option<Vec<f64>>,
    /// Queries in a group and keys in a block [default: 128 for small, 32 for nano]
    #[arg(long)]
    pub group_size: Option<usize>,
    /// Keys in a smaller block [default: half of it]
    #[arg(long)]
    pub small_block: Option<usize>,
    /// Weights of LPIPS; docs/lab.md says how to make the file
    #[arg(long, value_name = "FILE")]
    pub lpips: Option<PathBuf>,
    /// Only the arms whose name begins so; a record holds those of several runs
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub only: Option<Vec<String>>,
    /// Folder with the weights [default: those of this repository]
    #[arg(long, value_name = "DIR", default_value = pretrained::folder().as_os_str(), hide_default_value = true)]
    pub weights: PathBuf,
    /// Folder for the files
    #[arg(long, value_name = "DIR", default_value = "out/lab")]
    pub out: PathBuf,
    /// Print the tables only
    #[arg(long)]
    pub quiet: bool,
}

/// What to make shapes with.
#[derive(Debug, Clone, Args)]
pub struct ShapesArgs {
    /// Where to run; only devices whose cargo feature was compiled in work
    #[arg(long, value_enum, default_value_t = DeviceName::first_compiled())]
    pub device: DeviceName,
    /// Float type of the network
    #[arg(long, value_enum, default_value_t = DType::F32)]
    pub dtype: DType,
    /// Shapes; solids take turns, and each has a noise of its own
    #[arg(long, default_value_t = 16)]
    pub shapes: usize,
    /// Shapes that are denoised together
    #[arg(long, default_value_t = 4)]
    pub batch: usize,
    /// Seed of the first shape's noise
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Denoising steps
    #[arg(long, default_value_t = SHAPE.defaults.steps)]
    pub steps: usize,
    /// Shares of the keys on reuse steps, with commas between them
    #[arg(long, value_delimiter = ',', value_name = "SHARES", default_value = "0.1,0.15,0.2,0.3,0.5")]
    pub densities: Vec<f64>,
    /// Queries in a group and keys in a block
    #[arg(long, default_value_t = SHAPE.defaults.group_size)]
    pub group_size: usize,
    /// Folder with the weights [default: those of this repository]
    #[arg(long, value_name = "DIR", default_value = pretrained::folder().as_os_str(), hide_default_value = true)]
    pub weights: PathBuf,
    /// Folder for the files
    #[arg(long, value_name = "DIR", default_value = "out/lab")]
    pub out: PathBuf,
    /// Print the tables only
    #[arg(long)]
    pub quiet: bool,
}

/// What to probe.
#[derive(Debug, Clone, Args)]
pub struct ProbeArgs {
    /// Safetensors file with NAME.q, NAME.k and NAME.v, a part stepN in the name for several steps
    pub file: PathBuf,
    /// Where to run
    #[arg(long, value_enum, default_value_t = DeviceName::first_compiled())]
    pub device: DeviceName,
    /// Order of four axes: heads before tokens or tokens before heads
    #[arg(long, value_enum, default_value_t = Axes::Heads)]
    pub axes: Axes,
    /// Shares of the keys to try
    #[arg(long, value_delimiter = ',', default_value = "0.05,0.1,0.15,0.2,0.25,0.35,0.5")]
    pub densities: Vec<f64>,
    /// Queries in a group and keys in a block
    #[arg(long, default_value_t = 128)]
    pub group_size: usize,
    /// Keys in a smaller block
    #[arg(long, default_value_t = 64)]
    pub small_block: usize,
    /// Tokens along frames, rows and columns, for methods that go by position; as they come if unknown
    #[arg(long, value_delimiter = ',', num_args = 3, requires = "tile")]
    pub grid: Option<Vec<usize>>,
    /// A box of tokens of a group's size
    #[arg(long, value_delimiter = ',', num_args = 3, requires = "grid")]
    pub tile: Option<Vec<usize>>,
    /// Factor on the scores [default: 1 / sqrt(head_dim)]
    #[arg(long, allow_negative_numbers = true)]
    pub scale: Option<f64>,
    /// Relative error of the attention output that may be
    #[arg(long, default_value_t = 0.1)]
    pub target: f64,
    /// Layers of the whole model, for the size of the cache [default: those of the file]
    #[arg(long)]
    pub layers: Option<usize>,
    /// Guidance branches, for the size of the cache
    #[arg(long, default_value_t = 1)]
    pub branches: usize,
    /// File for outputs and indices of MC-Sparse at the suggested density
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Folder for the report
    #[arg(long, value_name = "DIR", default_value = "out/probe")]
    pub out: PathBuf,
}

impl Common {
    fn study(&self, densities: &[f64]) -> Result<Study, Error> {
        let defaults = &self.size.preset().defaults;
        let group_size = self.group_size.unwrap_or(defaults.group_size);
        let settings = Settings {
            size: self.size,
            device: self.device,
            dtype: self.dtype,
            clips: self.clips,
            batch: self.batch,
            seed: self.seed,
            steps: self.steps.unwrap_or(defaults.steps),
            densities: self.densities.clone().unwrap_or_else(|| densities.to_vec()),
            group_size,
            small_block: self.small_block.unwrap_or((group_size / 2).max(1)),
            lpips: None,
        };
        Study::open(settings, &self.weights, self.lpips.as_ref(), self.quiet)
    }

    fn compare(
        &self,
        name: &str,
        title: &str,
        study: &Study,
        mut arms: Vec<super::experiment::arms::Arm>,
    ) -> Result<(), Error> {
        if let Some(only) = &self.only {
            arms.retain(|arm| arm.id == lists::FLOOR || only.iter().any(|begin| arm.id.starts_with(begin)));
            if arms.iter().all(|arm| arm.id == lists::FLOOR) {
                return Err(Error::option("--only", "the beginning of an arm's name", only.join(",")));
            }
        }
        let record = runner::run(name, &arms, study, &self.out)?;
        self.show(name, title, &report::arms(&record, &self.out, "")?)
    }

    fn show(&self, name: &str, title: &str, page: &Page) -> Result<(), Error> {
        show(page, name, title, &self.out, self.quiet)
    }
}

/// Writes the page of an experiment beside its record, and prints it.
fn show(page: &Page, name: &str, title: &str, out: &Path, quiet: bool) -> Result<(), Error> {
    report::write(page, title, out, name)?;
    println!("{}", page.text);
    if !quiet {
        eprintln!("wrote {name}.json, {name}.md and plots to {}", out.display());
    }
    Ok(())
}

/// Runs the program.
///
/// # Errors
///
/// [`Error::Option`] for options that cannot be used, [`Error::Run`] for anything that fails afterwards.
pub fn start(cli: &Cli) -> Result<(), Error> {
    match &cli.command {
        Command::Ablation(common) => {
            let study = common.study(&[0.2])?;
            common.compare("ablation", "Ablation", &study, lists::ablation(&study.settings))
        }
        Command::Versus { common, residual } => {
            let study = common.study(&[0.1, 0.15, 0.25, 0.5])?;
            common.compare("versus", "Rivals at matched density", &study, lists::versus(&study.settings, *residual))
        }
        Command::Schedule(common) => {
            let study = common.study(&[0.15])?;
            common.compare("schedule", "Schedules", &study, lists::schedule(&study.settings))
        }
        Command::Fewstep { common, counts } => {
            let study = common.study(&[0.25])?;
            if let Some(few) = counts.iter().find(|&&count| count < 2) {
                return Err(Error::option("--counts", "numbers of at least 2 steps", few));
            }
            common.compare("fewstep", "Few steps", &study, lists::fewstep(&study.settings, counts))
        }
        Command::Improve { common, fit } => {
            let study = common.study(&[0.15])?;
            let fitted = study.clips_for_fitting(*fit);
            let law = match fitted.as_slice() {
                [] => None,
                clips => Some(drift::law(&study, clips, study.settings.densities[0])?),
            };
            let arms = [lists::curve(&study.settings), lists::improve(&study.settings, law)].concat();
            common.compare("improve", "Changes to MC-Sparse", &study, arms)
        }
        Command::Oracles(common) => {
            let study = common.study(&[0.15, 0.25])?;
            let record: Record<_> = oracles::run(&study, &common.out)?;
            common.show("oracles", "Where attention weight is lost", &report::oracles(&record, &common.out, "")?)
        }
        Command::Drift(common) => {
            let study = common.study(&[0.15])?;
            let record = drift::run(&study, &common.out)?;
            common.show("drift", "How an anchor ages", &report::drift(&record, &common.out, "")?)
        }
        Command::Shapes(args) => {
            let settings = shapes::ShapeSettings {
                device: args.device,
                dtype: args.dtype,
                shapes: args.shapes,
                batch: args.batch,
                seed: args.seed,
                steps: args.steps,
                densities: args.densities.clone(),
                group_size: args.group_size,
            };
            let study = shapes::ShapeStudy::open(settings, &args.weights, args.quiet)?;
            let page = shapes::page(&shapes::run(&study, &args.out)?, &args.out)?;
            show(&page, "shapes", "Shapes", &args.out, args.quiet)
        }
        Command::Probe(args) => {
            args.device.check()?;
            let three =
                |list: &Option<Vec<usize>>| list.as_ref().and_then(|list| <[usize; 3]>::try_from(list.as_slice()).ok());
            let options = probe::Options {
                file: args.file.clone(),
                axes: args.axes,
                densities: args.densities.clone(),
                group_size: args.group_size,
                small_block: args.small_block,
                grid: three(&args.grid).zip(three(&args.tile)),
                scale: args.scale,
                target: args.target,
                layers: args.layers,
                branches: args.branches,
                out: args.out.clone(),
                save: args.save.clone(),
            };
            println!("{}", probe::run(&options, &args.device.open(DType::F32)?)?);
            Ok(())
        }
        Command::Findings { from, docs, machine } => findings::write(from, docs, machine.as_deref()),
    }
}
