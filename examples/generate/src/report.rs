//! What is printed and written at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use burn::tensor::{DType, TensorData};
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use mcsparse::StepKind;
use serde_json::{Value, json};

use crate::run::{Arm, arm_name};

/// Kinds of steps, in the order of a run.
const KINDS: [(StepKind, &str); 3] =
    [(StepKind::Dense, "dense"), (StepKind::Anchor, "anchor"), (StepKind::Reuse, "reuse")];

/// The steps of one kind.
struct Times<'a> {
    kind: &'a str,
    steps: usize,
    median: f64,
    total: f64,
}

fn times(arm: &Arm) -> Vec<Times<'static>> {
    let of = |(kind, name): (StepKind, &'static str)| {
        let mut seconds: Vec<f64> =
            arm.steps.iter().filter(|(of, _)| *of == kind).map(|(_, time)| time.as_secs_f64()).collect();
        seconds.sort_by(f64::total_cmp);
        let median = *seconds.get(seconds.len() / 2)?;
        Some(Times { kind: name, steps: seconds.len(), median, total: seconds.iter().sum() })
    };
    KINDS.into_iter().filter_map(of).collect()
}

fn seconds(arm: &Arm) -> f64 {
    arm.steps.iter().map(|(_, time)| *time).sum::<Duration>().as_secs_f64()
}

/// The tables of a run: times for each kind of step, and what two arms differ by.
pub fn print(arms: &BTreeMap<bool, Arm>) {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header(["run", "steps", "number", "median s", "total s"]);
    for (sparse, arm) in arms {
        for times in times(arm) {
            let (number, median, total) =
                (times.steps.to_string(), format!("{:.4}", times.median), format!("{:.2}", times.total));
            table.add_row([arm_name(*sparse), times.kind, &number, &median, &total]);
        }
        let all = arm.steps.len().to_string();
        table.add_row([arm_name(*sparse), "all", &all, "", &format!("{:.2}", seconds(arm))]);
    }
    println!("{table}");
    for (sparse, arm) in arms {
        let mib = arm.cache_bytes as f64 / f64::from(1 << 20);
        let name = arm_name(*sparse);
        println!("{name}: attention work {:.3} of dense, {mib:.0} MiB kept between steps", arm.effective_density);
        print!("{}", arm.report);
    }
    if let (Some(dense), Some(sparse)) = (arms.get(&false), arms.get(&true)) {
        println!("all steps: {:.2} times as fast as dense", seconds(dense) / seconds(sparse));
        for ((name, left), (_, right)) in dense.latents.iter().zip(&sparse.latents) {
            println!("{name}: relative difference {:.4}", difference(left, right));
        }
    }
}

/// Norm of the difference over the norm of `dense`.
fn difference(dense: &TensorData, sparse: &TensorData) -> f64 {
    let [dense, sparse] = [dense, sparse].map(|data| data.clone().convert_dtype(DType::F32));
    let pairs = || dense.iter::<f64>().zip(sparse.iter::<f64>());
    let sum = |part: fn((f64, f64)) -> f64| pairs().map(part).sum::<f64>();
    (sum(|(a, b)| (a - b) * (a - b)) / sum(|(a, _)| a * a)).sqrt()
}

/// The same for programs.
pub fn json(settings: &BTreeMap<String, String>, arms: &BTreeMap<bool, Arm>) -> Value {
    let arm = |arm: &Arm| {
        let kinds: Vec<_> = times(arm)
            .into_iter()
            .map(|t| json!({ "kind": t.kind, "steps": t.steps, "median_seconds": t.median, "seconds": t.total }))
            .collect();
        let steps: Vec<f64> = arm.steps.iter().map(|(_, time)| time.as_secs_f64()).collect();
        json!({
            "seconds": seconds(arm),
            "kinds": kinds,
            "step_seconds": steps,
            "resumed_at_step": arm.resumed_at,
            "effective_density": arm.effective_density,
            "cache_bytes": arm.cache_bytes,
        })
    };
    let arms: BTreeMap<_, _> = arms.iter().map(|(sparse, of)| (arm_name(*sparse), arm(of))).collect();
    json!({ "settings": settings, "runs": arms })
}
