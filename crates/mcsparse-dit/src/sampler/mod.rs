//! Samplers of flow-matching models: from noise to data along the velocity that a model predicts.
//!
//! At noise level sigma a sample is `(1 - sigma) * data + sigma * noise` and its velocity is `noise - data`. A sampler
//! walks a [`Schedule`] of levels from near 1 to 0. Latents are best kept in f32 while they are stepped.

mod flow_euler;
mod schedule;
mod unipc;

use burn::tensor::Tensor;
use mcsparse::Error;

pub use flow_euler::FlowEuler;
pub use schedule::{Schedule, shift};
pub use unipc::UniPc;

use crate::check;

/// Takes a sample from one noise level to the next. `D` is the rank of the sample, 5 for video latents.
pub trait Sampler<const D: usize = 5> {
    /// The levels that this sampler walks.
    fn schedule(&self) -> &Schedule;

    /// What the model is told at each step: 1000 for pure noise, 0 for none.
    fn timesteps(&self) -> &[f64] {
        self.schedule().timesteps()
    }

    /// The noise level at the start of each step, and after the last one.
    fn sigmas(&self) -> &[f64] {
        self.schedule().sigmas()
    }

    /// Steps taken since the start or the last [`Sampler::reset`].
    fn steps_taken(&self) -> usize;

    /// Takes the next step.
    ///
    /// # Shapes
    ///
    /// - `velocity`: what the model predicted for `sample` at the timestep of this step, in the shape of `sample`
    /// - `sample`: what the step before returned, or the noise
    /// - returns the sample at the next noise level, in the dtype of `sample`
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTensor`] if the shapes differ from each other or from those of the step before;
    /// [`Error::Clock`] after the last step. Nothing has changed then.
    fn step(&mut self, velocity: Tensor<D>, sample: Tensor<D>) -> Result<Tensor<D>, Error>;

    /// Goes back to the first step and forgets what earlier ones left behind.
    fn reset(&mut self);

    /// What the next step depends on beside the sample, by name: what has to be kept of a run that is to go on later.
    fn state(&self) -> Vec<(&'static str, Tensor<D>)> {
        Vec::new()
    }

    /// Goes to `step`, the number of steps taken, with what [`Sampler::state`] said after it.
    ///
    /// # Errors
    ///
    /// [`Error::Clock`] if there are not so many steps, [`Error::InvalidTensor`] if `state` is not that of such a sampler.
    fn restore(&mut self, step: usize, state: Vec<(String, Tensor<D>)>) -> Result<(), Error>;
}

/// Refuses a step past the last one.
pub(crate) fn checked_step(schedule: &Schedule, step: usize) -> Result<(), Error> {
    if step > schedule.steps() {
        return Err(Error::Clock(format!("step {step} of a sampler of {} steps", schedule.steps())));
    }
    Ok(())
}

/// The checks that every sampler makes; the velocity comes back in the dtype of the sample.
pub(crate) fn checked<const D: usize>(
    schedule: &Schedule,
    step: usize,
    velocity: Tensor<D>,
    sample: &Tensor<D>,
) -> Result<Tensor<D>, Error> {
    if step >= schedule.steps() {
        return Err(Error::Clock(format!("the sampler has taken all of its {} steps; reset it", schedule.steps())));
    }
    if velocity.dims() != sample.dims() {
        let expected = format!("the shape of sample, {:?}", sample.dims());
        return Err(check::tensor("velocity", expected, format!("{:?}", velocity.dims())));
    }
    Ok(velocity.cast(sample.dtype()))
}
