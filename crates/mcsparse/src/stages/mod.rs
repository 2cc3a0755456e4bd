//! The behaviours of a call (dense, anchor, reuse) as sequences of stages.

mod anchor;
mod forms;
mod parts;
mod renew;
mod reuse;

use std::time::{Duration, Instant};

use burn::tensor::{Int, Tensor};

use crate::{
    McSparseConfig, MetaCache, SinkTokens, Tail,
    budget::Budget,
    cache::SlotShape,
    check::Problem,
    ops::{self, Epilogue, Route, SparseOptions, Stage, with_queries},
    reference::TailOptions,
    report::StageRecord,
};
pub(crate) use parts::cat_tokens_first;

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
