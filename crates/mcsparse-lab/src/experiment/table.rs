//! Records as Markdown.

use std::fmt::Write;

use super::{
    drift,
    lists::FLOOR,
    oracles,
    record::{ArmResult, Record},
    study::Settings,
};
use crate::statistics::Estimate;

/// What was run, in one line.
pub fn setting(settings: &Settings) -> String {
    let Settings { size, device, dtype, clips, seed, steps, group_size, .. } = settings;
    format!(
        "Model `{}`, {clips} clips (noise from seed {seed} on), {steps} steps, no guidance, {dtype} on {device}; groups of \
         {group_size}, first layer dense.",
        size.preset().name
    )
}

/// All arms of a comparison; the last column is the difference in PSNR from the arm `base`, paired by clip.
pub fn arms(record: &Record, base: Option<&str>) -> String {
    let with_lpips = record.settings.lpips.is_some();
    let with_motion = record.arms.iter().any(|arm| arm.clips.iter().any(|clip| clip.temporal.is_some()));
    let mut heads = vec!["method", "density", "of the run", "PSNR (dB)", "mean over frames (dB)", "SSIM"];
    let lpips = record.settings.lpips.as_ref().map(|net| format!("LPIPS ({net})"));
    heads.extend(lpips.as_deref());
    heads.extend(with_motion.then_some("PSNR of motion (dB)"));
    let label = base.and_then(|base| record.arm(base)).map(|arm| format!("PSNR less that of {}", arm.label));
    heads.extend(label.as_deref());
    let mut text = header(&heads);
    for arm in &record.arms {
        let estimate = |of: &dyn Fn(&super::record::ClipResult) -> f64| Estimate::of(&arm.values(of));
        let mut cells = vec![
            arm.label.clone(),
            arm.density.map_or("1".into(), |density| density.to_string()),
            format!("{:.3}", arm.effective_density),
            format!("{}", arm.mean_psnr()),
            format!("{}", estimate(&|clip| clip.psnr.mean_over_frames)),
            format!("{:.4}", estimate(&|clip| clip.ssim)),
        ];
        if with_lpips {
            cells.push(format!("{:.4}", estimate(&|clip| clip.lpips.unwrap_or(f64::NAN))));
        }
        if with_motion {
            cells.push(format!("{}", estimate(&|clip| clip.temporal.map_or(f64::NAN, |t| t.motion_psnr))));
        }
        if let (Some(base), Some(_)) = (base, &label) {
            cells.push(
                record
                    .gain(&arm.id, base)
                    .filter(|_| arm.id != base && arm.id != FLOOR)
                    .map_or(String::new(), |gain| format!("{:+.2} ± {:.2}", gain.mean, gain.half_width)),
            );
        }
        row(&mut text, &cells);
    }
    text
}

/// PSNR of each arm at each density, arms of one label in a row, and the rows in the order of the record.
pub fn by_density(record: &Record) -> String {
    let densities = &record.settings.densities;
    let heads: Vec<String> =
        std::iter::once("method".to_owned()).chain(densities.iter().map(|d| format!("PSNR at {d} (dB)"))).collect();
    let mut text = header(&heads.iter().map(String::as_str).collect::<Vec<_>>());
    for label in labels(&record.arms) {
        let of = |density: f64| record.arms.iter().find(|arm| arm.label == label && arm.density == Some(density));
        let cells = densities.iter().map(|&d| of(d).map_or(String::new(), |arm| arm.mean_psnr().to_string()));
        row(&mut text, &std::iter::once(label.clone()).chain(cells).collect::<Vec<_>>());
    }
    text
}

/// The labels of arms that have a density, each once, in order.
pub fn labels(arms: &[ArmResult]) -> Vec<String> {
    let mut labels: Vec<String> = Vec::new();
    for arm in arms.iter().filter(|arm| arm.density.is_some()) {
        if !labels.contains(&arm.label) {
            labels.push(arm.label.clone());
        }
    }
    labels
}

/// The decomposition at each density.
pub fn oracles(record: &Record<oracles::Measured>) -> String {
    let mut text = header(&["choice", "density", "kept weight", "output error (relative L2)"]);
    for &density in &record.settings.densities {
        for (kind, label) in oracles::KINDS {
            let kept = record.mean(kind, density, |arm| &arm.kept);
            let error = record.mean(kind, density, |arm| &arm.error);
            if let (Some(kept), Some(error)) = (kept, error) {
                row(&mut text, &[label.into(), density.to_string(), format!("{kept:.3}"), format!("{error:.3}")]);
            }
        }
    }
    text.push('\n');
    text += &header(&[
        "density",
        "selection error",
        "binding of keys",
        "binding of queries",
        "sharing a choice",
        "discarded tail",
    ]);
    for &density in &record.settings.densities {
        let kept = oracles::KINDS.map(|(kind, _)| record.mean(kind, density, |arm| &arm.kept));
        let [Some(pooled), Some(blocks), Some(position), Some(content), Some(query)] = kept else { continue };
        let losses = [(pooled, blocks), (blocks, position), (position, content), (content, query)];
        let cells = losses.map(|(a, b)| format!("{:.3}", b.mean - a.mean));
        let tail = format!("{:.3}", 1.0 - query.mean);
        row(&mut text, &[&[density.to_string()][..], &cells[..], &[tail][..]].concat());
    }
    text
}

/// Every measure of drift against age, for one density.
pub fn drift(record: &Record<drift::Aged>, density: f64) -> String {
    // Records of older programs lack the latest measures.
    let measured: Vec<_> = drift::MEASURES
        .iter()
        .map(|(name, label)| (*label, record.by_age(name, density)))
        .filter(|(_, column)| !column.is_empty())
        .collect();
    let heads: Vec<&str> =
        std::iter::once("steps since the anchor").chain(measured.iter().map(|(label, _)| *label)).collect();
    let mut text = header(&heads);
    let columns: Vec<_> = measured.into_iter().map(|(_, column)| column).collect();
    let Some(first) = columns.first() else { return text };
    let ages = first.len();
    // The first few, then every so many.
    let stride = ages.div_ceil(12).max(1);
    for age in (0..ages).filter(|&age| age < 3 || age % stride == 0 || age + 1 == ages) {
        let cells = columns.iter().map(|column| format!("{:.3}", column[age]));
        row(&mut text, &std::iter::once(age.to_string()).chain(cells).collect::<Vec<_>>());
    }
    text
}

/// The head of a table, the first column to the left and the others to the right.
pub fn header(heads: &[&str]) -> String {
    let mut text = String::new();
    row(&mut text, &heads.iter().map(|head| (*head).to_owned()).collect::<Vec<_>>());
    let _ = writeln!(text, "|---|{}", "---:|".repeat(heads.len() - 1));
    text
}

/// One row.
pub fn row(text: &mut String, cells: &[String]) {
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}
