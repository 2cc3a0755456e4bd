//! The report of a probe for people.

use std::fmt::Write;

use super::measure::{Measured, Report};
use crate::experiment::table::{header, row};

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Means over layers and heads, the suggestion, and one table by layer for the suggested density.
pub(super) fn page(report: &Report) -> String {
    let mut text = format!("# Probe of {}\n\n", report.file);
    for (name, [batch, heads, tokens, dim]) in &report.captures {
        let _ = writeln!(text, "- `{name}`: batch {batch}, {heads} heads x {dim}, {tokens} tokens");
    }
    let several = report.steps.len() > 1;
    let _ = write!(text, "\nSteps {:?}; groups of {}.\n\n", report.steps, report.group_size);
    let suggestion = &report.suggestion;
    let error = if several { "of the steps after the anchor" } else { "without a residual, at the one step there is" };
    let _ = write!(
        text,
        "**Suggested density {}**: the mean error of MC-Sparse's output, {error}, is {:.3}; {}.",
        suggestion.density,
        suggestion.error,
        if suggestion.reached {
            format!("the smallest density that was tried with at most {}", report.target)
        } else {
            format!("none that was tried comes down to {}", report.target)
        }
    );
    match (several, suggestion.refresh_before) {
        (false, _) => text += " Capture several steps to see how a residual ages.",
        (true, Some(step)) => {
            let _ = write!(text, " From step {step} on the error is above {}: refresh before it.", report.target);
        }
        (true, None) => text += " It stays below through all captured steps: one anchor before them will do.",
    }
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    let _ = write!(
        text,
        " The cache of the whole model takes {:.1} MiB with a residual in 16 bits, {:.1} MiB with one in 8.\n\n",
        mib(suggestion.cache_bytes),
        mib(suggestion.cache_bytes_in_8_bits)
    );
    let mut heads = vec!["method", "density", "kept weight", "error, first step, no residual"];
    if several {
        heads.push("error, later steps");
    }
    text += &header(&heads);
    let mut seen: Vec<(&str, f64)> = Vec::new();
    for Measured { method, density, .. } in &report.measured {
        if seen.contains(&(method, *density)) {
            continue;
        }
        seen.push((method, *density));
        let all: Vec<&Measured> =
            report.measured.iter().filter(|m| m.method == *method && m.density == *density).collect();
        let over =
            |of: &dyn Fn(&Measured) -> &[f64]| mean(&all.iter().flat_map(|m| of(m).to_vec()).collect::<Vec<_>>());
        let mut cells = vec![
            method.clone(),
            density.to_string(),
            format!("{:.3}", over(&|m| &m.kept)),
            format!("{:.3}", over(&|m| &m.error)),
        ];
        if several {
            cells.push(format!("{:.3}", over(&|m| &m.later)));
        }
        row(&mut text, &cells);
    }
    let _ = write!(text, "\nMC-Sparse at density {} by layer and head:\n\n", suggestion.density);
    text += &header(&["layer", "head", "kept weight", "error, no residual"]);
    let ours = report.measured.iter().filter(|m| m.method == super::measure::OURS && m.density == suggestion.density);
    for measured in ours {
        for (head, (kept, error)) in measured.kept.iter().zip(&measured.error).enumerate() {
            let cells = [measured.capture.clone(), head.to_string(), format!("{kept:.3}"), format!("{error:.3}")];
            row(&mut text, &cells);
        }
    }
    text
}
