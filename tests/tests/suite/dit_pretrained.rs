//! The shipped weights compute here what they computed where they were trained.

use std::path::Path;

use burn::tensor::DType;
use mcsparse::DenseAttention;
use mcsparse_dit::wan::WanTransformer;
use mcsparse_tests::{device, relative_error};

use super::dit_support::Tensors;

const WEIGHTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/mcsparse-dit/weights");

#[test]
fn dit_nano_matches_its_training_framework() {
    let device = device();
    let model = WanTransformer::from_folder(format!("{WEIGHTS}/nano"), DType::F32, &device).unwrap();
    let file = Tensors::open(&Path::new(WEIGHTS).join("nano/parity.safetensors"));
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
    assert!(error < 1e-5, "{error:e}");
}
