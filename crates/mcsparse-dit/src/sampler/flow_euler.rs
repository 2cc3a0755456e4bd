//! Euler's method.

use burn::tensor::Tensor;
use mcsparse::Error;

use super::{Sampler, Schedule, checked, checked_step};

/// Straight steps along the velocity: `sample + (next sigma - sigma) * velocity`.
#[derive(Debug, Clone)]
pub struct FlowEuler {
    schedule: Schedule,
    step: usize,
}

impl FlowEuler {
    /// A sampler over any schedule.
    pub fn new(schedule: Schedule) -> Self {
        Self { schedule, step: 0 }
    }

    /// Over [`Schedule::trained_range`].
    ///
    /// # Errors
    ///
    /// Those of [`Schedule::trained_range`].
    pub fn trained_range(steps: usize, shift: f64) -> Result<Self, Error> {
        Ok(Self::new(Schedule::trained_range(steps, shift)?))
    }

    /// Over [`Schedule::uniform`].
    ///
    /// # Errors
    ///
    /// Those of [`Schedule::uniform`].
    pub fn uniform(steps: usize, shift: f64) -> Result<Self, Error> {
        Ok(Self::new(Schedule::uniform(steps, shift)?))
    }

    /// The levels that this sampler walks.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }
}

impl<const D: usize> Sampler<D> for FlowEuler {
    fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    fn steps_taken(&self) -> usize {
        self.step
    }

    fn step(&mut self, velocity: Tensor<D>, sample: Tensor<D>) -> Result<Tensor<D>, Error> {
        let velocity = checked(&self.schedule, self.step, velocity, &sample)?;
        let sigmas = self.schedule.sigmas();
        let length = sigmas[self.step + 1] - sigmas[self.step];
        self.step += 1;
        Ok(velocity.mul_scalar(length) + sample)
    }

    fn reset(&mut self) {
        self.step = 0;
    }

    fn restore(&mut self, step: usize, _: Vec<(String, Tensor<D>)>) -> Result<(), Error> {
        checked_step(&self.schedule, step)?;
        self.step = step;
        Ok(())
    }
}
