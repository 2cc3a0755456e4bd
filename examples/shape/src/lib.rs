//! Denoises one shape twice from the same noise, with dense attention and with MC-Sparse, and compares the two.
//!
//! [`start`] is the whole program. Options are checked together ([`settings`]) before anything is loaded; [`run`] does the
//! two runs; the lab's volumes and meshes compare the shapes; [`report`] and [`render`] say and show what came out.

pub mod condition;
pub mod options;
pub mod render;
pub mod report;
pub mod run;
pub mod settings;

use std::path::PathBuf;

use mcsparse_dit::pretrained::ClipModel;
use mcsparse_lab::files;
use mcsparse_lab::mesh::Mesh;

use condition::Condition;
use report::{Report, ToTruth};
use run::{Arm, Job};
use settings::Settings;

pub use mcsparse_lab::Error;
pub use options::Options;

/// Runs the program.
///
/// # Errors
///
/// [`Error::Option`] for options that cannot be used, found before weights are loaded or a folder is made;
/// [`Error::Run`] for anything that fails afterwards.
pub fn start(options: &Options) -> Result<(), Error> {
    let settings = Settings::resolve(options)?;
    let solids = condition::open(&settings)?;
    if options.list_solids {
        solids.names().iter().for_each(|name| println!("{name}"));
        return Ok(());
    }
    // The long run comes last: whatever can fail has its chance before.
    let condition = Condition::load(&solids, &settings)?;
    let config = settings.preset.config(&options.weights)?;
    let grid = config.sampling.condition_grid;
    let grid = grid.ok_or_else(|| Error::run("weights", "sampling.json of the model has no condition_grid"))?;
    files::writable_folder(&options.out)?;
    let device = options.device.open(options.dtype)?;
    let weights = options.weights.join(settings.preset.name);
    let model = ClipModel::load_weights(weights, &config, options.dtype.burn(), &device)?;
    remark(options, format_args!("{} tokens, steps {}", model.tokens(), settings.plan));

    let job = Job::new(&settings, &device, &model, condition.views.tokens(grid, &device)?);
    let (dense, sparse) = (job.dense()?, job.sparse()?);
    let to_dense = sparse.volume.likeness(&sparse.mesh, &dense.volume, &dense.mesh)?;
    let to_truth = condition.truth.as_ref().map(|truth| {
        let mesh = Mesh::of(truth);
        let near = |arm: &Arm| arm.volume.likeness(&arm.mesh, truth, &mesh);
        Ok::<_, Error>(ToTruth { dense: near(&dense)?, sparse: near(&sparse)? })
    });
    let to_truth = to_truth.transpose()?;
    let mut written = show(&settings, &condition, &dense, &sparse)?;
    let report = Report::new(&settings, to_dense, to_truth, dense.report, sparse.report);
    let text = serde_json::to_string_pretty(&report).map_err(|error| Error::run("the report", error))?;
    let json = options.out.join("report.json");
    files::write_whole(&json, (text + "\n").as_bytes())?;
    written.push(json);

    println!("{}", report.table());
    if report.dense.stages_timed_apart {
        let reason = "Stages were timed in runs of their own, as waiting for the device slows it down.";
        remark(options, format_args!("{reason}"));
    }
    for path in written {
        remark(options, format_args!("wrote {}", path.display()));
    }
    Ok(())
}

/// Writes what is to be looked at.
fn show(settings: &Settings, condition: &Condition, dense: &Arm, sparse: &Arm) -> Result<Vec<PathBuf>, Error> {
    let mut shapes = vec![("dense", &dense.volume), ("MC-Sparse", &sparse.volume)];
    shapes.extend(condition.truth.as_ref().map(|truth| ("the solid", truth)));
    let out = &settings.options.out;
    let files = [
        (out.join("shapes.png"), render::sheet(&condition.views, &shapes)?),
        (out.join("dense.obj"), dense.mesh.to_obj().into_bytes()),
        (out.join("mc-sparse.obj"), sparse.mesh.to_obj().into_bytes()),
    ];
    for (path, bytes) in &files {
        files::write_whole(path, bytes)?;
    }
    Ok(files.into_iter().map(|(path, _)| path).collect())
}

/// Says something beside the table, to the error stream: the table alone can be piped on.
fn remark(options: &Options, text: std::fmt::Arguments<'_>) {
    if !options.quiet {
        eprintln!("{text}");
    }
}
