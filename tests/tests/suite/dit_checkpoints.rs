//! Weights under the names of a model's authors, random weights and random checkpoints.

use std::path::Path;
use std::sync::{Arc, Mutex};

use burn::module::Module;
use burn::tensor::{DType, Tensor};
use burn_store::ModuleSnapshot;
use mcsparse::DenseAttention;
use mcsparse_dit::hunyuan::{HunyuanVideo, HunyuanVideo15, HunyuanVideo15Config, HunyuanVideoConfig};
use mcsparse_dit::minimax_h3::{MiniMaxH3, MiniMaxH3Config};
use mcsparse_dit::wan::{WanConfig, WanTransformer};
use mcsparse_dit::{CheckpointOptions, LoadError};
use mcsparse_tests::device;
use safetensors::{Dtype, SafeTensors, serialize_to_file, tensor::TensorView};
use tempfile::tempdir;

use super::dit_support::{config, config_of, fixture};

/// Name, shape and bytes.
type Entry = (String, Vec<usize>, Vec<u8>);

fn stored(folder: &str) -> Vec<Entry> {
    let bytes = std::fs::read(fixture(folder).join("weights.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.iter().map(|(name, view)| (name.to_owned(), view.shape().to_vec(), view.data().to_vec())).collect()
}

fn write(path: &Path, tensors: &[Entry]) {
    let views = tensors
        .iter()
        .map(|(name, shape, data)| (name.clone(), TensorView::new(Dtype::F32, shape.clone(), data).unwrap()));
    serialize_to_file(views, None, path).unwrap();
}

/// Takes the named tensors out of `tensors` and stacks their rows.
fn fuse(tensors: &mut Vec<Entry>, names: &[String], fused: String) {
    let mut take = |name: &String| {
        let at = tensors.iter().position(|(stored, ..)| stored == name).unwrap_or_else(|| panic!("{name}"));
        tensors.remove(at)
    };
    let parts: Vec<_> = names.iter().map(&mut take).collect();
    let mut shape = parts[0].1.clone();
    shape[0] = parts.iter().map(|(_, shape, _)| shape[0]).sum();
    tensors.push((fused, shape, parts.into_iter().flat_map(|(.., data)| data).collect()));
}

fn swap_halves(data: &mut [u8]) {
    let half = data.len() / 2;
    data.rotate_left(half);
}

fn replaced(name: &str, parts: &[(&str, &str)]) -> String {
    parts.iter().fold(name.to_owned(), |name, (ours, theirs)| name.replace(ours, theirs))
}

/// Every weight of two models, bit by bit.
fn assert_same<M: ModuleSnapshot>(left: &M, right: &M) {
    let [left, right] = [left, right].map(|model| model.collect(None, None, false));
    assert_eq!(left.len(), right.len());
    for (left, right) in left.into_iter().zip(right) {
        assert_eq!((&left.name, left.dtype), (&right.name, right.dtype));
        assert!(left.to_bytes().unwrap()[..] == right.to_bytes().unwrap()[..], "{}", left.name);
    }
}

#[test]
fn dit_wan_loads_the_names_of_its_authors() {
    let parts = [
        ("condition_embedder.text_embedder.linear_1", "text_embedding.0"),
        ("condition_embedder.text_embedder.linear_2", "text_embedding.2"),
        ("condition_embedder.time_embedder.linear_1", "time_embedding.0"),
        ("condition_embedder.time_embedder.linear_2", "time_embedding.2"),
        ("condition_embedder.time_proj", "time_projection.1"),
        ("condition_embedder.image_embedder.norm1", "img_emb.proj.0"),
        ("condition_embedder.image_embedder.ff.net.0.proj", "img_emb.proj.1"),
        ("condition_embedder.image_embedder.ff.net.2", "img_emb.proj.3"),
        ("condition_embedder.image_embedder.norm2", "img_emb.proj.4"),
        ("proj_out", "head.head"),
        (".attn1.", ".self_attn."),
        (".attn2.", ".cross_attn."),
        (".to_q.", ".q."),
        (".to_k.", ".k."),
        (".to_v.", ".v."),
        (".to_out.0.", ".o."),
        (".norm_added_k.", ".norm_k_img."),
        (".add_k_proj.", ".k_img."),
        (".add_v_proj.", ".v_img."),
        (".norm2.", ".norm3."),
        (".ffn.net.0.proj.", ".ffn.0."),
        (".ffn.net.2.", ".ffn.2."),
        (".scale_shift_table", ".modulation"),
    ];
    for folder in ["wan_tiny", "wan_tiny_i2v"] {
        let mut tensors = stored(folder);
        for (name, ..) in &mut tensors {
            *name = match name.as_str() {
                "scale_shift_table" => "head.modulation".into(),
                other => replaced(other, &parts),
            };
        }
        let dir = tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        write(&path, &tensors);
        let load = |path: &Path| WanTransformer::load(path, &config(folder), DType::F32, &device()).unwrap();
        assert_same(&load(&path), &load(&fixture(folder).join("weights.safetensors")));
    }
}

/// Names of the text refiner and of dual blocks.
const HUNYUAN: [(&str, &str); 27] = [
    ("context_embedder.token_refiner.refiner_blocks.", "txt_in.individual_token_refiner.blocks."),
    ("context_embedder.time_text_embed.timestep_embedder.linear_1.", "txt_in.t_embedder.mlp.0."),
    ("context_embedder.time_text_embed.timestep_embedder.linear_2.", "txt_in.t_embedder.mlp.2."),
    ("context_embedder.time_text_embed.text_embedder.", "txt_in.c_embedder."),
    ("context_embedder.proj_in.", "txt_in.input_embedder."),
    ("x_embedder.", "img_in."),
    ("time_text_embed.timestep_embedder.linear_1.", "time_in.mlp.0."),
    ("time_text_embed.timestep_embedder.linear_2.", "time_in.mlp.2."),
    ("time_text_embed.guidance_embedder.linear_1.", "guidance_in.mlp.0."),
    ("time_text_embed.guidance_embedder.linear_2.", "guidance_in.mlp.2."),
    ("time_text_embed.text_embedder.linear_1.", "vector_in.in_layer."),
    ("time_text_embed.text_embedder.linear_2.", "vector_in.out_layer."),
    ("time_embed.timestep_embedder.linear_1.", "time_in.mlp.0."),
    ("time_embed.timestep_embedder.linear_2.", "time_in.mlp.2."),
    ("context_embedder_2.norm.", "byt5_in.layernorm."),
    ("context_embedder_2.linear_", "byt5_in.fc"),
    ("image_embedder.norm_in.", "vision_in.proj.0."),
    ("image_embedder.linear_1.", "vision_in.proj.1."),
    ("image_embedder.linear_2.", "vision_in.proj.3."),
    ("image_embedder.norm_out.", "vision_in.proj.4."),
    ("cond_type_embed.", "cond_type_embedding."),
    (".norm1_context.", ".txt_mod."),
    (".attn.norm_added_q.", ".txt_attn_q_norm."),
    (".attn.norm_added_k.", ".txt_attn_k_norm."),
    (".attn.to_add_out.", ".txt_attn_proj."),
    (".ff_context.net.0.proj.", ".txt_mlp.fc1."),
    (".ff_context.net.2.", ".txt_mlp.fc2."),
];

fn hunyuan_original(folder: &str, fused: bool) -> Vec<Entry> {
    let mut tensors = stored(folder);
    let count = |prefix: &str| {
        (0..).take_while(|n| tensors.iter().any(|(name, ..)| name.starts_with(&format!("{prefix}.{n}.")))).count()
    };
    let (dual, single) = (count("transformer_blocks"), count("single_transformer_blocks"));
    let refiner = count("context_embedder.token_refiner.refiner_blocks");
    let names = |block: &str, parts: &[&str], kind: &str| -> Vec<String> {
        parts.iter().map(|part| format!("{block}.{part}.{kind}")).collect()
    };
    for kind in ["weight", "bias"] {
        for n in 0..refiner {
            let block = format!("context_embedder.token_refiner.refiner_blocks.{n}");
            let parts = names(&block, &["attn.to_q", "attn.to_k", "attn.to_v"], kind);
            fuse(&mut tensors, &parts, format!("txt_in.individual_token_refiner.blocks.{n}.self_attn_qkv.{kind}"));
        }
        for n in 0..dual {
            let block = format!("transformer_blocks.{n}");
            for (stream, parts) in [
                ("img", ["attn.to_q", "attn.to_k", "attn.to_v"]),
                ("txt", ["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"]),
            ] {
                if fused {
                    let parts = names(&block, &parts, kind);
                    fuse(&mut tensors, &parts, format!("double_blocks.{n}.{stream}_attn_qkv.{kind}"));
                    continue;
                }
                for (part, letter) in names(&block, &parts, kind).into_iter().zip(["q", "k", "v"]) {
                    fuse(&mut tensors, &[part], format!("double_blocks.{n}.{stream}_attn_{letter}.{kind}"));
                }
            }
        }
        for n in 0..single {
            let block = format!("single_transformer_blocks.{n}");
            let parts = names(&block, &["attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"], kind);
            fuse(&mut tensors, &parts, format!("single_blocks.{n}.linear1.{kind}"));
        }
    }
    for (name, _, data) in &mut tensors {
        if let Some(kind) = name.strip_prefix("norm_out.linear.") {
            *name = format!("final_layer.adaLN_modulation.1.{kind}");
            swap_halves(data);
        } else if let Some(kind) = name.strip_prefix("proj_out.") {
            *name = format!("final_layer.linear.{kind}");
        } else if let Some(rest) = name.strip_prefix("single_transformer_blocks.") {
            let parts = [
                (".norm.linear.", ".modulation.linear."),
                (".attn.norm_q.", ".q_norm."),
                (".attn.norm_k.", ".k_norm."),
                (".proj_out.", ".linear2."),
            ];
            *name = format!("single_blocks.{}", replaced(rest, &parts));
        } else if let Some(rest) = name.strip_prefix("transformer_blocks.") {
            let parts = [
                (".norm1.", ".img_mod."),
                (".attn.norm_q.", ".img_attn_q_norm."),
                (".attn.norm_k.", ".img_attn_k_norm."),
                (".attn.to_out.0.", ".img_attn_proj."),
                (".ff.net.0.proj.", ".img_mlp.fc1."),
                (".ff.net.2.", ".img_mlp.fc2."),
            ];
            *name = format!("double_blocks.{}", replaced(&replaced(rest, &HUNYUAN), &parts));
        } else {
            let parts = [
                (".attn.to_out.0.", ".self_attn_proj."),
                (".ff.net.0.proj.", ".mlp.fc1."),
                (".ff.net.2.", ".mlp.fc2."),
                (".norm_out.linear.", ".adaLN_modulation.1."),
            ];
            *name = replaced(&replaced(name, &HUNYUAN), &parts);
        }
    }
    tensors
}

#[test]
fn dit_hunyuan_loads_the_names_of_its_authors() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    write(&path, &hunyuan_original("hunyuan_tiny", true));
    let config: HunyuanVideoConfig = config_of("hunyuan_tiny");
    let load = |path: &Path| HunyuanVideo::load(path, &config, DType::F32, &device()).unwrap();
    assert_same(&load(&path), &load(&fixture("hunyuan_tiny").join("weights.safetensors")));

    std::fs::remove_file(&path).unwrap();
    write(&path, &hunyuan_original("hunyuan15_tiny", false));
    let config = HunyuanVideo15Config { text_embed_2_hidden: 16, ..config_of("hunyuan15_tiny") };
    let load = |path: &Path| HunyuanVideo15::load(path, &config, DType::F32, &device()).unwrap();
    assert_same(&load(&path), &load(&fixture("hunyuan15_tiny").join("weights.safetensors")));
}

#[test]
fn dit_h3_loads_the_names_of_its_authors() {
    let config: MiniMaxH3Config = config_of("minimax_h3_tiny");
    let mut tensors = stored("minimax_h3_tiny");
    let blocks = ["transformer_blocks.0", "transformer_blocks.1", "token_refiner.refiner_blocks.0"];
    for block in blocks {
        let parts = ["q", "k", "v"].map(|part| format!("{block}.attn.to_{part}.weight"));
        let fused = format!("{block}.attn.qkv_proj.weight");
        fuse(&mut tensors, &parts, fused.clone());
        // The rows of each head together.
        let (_, shape, data) = tensors.iter_mut().find(|(name, ..)| *name == fused).unwrap();
        let (head, part) = (4 * shape[1] * config.attention_head_dim, data.len() / 3);
        *data = (0..config.num_attention_heads)
            .flat_map(|n| (0..3).flat_map(move |kind| kind * part + n * head..kind * part + (n + 1) * head))
            .map(|at| data[at])
            .collect();
    }
    let parts = [
        ("token_refiner.refiner_blocks.", "token_refiner.blocks."),
        ("transformer_blocks.", "blocks."),
        ("time_embedder.linear_1.", "time_embedder.proj_in."),
        ("time_embedder.linear_2.", "time_embedder.proj_out."),
        ("context_embedder.", "condition_proj."),
        ("norm_out.norm.", "final_layer.norm."),
        ("norm_out.linear.", "final_layer.adaln_proj.linear."),
        (".attn.norm_q.", ".attn.q_norm."),
        (".attn.norm_k.", ".attn.k_norm."),
        (".attn.to_out.0.", ".attn.out_proj."),
        (".ff.net.0.proj.", ".mlp.fc1."),
        (".ff.net.2.", ".mlp.fc2."),
    ];
    for (name, _, data) in &mut tensors {
        if name.contains(".ff.net.0.") {
            swap_halves(data);
        }
        *name = match name.as_str() {
            _ if name.starts_with("proj_in.") => name.replace("proj_in.", "video_patch_proj."),
            _ if name.starts_with("audio_proj_in.") => name.replace("audio_proj_in.", "audio_patch_proj."),
            _ if name.starts_with("proj_out.") => name.replace("proj_out.", "final_layer.video_out."),
            _ if name.starts_with("audio_proj_out.") => name.replace("audio_proj_out.", "final_layer.audio_out."),
            _ => replaced(name, &parts),
        };
    }
    tensors.push(("rope.inv_freq".into(), vec![1], vec![0; 4]));
    let dir = tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    write(&path, &tensors);
    let load = |path: &Path| MiniMaxH3::load(path, &config, DType::F32, &device()).unwrap();
    assert_same(&load(&path), &load(&fixture("minimax_h3_tiny").join("weights.safetensors")));
}

#[test]
fn dit_random_checkpoints_load_and_run() {
    let (device, config) = (device(), config("wan_tiny"));
    let dir = tempdir().unwrap();
    let folder = dir.path().join("transformer");
    let options = CheckpointOptions { dtype: DType::BF16, seed: 3, shard_bytes: 100_000 };
    config.write_random(&folder, &options, &device).unwrap();
    let files = std::fs::read_dir(&folder).unwrap().count();
    // 144,608 values of two bytes, some of four, in shards of 100 kB; configuration and index.
    assert!((5..8).contains(&files), "{files} files");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = seen.clone();
    let model = WanTransformer::load_with_progress(&folder, &config, DType::F32, &device, move |progress| {
        sink.lock().unwrap().push(progress);
    })
    .unwrap();
    let seen = seen.lock().unwrap();
    let last = seen.last().unwrap();
    assert_eq!((last.tensors, last.bytes), (last.of_tensors, last.of_bytes));
    assert_eq!(seen.len(), last.of_tensors);
    assert_eq!(model.num_params(), config.parameters(&device));
    // bf16 to f32 and back loses nothing, so the two ways of loading agree.
    assert_eq!(WanConfig::from_file(folder.join("config.json")).unwrap(), config);
    let finite = |model: &WanTransformer| {
        let (latents, text) = (Tensor::ones([1, 16, 3, 8, 12], &device), Tensor::ones([1, 7, 24], &device));
        let output = model.forward(latents, 500.0, text, &mut DenseAttention::default()).unwrap();
        output.abs().max().into_scalar::<f32>()
    };
    let largest = finite(&model);
    assert!(largest > 1e-3 && largest < 1e3, "{largest}");
    // The same seed, the same bytes.
    let again = dir.path().join("again");
    config.write_random(&again, &options, &device).unwrap();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let name = entry.unwrap().file_name();
        assert!(std::fs::read(folder.join(&name)).unwrap() == std::fs::read(again.join(&name)).unwrap());
    }
    // Nothing is written over.
    let error = config.write_random(&again, &options, &device).unwrap_err();
    assert!(error.to_string().contains("expected an empty folder, found "), "{error}");
    let none = CheckpointOptions { shard_bytes: 0, ..options };
    let error = config.write_random(dir.path().join("none"), &none, &device).unwrap_err();
    assert!(matches!(error, LoadError::Setting(_)), "{error}");
    assert!(!dir.path().join("none").exists());

    let largest = finite(&WanTransformer::random(&config, DType::F32, 1, &device).unwrap());
    assert!(largest > 1e-3 && largest < 1e3, "{largest}");
    assert!(WanTransformer::random(&config, DType::I64, 1, &device).is_err());
}

#[test]
fn dit_all_models_have_random_forms() {
    let device = device();
    let hunyuan: HunyuanVideoConfig = config_of("hunyuan_tiny");
    let h3: MiniMaxH3Config = config_of("minimax_h3_tiny");
    let dir = tempdir().unwrap();
    let options = CheckpointOptions { dtype: DType::F32, ..Default::default() };
    hunyuan.write_random(dir.path().join("hunyuan"), &options, &device).unwrap();
    h3.write_random(dir.path().join("h3"), &options, &device).unwrap();
    let loaded = HunyuanVideo::from_folder(dir.path().join("hunyuan"), DType::F32, &device).unwrap();
    assert_eq!(loaded.num_params(), 352_864);
    assert_eq!(MiniMaxH3::from_folder(dir.path().join("h3"), DType::F32, &device).unwrap().num_params(), 229_237);
    assert_eq!(HunyuanVideo::random(&hunyuan, DType::F32, 0, &device).unwrap().num_params(), 352_864);
    // Another model's weights are named, all of them.
    match MiniMaxH3::load(dir.path().join("hunyuan"), &h3, DType::F32, &device) {
        Err(LoadError::Mismatch { mismatch, .. }) => {
            assert!(mismatch.missing.contains(&"transformer_blocks.1.attn.to_q.weight".into()));
            assert!(mismatch.unexpected.contains(&"single_transformer_blocks.1.proj_mlp.weight".into()));
        }
        other => panic!("{:?}", other.map(|_| ())),
    }
}
