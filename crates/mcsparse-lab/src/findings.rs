//! docs/findings.md, from the records alone.

use std::{fmt::Write, path::Path};

use crate::{
    error::Error,
    experiment::{
        drift::Aged,
        lists::FLOOR,
        oracles::Measured,
        record::Record,
        report::{self, Page},
        table,
    },
    files::{writable_folder, write_whole},
    statistics::Estimate,
};

/// Where plots go, beside the page.
const PICTURES: &str = "pictures";
const PREFIX: &str = "lab-";

/// Writes `findings.md` and its plots to `docs` from the records in `from`; experiments without a record are named as missing.
/// `machine` says where they ran.
///
/// # Errors
///
/// [`Error::Run`] if a record cannot be read or a file not be written.
pub fn write(from: &Path, docs: &Path, machine: Option<&str>) -> Result<(), Error> {
    writable_folder(&docs.join(PICTURES))?;
    let path = |name: &str| from.join(format!("{name}.json"));
    let mut text = String::from(
        "# Findings\n\nWhat the lab measured. This page is written by `cargo run --release -p mcsparse-lab -- findings` from the \
         JSON records of the experiments; every figure comes from there. PSNR is against the dense clip from the same noise, \
         from the mean error over a clip; intervals are 95 % by Student's t over clips, and differences are paired by clip. The \
         row \"dense, tensor operations\" is the floor: two dense kernels differ by that much. The density of a reuse step and \
         that of the whole run (dense steps, anchors and dense layers counted) stand side by side. \
         docs/lab.md says what each method is.\n",
    );
    if let Some(machine) = machine {
        let _ = write!(text, "\nMeasured on {machine}.\n");
    }
    let mut missing = Vec::new();
    for (name, title) in [
        ("ablation", "Does the paper's order hold here?"),
        ("versus", "Against rivals at matched density"),
        ("improve", "What can be improved at equal work"),
        ("schedule", "Warm-up and anchors"),
        ("fewstep", "Few steps"),
    ] {
        if !path(name).exists() {
            missing.push(name);
            continue;
        }
        let record = Record::read(&path(name))?;
        let page = report::arms(&record, &docs.join(PICTURES), PREFIX)?;
        let verdict = match name {
            "ablation" => order(&record),
            "versus" => ahead(&record),
            "improve" => winners(&record),
            _ => String::new(),
        };
        section(&mut text, name, title, &verdict, &page);
    }
    if path("oracles").exists() {
        let record: Record<Measured> = Record::read(&path("oracles"))?;
        let page = report::oracles(&record, &docs.join(PICTURES), PREFIX)?;
        section(&mut text, "oracles", "Where attention weight is lost", "", &page);
    } else {
        missing.push("oracles");
    }
    if path("drift").exists() {
        let record: Record<Aged> = Record::read(&path("drift"))?;
        let page = report::drift(&record, &docs.join(PICTURES), PREFIX)?;
        section(&mut text, "drift", "How an anchor ages", &least(&record), &page);
    } else {
        missing.push("drift");
    }
    if missing.len() == 7 {
        return Err(Error::run(
            from.display(),
            "no record of an experiment; run one first, or name their folder with --from",
        ));
    }
    if !missing.is_empty() {
        let _ = write!(text, "\nNot run yet: {}.\n", missing.join(", "));
    }
    write_whole(&docs.join("findings.md"), text.as_bytes())
}

fn section(text: &mut String, name: &str, title: &str, verdict: &str, page: &Page) {
    let _ = write!(text, "\n## {title}\n\n`mcsparse-lab {name}`. {verdict}{}", page.text);
    for plot in &page.plots {
        let _ = write!(text, "\n![{title}]({PICTURES}/{plot})\n");
    }
}

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
fn order(record: &Record) -> String {
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
fn ahead(record: &Record) -> String {
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
fn winners(record: &Record) -> String {
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
fn least(record: &Record<Aged>) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_records_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = write(folder.path(), &folder.path().join("docs"), None).unwrap_err().to_string();
        assert!(error.contains("no record of an experiment"), "{error}");
        assert!(!folder.path().join("docs/findings.md").exists());
    }
}
