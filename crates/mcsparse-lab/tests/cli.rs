//! The program as users run it: every experiment at a tiny setting.

use std::{
    path::Path,
    process::{Command, Output},
};

use mcsparse_lab::experiment::{record::Record, shapes::ShapeRecord};

fn lab(arguments: &str, out: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcsparse-lab"));
    command.args(arguments.split_whitespace());
    if !arguments.starts_with("findings") {
        command.arg("--out").arg(out);
    }
    command.output().expect("the program starts")
}

fn succeeds(arguments: &str, out: &Path) -> String {
    let output = lab(arguments, out);
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

const TINY: &str = "--quiet --clips 2 --batch 2 --steps 5";

#[test]
fn shapes_are_compared_and_the_record_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let run = || succeeds("shapes --quiet --shapes 1 --batch 1 --steps 2 --densities 0.25", folder.path());
    let table = run();
    for row in ["| dense | 1 | 1.000 | 0.0000 | 1.0000 | 1.0000 |", "| MC-Sparse | 0.25 |", "| block-sparse | 0.25 |"] {
        assert!(table.contains(row), "{row} is not in {table}");
    }
    let record = ShapeRecord::read(&folder.path().join("shapes.json")).unwrap();
    let iou = |id: &str| record.arms.iter().find(|arm| arm.id == id).unwrap().shapes[0].to_dense.iou;
    assert!(iou("dense-tensor-operations") > 0.999);
    // The residual is worth something here too.
    assert!(iou("mc-sparse@0.25") > iou("content@0.25") && iou("mc-sparse@0.25") < 1.0);
    // Nothing is left to do: the same page from the record.
    assert_eq!(run(), table);

    let output = lab("shapes --quiet --shapes 1 --batch 1 --steps 2 --densities 0.5", folder.path());
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("a record of other settings"), "{message}");
    for (arguments, expected) in [
        ("--shapes 0", "--shapes: expected at least 1, got 0"),
        ("--steps 1", "--steps: expected at least 2, an anchor and a sparse step, got 1"),
        ("--densities 0.1,2", "--densities: expected shares above 0 and at most 1, got 2"),
    ] {
        let output = lab(&format!("shapes {arguments} --weights nowhere"), folder.path());
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(expected), "{arguments}: {message}");
    }
}

#[test]
fn every_experiment_runs_and_the_findings_follow() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    let run = |command: &str| succeeds(&format!("{command} {TINY}"), out);

    let table = run("ablation");
    for row in [
        "vanilla block-sparse | 0.2 |",
        "residual: MC-Sparse | 0.2 |",
        "PISA + residual",
        "dense, tensor operations | 1 |",
    ] {
        assert!(table.contains(row), "{row} is not in {table}");
    }
    let record: Record = Record::read(&out.join("ablation.json")).unwrap();
    assert_eq!(record.arms.len(), 11);
    let vanilla = record.arm("vanilla@0.2").unwrap();
    // 5 steps: an anchor, which vanilla takes as a dense step, and 4 sparse ones; one layer of four is dense.
    let sparse = (1.0 + 4.0 * 0.2) / 5.0;
    assert!((vanilla.effective_density - (1.0 + 3.0 * sparse) / 4.0).abs() < 1e-9, "{}", vanilla.effective_density);
    assert_eq!((vanilla.forwards, vanilla.clips.len()), (5, 2));
    // The residual is worth something even here, and dense attention by other means is all but the same.
    assert!(record.gain("mc-sparse@0.2", "content@0.2").unwrap().mean > 0.0);
    assert!(record.arm("dense-tensor-operations").unwrap().psnr().iter().all(|&db| db > 60.0));

    run("versus --residual --densities 0.15");
    let record: Record = Record::read(&out.join("versus.json")).unwrap();
    assert_eq!(record.arms.len(), 1 + 11 + 7);
    run("schedule");
    run("fewstep --counts 3,5");
    let improve = run("improve --fit 1");
    assert!(improve.contains("gain at equal work") && improve.contains("fitted on other clips"), "{improve}");
    let oracles = run("oracles");
    assert!(oracles.contains("discarded tail"), "{oracles}");
    let drift = run("drift");
    assert!(drift.contains("steps since the anchor"), "{drift}");

    let docs = out.join("docs");
    succeeds(&format!("findings --from {} --docs {}", out.display(), docs.display()), out);
    let page = std::fs::read_to_string(docs.join("findings.md")).unwrap();
    for part in [
        "order at density 0.2",
        "MC-Sparse is ahead of",
        "The residual gains",
        "At density 0.15 and the last step",
        "At density 0.15 the published schedule",
        "in 3 steps",
        "Of the attention weight at density 0.25, choosing blocks",
        "error without a residual, exact blocks of the anchor",
    ] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
    assert!(!page.contains("Not run yet") && !page.contains("NaN"), "{page}");
    for picture in page.split("](pictures/").skip(1).filter_map(|rest| rest.split(')').next()) {
        assert!(docs.join("pictures").join(picture).exists(), "{picture}");
    }
}

#[test]
fn a_run_that_stopped_is_continued_and_gives_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
    let read = |out: &Path| -> Record { Record::read(&out.join("ablation.json")).unwrap() };
    succeeds(&format!("ablation {TINY} --only vanilla,token"), &whole);
    succeeds(&format!("ablation {TINY} --only token"), &parts);
    let before = read(&parts);
    assert_eq!(before.arms.len(), 3);
    succeeds(&format!("ablation {TINY} --only vanilla,token"), &parts);
    let (whole, after) = (read(&whole), read(&parts));
    let numbers =
        |record: &Record| record.arms.iter().map(|arm| (arm.id.clone(), arm.clips.clone())).collect::<Vec<_>>();
    assert_eq!(numbers(&whole), numbers(&after));
    // What was there was not run again.
    assert_eq!(after.arm("token@0.2").unwrap().seconds, before.arm("token@0.2").unwrap().seconds);

    let other = lab(&format!("ablation {TINY} --seed 1"), &parts);
    let message = String::from_utf8_lossy(&other.stderr);
    assert!(!other.status.success() && message.contains("a record of other settings"), "{message}");
}

#[test]
fn options_that_cannot_be_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("none");
    for (arguments, expected) in [
        ("ablation --clips 0", "--clips: expected at least 1, got 0"),
        ("ablation --steps 1", "--steps: expected at least 2"),
        ("versus --densities 0.2,1.5", "--densities: expected shares above 0 and at most 1, got 1.5"),
        ("ablation --only nothing", "--only: expected the beginning of an arm's name, got nothing"),
        ("fewstep --counts 1", "--counts: expected numbers of at least 2 steps, got 1"),
        ("probe nowhere.safetensors --densities 2", "--densities: expected shares above 0 and at most 1, got 2"),
    ] {
        let output = lab(arguments, &out);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {message}");
        assert!(message.contains(expected), "{arguments}: {message}");
        assert!(!out.exists(), "{arguments} made a folder");
    }
    let output = lab("probe nowhere.safetensors", &out);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("nowhere.safetensors"));
}
