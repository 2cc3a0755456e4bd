use std::path::Path;

use safetensors::{Dtype, SafeTensors, serialize, tensor::TensorView};

use super::*;
use crate::noise::normal;

/// Two layers at two steps; the second step is the first with a little noise.
fn file(path: &Path, shape: &[usize]) {
    let size: usize = shape.iter().product();
    let mut tensors = Vec::new();
    for layer in 0..2u64 {
        for step in 0..2 {
            for (index, part) in ["q", "k", "v"].into_iter().enumerate() {
                let base = normal(size, 10 * layer + index as u64);
                let noise = normal(size, 100 + layer);
                let values: Vec<f32> = base.iter().zip(noise).map(|(a, b)| 1.5 * a + 0.02 * step as f32 * b).collect();
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                tensors.push((format!("step{}.layer{layer}.{part}", 10 + 5 * step), bytes));
            }
        }
    }
    write(path, &tensors, shape);
}

fn write(path: &Path, tensors: &[(String, Vec<u8>)], shape: &[usize]) {
    let views = tensors.iter().map(|(name, bytes)| (name, TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap()));
    std::fs::write(path, serialize(views, None).unwrap()).unwrap();
}

fn options(folder: &Path) -> Options {
    Options {
        file: folder.join("qkv.safetensors"),
        axes: Axes::Heads,
        densities: vec![0.1, 0.3, 1.0],
        group_size: 8,
        small_block: 4,
        grid: None,
        scale: None,
        target: 0.1,
        layers: Some(30),
        branches: 2,
        out: folder.join("out"),
        save: Some(folder.join("outputs.safetensors")),
    }
}

#[test]
fn a_file_is_measured_and_a_density_suggested() {
    let folder = tempfile::tempdir().unwrap();
    file(&folder.path().join("qkv.safetensors"), &[1, 2, 48, 8]);
    let options = options(folder.path());
    let text = run(&options, &Device::flex()).unwrap();
    assert!(text.contains("Steps [10, 15]") && text.contains("layer1"), "{text}");
    let json = std::fs::read_to_string(folder.path().join("out/probe.json")).unwrap();
    let report: Report = serde_json::from_str(&json).unwrap();
    assert_eq!(report.measured.len(), 2 * 3 * 8);
    for measured in &report.measured {
        assert_eq!((measured.kept.len(), measured.error.len(), measured.later.len()), (2, 2, 1));
        let all = measured.density == 1.0;
        assert!(measured.kept.iter().all(|&kept| if all { kept > 0.9999 } else { kept < 0.9999 }), "{measured:?}");
        assert!(measured.error.iter().all(|&error| if all { error < 1e-4 } else { error > 1e-3 }), "{measured:?}");
    }
    // With the residual of a step that is nearly the same, even the smallest density comes near.
    let suggestion = &report.suggestion;
    assert_eq!((suggestion.density, suggestion.reached, suggestion.refresh_before), (0.1, true, None));
    // docs/method.md: 48 of 4 bytes, 6 groups of a bit for each of 48 keys in words of 4 bytes, 48 x 8 of 2 bytes, or of 1 with
    // a scale of 2 a row; for 2 heads, 30 layers, 2 branches.
    assert_eq!(suggestion.cache_bytes, 2 * (48 * 4 + 6 * 2 * 4 + 48 * 8 * 2) * 30 * 2);
    assert_eq!(suggestion.cache_bytes_in_8_bits, 2 * (48 * 4 + 6 * 2 * 4 + 48 * (8 + 2)) * 30 * 2);
    assert!(text.contains("with a residual in 16 bits") && text.contains("with one in 8"), "{text}");

    let bytes = std::fs::read(folder.path().join("outputs.safetensors")).unwrap();
    let saved = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(saved.tensor("layer0.indices").unwrap().shape(), [1, 2, 6, 5]);
    let floats = |name: &str| -> Vec<f32> {
        let view = saved.tensor(name).unwrap();
        view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    for ((dense, sparse), residual) in
        floats("layer1.dense").into_iter().zip(floats("layer1.sparse")).zip(floats("layer1.residual"))
    {
        assert!((dense - sparse - residual).abs() < 1e-5);
    }
}

/// A factor on the scores is as good as one on the queries; the default is `1 / sqrt(head_dim)`.
#[test]
fn a_scale_of_the_model_s_own_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    file(&folder.path().join("qkv.safetensors"), &[1, 2, 48, 8]);
    let probe = |scale: Option<f64>| -> Report {
        let options = Options { scale, ..options(folder.path()) };
        run(&options, &Device::flex()).unwrap();
        serde_json::from_str(&std::fs::read_to_string(folder.path().join("out/probe.json")).unwrap()).unwrap()
    };
    let (usual, named, flat) = (probe(None), probe(Some(8f64.powf(-0.5))), probe(Some(1e-4)));
    for ((usual, named), flat) in usual.measured.iter().zip(&named.measured).zip(&flat.measured) {
        assert!(usual.kept.iter().zip(&named.kept).all(|(a, b)| (a - b).abs() < 1e-5), "{usual:?} {named:?}");
        // All keys weigh the same: single keys hold their share.
        if flat.method == "MC-Sparse" && flat.density < 1.0 {
            assert!(
                flat.kept.iter().all(|kept| (kept - (flat.density * 48.0).round() / 48.0).abs() < 1e-2),
                "{flat:?}"
            );
        }
    }
    let refused = run(&Options { scale: Some(0.0), ..options(folder.path()) }, &Device::flex()).unwrap_err();
    assert_eq!(refused.to_string(), "--scale: expected a finite number other than 0, got 0");
}

#[test]
fn axes_are_read_as_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    file(&path, &[1, 12, 2, 8]);
    let heads = read(&path, Axes::Heads, &Device::flex()).unwrap();
    let tokens = read(&path, Axes::Tokens, &Device::flex()).unwrap();
    assert_eq!((heads[0].dims(), tokens[0].dims()), ([1, 12, 2, 8], [1, 2, 12, 8]));
    let [a, b] = [&heads, &tokens].map(|c| c[1].steps[1].1[2].clone());
    a.into_data().assert_eq(&b.swap_dims(1, 2).into_data(), true);
    file(&path, &[12, 8]);
    assert_eq!(read(&path, Axes::Tokens, &Device::flex()).unwrap()[0].dims(), [1, 1, 12, 8]);
}

#[test]
fn files_that_do_not_suit_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("qkv.safetensors");
    let refused = |tensors: &[(&str, usize)], shape: &[usize]| {
        let tensors: Vec<_> = tensors.iter().map(|(name, count)| ((*name).to_owned(), vec![0; 4 * count])).collect();
        write(&path, &tensors, shape);
        run(&options(folder.path()), &Device::flex()).unwrap_err().to_string()
    };
    assert!(refused(&[("a", 4)], &[2, 2]).ends_with("no tensor is named NAME.q, with NAME.k and NAME.v beside it"));
    assert!(refused(&[("a.q", 4), ("a.k", 4)], &[2, 2]).ends_with("a.v is missing"));
    assert!(refused(&[("a.q", 4), ("a.k", 4), ("a.v", 4)], &[4]).ends_with("a.q: expected 2, 3 or 4 axes, got [4]"));
    let twice = refused(&[("step1.a.q", 4), ("a.step1.q", 4)], &[2, 2]);
    assert!(twice.contains("are of the same layer and step"), "{twice}");
    let mut nan = options(folder.path());
    let bytes: Vec<u8> = [1.0, f32::NAN, 0.0, 1.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    write(&path, &["q", "k", "v"].map(|part| (format!("a.{part}"), bytes.clone())), &[2, 2]);
    assert!(run(&nan, &Device::flex()).unwrap_err().to_string().ends_with("a.q: 1 of its values are NaN or infinite"));
    file(&path, &[1, 2, 48, 8]);
    nan.grid = Some(([2, 4, 5], [1, 2, 5]));
    let error = run(&nan, &Device::flex()).unwrap_err();
    assert_eq!(error.to_string(), "--grid: expected 48 tokens, as layer0 has, got [2, 4, 5]");
    assert_eq!(error.exit_code(), 2);
    assert!(!folder.path().join("out").exists(), "nothing is written before everything fits");
}
