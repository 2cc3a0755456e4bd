//! The program as users start it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::Value;
use tempfile::{TempDir, tempdir};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_generate"))
        .args(["--dtype", "f32", "--quiet"])
        .args(arguments)
        .env("BURN_DEVICE", "flex")
        .output()
        .unwrap()
}

fn succeed(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn fail(arguments: &[&str], code: i32) -> String {
    let output = run(arguments);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{message}");
    message
}

/// A folder with tiny Wan weights, a file of conditions and room for the rest.
fn inputs() -> TempDir {
    let folder = tempdir().unwrap();
    let weights = folder.path().join("transformer");
    succeed(&["--write-random", "wan-tiny", "--out", weights.to_str().unwrap()]);
    conditions(folder.path(), &["text", "negative_text"], 24);
    folder
}

fn conditions(folder: &Path, names: &[&str], size: usize) {
    let tensor = |seed: usize| -> Vec<u8> {
        (0..7 * size).flat_map(|i| (((i * 7 + seed * 13) % 17) as f32 / 17.0 - 0.5).to_le_bytes()).collect()
    };
    let data: Vec<_> = names.iter().enumerate().map(|(seed, name)| (*name, tensor(seed))).collect();
    let views = data.iter().map(|(name, data)| (*name, TensorView::new(Dtype::F32, vec![1, 7, size], data).unwrap()));
    serialize_to_file(views, None, &folder.join("conditions.safetensors")).unwrap();
}

fn latents(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let view = file.tensor("latents").unwrap();
    assert_eq!(view.shape(), [1, 16, 3, 8, 12]);
    view.data().chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect()
}

fn report(out: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(out.join("report.json")).unwrap()).unwrap()
}

#[test]
fn weights_and_conditions_become_latents_densely_and_sparsely() {
    let folder = inputs();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (weights, conditions, out) = (path("transformer"), path("conditions.safetensors"), path("out"));
    let common = ["--weights", &weights, "--conditions", &conditions, "--out", &out, "--group-size", "8"];
    let printed = succeed(&[&common[..], &["--method", "both", "--density", "0.3"]].concat());
    for part in ["dense.safetensors", "mc-sparse.safetensors", "anchor", "reuse", "times as fast as dense"] {
        assert!(printed.contains(part), "{printed}");
    }
    let [dense, sparse] =
        ["dense", "mc-sparse"].map(|arm| latents(&Path::new(&out).join(format!("{arm}.safetensors"))));
    assert!(dense.iter().chain(&sparse).all(|value| value.is_finite()));
    assert_ne!(dense, sparse);
    let json = report(Path::new(&out));
    let kinds: BTreeMap<String, u64> = json["runs"]["mc-sparse"]["kinds"]
        .as_array()
        .unwrap()
        .iter()
        .map(|kind| (kind["kind"].as_str().unwrap().to_owned(), kind["steps"].as_u64().unwrap()))
        .collect();
    // Eight steps, a fifth of them dense.
    assert_eq!(kinds, BTreeMap::from([("dense".into(), 1), ("anchor".into(), 1), ("reuse".into(), 6)]));
    assert!(json["runs"]["mc-sparse"]["effective_density"].as_f64().unwrap() < 0.9);
    assert_eq!(json["runs"]["dense"]["effective_density"].as_f64().unwrap(), 1.0);

    // Density 1 in every layer is dense attention.
    succeed(&[&common[..], &["--density", "1", "--all-layers"]].concat());
    let whole = latents(&Path::new(&out).join("mc-sparse.safetensors"));
    let worst = whole.iter().zip(&dense).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-3, "{worst}");
}

#[test]
fn an_interrupted_run_goes_on_where_it_was() {
    let folder = inputs();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (weights, conditions) = (path("transformer"), path("conditions.safetensors"));
    let base = ["--weights", &weights, "--conditions", &conditions, "--group-size", "8", "--method", "dense"];
    let (whole, parts) = (path("whole"), path("parts"));
    succeed(&[&base[..], &["--out", &whole]].concat());

    // A run that cannot finish: the place of its latents is taken.
    let (state, taken) =
        (Path::new(&parts).join("dense.partial.safetensors"), Path::new(&parts).join("dense.safetensors"));
    std::fs::create_dir_all(&taken).unwrap();
    fail(&[&base[..], &["--out", &parts, "--save-every", "3"]].concat(), 1);
    assert!(state.is_file());
    std::fs::remove_dir(&taken).unwrap();
    // Other settings are not mixed with it.
    let message = fail(&[&base[..], &["--out", &parts, "--shift", "3"]].concat(), 1);
    assert!(message.contains("an unfinished run with shift 5, and this one has 3"), "{message}");
    succeed(&[&base[..], &["--out", &parts]].concat());
    assert!(!state.exists());
    assert_eq!(report(Path::new(&parts))["runs"]["dense"]["resumed_at_step"], 6);
    let [whole, parts] = [whole, parts].map(|out| latents(&Path::new(&out).join("dense.safetensors")));
    assert_eq!(whole, parts);
}

#[test]
fn the_arm_that_was_finished_before_an_interruption_is_not_run_again() {
    let folder = inputs();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (weights, conditions, out) = (path("transformer"), path("conditions.safetensors"), path("out"));
    let base = ["--weights", &weights, "--conditions", &conditions, "--group-size", "8", "--out", &out];
    let both = [&base[..], &["--method", "both", "--save-every", "3"]].concat();
    // The second arm cannot finish: the place of its latents is taken.
    let (taken, kept) =
        (Path::new(&out).join("mc-sparse.safetensors"), Path::new(&out).join("dense.finished.safetensors"));
    std::fs::create_dir_all(&taken).unwrap();
    fail(&both, 1);
    assert!(kept.is_file());
    std::fs::remove_dir(&taken).unwrap();
    // As if it had made other latents, which nothing but the kept arm can know.
    let dense = Path::new(&out).join("dense.safetensors");
    std::fs::remove_file(&dense).unwrap();
    let message = fail(&[&both[..], &["--shift", "3"]].concat(), 1);
    assert!(message.contains("dense.finished.safetensors") && message.contains("with shift 5"), "{message}");
    let printed = succeed(&both);
    assert!(printed.contains("dense: finished before the interruption"), "{printed}");
    assert!(printed.contains("times as fast as dense") && printed.contains("relative difference"), "{printed}");
    let json = report(Path::new(&out));
    assert_eq!(json["runs"]["dense"]["step_seconds"].as_array().unwrap().len(), 8);
    assert_eq!(json["runs"]["mc-sparse"]["resumed_at_step"], 6);
    // It was not run: nothing wrote its latents again. And now that all is finished, it runs.
    assert!(!dense.exists() && !kept.exists());
    succeed(&both);
    assert!(dense.is_file());
}

/// The weights of a fixture of the parity tests as a folder of diffusers.
fn fixture(folder: &Path, name: &str) -> String {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name);
    let to = folder.join(name);
    std::fs::create_dir(&to).unwrap();
    std::fs::copy(from.join("weights.safetensors"), to.join("model.safetensors")).unwrap();
    let json: Value = serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    let mut config = json["config"].clone();
    config["_class_name"] = json["class"].clone();
    config["text_embed_2_hidden"] = 16.into();
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    to.to_str().unwrap().to_owned()
}

#[test]
fn every_kind_of_model_runs_both_ways_and_goes_on() {
    let folder = tempdir().unwrap();
    // Six evaluations each: the grid of MiniMax-H3 has one point more.
    for (name, size, frames, steps) in [
        ("hunyuan_tiny", "96x64", "9", "6"),
        ("hunyuan15_tiny", "96x64", "9", "6"),
        ("minimax_h3_tiny", "192x128", "22", "7"),
    ] {
        let weights = fixture(folder.path(), name);
        let out = folder.path().join(format!("{name}-out"));
        let out = out.to_str().unwrap();
        let common =
            ["--weights", &weights, "--random-conditions", "--size", size, "--frames", frames, "--steps", steps];
        let common =
            [&common[..], &["--group-size", "8", "--density", "0.3", "--out", out, "--save-every", "2"]].concat();
        let printed = succeed(&[&common[..], &["--method", "both"]].concat());
        assert!(printed.contains("times as fast as dense") && printed.contains("reuse"), "{name}: {printed}");

        // Interrupted after the last state, as its latents cannot be put where they belong.
        let taken = Path::new(out).join("mc-sparse.safetensors");
        std::fs::remove_file(&taken).unwrap();
        std::fs::create_dir(&taken).unwrap();
        fail(&common, 1);
        std::fs::remove_dir(&taken).unwrap();
        succeed(&common);
        let run = report(Path::new(out))["runs"]["mc-sparse"].clone();
        // An anchor first, as the cache is gone.
        assert_eq!((&run["resumed_at_step"], &run["kinds"][0]["kind"]), (&4.into(), &"anchor".into()), "{name}: {run}");
    }
    // Two experts, in the folders of a pipeline.
    let pipeline = folder.path().join("a14b");
    for part in ["transformer", "transformer_2"] {
        let part = pipeline.join(part);
        succeed(&["--write-random", "wan-tiny", "--out", part.to_str().unwrap(), "--seed", "5"]);
    }
    std::fs::write(pipeline.join("model_index.json"), r#"{"boundary_ratio": 0.9}"#).unwrap();
    let (out, pipeline) = (folder.path().join("experts"), pipeline.to_str().unwrap().to_owned());
    let arguments = ["--weights", &pipeline, "--random-conditions", "--size", "96x64", "--frames", "9", "--steps", "8"];
    succeed(&[&arguments[..], &["--group-size", "8", "--out", out.to_str().unwrap()]].concat());
    let kinds = report(&out)["runs"]["mc-sparse"]["kinds"].clone();
    // An anchor for each.
    assert_eq!((&kinds[1]["kind"], &kinds[1]["steps"]), (&"anchor".into(), &2.into()), "{kinds}");
}

#[test]
fn what_does_not_fit_is_refused_before_it_is_loaded() {
    let folder = inputs();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (weights, conditions_file) = (path("transformer"), path("conditions.safetensors"));
    let base = ["--weights", &weights, "--conditions", &conditions_file];
    fn joined<'a>(base: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
        [base, more].concat()
    }
    let with = |more: &[&'static str]| joined(&base, more);
    for (arguments, code, parts) in [
        (with(&["--size", "100x64"]), 2, &["--size", "width that is a multiple of 16, got 100"][..]),
        (with(&["--size", "big"]), 2, &["--size", "832x480"]),
        (with(&["--frames", "10"]), 2, &["--frames", "4 n + 1, got 10"]),
        (with(&["--density", "1.5"]), 2, &["--density", "at most 1, got 1.5"]),
        (with(&["--shift", "0"]), 2, &["--shift", "a positive number"]),
        (with(&["--memory", "0.0001"]), 1, &["memory", "the run takes about", "there are 0.0 GiB"]),
        (with(&["--warm-up", "8"]), 1, &["warm_up", "fewer than the 8 steps"]),
        (vec!["--random", "minimax-h3", "--memory", "40"], 1, &["memory", "weights 123.4 GiB"]),
        (vec!["--weights", &weights], 2, &["--conditions"]),
        (vec!["--random", "wan-tiny", "--weights", &weights], 2, &["--random"]),
        (vec!["--weights", "/nowhere", "--conditions", &conditions_file], 1, &["/nowhere/config.json"]),
    ] {
        let message = fail(&arguments, code);
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
    // Weights of another form, by the names of their tensors.
    let config = Path::new(&weights).join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("\"num_layers\": 2", "\"num_layers\": 3")).unwrap();
    let message = fail(&joined(&base, &["--out", &path("out")]), 1);
    assert!(message.contains("27 missing: blocks.2."), "{message}");
    std::fs::write(&config, text.replace("WanTransformer3DModel", "SomethingElse")).unwrap();
    let message = fail(&base, 1);
    assert!(message.contains("HunyuanVideo-1.5 or MiniMax-H3 transformer, got SomethingElse"), "{message}");
    std::fs::write(&config, text).unwrap();

    conditions(folder.path(), &["text"], 24);
    let message = fail(&base, 2);
    assert!(message.contains("--guidance: expected 1, or negative_text"), "{message}");
    conditions(folder.path(), &["text", "negative_text"], 23);
    let message = fail(&joined(&base, &["--out", &path("out")]), 1);
    assert!(message.contains("text: expected [batch, text tokens, 24], got [1, 7, 23]"), "{message}");
    assert!(!Path::new(&path("out")).join("report.json").exists());
}

#[test]
fn a_dry_run_says_what_a_named_model_takes() {
    let output = Command::new(env!("CARGO_BIN_EXE_generate"))
        .args(["--random", "wan2.1-t2v-1.3b", "--dry-run", "--dtype", "f32", "--memory", "100"])
        .env("BURN_DEVICE", "flex")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["1.42 billion parameters, 30 layers of 12 heads x 128", "32760 video tokens", "memory: about "] {
        assert!(text.contains(part), "{text}");
    }
}
