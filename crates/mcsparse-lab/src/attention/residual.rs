//! What an anchor leaves behind for the steps after it.

use burn::tensor::{DType, Tensor};
use mcsparse::ops;

use super::{pattern::Exact, recipe::Residual};

/// Most of the attention weight that may be kept where the tail is divided by the rest.
const MOST: f64 = 1.0 - 1e-6;

/// Kept by an anchor.
#[derive(Debug, Clone)]
pub(super) struct Left {
    /// What is added, or the output of the tail.
    added: Option<Tensor<4>>,
    /// Kept weight, or the log-sum-exp of the tail.
    by_query: Option<Tensor<3>>,
    /// The residual of the anchor before, and its step.
    before: Option<(Tensor<4>, usize)>,
    /// The anchor.
    pub step: usize,
}

impl Left {
    /// From the dense output and log-sum-exp of the anchor `step`, and what sparse attention makes of the same inputs.
    /// `before` is what the last anchor left.
    pub fn new(
        rule: &Residual,
        (dense, dense_lse): (&Tensor<4>, &Tensor<3>),
        sparse: impl FnOnce() -> Exact,
        before: Option<&Self>,
        step: usize,
    ) -> Self {
        let none = Self { added: None, by_query: None, before: None, step };
        if *rule == Residual::Off {
            return none;
        }
        let (dense, sparse) = (dense.clone().cast(DType::F32), sparse());
        let kept = (sparse.lse - dense_lse.clone()).exp().clamp_max(MOST);
        let share = kept.clone().unsqueeze_dim::<4>(3);
        match rule {
            Residual::Off => none,
            Residual::Added => Self { added: Some(dense - sparse.output), ..none },
            Residual::Forecast { .. } => {
                let before = before.and_then(|left| Some((left.added.clone()?, left.step)));
                Self { added: Some(dense - sparse.output), before, ..none }
            }
            Residual::Renormalised => Self { added: Some(dense - sparse.output * share), by_query: Some(kept), ..none },
            Residual::Tail => {
                let rest = (-share.clone()).add_scalar(1.0);
                let lse = dense_lse.clone() + (-kept).add_scalar(1.0).log();
                Self { added: Some((dense - sparse.output * share) / rest), by_query: Some(lse), ..none }
            }
        }
    }

    /// The output of a reuse step from its sparse part.
    pub fn apply(&self, rule: &Residual, sparse: Exact, step: usize) -> Tensor<4> {
        let age = step.saturating_sub(self.step);
        match (rule, &self.added, &self.by_query) {
            (Residual::Added, Some(added), _) => sparse.output + added.clone(),
            (Residual::Renormalised, Some(added), Some(kept)) => {
                sparse.output * kept.clone().unsqueeze_dim::<4>(3) + added.clone()
            }
            (Residual::Tail, Some(tail), Some(lse)) => {
                ops::merge_parts(&[(sparse.output, sparse.lse), (tail.clone(), lse.clone())]).0
            }
            (Residual::Forecast { damping }, Some(added), _) => {
                let slope = match &self.before {
                    Some((before, then)) if *then < self.step => {
                        let share = damping * age as f64 / (self.step - then) as f64;
                        (added.clone() - before.clone()).mul_scalar(share)
                    }
                    _ => added.zeros_like(),
                };
                sparse.output + added.clone() + slope
            }
            _ => sparse.output,
        }
    }
}
