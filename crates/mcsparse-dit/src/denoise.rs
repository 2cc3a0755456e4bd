//! The denoising loop.

use burn::tensor::Tensor;
use mcsparse::{Branch, Error, SelfAttention};

use crate::{check, sampler::Sampler};

/// A model that predicts the velocity of noisy latents and leaves its self-attention to the caller.
pub trait VelocityModel {
    /// What the model derives once from a condition and serves every step, for example keys and values of the text.
    type Prepared;

    /// Derives it for latents of the shape `latents`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTensor`] if the text or the latents do not fit the model.
    fn prepare(&self, text: Tensor<3>, latents: [usize; 5]) -> Result<Self::Prepared, Error>;

    /// Velocity of `latents` `[batch, channels, frames, height, width]` at `timestep` (1000 for pure noise), in the
    /// same shape.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTensor`] if the latents do not fit the model or `prepared`; and whatever `attention` refuses.
    fn velocity(
        &self,
        latents: Tensor<5>,
        timestep: f64,
        prepared: &Self::Prepared,
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<5>, Error>;
}

/// What to denoise towards.
#[derive(Debug, Clone)]
pub struct Conditions {
    /// Text tokens `[batch, tokens, text_dim]`.
    pub text: Tensor<3>,
    /// Text tokens to be led away from; without them there is no classifier-free guidance and half the work.
    pub negative: Option<Tensor<3>>,
    /// How far away: 1 is no guidance, Wan runs 5. Not used without `negative`.
    pub guidance: f64,
}

impl Conditions {
    /// Without guidance.
    pub fn unguided(text: Tensor<3>) -> Self {
        Self { text, negative: None, guidance: 1.0 }
    }

    /// With classifier-free guidance.
    pub fn guided(text: Tensor<3>, negative: Tensor<3>, guidance: f64) -> Self {
        Self { text, negative: Some(negative), guidance }
    }
}

/// A step that [`denoise`] has just taken.
#[derive(Debug)]
pub struct StepInfo<'a> {
    /// Its number, from 0.
    pub step: usize,
    /// How many there are.
    pub steps: usize,
    /// The timestep that the model was told.
    pub timestep: f64,
    /// The noise level that is left.
    pub sigma: f64,
    /// The latents at that level.
    pub latents: &'a Tensor<5>,
}

/// Denoises `noise`: asks `model` for a velocity at each of the steps of `sampler` and follows it.
///
/// The sampler is reset first. In each step `attention` is told the step (`begin_step`) and then, before each forward,
/// the guidance branch (`begin_branch`): [`Branch::conditional`], and with a negative condition
/// [`Branch::unconditional`] after it. Their velocities `c` and `u` become `u + guidance * (c - u)`. `on_step` is called
/// after each step.
///
/// # Shapes
///
/// - `noise`: `[batch, channels, frames, height, width]`, best in f32
/// - returns the latents in the same shape
///
/// # Errors
///
/// [`Error::InvalidConfig`] if the guidance is not finite; otherwise the first error of the model, the sampler or
/// `attention`.
pub fn denoise<M: VelocityModel + ?Sized>(
    model: &M,
    sampler: &mut dyn Sampler,
    noise: Tensor<5>,
    conditions: Conditions,
    attention: &mut dyn SelfAttention,
    mut on_step: impl FnMut(StepInfo<'_>),
) -> Result<Tensor<5>, Error> {
    let Conditions { text, negative, guidance } = conditions;
    if !guidance.is_finite() {
        return Err(check::config("guidance", "a finite number", guidance));
    }
    let shape = noise.dims();
    let text = model.prepare(text, shape)?;
    let negative = negative.map(|negative| model.prepare(negative, shape)).transpose()?;

    sampler.reset();
    let (timesteps, sigmas) = (sampler.timesteps().to_vec(), sampler.sigmas().to_vec());
    let mut latents = noise;
    for (step, &timestep) in timesteps.iter().enumerate() {
        attention.begin_step(step)?;
        attention.begin_branch(&Branch::conditional())?;
        let mut velocity = model.velocity(latents.clone(), timestep, &text, attention)?;
        if let Some(negative) = &negative {
            attention.begin_branch(&Branch::unconditional())?;
            let unguided = model.velocity(latents.clone(), timestep, negative, attention)?;
            velocity = (velocity - unguided.clone()).mul_scalar(guidance) + unguided;
        }
        latents = sampler.step(velocity, latents)?;
        on_step(StepInfo { step, steps: timesteps.len(), timestep, sigma: sigmas[step + 1], latents: &latents });
    }
    Ok(latents)
}
