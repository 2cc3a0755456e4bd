//! The clock of MiniMax-H3, and its denoising loop.

use burn::tensor::{DType, Tensor};
use mcsparse::{Branch, Error, SelfAttention};

use super::{H3Velocity, MiniMaxH3, PackedLayout, Times};
use crate::check;
use crate::sampler::{Sampler, Schedule};

/// Noise level that given frames count as in the model's own pipeline: nearly none.
const KEYFRAME_TIME: f64 = 0.999;

/// Euler's method on velocities that point to the data, over evenly spaced levels that are shifted.
///
/// A step is the blend `r * sample + (1 - r) * data` of sample and predicted data, `r` being the ratio of the noise levels
/// after and before it, as `MiniMaxH3Scheduler` of diffusers takes it. [`Sampler::timesteps`] are those of this crate,
/// 1000 for pure noise; the model is told [`H3Euler::time`].
#[derive(Debug, Clone)]
pub struct H3Euler {
    schedule: Schedule,
    step: usize,
}

impl H3Euler {
    /// The shift of the video's noise levels.
    pub const VIDEO_SHIFT: f64 = 12.0;
    /// The shift of the sound's noise levels.
    pub const AUDIO_SHIFT: f64 = 3.0;

    /// Over a grid of `points` levels from 1 to 0 inclusive, shifted by `shift`: one step fewer than points.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if `points` is below 2 or `shift` is not a positive number.
    pub fn new(points: usize, shift: f64) -> Result<Self, Error> {
        if points < 2 {
            return Err(check::config("points", "at least 2", points));
        }
        Ok(Self { schedule: Schedule::uniform(points - 1, shift)?, step: 0 })
    }

    /// What the model is told at `step`: 0 for pure noise, 1 for none.
    pub fn time(&self, step: usize) -> f64 {
        // In f32, in which the model was trained.
        f64::from(1.0 - self.schedule.sigmas()[step] as f32)
    }
}

impl<const D: usize> Sampler<D> for H3Euler {
    fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    fn steps_taken(&self) -> usize {
        self.step
    }

    fn step(&mut self, velocity: Tensor<D>, sample: Tensor<D>) -> Result<Tensor<D>, Error> {
        let velocity = crate::sampler::checked(&self.schedule, self.step, velocity, &sample)?;
        let (dtype, sigmas) = (sample.dtype(), self.schedule.sigmas());
        let noise = f64::from(1.0 - self.time(self.step) as f32);
        let ratio = f64::from(sigmas[self.step + 1] as f32 / sigmas[self.step] as f32);
        let sample = sample.cast(DType::F32);
        let data = velocity.cast(DType::F32).mul_scalar(noise) + sample.clone();
        self.step += 1;
        Ok((sample.mul_scalar(ratio) + data.mul_scalar(1.0 - ratio)).cast(dtype))
    }

    fn reset(&mut self) {
        self.step = 0;
    }

    fn restore(&mut self, step: usize, _: Vec<(String, Tensor<D>)>) -> Result<(), Error> {
        crate::sampler::checked_step(&self.schedule, step)?;
        self.step = step;
        Ok(())
    }
}

/// What to denoise towards.
#[derive(Debug, Clone)]
pub struct H3Conditions {
    /// Text tokens, `[batch, text tokens, text_dim]`.
    pub text: Tensor<3>,
    /// What the sequence is made of.
    pub layout: PackedLayout,
    /// Encoded keyframes, `[batch, keyframe tokens, video_dim]`, with as much noise in them as the model was trained to
    /// expect; `None` if the layout has none.
    pub keyframes: Option<Tensor<3>>,
}

/// Video and sound, one row a token, without keyframes; [`patchify`](crate::layers::patchify) makes rows of a video, and
/// [`unpatchify_channels_first`](crate::layers::unpatchify_channels_first) a video of rows.
pub type H3Latents = H3Velocity;

/// Denoises `noise` over the clocks of `video` and `audio`, which have equally many steps. Keyframes stay as they are.
///
/// As in [`denoise`](crate::denoise), `attention` is told step and branch first, and `on_step` is called after each step
/// with its number and the latents.
///
/// # Errors
///
/// [`Error::InvalidConfig`] if the clocks differ in length; otherwise the first error of the model, the samplers or
/// `attention`.
pub fn denoise(
    model: &MiniMaxH3,
    [video, audio]: [&mut H3Euler; 2],
    noise: H3Latents,
    conditions: H3Conditions,
    attention: &mut dyn SelfAttention,
    on_step: impl FnMut(usize, &H3Latents),
) -> Result<H3Latents, Error> {
    (video.step, audio.step) = (0, 0);
    resume(model, [video, audio], noise, conditions, attention, on_step)
}

/// As [`denoise`], from the step at which the clocks stand: `latents` are what the step before returned, and `attention`
/// has gone through the steps before it too, or does not mind.
///
/// # Errors
///
/// Those of [`denoise`], and [`Error::Clock`] if the clocks do not stand at the same step.
pub fn resume(
    model: &MiniMaxH3,
    [video, audio]: [&mut H3Euler; 2],
    mut latents: H3Latents,
    conditions: H3Conditions,
    attention: &mut dyn SelfAttention,
    mut on_step: impl FnMut(usize, &H3Latents),
) -> Result<H3Latents, Error> {
    let [steps, audio_steps] = [&*video, &*audio].map(|clock| clock.schedule.steps());
    if steps != audio_steps {
        return Err(check::config("audio", format!("{steps} steps, as the video has"), audio_steps));
    }
    if video.step != audio.step {
        return Err(Error::Clock(format!("the video is at step {}, the sound at {}", video.step, audio.step)));
    }
    let H3Conditions { text, layout, keyframes } = conditions;
    let keyframe_tokens = layout.keyframe_tokens();
    let expected = keyframe_tokens > 0;
    if keyframes.is_some() != expected {
        let got = keyframes.map_or_else(|| "none".into(), |keyframes| format!("{:?}", keyframes.dims()));
        let expected = if expected { format!("[batch, {keyframe_tokens}, video_dim]") } else { "none".into() };
        return Err(check::tensor("keyframes", expected, got));
    }
    let prepared = model.prepare(text, layout)?;
    for step in video.step..steps {
        let time = video.time(step);
        let times = Times { text: time, keyframes: time.max(KEYFRAME_TIME), audio: audio.time(step), video: time };
        let rows = match &keyframes {
            Some(given) => Tensor::cat(vec![given.clone().cast(latents.video.dtype()), latents.video.clone()], 1),
            None => latents.video.clone(),
        };
        attention.begin_step(step)?;
        attention.begin_branch(&Branch::conditional())?;
        let input = H3Velocity { video: rows, audio: latents.audio.clone() };
        let velocity = model.forward_prepared(&input, times, &prepared, attention)?;
        let rows = velocity.video.dims()[1];
        let of_video = velocity.video.slice_dim(1, keyframe_tokens..rows);
        latents.video = video.step(of_video, latents.video)?;
        latents.audio = audio.step(velocity.audio, latents.audio)?;
        on_step(step, &latents);
    }
    Ok(latents)
}
