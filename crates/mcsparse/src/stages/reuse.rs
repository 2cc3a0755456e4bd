//! Reuse steps: sparse attention over the cached keys, plus the cached residual.

use std::ops::Range;

use burn::tensor::Tensor;

use super::{
    Run,
    parts::{cat_tokens_first, joined, of_heads},
};
use crate::{
    MetaCache,
    cache::{Drift, Slot},
    ops::Epilogue,
};

impl Run<'_> {
    /// The factor on the slot's residual at `step`. Slots from a file have no age; the settings then ask for none.
    pub(super) fn gain(&self, slot: &Slot, step: usize) -> f32 {
        let age = slot.step().map_or(0, |anchor| step.saturating_sub(anchor));
        self.config.residual_gain.at(slot.key().layer, age) as f32
    }

    /// Sparse attention over the slot's keys plus its residual; sink rows dense.
    pub fn reuse(
        &self,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
        (slot, step): (Slot, usize),
        cache: &mut MetaCache,
    ) -> Tensor<4> {
        let rows = self.grouped_rows(query.clone());
        let (gain, extrapolation) = (self.gain(&slot, step), self.extrapolation(&slot, step));
        cache.report_mut().note_gain(gain);
        cache.report_mut().note_extrapolation(extrapolation.is_some());
        let (mut outputs, mut watched) = (Vec::new(), Vec::new());
        for part in self.parts(self.slot_scratch_bytes(&slot, extrapolation.is_some())) {
            let (order, lists, residual) = slot.heads(part.heads.clone());
            let (rows, key, value) =
                (of_heads(&rows, &part.heads), of_heads(&key, &part.kv_heads), of_heads(&value, &part.kv_heads));
            let run = Run { problem: &part.problem, ..*self };
            let (indices, residual) = run.decode(&lists, Some(&residual), cache);
            let mut residual = residual.expect("asked for");
            if let (Some(times), Some(slope)) = (extrapolation, slot.slope()) {
                residual = run.extrapolate(residual, &slope.heads(part.heads.clone()), times, cache);
            }
            let epilogue = Epilogue::AddScaledResidual(residual.clone(), gain);
            let output = run.sparse(rows, key, value, (order, indices), epilogue, cache);
            if cache.drift_mut().is_some() {
                watched.push(Drift::rows_of(output.clone(), residual, gain));
            }
            outputs.push(output);
        }
        if let Some(drift) = cache.drift_mut() {
            drift.note(slot.key(), Tensor::cat(watched, 1));
        }
        let output = joined(outputs, |outputs| cat_tokens_first(outputs, 1));
        self.with_sinks(output, query, key, value, cache)
    }

    /// The output of the grouped rows between that of the sink rows, which attend densely.
    pub(super) fn with_sinks(
        &self,
        output: Tensor<4>,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
        cache: &mut MetaCache,
    ) -> Tensor<4> {
        let (sink, tokens) = (self.config.sink, self.problem.queries);
        if sink.is_empty() {
            return output;
        }
        let mut dense_rows = |range: Range<usize>| {
            let rows = query.clone().slice_dim(2, range);
            self.dense(rows, key.clone(), value.clone(), cache).0
        };
        let mut parts = Vec::new();
        if sink.prefix > 0 {
            parts.push(dense_rows(0..sink.prefix));
        }
        let suffix = (sink.suffix > 0).then(|| dense_rows(tokens - sink.suffix..tokens));
        parts.push(output);
        parts.extend(suffix);
        cat_tokens_first(parts, 2)
    }
}
