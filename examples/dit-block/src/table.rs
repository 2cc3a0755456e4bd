//! The table that is printed.

use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};

use crate::clock::Time;
use crate::report::Report;
use crate::steps::Kind;

/// The report as a table.
pub fn table(report: &Report) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    let shape = &report.shape;
    let title = format!(
        "{} tokens, {} heads x {}, hidden {}, ffn {}, {} on {}, {} inputs",
        report.tokens,
        shape.heads,
        shape.head_dim,
        shape.hidden,
        shape.ffn,
        report.dtype,
        report.device,
        serde_json::to_value(report.inputs).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
    );
    table.set_header([title.as_str(), "median ms", "best ms", ""]);
    for column in 1..3 {
        table.column_mut(column).expect("it has 4").set_cell_alignment(CellAlignment::Right);
    }
    let mut row = |name: String, time: Option<Time>, note: String| {
        let cell = |seconds: Option<f64>| seconds.map_or(String::new(), |s| format!("{:.3}", s * 1e3));
        table.add_row([name, cell(time.map(|t| t.median)), cell(time.map(|t| t.min)), note]);
    };
    for part in &report.parts {
        let times = if part.calls > 1 { format!("{} in a block", part.calls) } else { String::new() };
        row(part.name.into(), Some(part.time), times);
    }
    let around = report.around_attention();
    let rate = shape.product_flops() / around / 1e12;
    row(
        "everything around attention".into(),
        Some(Time { median: around, min: report.parts.iter().map(|p| p.calls as f64 * p.time.min).sum() }),
        format!("sum; {rate:.3} TFLOP/s of its products"),
    );
    let dense = report.kind(Kind::Dense);
    for kind in &report.kinds {
        let name = kind.kind.name();
        if let Some(why) = &kind.left_out {
            row(name.into(), None, format!("left out: {why}"));
            continue;
        }
        let faster = |time: Option<Time>, dense: Option<Time>| match (time, dense) {
            (Some(time), Some(dense)) => format!("dense step / this: {:.2}", dense.median / time.median),
            _ => String::new(),
        };
        row(format!("{name}: attention"), kind.attention, faster(kind.attention, dense.map(|d| d.0)));
        row(format!("{name}: block"), kind.block, faster(kind.block, dense.map(|d| d.1)));
    }
    for stage in &report.stages {
        let each = stage.seconds / stage.runs.max(1) as f64;
        let mut note = format!("by {}", stage.route);
        if let Some(bytes) = stage.workspace_bytes.filter(|&bytes| bytes > 0) {
            note += &format!(", workspace {}", mebibytes(bytes));
        }
        row(format!("stage: {}", stage.stage), Some(Time { median: each, min: each }), note);
    }
    for scaling in &report.scaling {
        for (name, time, first) in [
            ("dense attention", scaling.dense, report.scaling[0].dense),
            ("reuse attention", scaling.reuse, report.scaling[0].reuse),
        ] {
            let note = match (time, first) {
                (Some(time), Some(first)) => format!("one device / this: {:.2}", first.median / time.median),
                _ => String::new(),
            };
            row(format!("{name}, heads over {} device(s)", scaling.devices), time, note);
        }
    }
    let cache = &report.cache;
    row(
        "cache of a layer and branch".into(),
        None,
        format!(
            "{}: groups {}, keys {} ({}), residual {} ({})",
            mebibytes(cache.layer_bytes),
            mebibytes(cache.order_bytes),
            mebibytes(cache.index_bytes),
            cache.index_format,
            mebibytes(cache.residual_bytes),
            cache.residual_format
        ),
    );
    row("cache of a run".into(), None, mebibytes(cache.total_bytes));
    if let Some(transfers) = &report.transfers {
        let (copying, waiting) = (transfers.copying_seconds, transfers.waiting_seconds);
        row(
            "  from host memory".into(),
            None,
            format!(
                "{} slots, {}, copied in {copying:.3} s, waited for {waiting:.3} s: {:.0} % hidden",
                transfers.slots,
                mebibytes(transfers.bytes),
                100.0 * (1.0 - waiting / copying).max(0.0)
            ),
        );
    }
    if let Some(peak) = report.peak_bytes {
        let expected = mebibytes(report.memory_estimate.total());
        row("memory reserved at most".into(), None, format!("{}, {expected} were expected", mebibytes(peak as usize)));
    }
    let run = &report.run;
    let how = if run.measured { "measured" } else { "added up" };
    let steps = format!("{} layers, {} steps, {} branches, {how}", shape.layers, shape.steps, shape.branches);
    let seconds = |name: &str, time: f64| format!("{name} {time:.3} s");
    let burn = run.times.burn.map_or(String::new(), |time| seconds("Burn's dense", time) + ", ");
    let times = format!("{burn}{}, {}", seconds("dense", run.times.dense), seconds("MC-Sparse", run.times.sparse));
    row(format!("whole run: {steps}"), None, times);
    row("  speed-up".into(), None, format!("{:.2} x, of attention {:.2} x", run.speed_up, run.attention_speed_up));
    let kept = report.kept_keys as f64 / report.tokens as f64;
    row(
        "  density".into(),
        None,
        format!(
            "{kept:.3} on reuse steps, {:.3} over the run; anchors take {:.2} points beyond dense steps",
            run.effective_density,
            100.0 * run.anchor_overhead
        ),
    );
    table
}

fn mebibytes(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
