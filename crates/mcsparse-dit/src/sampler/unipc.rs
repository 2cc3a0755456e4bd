//! UniPC, a predictor-corrector of second order.

use std::collections::HashMap;

use burn::tensor::Tensor;
use mcsparse::Error;

use super::{Sampler, Schedule, checked, checked_step};
use crate::check;

/// The unified predictor-corrector of Zhao et al., "UniPC: A Unified Predictor-Corrector Framework for Fast Sampling of
/// Diffusion Models" (2023), in the variant that Wan runs: data prediction, second order, `B(h) = exp(h) - 1`.
///
/// Every step first corrects the sample that it is given with the new prediction, then predicts the next. The first and
/// the last step are of first order. Steps are those of `UniPCMultistepScheduler` of diffusers with
/// `prediction_type="flow_prediction"`, `use_flow_sigmas=True` and otherwise its defaults.
#[derive(Debug, Clone)]
pub struct UniPc<const D: usize = 5> {
    schedule: Schedule,
    step: usize,
    history: Option<History<D>>,
}

/// What a step leaves for the next.
#[derive(Debug, Clone)]
struct History<const D: usize> {
    /// The corrected sample that the step started from.
    sample: Tensor<D>,
    /// The data predicted by the step.
    data: Tensor<D>,
    /// The data predicted by the step before it.
    older: Option<Tensor<D>>,
    /// Order of the prediction that the step made, which its correction follows.
    order: usize,
}

impl<const D: usize> UniPc<D> {
    /// A sampler over any schedule that starts below 1.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if the first level is 1: no signal at all has no logarithm.
    pub fn new(schedule: Schedule) -> Result<Self, Error> {
        if schedule.sigmas()[0] >= 1.0 {
            return Err(check::config("schedule", "a first sigma below 1", schedule.sigmas()[0]));
        }
        Ok(Self { schedule, step: 0, history: None })
    }

    /// Over [`Schedule::flow_unipc`], as the Wan pipelines of diffusers run it.
    ///
    /// # Errors
    ///
    /// Those of [`Schedule::flow_unipc`].
    pub fn wan(steps: usize, shift: f64) -> Result<Self, Error> {
        Self::new(Schedule::flow_unipc(steps, shift)?)
    }

    /// Order of the prediction of `step`: the first and the last are of first order.
    fn order(&self, step: usize) -> usize {
        2.min(self.schedule.steps() - step).min(step + 1)
    }

    /// `sample`, which the step before predicted, with what the model makes of it (`data`) taken into account.
    fn correct(&self, history: &History<D>, data: &Tensor<D>) -> Tensor<D> {
        let sigmas = self.schedule.sigmas();
        let step = Interval::new(sigmas[self.step - 1], sigmas[self.step]);
        let (phi, [b1, b2]) = (step.phi(), step.b());
        match &history.older {
            Some(older) if history.order == 2 => {
                let ratio = step.ratio(sigmas[self.step - 2]);
                // Solves [1 1; ratio 1] * weights = [b1 b2].
                let past = (b1 - b2) / (1.0 - ratio);
                let new = b1 - past;
                let outer = step.alpha * phi;
                combine([
                    (step.sigma_ratio, &history.sample),
                    (-outer * (1.0 - past / ratio - new), &history.data),
                    (-outer * past / ratio, older),
                    (-outer * new, data),
                ])
            }
            _ => {
                let outer = step.alpha * phi;
                combine([(step.sigma_ratio, &history.sample), (-outer * 0.5, &history.data), (-outer * 0.5, data)])
            }
        }
    }

    /// The sample at the next noise level, from `history` that this step has left.
    fn predict(&self, history: &History<D>) -> Tensor<D> {
        let sigmas = self.schedule.sigmas();
        let step = Interval::new(sigmas[self.step], sigmas[self.step + 1]);
        let outer = step.alpha * step.phi();
        match &history.older {
            Some(older) if history.order == 2 => {
                let ratio = step.ratio(sigmas[self.step - 1]);
                combine([
                    (step.sigma_ratio, &history.sample),
                    (-outer * (1.0 - 0.5 / ratio), &history.data),
                    (-outer * 0.5 / ratio, older),
                ])
            }
            _ => combine([(step.sigma_ratio, &history.sample), (-outer, &history.data)]),
        }
    }
}

impl<const D: usize> Sampler<D> for UniPc<D> {
    fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    fn steps_taken(&self) -> usize {
        self.step
    }

    fn step(&mut self, velocity: Tensor<D>, sample: Tensor<D>) -> Result<Tensor<D>, Error> {
        let velocity = checked(&self.schedule, self.step, velocity, &sample)?;
        if let Some(history) = &self.history
            && history.sample.dims() != sample.dims()
        {
            let expected = format!("the shape of the steps before, {:?}", history.sample.dims());
            return Err(check::tensor("sample", expected, format!("{:?}", sample.dims())));
        }
        let data = combine([(1.0, &sample), (-self.schedule.sigmas()[self.step], &velocity)]);
        let (sample, older) = match self.history.take() {
            Some(history) => (self.correct(&history, &data), Some(history.data)),
            None => (sample, None),
        };
        let history = History { sample, data, older, order: self.order(self.step) };
        let next = self.predict(&history);
        self.history = Some(history);
        self.step += 1;
        Ok(next)
    }

    fn reset(&mut self) {
        self.step = 0;
        self.history = None;
    }

    fn state(&self) -> Vec<(&'static str, Tensor<D>)> {
        let Some(History { sample, data, older, .. }) = &self.history else { return Vec::new() };
        let older = older.iter().map(|older| ("older", older.clone()));
        [("sample", sample.clone()), ("data", data.clone())].into_iter().chain(older).collect()
    }

    fn restore(&mut self, step: usize, state: Vec<(String, Tensor<D>)>) -> Result<(), Error> {
        checked_step(&self.schedule, step)?;
        let mut names: Vec<_> = state.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        let expected: &[&str] = match step {
            0 => &[],
            1 => &["data", "sample"],
            _ => &["data", "older", "sample"],
        };
        if names != expected {
            return Err(check::tensor("state", format!("{expected:?} after {step} steps"), format!("{names:?}")));
        }
        let mut state: HashMap<String, Tensor<D>> = state.into_iter().collect();
        let older = state.remove("older");
        self.history = state.remove("sample").zip(state.remove("data")).map(|(sample, data)| {
            let order = self.order(step - 1);
            History { sample, data, older, order }
        });
        self.step = step;
        Ok(())
    }
}

/// The way between two noise levels, measured in half the logarithm of the signal-to-noise ratio.
struct Interval {
    start: f64,
    length: f64,
    /// Signal at the end.
    alpha: f64,
    /// Noise at the end over noise at the start.
    sigma_ratio: f64,
}

impl Interval {
    fn new(from: f64, to: f64) -> Self {
        let start = lambda(from);
        Self { start, length: lambda(to) - start, alpha: 1.0 - to, sigma_ratio: to / from }
    }

    /// `exp(-h) - 1`; -1 for the step to no noise, which is infinitely long.
    fn phi(&self) -> f64 {
        (-self.length).exp_m1()
    }

    /// Where `sigma` lies, in lengths of this interval from its start.
    fn ratio(&self, sigma: f64) -> f64 {
        (lambda(sigma) - self.start) / self.length
    }

    /// The right-hand sides of the conditions of order 1 and 2.
    fn b(&self) -> [f64; 2] {
        let (h, phi) = (-self.length, self.phi());
        let first = phi / h - 1.0;
        let second = first / h - 0.5;
        [first / phi, 2.0 * second / phi]
    }
}

/// `ln(alpha / sigma)` with `alpha = 1 - sigma`.
fn lambda(sigma: f64) -> f64 {
    (1.0 - sigma).ln() - sigma.ln()
}

/// The sum of `factor * tensor`.
fn combine<const N: usize, const D: usize>(terms: [(f64, &Tensor<D>); N]) -> Tensor<D> {
    let scaled = terms.into_iter().map(|(factor, tensor)| tensor.clone().mul_scalar(factor));
    scaled.reduce(|sum, term| sum + term).expect("at least one term")
}
