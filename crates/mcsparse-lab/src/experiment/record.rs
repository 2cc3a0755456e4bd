//! What an experiment found, kept in a file that a later run continues.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::study::Settings;
use crate::{
    error::Error,
    files::write_whole,
    metrics::{Psnr, Temporal},
    statistics::Estimate,
};

/// One clip of one arm beside the dense clip from the same noise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClipResult {
    /// Condition and seed.
    pub clip: String,
    /// In dB.
    pub psnr: Psnr,
    /// At most 1.
    pub ssim: f64,
    /// Where weights were given.
    pub lpips: Option<f64>,
    /// For clips of more than one frame.
    pub temporal: Option<Temporal>,
}

/// One arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArmResult {
    /// Unique in the experiment.
    pub id: String,
    /// For people.
    pub label: String,
    /// Denoising steps.
    pub steps: usize,
    /// Density of reuse steps; none for dense attention.
    pub density: Option<f64>,
    /// Attention work as a share of dense attention, as a mean over batches.
    pub effective_density: f64,
    /// The steps that were anchors, in the first batch.
    pub anchors: Vec<usize>,
    /// Evaluations of the model, each of a whole batch.
    pub forwards: usize,
    /// Time of denoising and metrics.
    pub seconds: f64,
    /// In the order of the study.
    pub clips: Vec<ClipResult>,
}

/// An experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record<A = ArmResult, S = Settings> {
    /// Its name.
    pub experiment: String,
    /// What decides its numbers.
    pub settings: S,
    /// What has been found so far.
    pub arms: Vec<A>,
}

impl ArmResult {
    /// One value of each clip.
    pub fn values(&self, of: impl Fn(&ClipResult) -> f64) -> Vec<f64> {
        self.clips.iter().map(of).collect()
    }

    /// PSNR of each clip from its mean error, in dB.
    pub fn psnr(&self) -> Vec<f64> {
        self.values(|clip| clip.psnr.of_mean_error)
    }

    /// Its mean and interval.
    pub fn mean_psnr(&self) -> Estimate {
        Estimate::of(&self.psnr())
    }
}

impl Record {
    /// The arm `id`.
    pub fn arm(&self, id: &str) -> Option<&ArmResult> {
        self.arms.iter().find(|arm| arm.id == id)
    }

    /// PSNR of `ours` less that of `theirs`, paired by clip; `None` unless both are there with the same clips.
    pub fn gain(&self, ours: &str, theirs: &str) -> Option<Estimate> {
        let (ours, theirs) = (self.arm(ours)?, self.arm(theirs)?);
        (ours.clips.len() == theirs.clips.len()).then(|| Estimate::of_pairs(&ours.psnr(), &theirs.psnr()))
    }
}

impl<A, S> Record<A, S>
where
    A: Serialize + for<'a> Deserialize<'a>,
    S: Clone + PartialEq + Serialize + for<'a> Deserialize<'a>,
{
    /// The record in `path`, to be continued, or an empty one.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if there is one that cannot be read, or one of another experiment or other settings.
    pub fn open(path: &Path, experiment: &str, settings: &S) -> Result<Self, Error> {
        if !path.exists() {
            let (experiment, settings) = (experiment.to_owned(), settings.clone());
            return Ok(Self { experiment, settings, arms: Vec::new() });
        }
        let record = Self::read(path)?;
        if record.experiment != experiment || record.settings != *settings {
            let why = "a record of other settings; name another folder with --out, or remove the file";
            return Err(Error::run(path.display(), why));
        }
        Ok(record)
    }

    /// Reads a record.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] naming the file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|error| Error::run(path.display(), error))?;
        serde_json::from_str(&text).map_err(|error| Error::run(path.display(), error))
    }

    /// Writes the record; what was there before is replaced as a whole.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] naming the file.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(self).map_err(|error| Error::run(path.display(), error))?;
        write_whole(path, (text + "\n").as_bytes())
    }
}
