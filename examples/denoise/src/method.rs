//! The attention methods that a clip is denoised with, all timed the same way.

use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use mcsparse::{
    Branch, DenseAttention, Error as AttentionError, McSparse, McSparseConfig, MetaCache, SelfAttention, StepKind,
    ops::{Route, Stage},
};

use crate::report::{Calls, StageReport};

/// One run of an attention method.
pub enum Method {
    /// MC-Sparse, or its dense attention where every layer is set dense.
    Ours(Box<McSparse>),
    /// Burn's own attention.
    Burn(TimedBurn),
}

/// Burn's own attention with the clock of a stage around it.
pub struct TimedBurn {
    inner: DenseAttention,
    device: Device,
    timed: bool,
    runs: usize,
    time: Duration,
}

impl Method {
    /// MC-Sparse with `config`.
    pub fn ours(config: &McSparseConfig, steps: usize, timed: bool) -> Result<Self, AttentionError> {
        let cache = MetaCache::new(config, steps)?.with_stage_times(timed);
        Ok(Self::Ours(Box::new(McSparse::with_cache(config, cache)?)))
    }

    /// Burn's own attention.
    pub fn burn(device: &Device, timed: bool) -> Self {
        let (inner, device) = (DenseAttention::default(), device.clone());
        Self::Burn(TimedBurn { inner, device, timed, runs: 0, time: Duration::ZERO })
    }

    /// As models take it.
    pub fn attention(&mut self) -> &mut dyn SelfAttention {
        match self {
            Self::Ours(attention) => attention.as_mut(),
            Self::Burn(attention) => attention,
        }
    }

    /// What ran in each stage.
    pub fn stages(&self) -> Vec<StageReport> {
        match self {
            Self::Ours(attention) => {
                let stages = attention.report().stages();
                stages
                    .map(|(stage, route, record)| {
                        let (kernel, refusal) = match route {
                            Route::Kernel { name, .. } => (Some((*name).to_owned()), None),
                            Route::Reference { reason } => (None, Some(reason.clone())),
                        };
                        let (runs, seconds) = (record.runs, record.time.as_secs_f64());
                        StageReport { stage: stage.to_string(), kernel, refusal, runs, seconds }
                    })
                    .collect()
            }
            Self::Burn(attention) => vec![StageReport {
                stage: Stage::Dense.to_string(),
                kernel: Some("Burn's own attention".into()),
                refusal: None,
                runs: attention.runs,
                seconds: attention.time.as_secs_f64(),
            }],
        }
    }

    /// Calls of attention by kind.
    pub fn calls(&self) -> Calls {
        match self {
            Self::Ours(attention) => {
                let count = |kind| attention.report().count(kind);
                Calls { dense: count(StepKind::Dense), anchor: count(StepKind::Anchor), reuse: count(StepKind::Reuse) }
            }
            Self::Burn(attention) => Calls { dense: attention.runs, anchor: 0, reuse: 0 },
        }
    }

    /// The steps that refreshed the cache.
    pub fn anchors(&self) -> Vec<usize> {
        match self {
            Self::Ours(attention) => attention.report().anchors(),
            Self::Burn(_) => Vec::new(),
        }
    }

    /// Attention work of the run as a share of dense attention.
    pub fn effective_density(&self) -> f64 {
        match self {
            Self::Ours(attention) => attention.report().effective_density(),
            Self::Burn(_) => 1.0,
        }
    }

    /// Bytes that are kept between steps.
    pub fn cache_bytes(&self) -> usize {
        match self {
            Self::Ours(attention) => attention.cache().size_in_bytes(),
            Self::Burn(_) => 0,
        }
    }
}

impl SelfAttention for TimedBurn {
    fn attend(
        &mut self,
        layer: usize,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
    ) -> Result<Tensor<4>, AttentionError> {
        let started = self.timed.then(|| synced_now(&self.device));
        let output = self.inner.attend(layer, query, key, value)?;
        self.time += started.map_or(Duration::ZERO, |started| synced_now(&self.device) - started);
        self.runs += 1;
        Ok(output)
    }

    fn begin_step(&mut self, step: usize) -> Result<(), AttentionError> {
        self.inner.begin_step(step)
    }

    fn begin_branch(&mut self, branch: &Branch) -> Result<(), AttentionError> {
        self.inner.begin_branch(branch)
    }
}

/// The time once the device has finished. One that failed says so when the clip is read.
pub fn synced_now(device: &Device) -> Instant {
    let _ = device.sync();
    Instant::now()
}
