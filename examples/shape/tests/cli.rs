//! The built program: exit codes, messages, files.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use mcsparse_dit::pretrained;
use serde_json::Value;
use tempfile::TempDir;

fn shape(arguments: &str, folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shape"));
    // From a folder of its own, as nothing may depend on the current one.
    command.args(arguments.split_whitespace()).current_dir(folder).output().unwrap()
}

fn failure(arguments: &str, folder: &Path) -> (i32, String) {
    let output = shape(arguments, folder);
    assert!(output.stdout.is_empty(), "{arguments}: {}", String::from_utf8_lossy(&output.stdout));
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn success(arguments: &str, folder: &Path) -> (String, String) {
    let output = shape(arguments, folder);
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{arguments}: {stderr}");
    (stdout, stderr)
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn bad_options_end_with_2_before_anything_is_loaded() {
    let folder = TempDir::new().unwrap();
    // No weights anywhere: a message about them would mean that the option was looked at too late.
    for (arguments, expected) in [
        ("--steps 0", "--steps"),
        ("--density 2", "--density: expected above 0 and at most 1, got 2"),
        ("--front a.png", "--left <IMAGE>"),
        ("--front a.png --left b.png --solid mug-0", "cannot be used with"),
        ("--anchors 1 --every 5", "cannot be used with"),
        ("--warm-up 9 --steps 9", "--warm-up: expected fewer than the 9 steps"),
        ("--unknown", "--unknown"),
        #[cfg(not(feature = "rocm"))]
        ("--device rocm", "--features rocm"),
    ] {
        let (code, message) = failure(&format!("--weights nowhere {arguments}"), folder.path());
        assert_eq!(code, 2, "{arguments}: {message}");
        assert!(message.contains(expected), "{arguments}: {message}");
    }
    assert!(files(folder.path()).is_empty());
}

#[test]
fn failures_end_with_1_and_name_the_place() {
    let folder = TempDir::new().unwrap();
    let (code, message) = failure("--weights nowhere", folder.path());
    assert_eq!(code, 1, "{message}");
    assert!(message.contains("nowhere/shape/conditions.safetensors"), "{message}");
    let (code, message) = failure("--solid teapot", folder.path());
    assert_eq!(code, 2, "{message}");
    assert!(message.contains("--solid: expected one of assembly-0, ") && message.contains("got teapot"), "{message}");
    image::GrayImage::new(64, 63).save(folder.path().join("low.png")).unwrap();
    let (code, message) = failure("--front low.png --left low.png", folder.path());
    assert_eq!(code, 1, "{message}");
    assert!(message.contains("image low.png: expected 64 x 64 pixels, got 64 x 63"), "{message}");
    fs::write(folder.path().join("file"), "").unwrap();
    let (code, message) = failure("--out file/sub", folder.path());
    assert_eq!(code, 1, "{message}");
    assert!(message.contains("file/sub"), "{message}");

    // Weights of another form.
    let (from, to) = (pretrained::folder().join("shape"), folder.path().join("weights/shape"));
    fs::create_dir_all(&to).unwrap();
    for file in ["config.json", "sampling.json", "conditions.safetensors"] {
        fs::copy(from.join(file), to.join(file)).unwrap();
    }
    let config = fs::read_to_string(to.join("config.json")).unwrap().replace("\"num_layers\": 8", "\"num_layers\": 7");
    fs::write(to.join("config.json"), config).unwrap();
    let (code, message) = failure("--weights weights", folder.path());
    assert_eq!(code, 1, "{message}");
    assert!(message.contains("num_layers: expected 8 for the shape model, got 7"), "{message}");
}

#[test]
fn names_of_solids_are_listed() {
    let (stdout, stderr) = success("--list-solids", TempDir::new().unwrap().path());
    assert_eq!((stdout.lines().count(), stdout.lines().next(), stderr.as_str()), (16, Some("assembly-0"), ""));
}

#[test]
fn a_run_makes_the_solid_and_says_how_near_both_are() {
    let folder = TempDir::new().unwrap();
    let (stdout, stderr) = success("--steps 5 --guidance 1 --density 0.25 --solid table-0 --out made", folder.path());
    assert!(stdout.contains("Chamfer distance to dense") && stdout.contains("MC-Sparse"), "{stdout}");
    assert!(stderr.contains("wrote made/report.json"), "{stderr}");
    let made = folder.path().join("made");
    assert_eq!(files(&made), ["dense.obj", "mc-sparse.obj", "report.json", "shapes.png"]);
    let report: Value = serde_json::from_str(&fs::read_to_string(made.join("report.json")).unwrap()).unwrap();
    let number = |path: &str| report.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path}"));
    assert_eq!((number("/keys/kept"), number("/steps/reuse"), number("/dense/calls/anchor")), (1024.0, 4.0, 0.0));
    let density = number("/sparse/effective_density");
    assert!(density > 0.25 && density < 0.9, "{density}");
    // Five steps are few, but both arms make the table and nearly the same one.
    for (path, least) in [("/to_dense/iou", 0.8), ("/to_truth/dense/iou", 0.5), ("/to_truth/sparse/iou", 0.5)] {
        println!("{path}: {:.3}", number(path));
        assert!(number(path) > least && number(path) < 1.0, "{path}: {}", number(path));
    }
    assert!(number("/to_dense/chamfer") > 0.0 && number("/to_dense/chamfer") < 0.05);
    let picture = image::open(made.join("shapes.png")).unwrap().into_rgb8();
    assert_eq!(picture.dimensions(), (4 * 320, 336));
    let obj = fs::read_to_string(made.join("mc-sparse.obj")).unwrap();
    let count = |kind: &str| obj.lines().filter(|line| line.starts_with(kind)).count();
    // Every edge of a closed surface has two triangles, so faces are about twice the vertices.
    assert!(count("v ") > 1000 && count("f ") > 3 * count("v ") / 2, "{} {}", count("v "), count("f "));
}

#[test]
fn views_of_ones_own_take_the_place_of_a_solid() {
    let folder = TempDir::new().unwrap();
    // A box in the middle, from both sides.
    let view = image::GrayImage::from_fn(64, 64, |x, y| {
        image::Luma([if (20..44).contains(&x) && (20..44).contains(&y) { 195 } else { 0 }])
    });
    view.save(folder.path().join("box.png")).unwrap();
    let (stdout, stderr) =
        success("--front box.png --left box.png --steps 2 --guidance 1 --quiet --out made", folder.path());
    assert_eq!(stderr, "");
    assert!(stdout.contains("box.png and box.png") && !stdout.contains("to the solid"), "{stdout}");
    assert_eq!(image::open(folder.path().join("made/shapes.png")).unwrap().width(), 3 * 320);
}
