//! Records as pages: a Markdown file and plots beside the JSON, made from it alone.

use std::{fmt::Write, path::Path};

use super::{
    drift::{self, Aged},
    lists::FLOOR,
    oracles::{self, Measured},
    plot::{self, Line},
    record::{ArmResult, Record},
    table,
};
use crate::{error::Error, files::write_whole, statistics::Estimate};

/// A page and where its plots went.
pub struct Page {
    /// Markdown.
    pub text: String,
    /// File names of the plots, in the folder that was named.
    pub plots: Vec<String>,
}

/// Writes the page of a record beside it.
///
/// # Errors
///
/// [`Error::Run`] naming the file.
pub fn write(page: &Page, title: &str, folder: &Path, name: &str) -> Result<(), Error> {
    let pictures = page.plots.iter().fold(String::new(), |mut text, plot| {
        let _ = write!(text, "\n![{plot}]({plot})\n");
        text
    });
    write_whole(&folder.join(format!("{name}.md")), format!("# {title}\n\n{}{pictures}", page.text).as_bytes())
}

/// The page of a comparison of arms; plots go to `folder` under names that begin with `prefix`.
///
/// # Errors
///
/// [`Error::Run`] if a plot cannot be written.
pub fn arms(record: &Record, folder: &Path, prefix: &str) -> Result<Page, Error> {
    let name = record.experiment.as_str();
    let base = match name {
        "ablation" => record.arms.iter().find(|arm| arm.id.starts_with("vanilla@")).map(|arm| arm.id.clone()),
        "versus" => record.arms.iter().find(|arm| arm.id.starts_with("mc-sparse@")).map(|arm| arm.id.clone()),
        _ => None,
    };
    // A single reference makes sense at a single density only.
    let base = base.filter(|_| record.settings.densities.len() == 1);
    let mut text = format!("{}\n\n{}", table::setting(&record.settings), table::arms(record, base.as_deref()));
    let densities = &record.settings.densities;
    if name == "versus" && densities.len() > 1 {
        let _ = write!(text, "\n{}", table::by_density(record));
    }
    if name == "improve" {
        let _ = write!(text, "\n{}", improvements(record));
    }
    let (title, axes, lines) = match name {
        "versus" => (
            "distance from dense attention",
            ["density of reuse steps", "PSNR (dB)"],
            by_label(record, |arm| arm.density),
        ),
        "fewstep" => ("few steps", ["denoising steps", "PSNR (dB)"], by_label(record, |arm| Some(arm.steps as f64))),
        "schedule" => ("schedules", ["effective density of the run", "PSNR (dB)"], by_schedule(record)),
        "improve" => ("changes to MC-Sparse", ["effective density of the run", "PSNR (dB)"], improve_lines(record)),
        _ => ("one idea more in each row", ["row", "PSNR (dB)"], by_row(record)),
    };
    let plot = format!("{prefix}{name}.svg");
    plot::lines(&folder.join(&plot), title, axes, &lines)?;
    Ok(Page { text, plots: vec![plot] })
}

fn point(arm: &ArmResult, x: f64) -> (f64, f64, f64) {
    let Estimate { mean, half_width } = arm.mean_psnr();
    (x, mean, half_width)
}

/// One line for each label.
fn by_label(record: &Record, x: impl Fn(&ArmResult) -> Option<f64>) -> Vec<Line> {
    let line = |name: String| {
        let arms = record.arms.iter().filter(|arm| arm.label == name && arm.density.is_some());
        let mut points: Vec<_> = arms.filter_map(|arm| Some(point(arm, x(arm)?))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line { name, points, scattered: false }
    };
    table::labels(&record.arms).into_iter().map(line).collect()
}

/// One line for each number of anchors.
fn by_schedule(record: &Record) -> Vec<Line> {
    let counts = [(1, "one anchor"), (2, "two anchors"), (3, "three anchors")];
    let line = |(count, name): (usize, &str)| {
        let arms = record.arms.iter().filter(|arm| arm.anchors.len() == count);
        let mut points: Vec<_> = arms.map(|arm| point(arm, arm.effective_density)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line { name: name.into(), points, scattered: false }
    };
    counts.map(line).into_iter().filter(|line| !line.points.is_empty()).collect()
}

/// One line for each density, rows of the table against PSNR.
fn by_row(record: &Record) -> Vec<Line> {
    let densities = record.settings.densities.iter();
    densities
        .map(|&density| {
            let arms = record.arms.iter().filter(|arm| arm.density == Some(density));
            let points = arms.enumerate().map(|(row, arm)| point(arm, row as f64 + 1.0)).collect();
            Line { name: format!("density {density}"), points, scattered: false }
        })
        .collect()
}

fn is_base(arm: &&ArmResult) -> bool {
    arm.id.starts_with("base@")
}

fn improve_lines(record: &Record) -> Vec<Line> {
    let mut curve: Vec<_> = record.arms.iter().filter(is_base).map(|arm| point(arm, arm.effective_density)).collect();
    curve.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut lines = vec![Line { name: "MC-Sparse".into(), points: curve, scattered: false }];
    let others = record.arms.iter().filter(|arm| !is_base(arm) && arm.id != FLOOR);
    lines.extend(others.map(|arm| Line {
        name: arm.label.clone(),
        points: vec![point(arm, arm.effective_density)],
        scattered: true,
    }));
    lines
}

/// PSNR of `arm` less what MC-Sparse reaches at the same effective density, clip by clip: a straight line between the two
/// nearest densities of the curve. `None` outside the curve.
pub fn at_equal_work(record: &Record, arm: &ArmResult) -> Option<Estimate> {
    let mut curve: Vec<&ArmResult> = record.arms.iter().filter(is_base).collect();
    curve.sort_by(|a, b| a.effective_density.total_cmp(&b.effective_density));
    // Work of equal plans differs in the last digits only.
    let work = arm.effective_density;
    let pair = curve
        .windows(2)
        .find(|pair| (pair[0].effective_density - 1e-9..=pair[1].effective_density + 1e-9).contains(&work))?;
    let share = (work - pair[0].effective_density) / (pair[1].effective_density - pair[0].effective_density);
    let [low, high] = [pair[0].psnr(), pair[1].psnr()];
    let line: Vec<f64> = low.iter().zip(&high).map(|(low, high)| low + share.clamp(0.0, 1.0) * (high - low)).collect();
    Some(Estimate::of_pairs(&arm.psnr(), &line))
}

/// Each change against the curve.
pub fn improvements(record: &Record) -> String {
    let mut text = table::header(&["change", "of the run", "PSNR (dB)", "gain at equal work (dB)", "verdict"]);
    for arm in record.arms.iter().filter(|arm| !is_base(arm) && arm.id != FLOOR) {
        let gain = at_equal_work(record, arm);
        let verdict = match &gain {
            Some(gain) if gain.is_above_zero() => "wins",
            Some(gain) if gain.is_below_zero() => "loses",
            Some(_) => "within the interval",
            None => "outside the curve",
        };
        let gain = gain.map_or(String::new(), |gain| format!("{:+.2} ± {:.2}", gain.mean, gain.half_width));
        let work = format!("{:.3}", arm.effective_density);
        table::row(&mut text, &[arm.label.clone(), work, arm.mean_psnr().to_string(), gain, verdict.into()]);
    }
    text
}

/// The page of the decomposition.
///
/// # Errors
///
/// [`Error::Run`] if a plot cannot be written.
pub fn oracles(record: &Record<Measured>, folder: &Path, prefix: &str) -> Result<Page, Error> {
    let mut text = format!(
        "{} Steps {:?}, mean over all layers and heads; intervals over batches.\n\n{}",
        table::setting(&record.settings),
        oracles::steps(&record.settings),
        table::oracles(record)
    );
    for &density in &record.settings.densities {
        let _ = write!(text, "\nKept weight by layer at density {density}:\n\n");
        let columns = oracles::KINDS.map(|(kind, _)| record.by_layer(kind, density));
        let heads: Vec<&str> = std::iter::once("layer").chain(oracles::KINDS.map(|(_, label)| label)).collect();
        text += &table::header(&heads);
        for layer in 0..columns[0].len() {
            let cells = columns.iter().map(|column| format!("{:.3}", column[layer]));
            table::row(&mut text, &std::iter::once(layer.to_string()).chain(cells).collect::<Vec<_>>());
        }
    }
    let lines = oracles::KINDS.map(|(kind, label)| {
        let densities = record.settings.densities.iter();
        let points =
            densities.filter_map(|&d| record.mean(kind, d, |arm| &arm.kept).map(|e| (d, e.mean, e.half_width)));
        let mut points: Vec<_> = points.collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line { name: label.into(), points, scattered: false }
    });
    let plot = format!("{prefix}oracles.svg");
    plot::lines(&folder.join(&plot), "attention weight that a choice holds", ["density", "share"], &lines)?;
    Ok(Page { text, plots: vec![plot] })
}

/// The page of ageing.
///
/// # Errors
///
/// [`Error::Run`] if a plot cannot be written.
pub fn drift(record: &Record<Aged>, folder: &Path, prefix: &str) -> Result<Page, Error> {
    let mut text = table::setting(&record.settings);
    let mut plots = Vec::new();
    for &density in &record.settings.densities {
        let anchor = record.arms.first().map_or(0, |arm| arm.anchor);
        let _ = write!(
            text,
            "\n\nDensity {density}, anchor at step {anchor}; mean over the layers but the first.\n\n{}",
            table::drift(record, density)
        );
        let shown = [
            "residual",
            "output",
            "sparse",
            "reuse-error",
            "plain-error",
            "blocks-error",
            "position-error",
            "gain",
            "overlap",
        ];
        let there = |name: &str| shown.contains(&name) && !record.by_age(name, density).is_empty();
        let lines = drift::MEASURES.iter().filter(|(name, _)| there(name)).map(|(name, label)| {
            let values = record.by_age(name, density).into_iter().enumerate();
            Line {
                name: (*label).into(),
                points: values.map(|(age, v)| (age as f64, v, 0.0)).collect(),
                scattered: false,
            }
        });
        let plot = format!("{prefix}drift-{density}.svg");
        let title = format!("ageing after an anchor at step {anchor}, density {density}");
        let axes = ["steps since the anchor", "share"];
        plot::lines(&folder.join(&plot), &title, axes, &lines.collect::<Vec<_>>())?;
        plots.push(plot);
    }
    Ok(Page { text, plots })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        experiment::{lists, record::ClipResult},
        metrics::Psnr,
    };

    fn arm(id: &str, work: f64, psnr: &[f64]) -> ArmResult {
        let clip = |(i, &db): (usize, &f64)| ClipResult {
            clip: i.to_string(),
            psnr: Psnr { mean_over_frames: db, of_mean_error: db },
            ssim: 0.9,
            lpips: None,
            temporal: None,
        };
        ArmResult {
            id: id.into(),
            label: id.into(),
            steps: 20,
            density: Some(0.15),
            effective_density: work,
            anchors: vec![3],
            forwards: 20,
            seconds: 1.0,
            clips: psnr.iter().enumerate().map(clip).collect(),
        }
    }

    #[test]
    fn changes_are_compared_at_equal_work() {
        let arms = vec![
            arm("base@0.1", 0.3, &[30.0, 32.0]),
            arm("base@0.2", 0.4, &[34.0, 34.0]),
            arm("better", 0.35, &[33.0, 34.1]),
            arm("far", 0.9, &[50.0, 50.0]),
        ];
        let record = Record { experiment: "improve".into(), settings: lists::testing::settings(20), arms };
        // At 0.35 the curve stands at 32 and 33.
        let gain = at_equal_work(&record, &record.arms[2]).unwrap();
        assert!((gain.mean - 1.05).abs() < 1e-9, "{gain:?}");
        assert_eq!(at_equal_work(&record, &record.arms[3]), None);
        let text = improvements(&record);
        assert!(text.contains("| better | 0.350 | 33.55 ± ") && text.contains("outside the curve"), "{text}");
        let folder = tempfile::tempdir().unwrap();
        let page = super::arms(&record, folder.path(), "x-").unwrap();
        assert_eq!(page.plots, ["x-improve.svg"]);
        write(&page, "T", folder.path(), "improve").unwrap();
        let text = std::fs::read_to_string(folder.path().join("improve.md")).unwrap();
        assert!(text.starts_with("# T\n") && text.contains("![x-improve.svg](x-improve.svg)"), "{text}");
    }
}
