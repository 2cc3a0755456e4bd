//! Times one block of a diffusion transformer at the shape of a real model, dense and with MC-Sparse, and says what a
//! denoising run comes to.
//!
//! [`start`] is the whole program: options are checked ([`settings`]), a block with random weights is made ([`block`],
//! [`inputs`]), sampled rows are compared with sums in f64 ([`check`]), everything is timed ([`measure`]), and a run is added
//! up or really run ([`run`]).

pub mod block;
pub mod check;
pub mod clock;
pub mod devices;
pub mod inputs;
pub mod measure;
pub mod memory;
pub mod options;
pub mod plot;
pub mod report;
pub mod rotary;
pub mod run;
pub mod settings;
pub mod shape;
pub mod steps;
pub mod table;

use std::time::Duration;

use denoise::{Error, files};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use mcsparse::MetaCache;

use block::Block;
use measure::Bench;
use memory::Estimate;
use report::{CacheReport, Report, TransferReport};
use settings::Settings;
use steps::Kind;

pub use options::Options;

/// Runs the program.
///
/// # Errors
///
/// [`Error::Option`] for options that cannot be used, found before anything is made; [`Error::Run`] for what fails
/// afterwards.
pub fn start(options: &Options) -> Result<(), Error> {
    let settings = Settings::resolve(options)?;
    let estimate = Estimate::of(&settings, options.full)?;
    if options.dry_run || !options.quiet {
        eprintln!("memory: about {estimate}");
    }
    estimate.check(settings.memory)?;
    if options.dry_run {
        return Ok(());
    }
    files::writable_folder(&options.out)?;
    let device = options.device.open(settings.dtype)?;
    let bar = progress(&settings, options);
    bar.set_message("weights");
    let attracted = settings.inputs == options::Inputs::Structured;
    let block = Block::new(&settings.shape, settings.dtype.burn(), attracted, &device);
    let x = inputs::hidden(&settings.shape, settings.inputs, settings.dtype.burn(), &device);
    let bench = Bench { settings: &settings, device: &device, block: &block, x: &x, bar: &bar };
    if options.check {
        bar.set_message("check");
        check::check(&bench)?;
        bar.inc(1);
    }
    let parts = bench.parts()?;
    let kinds = bench.kinds()?;
    let (stages, cache) = bench.stages()?;
    let scaling = match options.devices {
        1 => Vec::new(),
        count => bench.scaling(&devices::several(options.device, count, &device)?)?,
    };
    let cache = cache_report(&cache, &settings)?;
    let measured = options.full.then(|| run::full(&settings, &device, &block, &x, &bar)).transpose()?;
    bar.finish_and_clear();
    let run = run::summarize(&settings, &kinds, measured.map(|(times, _)| times))?;
    let transfers = measured.and_then(|(_, transfers)| TransferReport::of(transfers));
    let peak = device.memory_pool_usage().map(|usage| usage.bytes_reserved).filter(|&bytes| bytes > 0);
    let report = Report::new(options, &settings, parts, kinds, stages, scaling, cache, estimate, peak, run, transfers);

    let (json, svg) = (options.out.join("block.json"), options.out.join("block.svg"));
    let text = serde_json::to_string_pretty(&report).map_err(|error| Error::run("the report", error))?;
    files::write_whole(&json, (text + "\n").as_bytes())?;
    plot::plot(&report, &svg)?;
    println!("{}", table::table(&report));
    if !options.quiet {
        eprintln!("wrote {} and {}", json.display(), svg.display());
    }
    Ok(())
}

/// The cache that an anchor left, and what all layers and branches would have.
fn cache_report(cache: &MetaCache, settings: &Settings) -> Result<CacheReport, Error> {
    let slot = cache.slots().first().ok_or_else(|| Error::run("the cache", "no anchor filled it"))?;
    let (bytes, shape) = (slot.bytes(), &settings.shape);
    Ok(CacheReport {
        order_bytes: bytes.order,
        index_bytes: bytes.indices,
        index_format: slot.index_format().to_string(),
        residual_bytes: bytes.residual,
        residual_format: slot.residual_format().to_string(),
        layer_bytes: bytes.total(),
        total_bytes: bytes.total() * (shape.layers - settings.dense_layers()) * shape.branches,
    })
}

fn progress(settings: &Settings, options: &Options) -> ProgressBar {
    let parts = 6 + usize::from(settings.shape.cross_text > 0);
    let runs = if options.full { 2 * settings.shape.steps } else { 0 };
    // 1, 2, 4 and so on, and all of them, two times each.
    let scaling = if options.devices > 1 { 2 * ((options.devices - 1).ilog2() as usize + 2) } else { 0 };
    let total = usize::from(options.check) + parts + 2 * Kind::ALL.len() + 1 + scaling + runs;
    // Indicatif draws to terminals only, so logs stay clean.
    let target = if options.quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {elapsed} {msg}").expect("a valid template");
    let bar = ProgressBar::with_draw_target(Some(total as u64), target).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}
