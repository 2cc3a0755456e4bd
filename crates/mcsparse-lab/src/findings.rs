//! docs/findings.md, from the records alone.

mod verdict;

use std::{fmt::Write, path::Path};

use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    experiment::{
        drift::Aged,
        oracles::Measured,
        record::Record,
        report::{self, Page},
    },
    files::{writable_folder, write_whole},
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
            "ablation" => {
                let oracles = read::<Measured>(&path("oracles"))?;
                let drift = read::<Aged>(&path("drift"))?;
                verdict::order(&record) + &verdict::why(&record, oracles.as_ref(), drift.as_ref())
            }
            "versus" => verdict::ahead(&record),
            "improve" => verdict::winners(&record),
            "schedule" => verdict::schedules(&record),
            _ => verdict::few_steps(&record),
        };
        section(&mut text, name, title, &verdict, &page);
    }
    if path("oracles").exists() {
        let record: Record<Measured> = Record::read(&path("oracles"))?;
        let page = report::oracles(&record, &docs.join(PICTURES), PREFIX)?;
        let lost = verdict::losses(&record);
        section(&mut text, "oracles", "Where attention weight is lost", &lost, &page);
    } else {
        missing.push("oracles");
    }
    if path("drift").exists() {
        let record: Record<Aged> = Record::read(&path("drift"))?;
        let page = report::drift(&record, &docs.join(PICTURES), PREFIX)?;
        section(&mut text, "drift", "How an anchor ages", &verdict::least(&record), &page);
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

/// A record, if it is there.
fn read<A: Serialize + for<'a> Deserialize<'a>>(path: &Path) -> Result<Option<Record<A>>, Error> {
    path.exists().then(|| Record::read(path)).transpose()
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
