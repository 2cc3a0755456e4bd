//! Loading and saving of weights and configurations.

use std::collections::HashMap;
use std::path::Path;

use burn::tensor::DType;
use mcsparse::DenseAttention;
use mcsparse_dit::wan::{WanConfig, WanTransformer};
use mcsparse_dit::{LoadError, Mismatch};
use mcsparse_tests::{device, relative_error};
use safetensors::{Dtype, SafeTensors, serialize_to_file, tensor::TensorView};
use tempfile::tempdir;

use super::dit_support::{Tensors, config, fixture, model};

type Stored = Vec<(String, Dtype, Vec<usize>, Vec<u8>)>;

fn stored() -> Stored {
    let bytes = std::fs::read(fixture("wan_tiny").join("weights.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let entries =
        file.iter().map(|(name, view)| (name.into(), view.dtype(), view.shape().to_vec(), view.data().to_vec()));
    entries.collect()
}

fn write(path: &Path, tensors: &[(String, Dtype, Vec<usize>, Vec<u8>)]) {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, data)| (name.clone(), TensorView::new(*dtype, shape.clone(), data).unwrap()));
    serialize_to_file(views, None, path).unwrap();
}

fn load(path: &Path) -> Result<WanTransformer, LoadError> {
    WanTransformer::load(path, &config("wan_tiny"), DType::F32, &device())
}

/// Output of a model on the fixture's input, as a digest of all its weights.
fn assert_same_output(left: &WanTransformer, right: &WanTransformer, tolerance: f64) {
    let device = device();
    let io = Tensors::open(&fixture("wan_tiny").join("io.safetensors"));
    let [left, right] = [left, right].map(|model| {
        let text = io.tensor("in.encoder_hidden_states", &device);
        model.forward(io.tensor("in.hidden_states", &device), 123.0, text, &mut DenseAttention::default()).unwrap()
    });
    let error = relative_error(&left, &right);
    assert!(error <= tolerance, "{error:e}");
}

fn mismatch(path: &Path) -> Mismatch {
    match load(path).unwrap_err() {
        LoadError::Mismatch { mismatch, .. } => mismatch,
        other => panic!("{other}"),
    }
}

#[test]
fn dit_saved_weights_are_those_that_were_loaded() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    model("wan_tiny", &device()).save(&path).unwrap();

    let bytes = std::fs::read(&path).unwrap();
    let written = SafeTensors::deserialize(&bytes).unwrap();
    let original: HashMap<_, _> =
        stored().into_iter().map(|(name, dtype, shape, data)| (name, (dtype, shape, data))).collect();
    assert_eq!(written.len(), original.len());
    for (name, view) in written.iter() {
        let (dtype, shape, data) = original.get(name).unwrap_or_else(|| panic!("{name} is new"));
        assert_eq!((view.dtype(), view.shape()), (*dtype, &shape[..]), "{name}");
        assert!(view.data() == &data[..], "{name} changed");
    }
    // A second save does not overwrite.
    assert!(matches!(model("wan_tiny", &device()).save(&path), Err(LoadError::Format { .. })));
}

#[test]
fn dit_missing_unexpected_and_misshaped_tensors_are_named() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let mut tensors = stored();
    tensors.retain(|(name, ..)| name != "blocks.1.ffn.net.2.bias" && name != "blocks.0.attn1.norm_q.weight");
    for (name, _, shape, data) in &mut tensors {
        match name.as_str() {
            "blocks.0.attn2.to_out.0.bias" => *name = "blocks.0.attn2.to_out.1.bias".into(),
            // A linear weight with two rows fewer, and a table of another rank.
            "proj_out.weight" => (*shape, _) = (vec![62, 64], data.truncate(62 * 64 * 4)),
            "scale_shift_table" => *shape = vec![2, 64],
            _ => {}
        }
    }
    write(&path, &tensors);
    let mismatch = mismatch(&path);
    assert_eq!(
        mismatch.missing,
        ["blocks.0.attn1.norm_q.weight", "blocks.0.attn2.to_out.0.bias", "blocks.1.ffn.net.2.bias"]
    );
    assert_eq!(mismatch.unexpected, ["blocks.0.attn2.to_out.1.bias"]);
    let mut misshaped: Vec<_> = mismatch.misshaped.iter().map(ToString::to_string).collect();
    misshaped.sort();
    assert_eq!(
        misshaped,
        ["proj_out.weight (expected [64, 64], got [62, 64])", "scale_shift_table (expected [1, 2, 64], got [2, 64])"]
    );
    let text = load(&path).unwrap_err().to_string();
    for part in ["3 missing: blocks.0.attn1.norm_q.weight", "1 unexpected: ", "2 misshaped: ", "model.safetensors"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn dit_a_tensor_under_two_names_is_refused_with_both() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let own = |name: &str| name.replace(".to_out.0.", ".to_out.");
    let original = |name: &str| name.replace(".attn1.to_out.0.", ".self_attn.o.");
    for (rename, second) in
        [(&own as &dyn Fn(&str) -> String, "blocks.0.attn1.to_out.weight"), (&original, "blocks.0.self_attn.o.weight")]
    {
        let mut tensors = stored();
        let first = "blocks.0.attn1.to_out.0.weight";
        let mut copy = tensors.iter().find(|(name, ..)| name == first).unwrap().clone();
        copy.0 = rename(first);
        assert_eq!(copy.0, second);
        tensors.push(copy);
        write(&path, &tensors);
        let mismatch = mismatch(&path);
        let expected = format!("{first}, {second}: one tensor by several names");
        assert_eq!(mismatch, Mismatch { unreadable: vec![expected], ..Mismatch::default() });
    }
}

#[test]
fn dit_weights_of_other_sizes_do_not_load() {
    let mut other = config("wan_tiny");
    other.num_layers = 3;
    let weights = fixture("wan_tiny").join("weights.safetensors");
    match WanTransformer::load(&weights, &other, DType::F32, &device()) {
        Err(LoadError::Mismatch { mismatch, .. }) => {
            assert_eq!((mismatch.missing.len(), mismatch.unexpected.len()), (27, 0));
            assert!(mismatch.missing.iter().all(|name| name.starts_with("blocks.2.")));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn dit_integers_are_no_weights() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let mut tensors = stored();
    tensors.iter_mut().filter(|(name, ..)| name == "proj_out.bias").for_each(|entry| entry.1 = Dtype::I32);
    write(&path, &tensors);
    let mismatch = mismatch(&path);
    assert_eq!(mismatch.unreadable, ["proj_out.bias: I32 is no float"]);
}

#[test]
fn dit_shards_load_as_one_file_does() {
    let folder = tempdir().unwrap();
    let tensors = stored();
    let shards =
        ["diffusion_pytorch_model-00001-of-00002.safetensors", "diffusion_pytorch_model-00002-of-00002.safetensors"];
    let (first, second) = tensors.split_at(tensors.len() / 3);
    write(&folder.path().join(shards[0]), first);
    write(&folder.path().join(shards[1]), second);
    let whole = model("wan_tiny", &device());
    // Without an index every file of the folder counts.
    assert_same_output(&load(folder.path()).unwrap(), &whole, 0.0);

    let map: HashMap<_, _> = (first.iter().map(|entry| (&entry.0, shards[0])))
        .chain(second.iter().map(|entry| (&entry.0, shards[1])))
        .collect();
    let index = folder.path().join("diffusion_pytorch_model.safetensors.index.json");
    std::fs::write(&index, serde_json::json!({ "metadata": {}, "weight_map": map }).to_string()).unwrap();
    // With one, only those that it names.
    write(&folder.path().join("other.safetensors"), first);
    assert_same_output(&load(folder.path()).unwrap(), &whole, 0.0);
    assert_same_output(&load(&index).unwrap(), &whole, 0.0);

    std::fs::remove_file(&index).unwrap();
    let error = load(folder.path()).unwrap_err().to_string();
    assert!(error.contains("is in another shard too"), "{error}");
    std::fs::write(&index, r#"{"weight_map": {"a": "../a.safetensors"}}"#).unwrap();
    let error = load(folder.path()).unwrap_err().to_string();
    assert!(error.contains("not a file beside it"), "{error}");
}

#[test]
fn dit_bf16_weights_load_into_f32() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let mut tensors = stored();
    for (_, dtype, _, data) in &mut tensors {
        *dtype = Dtype::BF16;
        // The upper half of an f32 is a bf16, rounded towards zero.
        *data = data.chunks_exact(4).flat_map(|value| [value[2], value[3]]).collect();
    }
    write(&path, &tensors);
    let loaded = load(&path).unwrap();
    assert_eq!(loaded.dtype(), DType::F32);
    assert_same_output(&loaded, &model("wan_tiny", &device()), 0.05);
}

#[test]
fn dit_unreadable_files_say_why() {
    let folder = tempdir().unwrap();
    assert!(matches!(load(&folder.path().join("none.safetensors")), Err(LoadError::Io { .. })));
    assert!(matches!(load(folder.path()), Err(LoadError::NoWeights { .. })));
    let broken = folder.path().join("model.safetensors");
    std::fs::write(&broken, b"nothing of the kind").unwrap();
    assert!(matches!(load(folder.path()), Err(LoadError::Format { .. })));
    let weights = fixture("wan_tiny").join("weights.safetensors");
    let refused = WanTransformer::load(weights, &config("wan_tiny"), DType::I32, &device());
    assert!(refused.unwrap_err().to_string().contains("F32, F16 or BF16"));
}

#[test]
fn dit_configuration_files_read_back() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("config.json");
    let ours = config("wan_tiny");
    std::fs::write(&path, serde_json::to_string(&ours).unwrap()).unwrap();
    assert_eq!(WanConfig::from_file(&path).unwrap(), ours);
    std::fs::copy(fixture("wan_tiny").join("weights.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let loaded = WanTransformer::from_folder(folder.path(), DType::F32, &device()).unwrap();
    assert_same_output(&loaded, &model("wan_tiny", &device()), 0.0);

    // What diffusers writes for Wan 2.1 1.3B.
    let text = r#"{"_class_name": "WanTransformer3DModel", "_diffusers_version": "0.33.0.dev0", "added_kv_proj_dim": null,
        "attention_head_dim": 128, "cross_attn_norm": true, "eps": 1e-06, "ffn_dim": 8960, "freq_dim": 256,
        "image_dim": null, "in_channels": 16, "num_attention_heads": 12, "num_layers": 30, "out_channels": 16,
        "patch_size": [1, 2, 2], "qk_norm": "rms_norm_across_heads", "rope_max_seq_len": 1024, "text_dim": 4096}"#;
    std::fs::write(&path, text).unwrap();
    let config = WanConfig::from_file(&path).unwrap();
    assert_eq!((config.inner_dim(), config.num_layers), (1536, 30));
    assert_eq!(config.grid([21, 60, 104]).unwrap(), [21, 30, 52]);

    for (old, new, part) in [
        (r#""image_dim": null"#, r#""image_dim": 1280"#, "added_kv_proj_dim: expected a number where image_dim is one"),
        (r#""added_kv_proj_dim": null"#, r#""added_kv_proj_dim": 5120"#, "null where it is null"),
        (r#""image_dim": null"#, r#""pos_embed_seq_len": 514"#, "pos_embed_seq_len: expected null"),
        (r#""in_channels": 16"#, r#""in_channels": 15"#, "in_channels: expected at least out_channels, 16, got 15"),
        ("rms_norm_across_heads", "layer_norm", "qk_norm: expected rms_norm_across_heads"),
        (r#""num_layers": 30"#, r#""num_layers": 0"#, "num_layers: expected at least 1, got 0"),
        (r#""attention_head_dim": 128"#, r#""attention_head_dim": 127"#, "attention_head_dim: expected an even number"),
        (r#""eps": 1e-06"#, r#""eps": 0.0"#, "eps: expected a positive number"),
    ] {
        std::fs::write(&path, text.replace(old, new)).unwrap();
        let error = WanConfig::from_file(&path).unwrap_err();
        assert!(matches!(error, LoadError::Config { .. }));
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(matches!(WanConfig::from_file(folder.path().join("none.json")), Err(LoadError::Io { .. })));
}
