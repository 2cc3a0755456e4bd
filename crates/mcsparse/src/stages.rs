//! The three behaviours of a call (dense, anchor, reuse) as sequences of stages.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use burn::tensor::{DType, Int, Tensor};

use crate::{
    IndexFormat, McSparseConfig, MetaCache, ResidualFormat, Selection, SinkTokens, Tail,
    budget::Budget,
    cache::{Call, Drift, KeyLists, Residual, Slot, SlotShape},
    check::Problem,
    ops::{self, Epilogue, Route, SparseOptions, Stage, with_queries},
    reference::{GroupOptions, SelectOptions, TailOptions},
    report::StageRecord,
};

/// Some of the heads.
struct Part {
    heads: Range<usize>,
    kv_heads: Range<usize>,
    /// The problem that they are.
    problem: Problem,
}

/// How many of `all` heads a part has that may have `most`: parts are about equal, and of an even number where that can be, since
/// views of a device's memory begin at multiples of so many bytes.
fn even_share(all: usize, most: usize) -> usize {
    if most >= all {
        return all;
    }
    let most = if most > 1 { most / 2 * 2 } else { 1 };
    all.div_ceil(all.div_ceil(most)).next_multiple_of(2).min(most)
}

/// Some heads of a tensor, a view.
fn of_heads<const D: usize>(tensor: &Tensor<D>, heads: &Range<usize>) -> Tensor<D> {
    if heads.len() == tensor.dims()[1] {
        return tensor.clone();
    }
    tensor.clone().slice_dim(1, heads.clone())
}

/// Parts of an output put together along heads (1) or tokens (2), as a view of memory that has tokens before heads: the model
/// then goes on with it without another copy.
pub(crate) fn cat_tokens_first(parts: Vec<Tensor<4>>, axis: usize) -> Tensor<4> {
    Tensor::cat(parts.into_iter().map(|part| part.swap_dims(1, 2)).collect(), 3 - axis).swap_dims(1, 2)
}

/// The parts in one, without a copy if there is only one.
fn joined<T>(mut parts: Vec<T>, join: impl FnOnce(Vec<T>) -> T) -> T {
    if parts.len() == 1 { parts.remove(0) } else { join(parts) }
}

/// What an anchor makes.
pub(crate) struct Anchored {
    pub output: Tensor<4>,
    pub slot: Slot,
    /// Whether column sums rode in the dense pass.
    pub rides: bool,
}

/// One call with everything that its stages need.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a> {
    config: &'a McSparseConfig,
    problem: &'a Problem,
    budget: Budget,
    scale: f64,
}

impl<'a> Run<'a> {
    pub fn new(config: &'a McSparseConfig, problem: &'a Problem, budget: Budget) -> Self {
        Self { config, problem, budget, scale: config.scale_for(problem.head_dim) }
    }

    /// What a slot of this call is made for.
    pub fn slot_shape(&self) -> SlotShape {
        SlotShape {
            batch: self.problem.batch,
            heads: self.problem.heads,
            kv_heads: self.problem.kv_heads,
            tokens: self.problem.queries,
            head_dim: self.problem.head_dim,
            dtype: format!("{:?}", self.problem.dtype),
            group_size: self.group_size(),
            sink_prefix: self.config.sink.prefix,
            sink_suffix: self.config.sink.suffix,
            kept_keys: self.budget.keys,
            scale: self.scale.to_string(),
            tail_block: self.config.tail.block(),
        }
    }

    /// Dense attention of `query` rows over all keys.
    pub fn dense(
        &self,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
        cache: &mut MetaCache,
    ) -> (Tensor<4>, Tensor<3>) {
        let workspace = self.config.workspace_bytes;
        self.stage(Stage::Dense, query.dims()[2], cache, |route| {
            ops::dense_attention(route, query, key, value, self.scale, workspace)
        })
    }

    /// Keeps the log-sum-exps of a dense pass if the next one is an anchor that selects by them.
    pub fn keep_lse(&self, lse: Tensor<3>, call: &Call, cache: &mut MetaCache) {
        if self.config.selection == Selection::Riding && cache.anchor_follows(call.step) {
            let rows = self.grouped_rows(lse);
            cache.earlier_mut().keep(&call.key, rows);
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
        let output = match whole {
            Some((output, lse)) => {
                self.keep_lse(lse, call, cache);
                output
            }
            None => {
                let output = joined(outputs, |outputs| cat_tokens_first(outputs, 1));
                if self.config.selection == Selection::Riding && cache.anchor_follows(call.step) {
                    cache.earlier_mut().keep(&call.key, joined(lses, |lses| Tensor::cat(lses, 1)));
                }
                self.with_sinks(output, query, key, value, cache)
            }
        };
        Anchored { output, slot, rides }
    }

    /// Log-sum-exps of the layer's last dense pass, if keys are to be selected by them, and whether column sums by them can ride in
    /// this one.
    fn earlier_lse(&self, rows: &Tensor<4>, call: &Call, cache: &mut MetaCache) -> (Option<Tensor<3>>, bool) {
        if self.config.selection == Selection::Exact {
            return (None, false);
        }
        let [batch, heads, queries, _] = rows.dims();
        let before = cache.earlier_mut().take(&call.key, [batch, heads, queries]);
        if before.is_none() {
            cache.report_mut().note_separate_selection("no dense pass came before the anchor");
            return (None, false);
        }
        match self.riding_route(queries) {
            Route::Kernel { .. } => (before, true),
            Route::Reference { reason } => {
                cache.report_mut().note_separate_selection(&reason);
                (before, false)
            }
        }
    }

    fn riding_route(&self, queries: usize) -> Route {
        let problem = with_queries(self.problem, queries);
        ops::attend_and_select_route(&problem, self.group_size(), self.config.kernels)
    }

    /// The order of `rows`.
    fn group(&self, rows: Tensor<4>, cache: &mut MetaCache) -> Tensor<3, Int> {
        let options = GroupOptions {
            group_size: self.group_size(),
            power_iterations: self.config.power_iterations,
            seed: self.config.seed,
            workspace_bytes: self.config.workspace_bytes,
        };
        self.stage(Stage::Group, rows.dims()[2], cache, |route| ops::group_queries(route, rows, options))
    }

    fn select_options(&self) -> SelectOptions {
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
    fn select(
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
    fn dense_and_select(
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

    /// Bytes that a slot's key lists and residual take beside their stored forms when they are whole, of all heads.
    fn scratch_bytes(&self) -> usize {
        let ((lists, values), Problem { batch, heads, head_dim, dtype, .. }) = (self.formats(), self.problem);
        let rows = self.problem.queries - self.config.sink.len();
        let groups = rows.div_ceil(self.group_size());
        let lists = if lists == IndexFormat::Plain { 0 } else { groups * self.budget.keys * DType::I32.size() };
        let values = if values == ResidualFormat::Input { 0 } else { rows * head_dim * dtype.size() };
        batch * heads * (lists + values)
    }

    /// All heads in parts that keep `bytes` of memory for all of them to the workspace limit, as far as whole key and value
    /// heads go.
    fn parts(&self, bytes: usize) -> Vec<Part> {
        let Problem { heads, kv_heads, .. } = *self.problem;
        let shared = heads / kv_heads;
        // A launch counts what it makes in 32 bits.
        let limit = self.config.workspace_bytes.min(u32::MAX as usize);
        let most = (limit / (bytes / kv_heads).max(1)).clamp(1, kv_heads);
        let each = even_share(kv_heads, most);
        let part = |first: usize| {
            let kv_heads = first..(first + each).min(kv_heads);
            let heads = kv_heads.start * shared..kv_heads.end * shared;
            let problem = Problem { heads: heads.len(), kv_heads: kv_heads.len(), ..self.problem.clone() };
            Part { heads, kv_heads, problem }
        };
        (0..kv_heads).step_by(each).map(part).collect()
    }

    /// The forms in which kept keys and residual are cached.
    pub fn formats(&self) -> (IndexFormat, ResidualFormat) {
        let smallest = || IndexFormat::smallest(self.problem.keys, self.budget.keys);
        (self.config.index_format.unwrap_or_else(smallest), self.config.residual_format)
    }

    /// Kept keys and residual in their cached forms.
    fn encode(&self, indices: Tensor<4, Int>, residual: Tensor<4>, cache: &mut MetaCache) -> (KeyLists, Residual) {
        let ((lists, values), keys) = (self.formats(), self.problem.keys);
        let run =
            |route: &Route| (KeyLists::pack(route, indices, lists, keys), Residual::encode(route, residual, values));
        if lists == IndexFormat::Plain && values == ResidualFormat::Input {
            // Nothing to do, and nothing to report.
            return run(&Route::kernel("as they are"));
        }
        self.stage(Stage::Encode, self.problem.queries - self.config.sink.len(), cache, run)
    }

    /// What attention reads of the heads of a slot. The memory of what had to be decoded is counted as workspace.
    fn decode(&self, lists: &KeyLists, residual: &Residual, cache: &mut MetaCache) -> (Tensor<4, Int>, Tensor<4>) {
        let scratch = lists.scratch_bytes() + residual.scratch_bytes();
        let run = |route: &Route| (lists.expand(route, self.config.workspace_bytes), residual.decode(route));
        if scratch == 0 {
            return run(&Route::kernel("as they are"));
        }
        let decoded = self.stage(Stage::Decode, self.problem.queries - self.config.sink.len(), cache, run);
        cache.report_mut().note_workspace(Stage::Decode, scratch);
        decoded
    }

    /// The factor on the slot's residual at `step`. Slots from a file have no age; the settings then ask for none.
    fn gain(&self, slot: &Slot, step: usize) -> f32 {
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
        let scratch = slot.lists().scratch_bytes() + slot.stored_residual().scratch_bytes() + self.tail_bytes();
        let gain = self.gain(&slot, step);
        cache.report_mut().note_gain(gain);
        let (mut outputs, mut watched) = (Vec::new(), Vec::new());
        for part in self.parts(scratch) {
            let (order, lists, residual) = slot.heads(part.heads.clone());
            let (rows, key, value) =
                (of_heads(&rows, &part.heads), of_heads(&key, &part.kv_heads), of_heads(&value, &part.kv_heads));
            let run = Run { problem: &part.problem, ..*self };
            let (indices, residual) = run.decode(&lists, &residual, cache);
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
    fn with_sinks(
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

    /// Sparse attention of the order and indices in `groups`, residual included.
    fn sparse(
        &self,
        rows: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
        (order, indices): (Tensor<3, Int>, Tensor<4, Int>),
        epilogue: Epilogue,
        cache: &mut MetaCache,
    ) -> Tensor<4> {
        let options = SparseOptions {
            group_size: self.group_size(),
            scale: self.scale,
            workspace_bytes: self.config.workspace_bytes,
        };
        let tail = self.tail_options();
        let run = |epilogue: Epilogue, cache: &mut MetaCache| {
            let (rows, key, value) = (rows.clone(), key.clone(), value.clone());
            let (order, indices) = (order.clone(), indices.clone());
            self.stage(Stage::Sparse, rows.dims()[2], cache, |route| {
                ops::sparse_attention(route, rows, key, value, order, indices, epilogue, options)
            })
        };
        let Some(tail) = tail else { return run(epilogue, cache).0 };
        let kept = run(Epilogue::Output, cache);
        cache.report_mut().note_tail(tail.block);
        let mut kernel = false;
        let output = self.stage(Stage::Tail, rows.dims()[2], cache, |route| {
            kernel = matches!(route, Route::Kernel { .. });
            ops::add_tail(route, rows, key, value, order, indices, kept, epilogue, tail).0
        });
        if kernel {
            cache.report_mut().note_workspace(Stage::Tail, self.tail_bytes());
        }
        output
    }

    /// Bytes that the tail takes beside its output, of all heads.
    fn tail_bytes(&self) -> usize {
        self.tail_options().map_or(0, |tail| ops::tail_workspace(self.problem, &tail))
    }

    /// How block means stand in for the keys that are not kept, if they do.
    fn tail_options(&self) -> Option<TailOptions> {
        let Tail::BlockMeans { block } = self.config.tail else { return None };
        let SinkTokens { prefix, suffix, .. } = self.config.sink;
        Some(TailOptions {
            group_size: self.group_size(),
            block: block.min(self.problem.keys - prefix - suffix),
            sink_prefix: prefix,
            sink_suffix: suffix,
            scale: self.scale,
            workspace_bytes: self.config.workspace_bytes,
        })
    }

    /// Queries in a group; never more than there are, so that kernels need not mind sizes that overflow.
    fn group_size(&self) -> usize {
        self.config.group_size.min(self.problem.queries - self.config.sink.len())
    }

    /// The rows that are no sinks.
    fn grouped_rows<const D: usize>(&self, tensor: Tensor<D>) -> Tensor<D> {
        let sink = self.config.sink;
        if sink.is_empty() {
            return tensor;
        }
        tensor.slice_dim(2, sink.prefix..self.problem.queries - sink.suffix)
    }

    /// Runs a stage by the route of its problem and notes both in the report.
    fn stage<T>(&self, stage: Stage, queries: usize, cache: &mut MetaCache, run: impl FnOnce(&Route) -> T) -> T {
        let route = ops::route(stage, &with_queries(self.problem, queries), self.config.kernels);
        self.stage_by(stage, route, queries, cache, run)
    }

    /// [`Run::stage`] by a route that is known.
    fn stage_by<T>(
        &self,
        stage: Stage,
        route: Route,
        queries: usize,
        cache: &mut MetaCache,
        run: impl FnOnce(&Route) -> T,
    ) -> T {
        let problem = with_queries(self.problem, queries);
        let workspace_limit = self.config.workspace_bytes;
        let workspace_bytes = ops::workspace(stage, &route, &problem, self.group_size(), workspace_limit);
        let started = cache.is_timed().then(|| self.synced_now());
        let result = run(&route);
        let time = started.map_or(Duration::ZERO, |started| self.synced_now() - started);
        let record = StageRecord { runs: 1, time, workspace_bytes, workspace_limit };
        cache.report_mut().add_stage(stage, route, record);
        result
    }

    /// The time once the device has finished. A device that failed says so at the next read, so the result is not lost here.
    fn synced_now(&self) -> Instant {
        let _ = self.problem.device.sync();
        Instant::now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_even_and_keep_the_limit() {
        let cases = [
            (40, 11, 10),
            (40, 8, 8),
            (40, 40, 40),
            (40, 39, 20),
            (56, 9, 8),
            (12, 7, 6),
            (2, 1, 1),
            (3, 2, 2),
            (1, 1, 1),
        ];
        for (all, most, expected) in cases {
            assert_eq!(even_share(all, most), expected, "{all} heads, at most {most}");
        }
        for all in 1..60 {
            for most in 1..=all {
                let each = even_share(all, most);
                assert!(
                    (1..=most).contains(&each) && (each == all || each == 1 || each.is_multiple_of(2)),
                    "{all} {most}: {each}"
                );
            }
        }
    }
}
