//! Denoises one clip twice from the same noise, with dense attention and with MC-Sparse, and compares the two.
//!
//! [`start`] is the whole program. Options are checked together ([`settings`]) before anything is loaded; [`run`] does the
//! two runs; [`metrics`], which come from the lab, compare the clips; [`table`], [`report`] and [`media`] say and show what came out.

pub mod condition;
pub mod images;
pub mod media;
pub mod method;
pub mod model;
pub mod options;
pub mod overview;
pub mod report;
pub mod run;
pub mod settings;
pub mod table;

use std::path::PathBuf;

pub use mcsparse_lab::{clip, device, error, files, metrics, noise, presets, program};

use clip::Clip;
use condition::Condition;
use images::Images;
use media::Panel;
use report::{Quality, Report, ToReal};
use run::Job;
use settings::Settings;

pub use error::Error;
pub use options::Options;

/// How much differences are amplified to be seen.
const GAIN: f32 = 5.0;

/// Runs the program.
///
/// # Errors
///
/// [`Error::Option`] for options that cannot be used, found before weights are loaded or a folder is made;
/// [`Error::Run`] for anything that fails afterwards.
pub fn start(options: &Options) -> Result<(), Error> {
    let settings = Settings::resolve(options)?;
    let conditions = condition::open(&options.weights)?;
    if options.list_conditions {
        for name in conditions.names(settings.preset.name) {
            println!("{name}{}", if conditions.has_clip(&name) { " (with a real clip)" } else { "" });
        }
        return Ok(());
    }
    condition::check(&conditions, &settings)?;
    let images = Images::read(&settings)?;
    // The long run comes last: whatever can fail has its chance before.
    let json = options.json.clone().unwrap_or_else(|| options.out.join("report.json"));
    files::writable_folder(&options.out)?;
    files::writable_folder(files::folder_of(&json))?;
    files::no_folder(&json)?;
    let device = options.device.open(options.dtype)?;
    let model = model::load(&settings, &device)?;
    let condition = match images {
        Some(images) => Condition { tokens: images.tokens(&model, &device)?, clip: None },
        None => Condition::load(&conditions, &settings, &device)?,
    };
    remark(options, format_args!("{} tokens, steps {}", settings.tokens, settings.plan));

    let job = Job::new(&settings, &device, &model, condition.tokens);
    let (dense, sparse) = (job.dense()?, job.sparse()?);
    let quality = Quality {
        psnr: metrics::psnr(&sparse.clip, &dense.clip),
        ssim: metrics::ssim(&sparse.clip, &dense.clip),
        to_real: condition
            .clip
            .as_ref()
            .map(|real| ToReal { dense: metrics::psnr(&dense.clip, real), sparse: metrics::psnr(&sparse.clip, real) }),
    };
    let mut written = show(&settings, &dense.clip, &sparse.clip, condition.clip.as_ref())?;
    let report = Report::new(&settings, quality, dense.report, sparse.report);
    let text = serde_json::to_string_pretty(&report).map_err(|error| Error::run("the report", error))?;
    files::write_whole(&json, (text + "\n").as_bytes())?;
    written.push(json);

    println!("{}", table::table(&report));
    if report.dense.stages_timed_apart {
        remark(
            options,
            format_args!("Stages were timed in runs of their own, as waiting for the device slows it down."),
        );
    }
    for path in written {
        remark(options, format_args!("wrote {}", path.display()));
    }
    Ok(())
}

/// Writes what is to be looked at.
fn show(settings: &Settings, dense: &Clip, sparse: &Clip, real: Option<&Clip>) -> Result<Vec<PathBuf>, Error> {
    let difference = sparse.difference(dense, GAIN);
    let gain = format!("difference x {GAIN}");
    let mut panels = vec![
        Panel { caption: "dense", clip: dense },
        Panel { caption: "MC-Sparse", clip: sparse },
        Panel { caption: &gain, clip: &difference },
    ];
    let (gif, sheet) = (settings.options.out.join("side-by-side.gif"), settings.options.out.join("contact-sheet.png"));
    files::write_whole(&gif, &media::side_by_side(&panels)?)?;
    panels.extend(real.map(|clip| Panel { caption: "real clip", clip }));
    files::write_whole(&sheet, &media::contact_sheet(&panels)?)?;
    Ok(vec![gif, sheet])
}

/// Says something beside the table, to the error stream: the table alone can be piped on.
fn remark(options: &Options, text: std::fmt::Arguments<'_>) {
    if !options.quiet {
        eprintln!("{text}");
    }
}
