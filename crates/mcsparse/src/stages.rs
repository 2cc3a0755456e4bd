//! The three behaviours of a call (dense, anchor, reuse) as sequences of stages.

use std::time::{Duration, Instant};

use burn::tensor::{Int, Tensor};

use crate::{
    IndexFormat, McSparseConfig, MetaCache, ResidualFormat, SinkTokens, Tail,
    budget::Budget,
    cache::{Call, KeyLists, Residual, Slot, SlotShape},
    check::Problem,
    ops::{self, Epilogue, Route, SparseOptions, Stage, with_queries},
    reference::{GroupOptions, SelectOptions, TailOptions},
    report::StageRecord,
};

/// One call with everything that its stages need.
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

    /// Dense output, and a slot with the groups, keys and residual found on the way.
    pub fn anchor(
        &self,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
        call: &Call,
        cache: &mut MetaCache,
    ) -> (Tensor<4>, Slot) {
        let (output, lse) = self.dense(query.clone(), key.clone(), value.clone(), cache);
        let (rows, lse) = (self.grouped_rows(query), self.grouped_rows(lse));
        let grouped = rows.dims()[2];

        let options = GroupOptions {
            group_size: self.group_size(),
            power_iterations: self.config.power_iterations,
            seed: self.config.seed,
            workspace_bytes: self.config.workspace_bytes,
        };
        let order = self.stage(Stage::Group, grouped, cache, |route| ops::group_queries(route, rows.clone(), options));

        let options = SelectOptions {
            group_size: self.group_size(),
            keys: self.budget.keys,
            sink_prefix: self.config.sink.prefix,
            sink_suffix: self.config.sink.suffix,
            scale: self.scale,
            workspace_bytes: self.config.workspace_bytes,
        };
        let indices = self.stage(Stage::Select, grouped, cache, |route| {
            ops::select_keys(route, rows.clone(), key.clone(), lse, order.clone(), options)
        });

        let groups = (order.clone(), indices.clone());
        let residual =
            self.sparse(rows, key, value, groups, Epilogue::ResidualOf(self.grouped_rows(output.clone())), cache);
        if let Some(drift) = cache.drift_mut() {
            drift.watch(&call.key, self.grouped_rows(output.clone()), residual.clone());
        }
        let (lists, residual) = self.encode(indices, residual, cache);
        let slot = Slot::new(call.key.clone(), self.slot_shape(), Some(call.step), order, lists, residual);
        (output, slot)
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

    /// What attention reads of a slot. The memory of what had to be decoded is counted as workspace.
    fn decode(&self, slot: &Slot, cache: &mut MetaCache) -> (Tensor<4, Int>, Tensor<4>) {
        let (lists, residual) = (slot.lists(), slot.stored_residual());
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
        let (indices, residual) = self.decode(&slot, cache);
        let groups = (slot.order().clone(), indices);
        let gain = self.gain(&slot, step);
        cache.report_mut().note_gain(gain);
        let epilogue = Epilogue::AddScaledResidual(residual.clone(), gain);
        let output = self.sparse(rows, key.clone(), value.clone(), groups, epilogue, cache);
        if let Some(drift) = cache.drift_mut() {
            drift.note(slot.key(), output.clone(), residual, gain);
        }
        let (sink, tokens) = (self.config.sink, self.problem.queries);
        if sink.is_empty() {
            return output;
        }
        let mut dense_rows = |range: std::ops::Range<usize>| {
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
        Tensor::cat(parts, 2)
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
        let workspace = ops::tail_workspace(self.problem, &tail);
        let output = self.stage(Stage::Tail, rows.dims()[2], cache, |route| {
            ops::add_tail(route, rows, key, value, order, indices, kept, epilogue, tail).0
        });
        cache.report_mut().note_workspace(Stage::Tail, workspace);
        output
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
        let problem = with_queries(self.problem, queries);
        let route = ops::route(stage, &problem, self.config.kernels);
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
