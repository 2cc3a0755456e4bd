//! The two denoising runs.

use burn::tensor::{Device, Tensor, TensorData};
use denoise::method::{Method, synced_now};
use denoise::report::ArmReport;
use denoise::run::{REHEARSAL, progress};
use mcsparse::{McSparseConfig, Schedule};
use mcsparse_dit::pretrained::ClipModel;
use mcsparse_dit::sampler::FlowEuler;
use mcsparse_dit::{Conditions, denoise};
use mcsparse_lab::Error;
use mcsparse_lab::mesh::Mesh;
use mcsparse_lab::noise::normal;
use mcsparse_lab::volume::Volume;

use crate::settings::Settings;

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
    /// The shape.
    pub volume: Volume,
    /// Its surface.
    pub mesh: Mesh,
    /// The numbers.
    pub report: ArmReport,
}

impl<'a> Job<'a> {
    /// Draws the noise of `settings`; `tokens` are those of the condition.
    pub fn new(settings: &'a Settings, device: &'a Device, model: &'a ClipModel, tokens: Tensor<3>) -> Self {
        let shape = model.shape();
        let values = normal(shape.iter().product(), settings.options.seed);
        let noise = Tensor::from_data(TensorData::new(values, shape), device);
        Self { settings, device, model, noise, tokens }
    }

    /// Denoises with the dense attention that MC-Sparse runs on its dense steps.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] with what failed.
    pub fn dense(&self) -> Result<Arm, Error> {
        self.arm("dense", &self.settings.dense_config())
    }

    /// Denoises with MC-Sparse.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] with what failed.
    pub fn sparse(&self) -> Result<Arm, Error> {
        self.arm("MC-Sparse", &self.settings.config)
    }

    /// As `examples/denoise` does it: on the CPU one run gives all times; a device that works off a queue gets a short run
    /// to compile its kernels, one for the time of the whole, and one for the times of the stages.
    fn arm(&self, title: &str, config: &McSparseConfig) -> Result<Arm, Error> {
        let (steps, queued) = (self.settings.options.steps, self.settings.options.device.is_queued());
        if queued {
            let config = config.clone().with_schedule(Schedule::warm_up(1));
            self.denoise(&format!("{title}: kernels"), REHEARSAL, &mut Method::ours(&config, REHEARSAL, false)?)?;
        }
        let mut attention = Method::ours(config, steps, !queued)?;
        let (latents, seconds) = self.denoise(title, steps, &mut attention)?;
        let volume = Volume::from_batch(latents)?.remove(0);
        let mut timed_seconds = seconds;
        if queued {
            attention = Method::ours(config, steps, true)?;
            timed_seconds = self.denoise(&format!("{title}: stages"), steps, &mut attention)?.1;
        }
        let report = ArmReport::new(&attention, seconds, timed_seconds, queued);
        Ok(Arm { mesh: Mesh::of(&volume), volume, report })
    }

    fn denoise(&self, title: &str, steps: usize, method: &mut Method) -> Result<(Tensor<5>, f64), Error> {
        let bar = progress(title, steps, self.settings.options.quiet);
        let conditions = match self.settings.options.guidance {
            1.0 => Conditions::unguided(self.tokens.clone()),
            // The model was trained with all-zero tokens as "no condition".
            guidance => Conditions::guided(self.tokens.clone(), self.tokens.zeros_like(), guidance),
        };
        let mut sampler = FlowEuler::uniform(steps, self.model.flow_shift())?;
        let started = synced_now(self.device);
        let noise = self.noise.clone();
        let latents = denoise(self.model, &mut sampler, noise, conditions, method.attention(), |_| bar.inc(1));
        let seconds = (synced_now(self.device) - started).as_secs_f64();
        bar.finish();
        Ok((latents?, seconds))
    }
}
