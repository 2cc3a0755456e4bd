//! The shipped weights compute here what they computed where they were trained.

use std::path::Path;

use burn::tensor::DType;
use mcsparse::DenseAttention;
use mcsparse_dit::pretrained::SolidFile;
use mcsparse_dit::wan::WanTransformer;
use mcsparse_tests::{case::model_tolerance, device, relative_error};

use super::dit_support::Tensors;

const WEIGHTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/mcsparse-dit/weights");

/// Runs the parity example of one model.
fn matches(size: &str) -> Tensors {
    let device = device();
    let folder = Path::new(WEIGHTS).join(size);
    let model = WanTransformer::from_folder(&folder, DType::F32, &device).unwrap();
    let file = Tensors::open(&folder.join("parity.safetensors"));
    let timestep = file.values("timestep")[0];
    let output = model
        .forward(
            file.tensor("hidden_states", &device),
            f64::from(timestep),
            file.tensor("encoder_hidden_states", &device),
            &mut DenseAttention::default(),
        )
        .unwrap();
    let error = relative_error(&output, &file.tensor("output", &device));
    println!("{size}: {error:.1e}");
    assert!(error < model_tolerance(1e-5), "{error:e}");
    file
}

#[test]
fn dit_nano_matches_its_training_framework() {
    matches("nano");
}

#[test]
fn dit_shape_matches_its_training_framework() {
    let file = matches("shape");
    // Its condition is made here from the shipped views.
    let device = device();
    let solids = SolidFile::open(Path::new(WEIGHTS).join("shape")).unwrap();
    let tokens = solids.views("chair-0").unwrap().tokens(8, &device).unwrap();
    let error = relative_error(&tokens, &file.tensor("encoder_hidden_states", &device));
    assert!(error < 1e-6, "{error:e}");
}
