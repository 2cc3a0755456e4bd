//! Everything that was found out, for `block.json`.

use denoise::device::{DType, DeviceName};
use mcsparse::{McSparseConfig, Transfers};
use serde::Serialize;

use crate::clock::Time;
use crate::memory::Estimate;
use crate::options::{Inputs, Options};
use crate::run::RunTimes;
use crate::settings::Settings;
use crate::shape::{Model, Shape};
use crate::steps::Kind;

/// The whole report. Times are in seconds.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The sizes that the shape started from.
    pub model: Model,
    /// The sizes.
    pub shape: Shape,
    /// All tokens of self-attention.
    pub tokens: usize,
    /// Where it ran.
    pub device: DeviceName,
    /// Float type of the block.
    pub dtype: DType,
    /// What hidden states, queries and keys were made of.
    pub inputs: Inputs,
    /// The settings of MC-Sparse over a run.
    pub mcsparse: McSparseConfig,
    /// Keys that each group attends to on reuse steps.
    pub kept_keys: usize,
    /// Everything around attention.
    pub parts: Vec<PartReport>,
    /// Attention and whole block by kind of step.
    pub kinds: Vec<KindReport>,
    /// The stages of one anchor and one reuse step.
    pub stages: Vec<StageReport>,
    /// Attention with the heads shared out over devices, where several were asked for.
    pub scaling: Vec<ScalingReport>,
    /// The cache of one layer and branch.
    pub cache: CacheReport,
    /// What it was expected to take.
    pub memory_estimate: Estimate,
    /// Bytes that the device had reserved after everything, the most that were ever needed; none if it does not say.
    pub peak_bytes: Option<u64>,
    /// Whether sampled rows of everything were compared with sums in f64 before.
    pub checked: bool,
    /// A whole run.
    pub run: RunReport,
    /// What it brought from host memory, if it was really run and brought anything.
    pub transfers: Option<TransferReport>,
}

/// One part of the block around attention.
#[derive(Debug, Clone, Serialize)]
pub struct PartReport {
    /// Its name.
    pub name: &'static str,
    /// How often a block has it.
    pub calls: usize,
    /// Of one call.
    pub time: Time,
}

/// Attention and block by one kind of step.
#[derive(Debug, Clone, Serialize)]
pub struct KindReport {
    /// The kind.
    pub kind: Kind,
    /// Attention alone.
    pub attention: Option<Time>,
    /// The whole block.
    pub block: Option<Time>,
    /// Why it was not timed.
    pub left_out: Option<String>,
}

/// Attention with the heads on several devices.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ScalingReport {
    /// How many.
    pub devices: usize,
    /// A dense step.
    pub dense: Option<Time>,
    /// A reuse step.
    pub reuse: Option<Time>,
}

/// One stage of MC-Sparse.
#[derive(Debug, Clone, Serialize)]
pub struct StageReport {
    /// Its name.
    pub stage: String,
    /// What ran it.
    pub route: String,
    /// How often.
    pub runs: usize,
    /// All runs, the device waited for on both sides of each.
    pub seconds: f64,
    /// Temporary memory, where it is known.
    pub workspace_bytes: Option<usize>,
}

/// What is kept between steps.
#[derive(Debug, Clone, Serialize)]
pub struct CacheReport {
    /// Groups of one layer and branch.
    pub order_bytes: usize,
    /// Kept keys.
    pub index_bytes: usize,
    /// Their form.
    pub index_format: String,
    /// Residual.
    pub residual_bytes: usize,
    /// Its form.
    pub residual_format: String,
    /// All three.
    pub layer_bytes: usize,
    /// All layers that are not dense, and branches.
    pub total_bytes: usize,
}

/// What a full run brought from host memory.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct TransferReport {
    /// Slots.
    pub slots: usize,
    /// Bytes.
    pub bytes: usize,
    /// Time that the copies took.
    pub copying_seconds: f64,
    /// Time that calls waited for them.
    pub waiting_seconds: f64,
}

/// A denoising run over all layers, steps and branches. Embeddings, text encoder and decoder are not part of it.
#[derive(Debug, Clone, Serialize)]
pub struct RunReport {
    /// Whether it was really run; else it is what the measured blocks add up to.
    pub measured: bool,
    /// Seconds.
    pub times: RunTimes,
    /// Dense run over MC-Sparse's.
    pub speed_up: f64,
    /// The same for attention alone, from measured calls.
    pub attention_speed_up: f64,
    /// Share of dense attention's query-key pairs that the run computes, anchors, warm-up and dense layers counted.
    pub effective_density: f64,
    /// What anchors take beyond dense attention, as a share of the dense attention of all steps of a sparse layer.
    pub anchor_overhead: f64,
}

impl TransferReport {
    /// Of a run's transfers, if there were any.
    pub fn of(transfers: Transfers) -> Option<Self> {
        (transfers.slots > 0).then_some(Self {
            slots: transfers.slots,
            bytes: transfers.bytes,
            copying_seconds: transfers.copying.as_secs_f64(),
            waiting_seconds: transfers.waiting.as_secs_f64(),
        })
    }
}

impl Report {
    /// Time of all parts of a block around attention, from their medians.
    pub fn around_attention(&self) -> f64 {
        self.parts.iter().map(|part| part.calls as f64 * part.time.median).sum()
    }

    /// The times of `kind`, if it ran.
    pub fn kind(&self, kind: Kind) -> Option<(Time, Time)> {
        let report = self.kinds.iter().find(|report| report.kind == kind)?;
        report.attention.zip(report.block)
    }

    /// Puts the report together.
    #[allow(clippy::too_many_arguments)] // the parts of a report
    pub fn new(
        options: &Options,
        settings: &Settings,
        parts: Vec<PartReport>,
        kinds: Vec<KindReport>,
        stages: Vec<StageReport>,
        scaling: Vec<ScalingReport>,
        cache: CacheReport,
        memory_estimate: Estimate,
        peak_bytes: Option<u64>,
        run: RunReport,
        transfers: Option<TransferReport>,
    ) -> Self {
        Self {
            model: options.model,
            tokens: settings.shape.tokens(),
            shape: settings.shape.clone(),
            device: options.device,
            dtype: settings.dtype,
            inputs: settings.inputs,
            mcsparse: settings.config.clone(),
            kept_keys: settings.budget.keys,
            parts,
            kinds,
            stages,
            scaling,
            cache,
            memory_estimate,
            peak_bytes,
            checked: options.check,
            run,
            transfers,
        }
    }
}
