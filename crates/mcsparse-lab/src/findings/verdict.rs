//! What a record says about the questions, in words.

use std::fmt::Write;

use crate::{
    experiment::{
        drift::Aged,
        lists::FLOOR,
        oracles::Measured,
        record::{ArmResult, Record},
        report, table,
    },
    statistics::Estimate,
};

/// A difference in words.
fn decibel(gain: &Estimate) -> String {
    format!("{:+.2} ± {:.2} dB", gain.mean, gain.half_width)
}

fn judged(gain: &Estimate) -> &'static str {
    match gain {
        gain if gain.is_above_zero() => "above",
        gain if gain.is_below_zero() => "below",
        _ => "within the interval",
    }
}

/// Each row of the ablation against the one before, and what the residual gains where.
pub(super) fn order(record: &Record) -> String {
    let mut text = String::new();
    for density in &record.settings.densities {
        let at = |id: &str| format!("{id}@{density}");
        let rows = ["vanilla", "reused", "token", "content", "mc-sparse"];
        let steps: Vec<_> = rows.windows(2).filter_map(|pair| record.gain(&at(pair[1]), &at(pair[0]))).collect();
        if steps.len() + 1 < rows.len() {
            continue;
        }
        let holds = steps.iter().all(Estimate::is_above_zero);
        let _ = write!(
            text,
            "The paper's order at density 0.2 on Wan2.1-1.3B is 20.96 < 21.60 < 22.57 < 23.51 < 27.05 dB (the paper's claim). At \
             density {density} here it {}:\n\n",
            if holds { "holds, every step with its interval" } else { "does not hold in every step" }
        );
        text += &table::header(&["step", "gain, paired by clip", "row above"]);
        for (pair, gain) in rows.windows(2).zip(&steps) {
            let name = |id: &str| record.arm(&at(id)).map_or(id.to_owned(), |arm| arm.label.clone());
            let step = format!("{} to {}", name(pair[0]), name(pair[1]));
            table::row(&mut text, &[step, decibel(gain), judged(gain).into()]);
        }
        let residuals = [
            ("vanilla-residual", "vanilla"),
            ("reused-residual", "reused"),
            ("token-residual", "token"),
            ("pisa-residual", "PISA's own"),
            ("mc-sparse", "the full stack"),
        ];
        let without = ["vanilla", "reused", "token", "pisa", "content"];
        let gains = residuals.iter().zip(without).filter_map(|((with, name), without)| {
            Some(format!("{} on {name}", decibel(&record.gain(&at(with), &at(without))?)))
        });
        let _ = write!(
            text,
            "\nThe residual gains {}. The paper claims +1.25 dB on vanilla, +0.49 dB on PISA and +3.54 dB on the full stack.\n\n",
            gains.collect::<Vec<_>>().join(", ")
        );
    }
    text
}

/// MC-Sparse against every rival, paired.
pub(super) fn ahead(record: &Record) -> String {
    let mut text = String::new();
    for density in &record.settings.densities {
        let ours = format!("mc-sparse@{density}");
        if record.arm(&ours).is_none() {
            continue;
        }
        let rivals = record.arms.iter().filter(|arm| arm.density == Some(*density) && !arm.id.starts_with("mc-sparse"));
        let gains: Vec<_> = rivals.filter_map(|arm| Some((arm.label.clone(), record.gain(&ours, &arm.id)?))).collect();
        if gains.is_empty() {
            continue;
        }
        let named = |wanted: &dyn Fn(&Estimate) -> bool| {
            let all = gains.iter().filter(|(_, gain)| wanted(gain));
            all.map(|(label, gain)| format!("{label} ({})", decibel(gain))).collect::<Vec<_>>().join(", ")
        };
        let ahead = named(&Estimate::is_above_zero);
        let behind = named(&Estimate::is_below_zero);
        let open = named(&|gain| !gain.is_above_zero() && !gain.is_below_zero());
        let _ = write!(
            text,
            "At density {density} MC-Sparse is ahead of {}",
            if ahead.is_empty() { "none" } else { &ahead }
        );
        if !behind.is_empty() {
            let _ = write!(text, "; behind {behind}");
        }
        if !open.is_empty() {
            let _ = write!(text, "; not told apart from {open}");
        }
        text += ".\n\n";
    }
    text
}

/// The changes that win by more than their interval.
pub(super) fn winners(record: &Record) -> String {
    let changes = record.arms.iter().filter(|arm| !arm.id.starts_with("base@") && arm.id != FLOOR);
    let mut wins: Vec<_> = changes
        .filter_map(|arm| Some((arm.label.clone(), report::at_equal_work(record, arm)?)))
        .filter(|(_, gain)| gain.is_above_zero())
        .collect();
    wins.sort_by(|a, b| b.1.mean.total_cmp(&a.1.mean));
    if wins.is_empty() {
        return "No change wins by more than its interval. ".into();
    }
    let wins: Vec<_> = wins.iter().map(|(label, gain)| format!("{label} ({})", decibel(gain))).collect();
    format!("At equal work, these win by more than their interval: {}.\n\n", wins.join("; "))
}

/// Whether the residual changes least, as the paper claims.
pub(super) fn least(record: &Record<Aged>) -> String {
    let mut text = String::new();
    for &density in &record.settings.densities {
        let last = |name: &str| record.by_age(name, density).last().copied();
        if let (Some(residual), Some(output), Some(reuse), Some(plain), Some(overlap)) =
            (last("residual"), last("output"), last("reuse-error"), last("plain-error"), last("overlap"))
        {
            let _ = write!(
                text,
                "At density {density} and the last step the residual has changed by {residual:.2} of its own size and the dense \
                 output by {output:.2} of its own: relative to itself the residual changes {} than the output. What counts is the \
                 size of its change beside the output: a reuse step is off by {reuse:.3} with the old residual and by {plain:.3} \
                 without; {:.0} % of the kept keys would be kept again.\n\n",
                if residual < output { "less" } else { "more" },
                overlap * 100.0
            );
        }
    }
    text
}

/// What oracles and ageing say of the steps of the ablation that do not gain.
pub(super) fn why(record: &Record, oracles: Option<&Record<Measured>>, drift: Option<&Record<Aged>>) -> String {
    let Some(&density) = record.settings.densities.first() else { return String::new() };
    let at = |id: &str| format!("{id}@{density}");
    let falls =
        |with: &str, without: &str| record.gain(&at(with), &at(without)).is_some_and(|gain| !gain.is_above_zero());
    let mut parts = Vec::new();
    if let Some(oracles) = oracles {
        let away = |d: &f64| (d - density).abs();
        let near = oracles.settings.densities.iter().copied().min_by(|a, b| away(a).total_cmp(&away(b)));
        let kept = |kind: &str| oracles.mean(kind, near?, |arm| &arm.kept).map(|kept| kept.mean);
        if let (Some(near), Some(pooled), Some(blocks), Some(position)) =
            (near, kept("pooled"), kept("blocks"), kept("position"))
        {
            if falls("reused", "vanilla") {
                parts.push(format!(
                    "Exact selection of blocks has {:.3} of the attention weight to win here: at density {near} the blocks by \
                     mean-pooled scores hold {pooled:.3} of it and the best blocks {blocks:.3} (`oracles`), while a choice that is \
                     reused is as old as the anchor.",
                    blocks - pooled
                ));
            }
            if falls("token", "reused") {
                parts.push(format!(
                    "Single keys for groups by position hold {position:.3} of the weight when they are chosen, and the best blocks \
                     {blocks:.3}."
                ));
            }
        }
    }
    if let Some(drift) = drift
        && falls("token", "reused")
        && let Some(&near) = drift.settings.densities.first()
    {
        let ends = |name: &str| {
            let values = drift.by_age(name, near);
            Some((*values.get(1)?, *values.last()?))
        };
        if let (Some(blocks), Some(position)) = (ends("blocks-error"), ends("position-error")) {
            parts.push(format!(
                "Along a dense run at density {near} the outputs of such keys are off by {:.3} one step after the anchor and by \
                 {:.3} at the last step, those of exact blocks by {:.3} and {:.3} (`drift`): {}.",
                position.0,
                position.1,
                blocks.0,
                blocks.1,
                if position.1 > blocks.1 {
                    "the finer choice ages faster"
                } else {
                    "single outputs are nearer to the dense ones, and the clip is not, so that it is not the size of the errors but \
                     how they add up along the run that differs"
                }
            ));
        }
    }
    if parts.is_empty() { String::new() } else { parts.join(" ") + "\n\n" }
}

/// The best schedules for the work of the published one.
pub(super) fn schedules(record: &Record) -> String {
    let published = ((record.settings.steps as f64 * 0.2).round() as usize).max(1);
    let mut text = String::new();
    for density in &record.settings.densities {
        let Some(base) = record.arm(&format!("warm-{published}-one@{density}")) else { continue };
        let work = base.effective_density + 1e-9;
        let others = || record.arms.iter().filter(|arm| arm.density == Some(*density) && arm.id != base.id);
        let best = |arms: Vec<&ArmResult>| -> Option<String> {
            let best = arms.into_iter().max_by(|a, b| a.mean_psnr().mean.total_cmp(&b.mean_psnr().mean))?;
            let gain = record.gain(&best.id, &base.id)?;
            Some(format!("{} ({} at {:.3} of the work)", best.label, decibel(&gain), best.effective_density))
        };
        let _ = write!(
            text,
            "At density {density} the published schedule, {}, takes {:.3} of the work of a dense run.",
            base.label, base.effective_density
        );
        if let Some(best) = best(others().filter(|arm| arm.effective_density <= work).collect()) {
            let _ = write!(text, " With no more work, the best is {best}.");
        }
        if let Some(best) = best(others().filter(|arm| arm.effective_density > work).collect()) {
            let _ = write!(text, " With more, the best is {best}.");
        }
        text += " Differences are from the published one, paired by clip.\n\n";
    }
    text
}

/// MC-Sparse against block sparsity and its own selection alone, for each number of steps.
pub(super) fn few_steps(record: &Record) -> String {
    let mut counts: Vec<usize> = record.arms.iter().map(|arm| arm.steps).collect();
    counts.sort_unstable();
    counts.dedup();
    let mut text = String::new();
    for density in &record.settings.densities {
        let lines = counts.iter().filter_map(|steps| {
            let at = |id: &str| format!("{id}-{steps}@{density}");
            let vanilla = record.gain(&at("mc-sparse"), &at("vanilla"))?;
            let residual = record.gain(&at("mc-sparse"), &at("content"))?;
            let ours = record.arm(&at("mc-sparse"))?.mean_psnr();
            Some(format!(
                "in {steps} steps {ours} dB, {} beside block sparsity, {} by the residual",
                decibel(&vanilla),
                decibel(&residual)
            ))
        });
        let lines: Vec<_> = lines.collect();
        if !lines.is_empty() {
            let _ = write!(text, "MC-Sparse at density {density}: {}.\n\n", lines.join("; "));
        }
    }
    text
}

/// Where the most attention weight is lost.
pub(super) fn losses(record: &Record<Measured>) -> String {
    let mut text = String::new();
    for &density in &record.settings.densities {
        let kept = ["pooled", "blocks", "position", "content", "query"]
            .map(|kind| record.mean(kind, density, |arm| &arm.kept).map(|kept| kept.mean));
        let [Some(pooled), Some(blocks), Some(position), Some(content), Some(query)] = kept else { continue };
        let losses = [
            ("choosing blocks by mean-pooled scores", blocks - pooled),
            ("taking whole blocks of keys", position - blocks),
            ("grouping queries by position", content - position),
            ("sharing a choice among a group", query - content),
            ("leaving out keys at all", 1.0 - query),
        ];
        let named: Vec<_> = losses.iter().map(|(name, loss)| format!("{name} loses {loss:.3}")).collect();
        let largest = losses.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or("", |(name, _)| *name);
        let _ = write!(
            text,
            "Of the attention weight at density {density}, {}; most is lost by {largest}.\n\n",
            named.join(", ")
        );
    }
    text
}
