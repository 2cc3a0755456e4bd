//! The table that a run prints.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};

use crate::device::value_name;
use crate::options::Baseline;
use crate::report::{ArmReport, Report, StageReport};

/// Columns of text that the table takes at most.
pub const WIDTH: u16 = 110;
/// The stages in the order in which they run.
pub const STAGES: [&str; 6] =
    ["dense attention", "grouping", "selection", "cache encoding", "cache decoding", "sparse attention"];
/// One that runs only if it is asked for.
const TAIL: &str = "tail by block means";

/// The report as a table of one column for each run.
pub fn table(report: &Report) -> Table {
    let (dense, sparse) = (&report.dense, &report.sparse);
    let (model, run) = (&report.model, &report.run);
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    table.set_header([format!("denoise, {} on {}", model.name, run.device), dense_name(report), "MC-Sparse".into()]);

    let [frames, height, width] = model.clip;
    let both = "the same";
    let mut row = |name: &str, dense: String, sparse: String| {
        table.add_row([name.to_owned(), dense, sparse]);
    };
    row("clip", format!("{}: {frames} frames of {height} x {width}, seed {}", run.condition, run.seed), both.into());
    let shape = format!("{} tokens, {} heads x {}", model.tokens, model.heads, model.head_dim);
    row("model", format!("{shape}, {} layers, {}", model.layers, run.dtype), both.into());
    let guidance = if run.guidance == 1.0 { "no guidance".into() } else { format!("guidance {}", run.guidance) };
    row("steps", format!("{}, {}, {guidance}", run.steps, value_name(&run.sampler)), both.into());
    let steps = report.steps;
    row(
        "dense / anchor / reuse steps",
        format!("{} / 0 / 0", run.steps),
        format!("{} / {} / {}", steps.dense, steps.anchor, steps.reuse),
    );
    if !report.run.options.is_empty() {
        row("options", "-".into(), report.run.options.clone());
        row("anchors", "-".into(), join(&sparse.anchors));
    }
    let kept =
        format!("{:.3} ({} keys a group of {})", report.keys.density, report.keys.kept, report.mcsparse.group_size);
    row("density on reuse steps", "1".into(), kept);
    row("density of the whole run", "1".into(), format!("{:.3}", sparse.effective_density));
    let psnr = report.quality.psnr;
    row("PSNR to dense, mean of frames", String::new(), decibel(psnr.mean_over_frames));
    row("PSNR to dense, of mean error", String::new(), decibel(psnr.of_mean_error));
    row("SSIM to dense", String::new(), format!("{:.4}", report.quality.ssim));
    if let Some(real) = &report.quality.to_real {
        let [dense, sparse] = [real.dense, real.sparse].map(|psnr| decibel(psnr.of_mean_error));
        row("PSNR to the real clip", dense, sparse);
    }
    row("time", seconds(dense.seconds), faster(sparse.seconds, report.speed_up));
    row("attention", seconds(dense.attention_seconds()), faster(sparse.attention_seconds(), report.attention_speed_up));
    for stage in STAGES {
        row(&format!("  {stage}"), stage_times(dense, stage), stage_times(sparse, stage));
    }
    if sparse.stages.iter().any(|record| record.stage == TAIL) {
        row(&format!("  {TAIL}"), "-".into(), stage_times(sparse, TAIL));
    }
    row("rest of the model", seconds(dense.rest_seconds), seconds(sparse.rest_seconds));
    row("cache", mebibytes(dense.cache_bytes), mebibytes(sparse.cache_bytes));
    if let Some(column) = table.column_mut(0) {
        column.set_cell_alignment(CellAlignment::Left);
    }
    table
}

/// Says which dense kernel MC-Sparse is compared with.
fn dense_name(report: &Report) -> String {
    match report.run.baseline {
        Baseline::Ours => "dense (same kernel as MC-Sparse's dense steps)".into(),
        Baseline::Burn => "dense (Burn's own attention)".into(),
    }
}

fn join(steps: &[usize]) -> String {
    let steps: Vec<_> = steps.iter().map(usize::to_string).collect();
    format!("at steps {}", steps.join(", "))
}

/// The times of a stage and the kernels that ran it.
pub fn stage_times(arm: &ArmReport, stage: &str) -> String {
    let lines: Vec<_> = arm.stages.iter().filter(|record| record.stage == stage).map(stage_line).collect();
    if lines.is_empty() { "-".into() } else { lines.join("\n") }
}

fn stage_line(record: &StageReport) -> String {
    let by = match (&record.kernel, &record.refusal) {
        (Some(kernel), _) => kernel.clone(),
        (None, Some(reason)) => format!("tensor operations ({reason})"),
        (None, None) => "tensor operations".into(),
    };
    format!("{} by {by}", seconds(record.seconds))
}

/// Seconds, for people.
pub fn seconds(value: f64) -> String {
    format!("{value:.2} s")
}

/// Seconds and how many times as fast as another run that is.
pub fn faster(value: f64, times: f64) -> String {
    format!("{}, {times:.2} x as fast", seconds(value))
}

fn decibel(value: f64) -> String {
    if value.is_infinite() { "infinite".into() } else { format!("{value:.2} dB") }
}

/// Bytes, for people.
pub fn mebibytes(bytes: usize) -> String {
    if bytes == 0 { "-".into() } else { format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)) }
}
