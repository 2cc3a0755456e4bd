//! Anchors that keep groups and key lists and renew the residual alone, and what its change since the last one is good for.

use burn::tensor::Tensor;

use super::{
    Run,
    anchor::Anchored,
    parts::{joined, of_heads},
};
use crate::{
    MetaCache,
    cache::{Call, Drift, Residual, Slot},
    ops::Epilogue,
};

impl Run<'_> {
    /// Dense output, and the slot with the residual of this step.
    pub fn renew(
        &self,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
        (slot, call): (Slot, &Call),
        cache: &mut MetaCache,
    ) -> Anchored {
        let (output, _) = self.dense(query.clone(), key.clone(), value.clone(), cache);
        let (rows, dense) = (self.grouped_rows(query), self.grouped_rows(output.clone()));
        // Steps since the last renewal, which the change is measured over.
        let age = slot.step().and_then(|then| call.step.checked_sub(then)).filter(|&age| age > 0);
        let age = age.filter(|_| self.config.residual_forecast.is_some());
        let (mut residuals, mut slopes, mut watched) = (Vec::new(), Vec::new(), Vec::new());
        for part in self.parts(self.slot_scratch_bytes(&slot, age.is_some())) {
            let (order, lists, old) = slot.heads(part.heads.clone());
            let (rows, dense) = (of_heads(&rows, &part.heads), of_heads(&dense, &part.heads));
            let (key, value) = (of_heads(&key, &part.kv_heads), of_heads(&value, &part.kv_heads));
            let run = Run { problem: &part.problem, ..*self };
            let (indices, old) = run.decode(&lists, age.map(|_| &old), cache);
            let groups = (order, indices);
            let residual = run.sparse(rows, key, value, groups, Epilogue::ResidualOf(dense.clone()), cache);
            if cache.drift_mut().is_some() {
                watched.push(Drift::rows_of(dense, residual.clone(), 1.0));
            }
            if let (Some(age), Some(old)) = (age, old) {
                let slope = (residual.clone() - old).div_scalar(age as f64);
                slopes.push(run.encode_residual(slope, cache));
            }
            residuals.push(run.encode_residual(residual, cache));
        }
        if let Some(drift) = cache.drift_mut() {
            drift.watch(&call.key, Tensor::cat(watched, 1).cast(self.problem.dtype));
        }
        let slope = (!slopes.is_empty()).then(|| joined(slopes, Residual::of_parts));
        let (order, lists) = (slot.order().clone(), slot.lists().clone());
        let residual = joined(residuals, Residual::of_parts);
        let slot = Slot::new(call.key.clone(), self.slot_shape(), Some(call.step), order, lists, residual);
        Anchored { output, slot: slot.with_slope(slope), lse: None, scores_again: false }
    }

    /// Bytes that a slot's parts, or attention by them, take beside what is stored, of all heads.
    pub(super) fn slot_scratch_bytes(&self, slot: &Slot, extrapolated: bool) -> usize {
        let residual = slot.stored_residual();
        let extrapolated = if extrapolated { 2 * residual.decoded_bytes() } else { 0 };
        slot.lists().scratch_bytes() + residual.scratch_bytes() + extrapolated + self.tail_bytes()
    }

    /// What the slope of the slot's residual is multiplied by at `step`; `None` without one.
    pub(super) fn extrapolation(&self, slot: &Slot, step: usize) -> Option<f64> {
        let damping = self.config.residual_forecast?;
        slot.slope()?;
        Some(damping * step.checked_sub(slot.step()?)? as f64)
    }
}
