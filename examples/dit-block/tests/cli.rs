//! The built program: exit codes, messages, files, and numbers that fit each other.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn run(arguments: &str, folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dit-block"));
    command.args(arguments.split_whitespace()).current_dir(folder).output().unwrap()
}

fn success(arguments: &str) -> (String, Value) {
    let folder = TempDir::new().unwrap();
    let output = run(arguments, folder.path());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{arguments}: {stderr}");
    let out = folder.path().join("out/dit-block");
    let svg = std::fs::read_to_string(out.join("block.svg")).unwrap();
    assert!(svg.contains("reuse step") && svg.contains("</svg>"));
    let json = std::fs::read_to_string(out.join("block.json")).unwrap();
    (String::from_utf8(output.stdout).unwrap(), serde_json::from_str(&json).unwrap())
}

const SMALL: &str = "--device flex --grid 3,6,8 --heads 2 --head-dim 16 --hidden 24 --ffn 40 --layers 3 --steps 6 --warm-up 2 \
                     --group-size 16 --samples 1";

#[test]
fn a_small_block_is_checked_and_timed() {
    let (table, report) = success(&format!("{SMALL} --check --cross-text 5 --density 0.25 --residual-form fp8"));
    for part in ["QK norm and RoPE", "cross-attention", "anchor step: block", "speed-up", "bitmap", "fp8 e4m3"] {
        assert!(table.contains(part), "no {part} in\n{table}");
    }
    assert_eq!((&report["tokens"], &report["kept_keys"], &report["checked"]), (&144.into(), &36.into(), &true.into()));
    let cache = &report["cache"];
    let expected = [2 * 144 * 4, 2 * 9 * 5 * 4, 2 * 144 * (16 + 4)];
    for (part, bytes) in ["order_bytes", "index_bytes", "residual_bytes"].into_iter().zip(expected) {
        assert_eq!(cache[part], bytes, "{part}");
    }
    assert_eq!(cache["total_bytes"], 2 * 2 * expected.iter().sum::<i32>());
    let median = |kind: usize| report["kinds"][kind]["block"]["median"].as_f64().unwrap();
    let [dense, anchor, reuse] = [1, 2, 3].map(median);
    // Layer 0 is dense at 6 steps, 2 layers have 1 dense step, 1 anchor, 4 reuse steps; 2 branches.
    let sparse = 2.0 * ((6.0 + 2.0) * dense + 2.0 * anchor + 8.0 * reuse);
    let got = report["run"]["times"]["sparse"].as_f64().unwrap();
    assert!((got - sparse).abs() < 1e-9 * sparse, "{got}, not {sparse}");
    assert_eq!(report["run"]["measured"], false);
}

#[test]
fn joined_tokens_are_sinks_and_a_run_is_really_run() {
    let joined = "--prefix 3 --suffix 2 --cross-text 0 --mlp swiglu --inputs random --full --check --burn-bytes 10 --devices 2 --placement host";
    let (table, report) = success(&format!("{SMALL} {joined} --branches 1"));
    assert!(table.contains("left out: it may need") && table.contains("measured"), "{table}");
    assert_eq!(report["tokens"], 149);
    assert_eq!(report["mcsparse"]["sink"], serde_json::json!({ "prefix": 3, "suffix": 2, "within_budget": false }));
    assert_eq!(report["run"]["measured"], true);
    assert_eq!(report["inputs"], "random");
    assert!(report["run"]["times"]["sparse"].as_f64().unwrap() > 0.0);
    assert!(report["kinds"][0]["attention"].is_null());
    // 2 layers at 4 reuse steps.
    assert_eq!(report["transfers"]["slots"], 2 * 4);
    let scaling = report["scaling"].as_array().unwrap();
    assert_eq!(scaling.iter().map(|row| row["devices"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2]);
    assert!(scaling.iter().all(|row| row["reuse"]["median"].as_f64().unwrap() > 0.0));
}

#[test]
fn every_model_runs_from_the_command_line() {
    // Their blocks at a size for a CPU: kinds of norm, feed-forward network and joined tokens stay.
    let small = "--device flex --grid 3,6,8 --heads 2 --head-dim 16 --hidden 24 --ffn 40 --layers 2 --steps 5 --group-size 16 \
                 --samples 1 --check --density 0.25 --residual-form fp8";
    for (model, more, tokens, mlp, cross) in [
        ("wan2.1-1.3b-480p", "--cross-text 7", 144, "gelu", true),
        ("wan2.1-14b-720p", "--cross-text 7", 144, "gelu", true),
        ("hunyuanvideo-720p", "--suffix 5", 149, "gelu", false),
        ("minimax-h3-768p", "--prefix 9", 153, "swiglu", false),
    ] {
        let (table, report) = success(&format!("{small} --model {model} {more}"));
        assert_eq!((&report["model"], &report["tokens"]), (&model.into(), &tokens.into()), "{table}");
        assert_eq!((&report["shape"]["mlp"], &report["checked"]), (&mlp.into(), &true.into()));
        assert_eq!(table.contains("cross-attention"), cross, "{table}");
        // Burn's own attention is among what was checked and timed.
        assert!(report["kinds"][0]["attention"]["median"].as_f64().unwrap() > 0.0, "{table}");
    }
}

#[test]
fn memory_is_said_before_and_refused_with_bytes() {
    let folder = TempDir::new().unwrap();
    let model = "--device flex --dtype bf16 --model minimax-h3-768p --density 0.25 --residual-form fp8";
    let output = run(&format!("{model} --dry-run --memory 141"), folder.path());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    // 102,816 grouped tokens of 56 heads: 4 bytes of order, 804 groups of 13,024 bytes of bitmap, 130 bytes a row.
    assert!(stderr.contains("memory: about ") && stderr.contains("caches 2590.0 MiB"), "{stderr}");
    let output = run(&format!("{model} --memory 8"), folder.path());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("bytes are needed") && stderr.contains("8589934592 are there"), "{stderr}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn bad_options_end_with_2_and_make_nothing() {
    let folder = TempDir::new().unwrap();
    for (arguments, expected) in [
        ("--density 2", "--density: expected above 0 and at most 1, got 2"),
        ("--grid 1,2", "--grid"),
        ("--model flux", "wan2.1-14b-720p"),
        ("--anchors 1 --every 2", "cannot be used with"),
        ("--steps 3 --warm-up 3", "--warm-up: expected fewer than the 3 steps"),
        #[cfg(not(feature = "rocm"))]
        ("--device rocm", "--features rocm"),
    ] {
        let output = run(arguments, folder.path());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments}: {stderr}");
        assert!(stderr.contains(expected), "{arguments}: {stderr}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
