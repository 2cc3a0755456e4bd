//! Everything that a run was told and found out, for `report.json`.

use mcsparse::{McSparseConfig, Plan, StepKind};
use serde::Serialize;

use crate::device::{DType, DeviceName};
use crate::method::Method;
use crate::metrics::Psnr;
use crate::options::{Baseline, SamplerName};
use crate::settings::Settings;

/// The whole report.
#[derive(Debug, Serialize)]
pub struct Report {
    /// What was run.
    pub model: ModelReport,
    /// How.
    pub run: RunSettings,
    /// The settings of MC-Sparse, in the form that `McSparseConfig::load` reads.
    pub mcsparse: McSparseConfig,
    /// Keys of MC-Sparse.
    pub keys: KeyReport,
    /// Steps of MC-Sparse by kind.
    pub steps: Calls,
    /// How near its clip is to the dense one.
    pub quality: Quality,
    /// Time of the dense run over that of MC-Sparse.
    pub speed_up: f64,
    /// The same for the stages of attention alone.
    pub attention_speed_up: f64,
    /// The dense run.
    pub dense: ArmReport,
    /// The run with MC-Sparse.
    pub sparse: ArmReport,
}

/// The model and its input.
#[derive(Debug, Serialize)]
pub struct ModelReport {
    /// Name of the size.
    pub name: &'static str,
    /// Frames, height and width in pixels.
    pub clip: [usize; 3],
    /// Tokens of self-attention.
    pub tokens: usize,
    /// Attention heads.
    pub heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Transformer blocks.
    pub layers: usize,
}

/// Settings that both runs share.
#[derive(Debug, Serialize)]
pub struct RunSettings {
    /// Where it ran.
    pub device: DeviceName,
    /// Float type of the network.
    pub dtype: DType,
    /// What was denoised.
    pub condition: String,
    /// Denoising steps.
    pub steps: usize,
    /// The solver.
    pub sampler: SamplerName,
    /// Strength of guidance; 1 is none.
    pub guidance: f64,
    /// Seed of the noise.
    pub seed: u64,
    /// The dense attention.
    pub baseline: Baseline,
    /// What is not the published method.
    pub options: String,
    /// Folder of the weights.
    pub weights: String,
}

/// Keys that each group of queries attends to on reuse steps.
#[derive(Debug, Serialize)]
pub struct KeyReport {
    /// Their number.
    pub kept: usize,
    /// Pairs of a reuse step as a share of all: those of kept keys and of block means.
    pub density: f64,
}

/// Calls or steps by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Calls {
    /// Dense attention, nothing cached.
    pub dense: usize,
    /// Dense attention that refreshes the cache.
    pub anchor: usize,
    /// Sparse attention.
    pub reuse: usize,
}

/// Nearness to the dense clip.
#[derive(Debug, Serialize)]
pub struct Quality {
    /// In dB.
    pub psnr: Psnr,
    /// At most 1.
    pub ssim: f64,
    /// How near both are to the clip that the condition was made from, where that is known.
    pub to_real: Option<ToReal>,
}

/// Nearness to the real clip, in dB. What the condition leaves open is made up, so neither is meant to reach it.
#[derive(Debug, Serialize)]
pub struct ToReal {
    /// Of the dense clip.
    pub dense: Psnr,
    /// Of the clip by MC-Sparse.
    pub sparse: Psnr,
}

/// One denoising run.
#[derive(Debug, Serialize)]
pub struct ArmReport {
    /// Time of the whole.
    pub seconds: f64,
    /// Calls of attention, over steps, layers and guidance branches.
    pub calls: Calls,
    /// The steps that refreshed the cache.
    pub anchors: Vec<usize>,
    /// Attention work as a share of dense attention, anchors, warm-up and dense layers counted.
    pub effective_density: f64,
    /// The stages of attention.
    pub stages: Vec<StageReport>,
    /// Time of everything else.
    pub rest_seconds: f64,
    /// Whether the stages were timed in a run of their own, because waiting for the device slows it down.
    pub stages_timed_apart: bool,
    /// What is kept between steps.
    pub cache_bytes: usize,
}

/// One stage of attention by one implementation.
#[derive(Debug, Serialize)]
pub struct StageReport {
    /// Its name.
    pub stage: String,
    /// The kernel that ran it; none if tensor operations did.
    pub kernel: Option<String>,
    /// Why no kernel ran.
    pub refusal: Option<String>,
    /// How often.
    pub runs: usize,
    /// Time of all runs.
    pub seconds: f64,
}

impl Calls {
    /// Steps of a plan by kind.
    pub fn of_plan(plan: &Plan) -> Self {
        let count = |kind| plan.count(kind);
        Self { dense: count(StepKind::Dense), anchor: count(StepKind::Anchor), reuse: count(StepKind::Reuse) }
    }

    /// With as many `anchors` as there were: those beyond the plan, by drift, took the place of reuse steps.
    pub fn with_anchors(self, anchors: usize) -> Self {
        let more = anchors.saturating_sub(self.anchor).min(self.reuse);
        Self { anchor: self.anchor + more, reuse: self.reuse - more, ..self }
    }
}

impl ArmReport {
    /// What `method` says of a run of `seconds`; its stages are those of a run of `timed_seconds`, another one if
    /// `apart`.
    pub fn new(method: &Method, seconds: f64, timed_seconds: f64, apart: bool) -> Self {
        let mut report = Self {
            seconds,
            calls: method.calls(),
            anchors: method.anchors(),
            effective_density: method.effective_density(),
            stages: method.stages(),
            rest_seconds: 0.0,
            stages_timed_apart: apart,
            cache_bytes: method.cache_bytes(),
        };
        report.rest_seconds = timed_seconds - report.attention_seconds();
        report
    }

    /// Time of all stages of attention.
    pub fn attention_seconds(&self) -> f64 {
        self.stages.iter().map(|stage| stage.seconds).sum()
    }
}

impl Report {
    /// Puts the report together.
    pub fn new(settings: &Settings, quality: Quality, dense: ArmReport, sparse: ArmReport) -> Self {
        let (preset, options) = (settings.preset, &settings.options);
        Self {
            model: ModelReport {
                name: preset.name,
                clip: [settings.frames, preset.side, preset.side],
                tokens: settings.tokens,
                heads: preset.heads,
                head_dim: preset.head_dim,
                layers: preset.layers,
            },
            run: RunSettings {
                device: options.device,
                dtype: options.dtype,
                condition: settings.condition.clone(),
                steps: settings.steps,
                sampler: options.sampler,
                guidance: settings.guidance,
                seed: options.seed,
                baseline: options.baseline,
                options: settings.config.describe_options(),
                weights: options.weights.display().to_string(),
            },
            mcsparse: settings.config.clone(),
            keys: KeyReport { kept: settings.budget.keys, density: settings.budget.reuse_density() },
            steps: Calls::of_plan(&settings.plan).with_anchors(sparse.anchors.len()),
            quality,
            speed_up: dense.seconds / sparse.seconds,
            attention_speed_up: dense.attention_seconds() / sparse.attention_seconds(),
            dense,
            sparse,
        }
    }
}
