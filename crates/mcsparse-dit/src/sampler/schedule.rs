//! Noise levels.

use mcsparse::Error;

use crate::check;

/// Timesteps of the training, which the timestep of a noise level is a fraction of.
const TRAINED: f64 = 1000.0;

/// Moves a noise level towards 1, more so the larger `shift`: `shift * sigma / (1 + (shift - 1) * sigma)`.
///
/// Large latents need more of the steps at high noise; `shift` 1 changes nothing.
pub fn shift(sigma: f64, shift: f64) -> f64 {
    shift * sigma / (1.0 + (shift - 1.0) * sigma)
}

/// Noise levels and the timesteps that go with them.
///
/// Values are rounded to f32, the precision in which the schedulers of diffusers keep them: with some of them the
/// first level is so near to 1 that the rounding decides the signal that is left.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    timesteps: Vec<f64>,
    sigmas: Vec<f64>,
}

impl Schedule {
    /// Evenly spaced between the largest and the smallest *shifted* level of training, then shifted once more.
    ///
    /// What `FlowMatchEulerDiscreteScheduler.set_timesteps(steps)` of diffusers gives. It differs from
    /// [`Schedule::uniform`] at the end: with shift 7 and 50 steps the last level before 0 is 0.047 here and 0.125
    /// there.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if `steps` is 0 or `by` is not a positive number.
    pub fn trained_range(steps: usize, by: f64) -> Result<Self, Error> {
        let smallest = shift(1.0 / TRAINED, by);
        Self::of(spaced(1.0, smallest, steps, steps.saturating_sub(1)), by)
    }

    /// `steps` levels evenly spaced from 1 towards, but without, 0, then shifted.
    ///
    /// What diffusers gives for the explicit sigmas `linspace(1, 0, steps + 1)[:-1]`, which the HunyuanVideo pipeline
    /// asks for.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if `steps` is 0 or `by` is not a positive number.
    pub fn uniform(steps: usize, by: f64) -> Result<Self, Error> {
        Self::of(spaced(1.0, 0.0, steps, steps), by)
    }

    /// `sigmas`, shifted; a last level of 0 is added.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if `sigmas` is empty, does not fall strictly, or has a level that is not in (0, 1], or
    /// if `by` is not a positive number.
    pub fn from_sigmas(sigmas: &[f64], by: f64) -> Result<Self, Error> {
        Self::of(sigmas.to_vec(), by)
    }

    /// Evenly spaced from 1 towards, but without, the smallest level of training, then shifted; timesteps are cut to
    /// whole numbers and the first level is kept a millionth below 1, where its signal-to-noise ratio has a logarithm.
    ///
    /// What `UniPCMultistepScheduler` of diffusers gives with `use_flow_sigmas`, as the Wan pipelines set it. Wan's own
    /// repository spaces the levels a little differently: its last one before 0 is 0.0925 with 50 steps and shift 5,
    /// this one's 0.0968.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if `steps` is 0 or `by` is not a positive number.
    pub fn flow_unipc(steps: usize, by: f64) -> Result<Self, Error> {
        let mut schedule = Self::of(spaced(1.0, 1.0 / TRAINED, steps, steps), by)?;
        let below = 1e-6;
        // The timestep of the first level is cut after this too: 999, not 1000.
        if (schedule.sigmas[0] - 1.0).abs() < below {
            schedule.sigmas[0] = rounded(schedule.sigmas[0] - below);
            schedule.timesteps[0] = schedule.sigmas[0] * TRAINED;
        }
        schedule.timesteps.iter_mut().for_each(|timestep| *timestep = timestep.trunc());
        Ok(schedule)
    }

    fn of(sigmas: Vec<f64>, by: f64) -> Result<Self, Error> {
        if !(by.is_finite() && by > 0.0) {
            return Err(check::config("shift", "a positive number", by));
        }
        if sigmas.is_empty() {
            return Err(check::config("steps", "at least 1", 0));
        }
        let falls = sigmas.windows(2).all(|pair| pair[0] > pair[1]);
        if !falls || sigmas.iter().any(|&sigma| !(sigma > 0.0 && sigma <= 1.0)) {
            return Err(check::config("sigmas", "levels that fall from at most 1 to above 0", format!("{sigmas:?}")));
        }
        let shifted: Vec<f64> = sigmas.into_iter().map(|sigma| shift(sigma, by)).collect();
        Ok(Self {
            timesteps: shifted.iter().map(|sigma| rounded(sigma * TRAINED)).collect(),
            sigmas: shifted.iter().map(|&sigma| rounded(sigma)).chain([0.0]).collect(),
        })
    }

    /// Number of steps.
    pub fn steps(&self) -> usize {
        self.timesteps.len()
    }

    /// What the model is told at each step: 1000 times the noise level, whole numbers for [`Schedule::flow_unipc`].
    pub fn timesteps(&self) -> &[f64] {
        &self.timesteps
    }

    /// The noise level at the start of each step and, one more, the 0 after the last.
    pub fn sigmas(&self) -> &[f64] {
        &self.sigmas
    }
}

/// `count` values from `first`, the one at index `intervals` being `last`.
fn spaced(first: f64, last: f64, count: usize, intervals: usize) -> Vec<f64> {
    (0..count).map(|i| first + (last - first) * i as f64 / intervals.max(1) as f64).collect()
}

fn rounded(value: f64) -> f64 {
    f64::from(value as f32)
}
