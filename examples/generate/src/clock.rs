//! Times of steps, and loops that stop between them.

use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use mcsparse::StepKind;
use mcsparse_dit::sampler::Sampler;

use crate::error::Error;

/// Waits for the device.
///
/// # Errors
///
/// [`Error::Run`] if something that ran on it failed.
pub fn sync(device: &Device) -> Result<(), Error> {
    device.sync().map_err(|error| Error::run("the device", format!("{error:?}")))
}

/// A sampler that seems to end early.
pub struct Part<'a> {
    /// The sampler.
    pub sampler: &'a mut dyn Sampler,
    /// Steps that it seems to have.
    pub stop: usize,
}

impl Sampler for Part<'_> {
    fn schedule(&self) -> &mcsparse_dit::sampler::Schedule {
        self.sampler.schedule()
    }

    fn timesteps(&self) -> &[f64] {
        &self.sampler.timesteps()[..self.stop]
    }

    fn steps_taken(&self) -> usize {
        self.sampler.steps_taken()
    }

    fn step(&mut self, velocity: Tensor<5>, sample: Tensor<5>) -> Result<Tensor<5>, mcsparse::Error> {
        self.sampler.step(velocity, sample)
    }

    fn reset(&mut self) {
        self.sampler.reset();
    }

    fn restore(&mut self, step: usize, state: Vec<(String, Tensor<5>)>) -> Result<(), mcsparse::Error> {
        self.sampler.restore(step, state)
    }
}

/// Waits for the device after each step, which is once in a second or so, and takes the time.
pub struct Clock<'a> {
    device: &'a Device,
    kinds: &'a [StepKind],
    steps: Vec<(StepKind, Duration)>,
    last: Instant,
    bar: ProgressBar,
    result: Result<(), Error>,
}

impl<'a> Clock<'a> {
    /// Starts before the first of the steps `kinds`.
    ///
    /// # Errors
    ///
    /// Those of [`sync`].
    pub fn start(device: &'a Device, arm: &str, kinds: &'a [StepKind], quiet: bool) -> Result<Self, Error> {
        // Indicatif draws to terminals only, so logs stay clean.
        let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let style = "{prefix:10} {bar:40} {pos}/{len} steps, {elapsed} of about {duration}";
        let bar = ProgressBar::with_draw_target(Some(kinds.len() as u64), target)
            .with_style(ProgressStyle::with_template(style).expect("a valid template"))
            .with_prefix(arm.to_owned());
        bar.tick();
        sync(device)?;
        Ok(Self { device, kinds, steps: Vec::new(), last: Instant::now(), bar, result: Ok(()) })
    }

    /// A step is over.
    pub fn step(&mut self) {
        if self.result.is_ok() {
            self.result = sync(self.device);
        }
        let now = Instant::now();
        self.steps.push((self.kinds[self.steps.len()], now - self.last));
        self.last = now;
        self.bar.inc(1);
    }

    /// Leaves out what was not a step.
    ///
    /// # Errors
    ///
    /// Those of [`sync`].
    pub fn restart(&mut self) -> Result<(), Error> {
        sync(self.device)?;
        self.last = Instant::now();
        Ok(())
    }

    /// What waiting for a step has said.
    ///
    /// # Errors
    ///
    /// Those of [`sync`].
    pub fn result(&mut self) -> Result<(), Error> {
        std::mem::replace(&mut self.result, Ok(()))
    }

    /// Kind and time of every step.
    pub fn finish(self) -> Vec<(StepKind, Duration)> {
        self.bar.finish();
        self.steps
    }
}
