//! The denoising loop.

use burn::tensor::Tensor;
use mcsparse::{Branch, Error, SelfAttention};

use crate::{check, sampler::Sampler};

/// A model that predicts the velocity of noisy latents and leaves its self-attention to the caller.
pub trait VelocityModel {
    /// What the model is told to show, for example text tokens.
    type Condition;

    /// What the model derives once from a condition and serves every step, for example keys and values of the text.
    type Prepared;

    /// Derives it for latents of the shape `latents`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTensor`] if the condition or the latents do not fit the model.
    fn prepare(&self, condition: Self::Condition, latents: [usize; 5]) -> Result<Self::Prepared, Error>;

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

    /// The expert that takes a step at `timestep`, in models that have several.
    fn expert(&self, timestep: f64) -> Option<&'static str> {
        let _ = timestep;
        None
    }

    /// The steps at which an expert takes over, step 0 included: where a schedule needs an anchor at the latest.
    fn first_steps(&self, timesteps: &[f64]) -> Vec<usize> {
        let expert = |step: usize| self.expert(timesteps[step]);
        (0..timesteps.len()).filter(|&step| step == 0 || expert(step) != expert(step - 1)).collect()
    }
}

/// What to denoise towards; `C` is the [condition](VelocityModel::Condition) of the model.
#[derive(Debug, Clone)]
pub struct Conditions<C = Tensor<3>> {
    /// What the result is to show.
    pub text: C,
    /// What to be led away from; without it there is no classifier-free guidance and half the work.
    pub negative: Option<C>,
    /// How far away: 1 is no guidance, Wan runs 5. Not used without `negative`.
    pub guidance: f64,
    /// Guidance of single [experts](VelocityModel::expert) in its place.
    pub expert_guidance: Vec<(&'static str, f64)>,
}

impl<C> Conditions<C> {
    /// Without guidance.
    pub fn unguided(text: impl Into<C>) -> Self {
        Self { text: text.into(), negative: None, guidance: 1.0, expert_guidance: Vec::new() }
    }

    /// With classifier-free guidance.
    pub fn guided(text: impl Into<C>, negative: impl Into<C>, guidance: f64) -> Self {
        Self { text: text.into(), negative: Some(negative.into()), guidance, expert_guidance: Vec::new() }
    }

    /// With another guidance for one expert: Wan 2.2 A14B text-to-video runs 4 at high noise and 3 at low noise.
    pub fn with_expert_guidance(mut self, expert: &'static str, guidance: f64) -> Self {
        self.expert_guidance.push((expert, guidance));
        self
    }

    fn guidance_of(&self, expert: Option<&str>) -> f64 {
        let of_expert = self.expert_guidance.iter().rev().find(|(name, _)| Some(*name) == expert);
        of_expert.map_or(self.guidance, |(_, guidance)| *guidance)
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
/// [`Branch::unconditional`] after it, both within the [expert](VelocityModel::expert) of the step where the model has
/// experts. Their velocities `c` and `u` become `u + guidance * (c - u)`. `on_step` is called after each step.
///
/// # Shapes
///
/// - `noise`: `[batch, channels, frames, height, width]`, best in f32
/// - returns the latents in the same shape
///
/// # Errors
///
/// [`Error::InvalidConfig`] if a guidance is not finite; otherwise the first error of the model, the sampler or
/// `attention`.
pub fn denoise<M: VelocityModel + ?Sized>(
    model: &M,
    sampler: &mut dyn Sampler,
    noise: Tensor<5>,
    conditions: Conditions<M::Condition>,
    attention: &mut dyn SelfAttention,
    on_step: impl FnMut(StepInfo<'_>),
) -> Result<Tensor<5>, Error> {
    sampler.reset();
    resume(model, sampler, noise, conditions, attention, on_step)
}

/// As [`denoise`], from the step at which `sampler` stands: `latents` are what the step before returned, and
/// `attention` has gone through the steps before it too, or does not mind.
///
/// # Errors
///
/// Those of [`denoise`].
pub fn resume<M: VelocityModel + ?Sized>(
    model: &M,
    sampler: &mut dyn Sampler,
    latents: Tensor<5>,
    conditions: Conditions<M::Condition>,
    attention: &mut dyn SelfAttention,
    mut on_step: impl FnMut(StepInfo<'_>),
) -> Result<Tensor<5>, Error> {
    for guidance in conditions.expert_guidance.iter().map(|(_, guidance)| guidance).chain([&conditions.guidance]) {
        if !guidance.is_finite() {
            return Err(check::config("guidance", "a finite number", guidance));
        }
    }
    let (timesteps, sigmas) = (sampler.timesteps().to_vec(), sampler.sigmas().to_vec());
    let guidance: Vec<f64> = timesteps.iter().map(|&t| conditions.guidance_of(model.expert(t))).collect();
    let shape = latents.dims();
    let Conditions { text, negative, .. } = conditions;
    let text = model.prepare(text, shape)?;
    let negative = negative.map(|negative| model.prepare(negative, shape)).transpose()?;

    let mut latents = latents;
    for (step, &timestep) in timesteps.iter().enumerate().skip(sampler.steps_taken()) {
        let of_expert = |branch: Branch| match model.expert(timestep) {
            Some(expert) => branch.with_expert(expert),
            None => branch,
        };
        attention.begin_step(step)?;
        attention.begin_branch(&of_expert(Branch::conditional()))?;
        let mut velocity = model.velocity(latents.clone(), timestep, &text, attention)?;
        if let Some(negative) = &negative {
            attention.begin_branch(&of_expert(Branch::unconditional()))?;
            let unguided = model.velocity(latents.clone(), timestep, negative, attention)?;
            velocity = (velocity - unguided.clone()).mul_scalar(guidance[step]) + unguided;
        }
        latents = sampler.step(velocity, latents)?;
        on_step(StepInfo { step, steps: timesteps.len(), timestep, sigma: sigmas[step + 1], latents: &latents });
    }
    Ok(latents)
}
