//! The printed table.

use burn::tensor::DType;
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};

use crate::{
    ceilings::Ceilings,
    clock::Time,
    settings::Settings,
    stage::{Load, Work},
};

/// One stage by one route.
#[derive(Debug, Clone)]
pub struct Row {
    /// The stage.
    pub work: Work,
    /// The route.
    pub route: String,
    /// The time, or why there is none.
    pub time: Result<Time, String>,
    /// What the check found.
    pub error: f64,
}

/// All rows beside the machine's ceilings.
pub fn table(rows: &[Row], ceilings: &Ceilings, settings: &Settings) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["stage", "route", "median ms", "min ms", "rate", "of ceiling", "dense / this", "error"]);
    for column in 2..8 {
        table.column_mut(column).expect("it has 8").set_cell_alignment(CellAlignment::Right);
    }
    let dense = time_of(rows, Work::Dense);
    for row in rows {
        let name = row.work.name().to_string();
        let cells = match &row.time {
            Ok(time) => {
                let (rate, share) = match row.work.load(settings) {
                    Load::Flops(flops) => (rate(flops / time.median), flops / ceilings.flops()),
                    Load::Bytes(bytes) => (format!("{:.2} GB/s", bytes / time.median / 1e9), bytes / ceilings.bytes),
                };
                let ratio = dense.map_or("-".into(), |dense| format!("{:.2}", dense / time.median));
                let (median, min) = (format!("{:.3}", time.median * 1e3), format!("{:.3}", time.min * 1e3));
                let share = format!("{:.0} %", 100.0 * share / time.median);
                [name, row.route.clone(), median, min, rate, share, ratio, format!("{:.1e}", row.error)]
            }
            Err(why) => {
                [name, row.route.clone(), "not timed".into(), "".into(), "".into(), "".into(), "".into(), why.clone()]
            }
        };
        table.add_row(cells);
    }
    table
}

/// What the times say about the method.
pub fn summary(rows: &[Row], ceilings: &Ceilings, settings: &Settings) -> String {
    let mut lines = vec![format!(
        "ceilings: copy {:.1} GB/s (read and written), {:?} matmul of {}: Burn's {}{}",
        ceilings.bytes / 1e9,
        settings.dtype,
        ceilings.side,
        rate(ceilings.matmul),
        ceilings.linear.map(|flops| format!(", ours {}", rate(flops))).unwrap_or_default()
    )];
    let of = |work| time_of(rows, work);
    if let (Some(dense), Some(sparse)) = (of(Work::Dense), of(Work::Sparse)) {
        let ideal = settings.tokens as f64 / settings.keys() as f64;
        let speed = dense / sparse;
        lines.push(format!(
            "sparse attention: {speed:.2} x as fast as the dense kernel, {:.0} % of {ideal:.2} x, the share of pairs",
            100.0 * speed / ideal
        ));
        if let Some(burn) = of(Work::Burn) {
            lines.push(format!(
                "against Burn's attention: dense {:.2} x, sparse {:.2} x as fast",
                burn / dense,
                burn / sparse
            ));
        }
        if let (Some(group), Some(select)) = (of(Work::Group), of(Work::Select)) {
            lines.push(format!(
                "an anchor adds to dense attention: group {:.2}, select {:.2}, sparse {:.2} of its time",
                group / dense,
                select / dense,
                sparse / dense
            ));
        }
        if let (Some(both), Some(select)) = (of(Work::DenseSelect), of(Work::Select)) {
            lines.push(format!(
                "selection that rides in dense attention adds {:.2} of its time instead of {:.2}",
                both / dense - 1.0,
                select / dense
            ));
        }
    }
    lines.join("\n")
}

/// The median of the fastest route of a stage, which comes first.
fn time_of(rows: &[Row], work: Work) -> Option<f64> {
    let row = rows.iter().find(|row| row.work == work)?;
    row.time.as_ref().ok().map(|time| time.median)
}

/// Operations per second, readable on a CPU and on a GPU.
fn rate(flops: f64) -> String {
    if flops < 1e12 { format!("{:.1} GFLOP/s", flops / 1e9) } else { format!("{:.1} TFLOP/s", flops / 1e12) }
}

/// The settings in one line.
pub fn title(settings: &Settings, device: &str, seed: u64) -> String {
    let dtype = match settings.dtype {
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        _ => "f32",
    };
    let layout = if settings.heads_first { "contiguous heads" } else { "heads of one token together" };
    format!(
        "{device}: {} tokens, {} heads x {}, {dtype}, {layout}, density {} ({} keys for groups of {}), seed {seed}",
        settings.tokens,
        settings.heads,
        settings.head_dim,
        settings.density,
        settings.keys(),
        settings.group
    )
}
