//! The two denoising runs.

use std::time::Duration;

use burn::tensor::{Device, Tensor, TensorData};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use mcsparse::{McSparseConfig, Schedule};
use mcsparse_dit::pretrained::ClipModel;
use mcsparse_dit::sampler::{FlowEuler, Sampler, UniPc};
use mcsparse_dit::{Conditions, denoise};

use crate::clip::Clip;
use crate::error::Error;
use crate::method::{Method, synced_now};
use crate::noise::normal;
use crate::options::{Baseline, SamplerName};
use crate::report::ArmReport;
use crate::settings::Settings;

/// Steps of the rehearsal in which a device compiles its kernels: one anchor, one reuse.
pub const REHEARSAL: usize = 2;
/// How often the progress bar shows the time.
const TICK: Duration = Duration::from_millis(250);

/// Everything that both runs share.
pub struct Job<'a> {
    settings: &'a Settings,
    device: &'a Device,
    model: &'a ClipModel,
    noise: Tensor<5>,
    tokens: Tensor<3>,
}

/// One run and what it made.
pub struct Arm {
    /// The clip.
    pub clip: Clip,
    /// The numbers.
    pub report: ArmReport,
}

impl<'a> Job<'a> {
    /// Draws the noise of `settings`; `tokens` are those of the condition.
    pub fn new(settings: &'a Settings, device: &'a Device, model: &'a ClipModel, tokens: Tensor<3>) -> Self {
        let side = settings.preset.side;
        let shape = [1, 3, settings.frames, side, side];
        let values = normal(shape.iter().product(), settings.options.seed);
        let noise = Tensor::from_data(TensorData::new(values, shape), device);
        Self { settings, device, model, noise, tokens }
    }

    /// Denoises with the dense attention that was chosen.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] with what failed.
    pub fn dense(&self) -> Result<Arm, Error> {
        match self.settings.options.baseline {
            Baseline::Ours => self.arm("dense", Some(&self.settings.dense_config())),
            Baseline::Burn => self.arm("dense (Burn)", None),
        }
    }

    /// Denoises with MC-Sparse.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] with what failed.
    pub fn sparse(&self) -> Result<Arm, Error> {
        self.arm("MC-Sparse", Some(&self.settings.config))
    }

    /// One arm of the comparison; `config` `None` is Burn's own attention.
    ///
    /// Timing a stage means to wait for the device on both sides of it. The CPU backend works off every call at once, so
    /// one run gives all times. Elsewhere waiting slows the run down: there a run without gives the time of the whole,
    /// after a short one in which kernels are compiled, and another run gives the times of the stages.
    fn arm(&self, title: &str, config: Option<&McSparseConfig>) -> Result<Arm, Error> {
        let method = |config: Option<&McSparseConfig>, steps, timed| match config {
            Some(config) => Method::ours(config, steps, timed),
            None => Ok(Method::burn(self.device, timed)),
        };
        let (steps, queued) = (self.settings.steps, self.settings.options.device.is_queued());
        if queued {
            let config = config.map(|config| config.clone().with_schedule(Schedule::warm_up(1)));
            self.denoise(&format!("{title}: kernels"), REHEARSAL, &mut method(config.as_ref(), REHEARSAL, false)?)?;
        }
        let mut attention = method(config, steps, !queued)?;
        let (latents, seconds) = self.denoise(title, steps, &mut attention)?;
        let clip = Clip::from_latents(latents)?;
        let mut timed_seconds = seconds;
        if queued {
            attention = method(config, steps, true)?;
            timed_seconds = self.denoise(&format!("{title}: stages"), steps, &mut attention)?.1;
        }
        let report = ArmReport::new(&attention, seconds, timed_seconds, queued);
        Ok(Arm { clip, report })
    }

    fn denoise(&self, title: &str, steps: usize, method: &mut Method) -> Result<(Tensor<5>, f64), Error> {
        let bar = progress(title, steps, self.settings.options.quiet);
        let mut sampler = self.sampler(steps)?;
        let conditions = match self.settings.guidance {
            1.0 => Conditions::unguided(self.tokens.clone()),
            // The model was trained with all-zero tokens as "no condition".
            guidance => Conditions::guided(self.tokens.clone(), self.tokens.zeros_like(), guidance),
        };
        let started = synced_now(self.device);
        let noise = self.noise.clone();
        let latents = denoise(self.model, sampler.as_mut(), noise, conditions, method.attention(), |_| bar.inc(1));
        let seconds = (synced_now(self.device) - started).as_secs_f64();
        bar.finish();
        Ok((latents?, seconds))
    }

    fn sampler(&self, steps: usize) -> Result<Box<dyn Sampler>, Error> {
        let shift = self.model.flow_shift();
        Ok(match self.settings.options.sampler {
            SamplerName::Euler => Box::new(FlowEuler::uniform(steps, shift)?),
            SamplerName::Unipc => Box::new(UniPc::wan(steps, shift)?),
        })
    }
}

/// A bar over denoising steps.
pub fn progress(title: &str, steps: usize, quiet: bool) -> ProgressBar {
    // Indicatif draws to terminals only, so logs stay clean.
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let style = ProgressStyle::with_template("{prefix:20} {bar:40} {pos}/{len} steps, {elapsed} of about {duration}");
    let bar = ProgressBar::with_draw_target(Some(steps as u64), target)
        .with_style(style.expect("a valid template"))
        .with_prefix(title.to_owned());
    bar.enable_steady_tick(TICK);
    bar
}
