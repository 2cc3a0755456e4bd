//! Everything that a run was told and found out, for `report.json` and for the table.

use comfy_table::{ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};
use denoise::report::{ArmReport, Calls, KeyReport};
use denoise::table::{STAGES, WIDTH, faster, mebibytes, seconds, stage_times};
use mcsparse::McSparseConfig;
use mcsparse_lab::device::{DType, DeviceName};
use mcsparse_lab::volume::Likeness;
use serde::Serialize;

use crate::settings::Settings;

/// The whole report.
#[derive(Debug, Serialize)]
pub struct Report {
    /// How both runs were made.
    pub run: RunSettings,
    /// The settings of MC-Sparse, in the form that `McSparseConfig::load` reads.
    pub mcsparse: McSparseConfig,
    /// Keys of MC-Sparse.
    pub keys: KeyReport,
    /// Steps of MC-Sparse by kind.
    pub steps: Calls,
    /// How near its shape is to the dense one.
    pub to_dense: Likeness,
    /// How near both are to the solid whose views the model saw, where that is known.
    pub to_truth: Option<ToTruth>,
    /// Time of the dense run over that of MC-Sparse.
    pub speed_up: f64,
    /// The same for the stages of attention alone.
    pub attention_speed_up: f64,
    /// The dense run.
    pub dense: ArmReport,
    /// The run with MC-Sparse.
    pub sparse: ArmReport,
}

/// Settings that both runs share.
#[derive(Debug, Serialize)]
pub struct RunSettings {
    /// Where it ran.
    pub device: DeviceName,
    /// Float type of the network.
    pub dtype: DType,
    /// The solid, or the views.
    pub condition: String,
    /// Voxels along each axis.
    pub side: usize,
    /// Tokens of self-attention.
    pub tokens: usize,
    /// Attention heads.
    pub heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Transformer blocks.
    pub layers: usize,
    /// Denoising steps.
    pub steps: usize,
    /// Strength of guidance; 1 is none.
    pub guidance: f64,
    /// Seed of the noise.
    pub seed: u64,
    /// Folder of the weights.
    pub weights: String,
}

/// Nearness to the true solid. What the views hide is made up, so neither is meant to reach it.
#[derive(Debug, Serialize)]
pub struct ToTruth {
    /// Of the dense shape.
    pub dense: Likeness,
    /// Of the shape by MC-Sparse.
    pub sparse: Likeness,
}

impl Report {
    /// Puts the report together.
    pub fn new(
        settings: &Settings,
        to_dense: Likeness,
        to_truth: Option<ToTruth>,
        dense: ArmReport,
        sparse: ArmReport,
    ) -> Self {
        let (preset, options) = (settings.preset, &settings.options);
        Self {
            run: RunSettings {
                device: options.device,
                dtype: options.dtype,
                condition: settings.condition.clone(),
                side: preset.side,
                tokens: preset.tokens(preset.frames),
                heads: preset.heads,
                head_dim: preset.head_dim,
                layers: preset.layers,
                steps: options.steps,
                guidance: options.guidance,
                seed: options.seed,
                weights: options.weights.display().to_string(),
            },
            mcsparse: settings.config.clone(),
            keys: KeyReport { kept: settings.budget.keys, density: settings.budget.key_density() },
            steps: Calls::of_plan(&settings.plan),
            to_dense,
            to_truth,
            speed_up: dense.seconds / sparse.seconds,
            attention_speed_up: dense.attention_seconds() / sparse.attention_seconds(),
            dense,
            sparse,
        }
    }

    /// As a table of one column for each run.
    pub fn table(&self) -> Table {
        let (run, dense, sparse) = (&self.run, &self.dense, &self.sparse);
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
        table.set_header([
            format!("shape on {}", run.device),
            "dense (same kernel as MC-Sparse's dense steps)".into(),
            "MC-Sparse".into(),
        ]);
        let both = || String::from("the same");
        let mut row = |name: &str, dense: String, sparse: String| {
            table.add_row([name.to_owned(), dense, sparse]);
        };
        row("shape", format!("{}: {} voxels a side, seed {}", run.condition, run.side, run.seed), both());
        let model = format!("{} tokens, {} heads x {}, {} layers", run.tokens, run.heads, run.head_dim, run.layers);
        row("model", format!("{model}, {}", run.dtype), both());
        let guidance = if run.guidance == 1.0 { "no guidance".into() } else { format!("guidance {}", run.guidance) };
        row("steps", format!("{}, euler, {guidance}", run.steps), both());
        let steps = self.steps;
        row(
            "dense / anchor / reuse steps",
            format!("{} / 0 / 0", run.steps),
            format!("{} / {} / {}", steps.dense, steps.anchor, steps.reuse),
        );
        let (keys, group) = (&self.keys, self.mcsparse.group_size);
        row(
            "density on reuse steps",
            "1".into(),
            format!("{:.3} ({} keys a group of {group})", keys.density, keys.kept),
        );
        row("density of the whole run", "1".into(), format!("{:.3}", sparse.effective_density));
        let near = self.to_dense;
        row("Chamfer distance to dense", String::new(), length(near.chamfer));
        row("IoU to dense", String::new(), format!("{:.4}", near.iou));
        row("F-score to dense, at 1 %", String::new(), format!("{:.4}", near.f_score));
        if let Some(ToTruth { dense, sparse }) = &self.to_truth {
            row("Chamfer distance to the solid", length(dense.chamfer), length(sparse.chamfer));
            row("IoU to the solid", format!("{:.4}", dense.iou), format!("{:.4}", sparse.iou));
            row("F-score to the solid", format!("{:.4}", dense.f_score), format!("{:.4}", sparse.f_score));
        }
        row("time", seconds(dense.seconds), faster(sparse.seconds, self.speed_up));
        let attention = self.attention_speed_up;
        row("attention", seconds(dense.attention_seconds()), faster(sparse.attention_seconds(), attention));
        for stage in STAGES {
            row(&format!("  {stage}"), stage_times(dense, stage), stage_times(sparse, stage));
        }
        row("rest of the model", seconds(dense.rest_seconds), seconds(sparse.rest_seconds));
        row("cache", mebibytes(dense.cache_bytes), mebibytes(sparse.cache_bytes));
        table
    }
}

/// A length in halves of the cube's side.
fn length(value: f64) -> String {
    if value.is_infinite() { "no surface".into() } else { format!("{value:.4}") }
}
