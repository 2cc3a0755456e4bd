//! What the experiments share: a model, clips to denoise and how.

use std::{
    cell::RefCell,
    collections::HashMap,
    path::{Path, PathBuf},
};

use burn::tensor::{Device, Tensor, TensorData};
use mcsparse::SelfAttention;
use mcsparse_dit::{
    Conditions, StepInfo, denoise,
    pretrained::{ClipModel, ConditionFile},
    sampler::FlowEuler,
};
use serde::{Deserialize, Serialize};

use crate::{
    attention::Layout,
    clip::Clip,
    device::{DType, DeviceName},
    error::Error,
    metrics::lpips::Lpips,
    noise::normal,
    presets::{Preset, Size},
};

/// What decides the numbers of an experiment; a record is only continued under the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The shipped model.
    pub size: Size,
    /// Where it runs.
    pub device: DeviceName,
    /// Float type of the network.
    pub dtype: DType,
    /// Clips, each with a condition and a noise of its own.
    pub clips: usize,
    /// Clips that are denoised together.
    pub batch: usize,
    /// Seed of the first clip's noise.
    pub seed: u64,
    /// Denoising steps.
    pub steps: usize,
    /// Densities of reuse steps.
    pub densities: Vec<f64>,
    /// Queries in a group, and keys in a block.
    pub group_size: usize,
    /// Keys in a smaller block.
    pub small_block: usize,
    /// Network of LPIPS, where weights were given.
    pub lpips: Option<String>,
}

/// A condition and the seed of a noise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClipSpec {
    /// Name of the condition.
    pub condition: String,
    /// Seed of the noise.
    pub seed: u64,
}

impl std::fmt::Display for ClipSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.condition, self.seed)
    }
}

/// A loaded model with what it is to denoise.
pub struct Study {
    /// What was asked for.
    pub settings: Settings,
    /// The table row of the model.
    pub preset: &'static Preset,
    /// The model.
    pub model: ClipModel,
    /// Where it runs.
    pub device: Device,
    /// LPIPS, where weights were given.
    pub lpips: Option<Lpips>,
    /// Where tokens lie: in boxes of a group's size.
    pub layout: Layout,
    /// No progress, no remarks.
    pub quiet: bool,
    conditions: ConditionFile,
    names: Vec<String>,
    /// Noise by seed: every arm starts from the same, and drawing it takes as long as some steps.
    noise: RefCell<HashMap<u64, Vec<f32>>>,
}

impl Study {
    /// Loads what `settings` ask for; `lpips` names the weights of that metric.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] for settings that cannot be, [`Error::Run`] for files and devices that fail.
    pub fn open(mut settings: Settings, weights: &Path, lpips: Option<&PathBuf>, quiet: bool) -> Result<Self, Error> {
        let preset = settings.size.preset();
        for (option, value) in [
            ("--clips", settings.clips),
            ("--batch", settings.batch),
            ("--group-size", settings.group_size),
            ("--small-block", settings.small_block),
        ] {
            if value == 0 {
                return Err(Error::option(option, "at least 1", value));
            }
        }
        if settings.steps < 2 {
            return Err(Error::option("--steps", "at least 2, an anchor and a sparse step", settings.steps));
        }
        if let Some(density) = settings.densities.iter().find(|&&d| !(d > 0.0 && d <= 1.0)) {
            return Err(Error::option("--densities", "shares above 0 and at most 1", density));
        }
        if settings.densities.is_empty() {
            return Err(Error::option("--densities", "at least one", "none"));
        }
        settings.device.check()?;
        let config = preset.config(weights)?;
        let conditions = ConditionFile::open(weights)?;
        let names = conditions.names(preset.name);
        if names.is_empty() {
            return Err(Error::run(conditions.path().display(), format!("no condition for size {}", preset.name)));
        }
        let device = settings.device.open(settings.dtype)?;
        let lpips = lpips.map(|path| Lpips::load(path, &device)).transpose()?;
        settings.lpips = lpips.as_ref().map(|lpips| lpips.net().to_string());
        let model = ClipModel::load_weights(weights.join(preset.name), &config, settings.dtype.burn(), &device)?;
        let layout = Layout::tiled(model.grid(), preset.tile)?;
        let noise = RefCell::default();
        Ok(Self { settings, preset, model, device, lpips, layout, quiet, conditions, names, noise })
    }

    /// Clip `index`: conditions take turns, every clip has a noise of its own.
    pub fn clip(&self, index: usize) -> ClipSpec {
        let condition = self.names[index % self.names.len()].clone();
        ClipSpec { condition, seed: self.settings.seed + index as u64 }
    }

    /// All clips in batches.
    pub fn batches(&self) -> Vec<Vec<ClipSpec>> {
        let clips: Vec<_> = (0..self.settings.clips).map(|index| self.clip(index)).collect();
        clips.chunks(self.settings.batch).map(<[ClipSpec]>::to_vec).collect()
    }

    /// As many other clips for fitting: the same conditions, other noise.
    pub fn clips_for_fitting(&self, count: usize) -> Vec<ClipSpec> {
        let other = |index| ClipSpec { seed: self.clip(index).seed + (1 << 32), ..self.clip(index) };
        (0..count).map(other).collect()
    }

    /// Denoises `clips` together in `steps` steps of Euler's method, without guidance. `on_step` is called after each.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] with what failed.
    pub fn denoise(
        &self,
        clips: &[ClipSpec],
        steps: usize,
        attention: &mut dyn SelfAttention,
        on_step: impl FnMut(StepInfo<'_>),
    ) -> Result<Vec<Clip>, Error> {
        let [_, channels, frames, height, width] = self.model.shape();
        let shape = [clips.len(), channels, frames, height, width];
        let size: usize = self.model.shape().iter().product();
        let mut drawn = self.noise.borrow_mut();
        let mut values = Vec::with_capacity(clips.len() * size);
        for clip in clips {
            values.extend_from_slice(drawn.entry(clip.seed).or_insert_with(|| normal(size, clip.seed)));
        }
        drop(drawn);
        let noise = Tensor::from_data(TensorData::new(values, shape), &self.device);
        let tokens = clips
            .iter()
            .map(|clip| self.conditions.tokens(&clip.condition, self.preset.name, &self.device))
            .collect::<Result<Vec<_>, _>>()?;
        let conditions = Conditions::unguided(Tensor::cat(tokens, 0));
        let mut sampler = FlowEuler::uniform(steps, self.model.flow_shift())?;
        let latents = denoise(&self.model, &mut sampler, noise, conditions, attention, on_step)?;
        Clip::from_batch(latents)
    }
}
