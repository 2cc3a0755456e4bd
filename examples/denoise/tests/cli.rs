//! The built program: exit codes, messages, files.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use burn::tensor::Device;
use image::AnimationDecoder;
use image::codecs::gif::GifDecoder;
use mcsparse_dit::pretrained::{self, ConditionFile};
use mcsparse_dit::wan::WanConfig;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;
use tempfile::TempDir;

/// A condition that the weights of [`untrained`] have.
const CONDITION: &str = "bunny";

fn denoise(arguments: &str, folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_denoise"));
    // From a folder of its own, as nothing may depend on the current one.
    command.args(arguments.split_whitespace()).current_dir(folder).output().unwrap()
}

fn failure(arguments: &str, folder: &Path) -> (i32, String) {
    let output = denoise(arguments, folder);
    assert!(output.stdout.is_empty(), "{arguments}: {}", String::from_utf8_lossy(&output.stdout));
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn success(arguments: &str, folder: &Path) -> (String, String) {
    let output = denoise(arguments, folder);
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{arguments}: {stderr}");
    (stdout, stderr)
}

/// A folder of nano weights that were never trained, in a folder that goes away.
fn untrained() -> TempDir {
    let weights = TempDir::new().unwrap();
    let nano = weights.path().join("nano");
    fs::create_dir(&nano).unwrap();
    let config: WanConfig = serde_json::from_value(serde_json::json!({
        "patch_size": [1, 4, 4], "num_attention_heads": 4, "attention_head_dim": 32, "in_channels": 6,
        "out_channels": 3, "text_dim": 64, "freq_dim": 256, "ffn_dim": 512, "num_layers": 4, "rope_max_seq_len": 64,
    }))
    .unwrap();
    fs::write(nano.join("config.json"), serde_json::to_string(&config).unwrap()).unwrap();
    config.init(&Device::default()).save(nano.join("model.safetensors")).unwrap();
    let sampling = serde_json::json!({
        "frames": 8, "height": 32, "width": 32, "video_channels": 3, "coordinate_channels": 3, "flow_shift": 3.0,
        "timestep_scale": 1000,
    });
    fs::write(nano.join("sampling.json"), sampling.to_string()).unwrap();

    let tokens: Vec<u8> = (0..32 * 64).flat_map(|i| ((i as f32) * 0.37).sin().to_le_bytes()).collect();
    let clip: Vec<u8> = (0..3 * 16 * 128 * 128).map(|i| (i / 128 % 256) as u8).collect();
    let tensors = HashMap::from([
        (format!("{CONDITION}.nano"), TensorView::new(Dtype::F32, vec![32, 64], &tokens).unwrap()),
        ("other.nano".into(), TensorView::new(Dtype::F32, vec![32, 64], &tokens).unwrap()),
        (format!("{CONDITION}.clip"), TensorView::new(Dtype::U8, vec![3, 16, 128, 128], &clip).unwrap()),
    ]);
    fs::write(weights.path().join("conditions.safetensors"), safetensors::serialize(&tensors, None).unwrap()).unwrap();
    weights
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn gif_size(path: PathBuf) -> (usize, (u32, u32)) {
    let file = std::io::BufReader::new(fs::File::open(path).unwrap());
    let frames = GifDecoder::new(file).unwrap().into_frames().collect_frames().unwrap();
    (frames.len(), frames[0].buffer().dimensions())
}

/// The first row of a contact sheet: all frames of the dense run.
fn dense_frames(sheet: &Path) -> image::RgbImage {
    let sheet = image::open(sheet).unwrap().into_rgb8();
    image::imageops::crop_imm(&sheet, 0, 0, sheet.width(), 272).to_image()
}

fn pixel_psnr(a: &image::RgbImage, b: &image::RgbImage) -> f64 {
    assert_eq!(a.dimensions(), b.dimensions());
    let error: f64 = a.iter().zip(b.iter()).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum();
    -10.0 * (error / a.len() as f64 / 255f64.powi(2)).log10()
}

fn json(path: PathBuf) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn bad_options_end_with_2_before_anything_is_loaded() {
    let folder = TempDir::new().unwrap();
    // No weights anywhere: a message about them would mean that the option was looked at too late.
    for (arguments, expected) in [
        ("--steps 0", "--steps"),
        ("--first a.png", "--last <IMAGE>"),
        ("--first a.png --last b.png --condition bunny", "cannot be used with"),
        ("--steps", "--steps"),
        ("--density 2", "--density: expected above 0 and at most 1, got 2"),
        ("--density 0.1 --keys 5", "cannot be used with"),
        ("--anchors 1 --every 5", "cannot be used with"),
        ("--size nano --keys 513", "--keys: expected 1 to 512"),
        ("--frames 40", "--frames: expected 1 to 16"),
        ("--warm-up 9 --steps 9", "--warm-up: expected fewer than the 9 steps"),
        ("--size big", "possible values: small, nano"),
        ("--unknown", "--unknown"),
        ("extra", "extra"),
        #[cfg(not(feature = "rocm"))]
        ("--device rocm", "--features rocm"),
    ] {
        let (code, message) = failure(&format!("--weights nowhere {arguments}"), folder.path());
        assert_eq!(code, 2, "{arguments}: {message}");
        assert!(message.contains(expected), "{arguments}: {message}");
    }
    assert!(files(folder.path()).is_empty());
}

/// As with `| head -0`.
#[cfg(unix)]
#[test]
fn a_reader_that_leaves_ends_it_without_a_word() {
    use std::os::unix::process::ExitStatusExt;
    let weights = untrained();
    let mut command = Command::new(env!("CARGO_BIN_EXE_denoise"));
    command.arg("--weights").arg(weights.path()).args(["--size", "nano", "--list-conditions"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command.stdout(writer).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.signal(), Some(13), "{}", output.status);
}

#[test]
fn failures_end_with_1_and_name_the_place() {
    let folder = TempDir::new().unwrap();
    let (code, message) = failure("--weights nowhere", folder.path());
    assert_eq!(code, 1, "{message}");
    assert!(message.contains("nowhere/conditions.safetensors"), "{message}");

    let weights = untrained();
    let nano = format!("--size nano --steps 2 --weights {}", weights.path().display());
    fs::write(folder.path().join("file"), "").unwrap();
    for out in ["--out file/sub", "--json file/sub/report.json"] {
        let (code, message) = failure(&format!("{nano} {out}"), folder.path());
        assert_eq!(code, 1, "{message}");
        assert!(message.contains("file/sub"), "{message}");
    }
    let (code, message) = failure(&nano.replace("nano ", "small "), folder.path());
    assert_eq!(code, 2, "a condition of another size: {message}");
    assert!(message.contains("--condition"), "{message}");

    let config = weights.path().join("nano/config.json");
    let other = fs::read_to_string(&config).unwrap().replace("\"num_layers\":4", "\"num_layers\":3");
    fs::write(&config, other).unwrap();
    let (code, message) = failure(&nano, folder.path());
    assert_eq!(code, 1, "{message}");
    assert!(message.contains("num_layers: expected 4 for the nano model, got 3"), "{message}");
    fs::remove_dir_all(weights.path().join("nano")).unwrap();
    let (code, message) = failure(&nano, folder.path());
    assert_eq!(code, 1, "{message}");
    assert!(message.contains(&weights.path().join("nano").display().to_string()), "{message}");
}

#[test]
fn conditions_are_listed() {
    let (folder, weights) = (TempDir::new().unwrap(), untrained());
    let weights = weights.path().display();
    let (stdout, _) = success(&format!("--size nano --weights {weights} --list-conditions"), folder.path());
    assert_eq!(stdout, "bunny (with a real clip)\nother\n");
    let (code, message) = failure(&format!("--size nano --weights {weights} --condition cat"), folder.path());
    assert_eq!(code, 2, "{message}");
    assert!(message.contains("--condition: expected one of bunny, other, got cat"), "{message}");
    assert!(files(folder.path()).is_empty());
}

#[test]
fn runs_from_end_to_end() {
    let (folder, weights) = (TempDir::new().unwrap(), untrained());
    let nano = format!("--size nano --weights {}", weights.path().display());
    let (stdout, stderr) = success(&format!("{nano} --steps 6 --warm-up 2 --every 3"), folder.path());
    for part in
        ["512 tokens, 4 heads x 32, 4 layers", "1 / 2 / 3", "PSNR", "SSIM", "as fast", "rest of the model", "MiB"]
    {
        assert!(stdout.contains(part), "no {part} in\n{stdout}");
    }
    assert!(stderr.contains("steps dArrAr") && stderr.contains("side-by-side.gif"), "{stderr}");

    let out = folder.path().join("out/denoise");
    assert_eq!(files(&out), ["contact-sheet.png", "report.json", "side-by-side.gif"]);
    assert_eq!(gif_size(out.join("side-by-side.gif")), (8, (3 * 256, 272)));
    let sheet = image::open(out.join("contact-sheet.png")).unwrap();
    assert_eq!((sheet.width(), sheet.height()), (8 * 256, 4 * 272));

    let report = json(out.join("report.json"));
    assert_eq!(report["model"]["tokens"], 512);
    assert_eq!(report["keys"]["kept"], 77);
    assert_eq!(report["steps"], serde_json::json!({ "dense": 1, "anchor": 2, "reuse": 3 }));
    // Layer 0 is dense at all 6 steps, 3 layers follow the plan.
    assert_eq!(report["sparse"]["calls"], serde_json::json!({ "dense": 6 + 3, "anchor": 6, "reuse": 9 }));
    assert_eq!(report["dense"]["calls"], serde_json::json!({ "dense": 24, "anchor": 0, "reuse": 0 }));
    let density = report["sparse"]["effective_density"].as_f64().unwrap();
    let kept = 77.0 / 512.0;
    let expected = (6.0 + 3.0 * (1.0 + 2.0 * (1.5 + kept) + 3.0 * kept)) / 24.0;
    assert!((density - expected).abs() < 1e-9, "{density} {expected}");
    for arm in ["dense", "sparse"] {
        let arm = &report[arm];
        let stages: f64 =
            arm["stages"].as_array().unwrap().iter().map(|stage| stage["seconds"].as_f64().unwrap()).sum();
        let (rest, whole) = (arm["rest_seconds"].as_f64().unwrap(), arm["seconds"].as_f64().unwrap());
        assert!(stages > 0.0 && rest > 0.0 && whole > 0.0);
        if arm["stages_timed_apart"] == false {
            assert!((stages + rest - whole).abs() < 1e-6);
        }
    }
}

#[test]
fn keeping_all_keys_changes_nothing() {
    let (folder, weights) = (TempDir::new().unwrap(), untrained());
    let all = format!(
        "--size nano --weights {} --steps 3 --warm-up 1 --density 1 --frames 2 --guidance 2 --baseline burn --sampler unipc \
         --quiet --json numbers/all.json --out pictures --condition other",
        weights.path().display()
    );
    let (_, stderr) = success(&all, folder.path());
    assert_eq!(stderr, "");
    assert_eq!(files(&folder.path().join("pictures")), ["contact-sheet.png", "side-by-side.gif"]);
    let report = json(folder.path().join("numbers/all.json"));
    assert_eq!(report["dense"]["stages"][0]["kernel"], "Burn's own attention");
    assert_eq!(report["dense"]["calls"]["dense"], 3 * 4 * 2);
    // JSON holds the infinite ratio of equal clips as null; a number that is not there at all is no ratio.
    let psnr = report.pointer("/quality/psnr/of_mean_error").expect("the report has the ratio");
    assert!(psnr.is_null() || psnr.as_f64().unwrap() > 60.0, "{psnr} dB");
    // No real clip: three rows.
    let sheet = image::open(folder.path().join("pictures/contact-sheet.png")).unwrap();
    assert_eq!((sheet.width(), sheet.height()), (2 * 256, 3 * 272));
}

#[test]
fn the_reference_says_why_it_ran() {
    let (folder, weights) = (TempDir::new().unwrap(), untrained());
    let reference =
        format!("--size nano --weights {} --steps 2 --frames 2 --kernels reference", weights.path().display());
    let (stdout, _) = success(&reference, folder.path());
    assert!(stdout.contains("tensor operations"), "{stdout}");
    let report = json(folder.path().join("out/denoise/report.json"));
    for stage in report["sparse"]["stages"].as_array().unwrap() {
        assert_eq!(stage["refusal"], "the configuration asks for the reference");
    }
}

#[test]
fn the_shipped_nano_model_makes_the_clip_both_ways() {
    let folder = TempDir::new().unwrap();
    success("--size nano", folder.path());
    let report = json(folder.path().join("out/denoise/report.json"));
    let quality = &report["quality"];
    let (near, ssim) = (quality["psnr"]["of_mean_error"].as_f64().unwrap(), quality["ssim"].as_f64().unwrap());
    // The model card has 31.2 dB as the mean over conditions.
    assert!(near > 28.0 && ssim > 0.9, "{near} dB, {ssim}");
    // A model that is fed wrongly (condition, coordinates, timesteps) makes something else than the real clip.
    for arm in ["dense", "sparse"] {
        let near = quality["to_real"][arm]["of_mean_error"].as_f64().unwrap();
        assert!(near > 18.0, "{arm}: {near} dB");
    }
}

#[test]
fn two_images_stand_in_for_the_condition_made_from_them() {
    let folder = TempDir::new().unwrap();
    let clip = ConditionFile::open(pretrained::folder()).unwrap().clip(CONDITION).unwrap().unwrap();
    for (name, frame) in [("first.png", 0), ("last.png", 7)] {
        let image = image::RgbImage::from_raw(128, 128, clip.frame(frame).to_vec()).unwrap();
        // Borders at left and right, which the middle square leaves out.
        let mut wide = image::RgbImage::new(192, 128);
        image::imageops::replace(&mut wide, &image, 32, 0);
        wide.save(folder.path().join(name)).unwrap();
    }
    let run = |out: &str, condition: &str| {
        success(&format!("--size nano --steps 4 {condition} --out {out}"), folder.path());
        dense_frames(&folder.path().join(out).join("contact-sheet.png"))
    };
    let named = run("named", "--condition bunny");
    let own = run("own", "--first first.png --last last.png");
    let report = json(folder.path().join("own/report.json"));
    assert_eq!(report["run"]["condition"], "first.png to last.png");
    assert!(report["quality"].as_object().unwrap()["to_real"].is_null());
    // From one noise, the same clip comes of the same condition, and another of the images in the wrong order: 44.0 and
    // 38.9 dB, as the first and the last frame of this clip are not far apart.
    let swapped = run("swapped", "--first last.png --last first.png");
    let (near, far) = (pixel_psnr(&named, &own), pixel_psnr(&named, &swapped));
    assert!(near > 41.5 && far < near - 3.0, "own {near:.1} dB, swapped {far:.1} dB from the named condition");

    fs::write(folder.path().join("text.png"), "no image").unwrap();
    for image in ["nowhere.png", "text.png"] {
        let (code, message) = failure(&format!("--size nano --first first.png --last {image}"), folder.path());
        assert_eq!(code, 1, "{message}");
        assert!(message.contains(&format!("image {image}: ")), "{message}");
    }
}
