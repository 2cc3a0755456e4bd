//! The module that stands in the place of self-attention.

use std::time::{Duration, Instant};

use burn::{module::Module, tensor::Tensor};

use crate::{
    Anchors, Error, McSparseConfig, MetaCache, Refresh, Schedule, StepKind,
    check::{Problem, not_finite},
    stages::Run,
};

/// MC-Sparse attention of one layer.
///
/// It has no weights: put it where the block calls dense attention and hand it the run's [`MetaCache`]. Which of its
/// three behaviours a call gets (dense, anchor, reuse) follows from the step clock in the cache.
#[derive(Module, Debug)]
pub struct McSparseAttention {
    #[module(skip)]
    config: McSparseConfig,
    #[module(skip)]
    layer: usize,
}

impl McSparseAttention {
    pub(crate) fn new(config: McSparseConfig, layer: usize) -> Self {
        Self { config, layer }
    }

    /// The settings.
    pub fn config(&self) -> &McSparseConfig {
        &self.config
    }

    /// The layer, counted from 0.
    pub fn layer(&self) -> usize {
        self.layer
    }

    /// Runs a dense step, two anchors and a reuse step on these tensors, outside any cache, so that the kernels of this shape are compiled
    /// and loaded before a run (all but those that watch the drift): the first call of a kernel compiles it, for seconds with CUDA C++. (Not the warm-up of a schedule, which is
    /// its dense steps.) Returns how long it took. Zeros will do; shapes and dtypes are those of
    /// [`McSparseAttention::forward`], and it takes the memory of one anchor and its slot.
    ///
    /// # Errors
    ///
    /// As [`McSparseAttention::forward`].
    ///
    /// # Panics
    ///
    /// If the device fails.
    pub fn warm_up(&self, query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Result<Duration, Error> {
        let (device, started) = (query.device(), Instant::now());
        // A dense step, an anchor that may select by it, one that may renew the residual alone, and a step that reuses it.
        let schedule = Schedule::warm_up(2).with_anchors(Anchors::At(vec![1, 2]));
        let schedule = schedule.with_refresh(self.config.schedule.refresh);
        let config = McSparseConfig { schedule, dense_layers: Default::default(), ..self.config.clone() };
        let mut cache = MetaCache::new(&config, 4)?;
        for step in 0..4 {
            cache.begin_step(step)?;
            forward(&config, self.layer, query.clone(), key.clone(), value.clone(), &mut cache)?;
        }
        device.sync().expect("the device works");
        Ok(started.elapsed())
    }

    /// Attends, densely or sparsely as the schedule says for this step.
    ///
    /// On an autodiff device the result is computed without gradient and comes back untracked; the report says so.
    ///
    /// # Shapes
    ///
    /// - `query`: `[batch, heads, tokens, head_dim]`, after QK norm and rotary embedding, in f32, f16 or bf16
    /// - `key`, `value`: `[batch, kv_heads, tokens, head_dim]`, `heads` a multiple of `kv_heads`
    /// - returns `[batch, heads, tokens, head_dim]` in the dtype of `query`
    ///
    /// Strided views are read as they are.
    ///
    /// # Errors
    ///
    /// Every misuse that [`Error`] lists, found before anything runs: the cache is unchanged then.
    pub fn forward(
        &self,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
        cache: &mut MetaCache,
    ) -> Result<Tensor<4>, Error> {
        forward(&self.config, self.layer, query, key, value, cache)
    }
}

/// See [`McSparseAttention::forward`].
pub(crate) fn forward(
    config: &McSparseConfig,
    layer: usize,
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    cache: &mut MetaCache,
) -> Result<Tensor<4>, Error> {
    let call = cache.enter(layer, &config.schedule)?;
    let autodiff = query.is_autodiff() || key.is_autodiff() || value.is_autodiff();
    let (query, key, value) = (query.without_autodiff(), key.without_autodiff(), value.without_autodiff());
    let problem = Problem::of_self_attention(&query, &key, &value)?;
    let budget = config.budget_for(problem.queries)?;
    let kind = if config.dense_layers.contains(&layer) { StepKind::Dense } else { call.kind };
    if config.check_finite {
        for (argument, tensor) in [("query", &query), ("key", &key), ("value", &value)] {
            let count = not_finite(tensor);
            if count > 0 {
                return Err(Error::NotFinite { argument, count, layer, step: call.step });
            }
        }
    }

    let run = Run::new(config, &problem, budget);
    let reused = match kind {
        StepKind::Reuse => Some(cache.reused_slot(&call, &run.slot_shape(), &problem)?),
        StepKind::Anchor => {
            let slope = config.residual_forecast.is_some();
            cache.check_room(&call, &run.slot_shape(), run.formats(), slope)?;
            match config.schedule.refresh {
                Refresh::Residual if cache.is_renewable(&call.key) => {
                    cache.kept_slot(&call, &run.slot_shape(), &problem)?
                }
                Refresh::All | Refresh::Residual => None,
            }
        }
        StepKind::Dense => None,
    };
    let mut scores_again = true;
    let output = match (kind, reused) {
        (StepKind::Reuse, Some(slot)) => run.reuse(query, key, value, (slot, call.step), cache),
        (StepKind::Anchor, kept) => {
            let anchor = match kept {
                Some(slot) => run.renew(query, key, value, (slot, &call), cache),
                None => run.anchor(query, key, value, &call, cache),
            };
            cache.store(anchor.slot);
            if let Some(lse) = anchor.lse {
                run.keep_lse(lse, &call, cache);
            }
            scores_again = anchor.scores_again;
            anchor.output
        }
        _ => run.dense_step(query, key, value, &call, cache),
    };

    let dense_pairs = (problem.batch * problem.heads) as f64 * (problem.queries as f64).powi(2);
    let share = match kind {
        StepKind::Dense => 1.0,
        StepKind::Anchor if scores_again => budget.anchor_density(),
        StepKind::Anchor => budget.anchor_density_without_scores(),
        StepKind::Reuse => budget.reuse_density(),
    };
    cache.report_mut().add_pairs(share * dense_pairs, dense_pairs);
    if autodiff {
        cache.report_mut().note_dropped_gradient();
    }
    cache.leave(&call, kind);
    Ok(if autodiff { output.autodiff() } else { output })
}
