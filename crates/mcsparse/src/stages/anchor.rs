//! Anchors: dense attention that leaves groups, keys and residual behind.

use burn::tensor::{Int, Tensor};

use super::{
    Run,
    parts::{Part, cat_tokens_first, joined, of_heads},
};
use crate::{
    MetaCache, Refresh, Selection,
    cache::{Call, Drift, KeyLists, Residual, Slot},
    ops::{self, Epilogue, Route, Stage, with_queries},
    reference::{GroupOptions, SelectOptions},
};

/// What an anchor makes.
pub(crate) struct Anchored {
    pub output: Tensor<4>,
    pub slot: Slot,
    /// Log-sum-exps of the grouped rows, of an anchor that selects.
    pub lse: Option<Tensor<3>>,
    /// Whether all scores were computed a second time, for the selection.
    pub scores_again: bool,
}

impl Run<'_> {
    /// A dense step: its output.
    pub fn dense_step(
        &self,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
        call: &Call,
        cache: &mut MetaCache,
    ) -> Tensor<4> {
        let (output, lse) = self.dense(query, key, value, cache);
        // Layers that are always dense have no anchors.
        if !self.config.dense_layers.contains(&call.key.layer) {
            self.keep_lse(self.grouped_rows(lse), call, cache);
        }
        output
    }

    /// Keeps the log-sum-exps `rows` of a dense pass, those of grouped rows, if the next one is an anchor that selects by them. What
    /// the pass has filled is in the cache by now.
    pub fn keep_lse(&self, rows: Tensor<3>, call: &Call, cache: &mut MetaCache) {
        let selects = self.config.schedule.refresh == Refresh::All || !cache.is_renewable(&call.key);
        if self.config.selection == Selection::Riding && selects && cache.anchor_follows(call.step) {
            cache.earlier_mut().keep(&call.key, call.step, rows);
        }
    }

    /// Dense output, and a slot with the groups, keys and residual found on the way.
    pub fn anchor(
        &self,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
        call: &Call,
        cache: &mut MetaCache,
    ) -> Anchored {
        let rows = self.grouped_rows(query.clone());
        let (before, rides) = self.earlier_lse(&rows, call, cache);
        let whole = (!rides).then(|| self.dense(query.clone(), key.clone(), value.clone(), cache));
        let of_rows =
            whole.as_ref().map(|(output, lse)| (self.grouped_rows(output.clone()), self.grouped_rows(lse.clone())));
        let (mut orders, mut lists, mut residuals) = (Vec::new(), Vec::new(), Vec::new());
        let (mut outputs, mut lses) = (Vec::new(), Vec::new());
        let mut watched: Vec<Tensor<4>> = Vec::new();
        // What is encoded is in memory for some heads at a time.
        for part in self.parts(self.scratch_bytes() + self.tail_bytes()) {
            let Part { heads, kv_heads, problem } = &part;
            let (rows, key, value) = (of_heads(&rows, heads), of_heads(&key, kv_heads), of_heads(&value, kv_heads));
            let before = before.as_ref().map(|lse| of_heads(lse, heads));
            let run = Run { problem, ..*self };
            let order = run.group(rows.clone(), cache);
            let (dense, indices) = match &of_rows {
                Some((dense, lse)) => {
                    let lse = before.unwrap_or_else(|| of_heads(lse, heads));
                    (of_heads(dense, heads), run.select(rows.clone(), key.clone(), lse, order.clone(), cache))
                }
                None => {
                    let before = before.expect("column sums ride by earlier log-sum-exps");
                    let qkv = [rows.clone(), key.clone(), value.clone()];
                    let (dense, lse, indices) = run.dense_and_select(qkv, order.clone(), before, cache);
                    outputs.push(dense.clone());
                    lses.push(lse);
                    (dense, indices)
                }
            };
            let groups = (order.clone(), indices.clone());
            let residual = run.sparse(rows, key, value, groups, Epilogue::ResidualOf(dense.clone()), cache);
            if cache.drift_mut().is_some() {
                watched.push(Drift::rows_of(dense, residual.clone(), 1.0));
            }
            let (list, residual) = run.encode(indices, residual, cache);
            orders.push(order);
            lists.push(list);
            residuals.push(residual);
        }
        if let Some(drift) = cache.drift_mut() {
            drift.watch(&call.key, Tensor::cat(watched, 1).cast(self.problem.dtype));
        }
        let order = joined(orders, |orders| Tensor::cat(orders, 1));
        let (lists, residual) = (joined(lists, KeyLists::of_parts), joined(residuals, Residual::of_parts));
        let slot = Slot::new(call.key.clone(), self.slot_shape(), Some(call.step), order, lists, residual);
        let (output, lse) = match whole {
            Some((output, lse)) => (output, self.grouped_rows(lse)),
            None => {
                let output = joined(outputs, |outputs| cat_tokens_first(outputs, 1));
                let output = self.with_sinks(output, query, key, value, cache);
                (output, joined(lses, |lses| Tensor::cat(lses, 1)))
            }
        };
        Anchored { output, slot, lse: Some(lse), scores_again: !rides }
    }

    /// Log-sum-exps of the layer's last dense pass, if keys are to be selected by them, and whether column sums by them can ride in
    /// this one.
    pub(super) fn earlier_lse(
        &self,
        rows: &Tensor<4>,
        call: &Call,
        cache: &mut MetaCache,
    ) -> (Option<Tensor<3>>, bool) {
        if self.config.selection == Selection::Exact {
            return (None, false);
        }
        let [batch, heads, queries, _] = rows.dims();
        let before = match cache.earlier_mut().take(&call.key, [batch, heads, queries], &rows.device()) {
            Ok(before) => before,
            Err(reason) => {
                cache.report_mut().note_separate_selection(reason);
                return (None, false);
            }
        };
        match self.riding_route(queries) {
            Route::Kernel { .. } => (Some(before), true),
            Route::Reference { reason } => {
                cache.report_mut().note_separate_selection(&reason);
                (Some(before), false)
            }
        }
    }

    pub(super) fn riding_route(&self, queries: usize) -> Route {
        let problem = with_queries(self.problem, queries);
        ops::attend_and_select_route(&problem, self.group_size(), self.config.kernels)
    }

    /// The order of `rows`.
    pub(super) fn group(&self, rows: Tensor<4>, cache: &mut MetaCache) -> Tensor<3, Int> {
        let options = GroupOptions {
            group_size: self.group_size(),
            power_iterations: self.config.power_iterations,
            seed: self.config.seed,
            workspace_bytes: self.config.workspace_bytes,
        };
        self.stage(Stage::Group, rows.dims()[2], cache, |route| ops::group_queries(route, rows, options))
    }

    pub(super) fn select_options(&self) -> SelectOptions {
        SelectOptions {
            group_size: self.group_size(),
            keys: self.budget.keys,
            sink_prefix: self.config.sink.prefix,
            sink_suffix: self.config.sink.suffix,
            scale: self.scale,
            workspace_bytes: self.config.workspace_bytes,
        }
    }

    /// The keys of each group by the log-sum-exps `lse`.
    pub(super) fn select(
        &self,
        rows: Tensor<4>,
        key: Tensor<4>,
        lse: Tensor<3>,
        order: Tensor<3, Int>,
        cache: &mut MetaCache,
    ) -> Tensor<4, Int> {
        let options = self.select_options();
        self.stage(Stage::Select, rows.dims()[2], cache, |route| {
            ops::select_keys(route, rows, key, lse, order, options)
        })
    }

    /// Dense output and log-sum-exps, and the keys of each group by the log-sum-exps `before`, in one pass.
    pub(super) fn dense_and_select(
        &self,
        [rows, key, value]: [Tensor<4>; 3],
        order: Tensor<3, Int>,
        before: Tensor<3>,
        cache: &mut MetaCache,
    ) -> (Tensor<4>, Tensor<3>, Tensor<4, Int>) {
        let (queries, options) = (rows.dims()[2], self.select_options());
        self.stage_by(Stage::DenseSelect, self.riding_route(queries), queries, cache, |route| {
            ops::attend_and_select(route, rows, key, value, order, before, options)
        })
    }
}
