//! Runs arms and compares their clips with dense ones.

use std::{
    collections::{HashMap, hash_map::Entry},
    path::Path,
    time::Instant,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{
    arms::{Arm, Method},
    record::{ArmResult, ClipResult, Record},
    study::{ClipSpec, Study},
};
use crate::{
    clip::Clip,
    error::Error,
    files,
    metrics::{psnr, ssim, temporal},
};

/// Runs the arms that the record in `folder` lacks, adding each as soon as it is done, and returns all in the order of
/// `arms`. Dense clips are made once for each number of steps.
///
/// # Errors
///
/// [`Error::Run`] with what failed; what was done before is in the record.
pub fn run(experiment: &str, arms: &[Arm], study: &Study, folder: &Path) -> Result<Record, Error> {
    files::writable_folder(folder)?;
    let path = folder.join(format!("{experiment}.json"));
    let mut record = Record::open(&path, experiment, &study.settings)?;
    let left: Vec<&Arm> = arms.iter().filter(|arm| record.arm(&arm.id).is_none()).collect();
    let batches = study.batches();
    let mut dense_steps: Vec<usize> = left.iter().map(|arm| arm.steps).collect();
    dense_steps.sort_unstable();
    dense_steps.dedup();
    let forwards: usize = dense_steps.iter().chain(left.iter().map(|arm| &arm.steps)).sum::<usize>() * batches.len();
    if !study.quiet {
        let done = arms.len() - left.len();
        eprintln!("{experiment}: {} arms, {done} done before; {forwards} forward passes to go", arms.len());
    }
    let bar = progress(forwards, study.quiet);
    let mut dense: HashMap<usize, Vec<Vec<Clip>>> = HashMap::new();
    for arm in left {
        let dense = match dense.entry(arm.steps) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(place) => {
                bar.set_message(format!("dense, {} steps", arm.steps));
                let reference = Arm { method: Method::Dense, ..arm.clone() };
                let clips = batches.iter().map(|batch| {
                    let mut running = reference.start(study)?;
                    study.denoise(batch, arm.steps, running.attention(), |_| bar.inc(1))
                });
                place.insert(clips.collect::<Result<_, Error>>()?)
            }
        };
        bar.set_message(arm.id.clone());
        record.arms.push(one(arm, study, &batches, dense, &bar)?);
        record.write(&path)?;
    }
    bar.finish_and_clear();
    // In the order of the list, however often the run was interrupted.
    let place = |id: &str| arms.iter().position(|arm| arm.id == id).unwrap_or(usize::MAX);
    record.arms.sort_by_key(|arm| place(&arm.id));
    record.write(&path)?;
    Ok(record)
}

fn one(
    arm: &Arm,
    study: &Study,
    batches: &[Vec<ClipSpec>],
    dense: &[Vec<Clip>],
    bar: &ProgressBar,
) -> Result<ArmResult, Error> {
    let started = Instant::now();
    let (mut results, mut anchors, mut effective) = (Vec::new(), Vec::new(), 0.0);
    for (index, (batch, dense)) in batches.iter().zip(dense).enumerate() {
        let mut running = arm.start(study)?;
        let clips = study.denoise(batch, arm.steps, running.attention(), |_| bar.inc(1))?;
        effective += running.effective_density() * batch.len() as f64;
        if index == 0 {
            anchors = running.anchors();
        }
        for ((spec, clip), dense) in batch.iter().zip(&clips).zip(dense) {
            results.push(ClipResult {
                clip: spec.to_string(),
                psnr: psnr(clip, dense),
                ssim: ssim(clip, dense),
                lpips: study.lpips.as_ref().map(|lpips| lpips.clips(clip, dense)).transpose()?,
                temporal: temporal(clip, dense),
            });
        }
    }
    Ok(ArmResult {
        id: arm.id.clone(),
        label: arm.label.clone(),
        steps: arm.steps,
        density: arm.density(),
        effective_density: effective / results.len() as f64,
        anchors,
        forwards: arm.steps * batches.len(),
        seconds: started.elapsed().as_secs_f64(),
        clips: results,
    })
}

/// A bar over forward passes.
pub(super) fn progress(forwards: usize, quiet: bool) -> ProgressBar {
    // Indicatif draws to terminals only, so logs stay clean.
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let style =
        ProgressStyle::with_template("{bar:40} {pos}/{len} forward passes, {elapsed} of about {duration}  {msg}");
    ProgressBar::with_draw_target(Some(forwards as u64), target).with_style(style.expect("a valid template"))
}
