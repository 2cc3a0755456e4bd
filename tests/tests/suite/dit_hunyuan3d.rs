//! The shape transformer of Hunyuan3D-2.1 against a reference in PyTorch (`fixtures/make_hunyuan3d.py`).

use burn::tensor::{DType, Distribution, Tensor};
use mcsparse::{DenseAttention, Error, McSparse, McSparseConfig, Schedule, StepKind, TokenLayout};
use mcsparse_dit::hunyuan3d::{Hunyuan3d, Hunyuan3dConfig, from_tokens, to_tokens};
use mcsparse_dit::sampler::FlowEuler;
use mcsparse_dit::{Conditions, LoadError, VelocityModel, denoise};
use mcsparse_tests::{case::model_tolerance, device, relative_error};
use safetensors::SafeTensors;

use super::dit_support::{Call, Recorder, Tensors, config_of, fixture};

const FOLDER: &str = "hunyuan3d_tiny";
/// The error that a tap or an output may have.
const TOLERANCE: f64 = 2e-5;

fn model() -> Hunyuan3d {
    let config: Hunyuan3dConfig = config_of(FOLDER);
    Hunyuan3d::load(fixture(FOLDER).join("weights.safetensors"), &config, DType::F32, &device()).unwrap()
}

fn io() -> Tensors {
    Tensors::open(&fixture(FOLDER).join("io.safetensors"))
}

#[test]
fn dit_hunyuan3d_matches_the_reference() {
    let (device, io, model) = (device(), io(), model());
    let prepared = model.prepare(io.tensor("in.context", &device)).unwrap();
    let time = f64::from(io.values("in.time")[0]);
    let mut recorder = Recorder::default();
    let output = model.forward(io.tensor("in.latents", &device), time, &prepared, &mut recorder).unwrap();
    let sequence = TokenLayout { prefix: 1, grid: [1, 1, 23], suffix: 0 };
    let calls: Vec<_> = [Call::Sequence(sequence)].into_iter().chain((0..7).map(Call::Layer)).collect();
    assert_eq!(recorder.calls, calls);
    let taps = Tensors::open(&fixture(FOLDER).join("attn.safetensors"));
    assert_eq!(taps.names().len(), 4 * recorder.taps.len());
    for (call, tap) in recorder.taps.iter().enumerate() {
        for (tensor, name) in tap.iter().zip(["q", "k", "v", "o"]) {
            let expected = taps.tensor::<4>(&format!("call{call:02}.{name}"), &device).swap_dims(1, 2);
            let error = relative_error(tensor, &expected);
            println!("{FOLDER} call {call} {name}: {error:.1e}");
            assert!(error <= model_tolerance(TOLERANCE), "call {call}, {name}: {error:e}");
        }
    }
    let error = relative_error(&output, &io.tensor("out.velocity", &device));
    println!("{FOLDER} output: {error:.1e}");
    assert!(error <= model_tolerance(TOLERANCE), "{error:e}");
}

#[test]
fn dit_hunyuan3d_samples_as_its_pipeline_does() {
    let (device, io, model) = (device(), io(), model());
    let (noise, image) = (from_tokens(io.tensor("in.latents", &device)), io.tensor::<3>("in.context", &device));
    let conditions = Conditions::guided(image.clone(), image.zeros_like(), 5.0);
    // Five times, of which the last makes no step.
    let mut sampler = FlowEuler::uniform(4, 1.0).unwrap();
    let latents = denoise(&model, &mut sampler, noise, conditions, &mut DenseAttention::default(), |_| ()).unwrap();
    let error = relative_error(&to_tokens(latents), &io.tensor("out.sample", &device));
    println!("{FOLDER} sample: {error:.1e}");
    assert!(error <= 10.0 * model_tolerance(1e-5), "{error:e}");
}

#[test]
fn dit_hunyuan3d_denoises_sparsely_with_its_time_token_as_a_sink() {
    let (device, model) = (device(), model());
    // 80 latents: a set of vectors may be larger than what was trained on.
    let noise = Tensor::<5>::random([1, 6, 1, 1, 80], Distribution::Normal(0.0, 1.0), &device);
    let image = Tensor::<3>::random([1, 5, 20], Distribution::Normal(0.0, 1.0), &device);
    let run = |config: &McSparseConfig| {
        let mut method = McSparse::new(config, 3).unwrap();
        let conditions = Conditions::guided(image.clone(), image.zeros_like(), 5.0);
        let mut sampler = FlowEuler::uniform(3, 1.0).unwrap();
        let latents = denoise(&model, &mut sampler, noise.clone(), conditions, &mut method, |_| ()).unwrap();
        (latents, method)
    };
    let config = |density: f64| {
        McSparseConfig::density(density)
            .with_group_size(16)
            .with_schedule(Schedule::warm_up(1))
            .with_dense_layers(vec![0])
    };
    let (dense, method) = run(&config(1.0));
    let report = method.report();
    // 7 layers in 3 steps and 2 branches; layer 0 is dense.
    assert_eq!((report.count(StepKind::Anchor), report.count(StepKind::Reuse)), (12, 24));
    let all: Vec<usize> = (0..7).collect();
    let error = relative_error(&dense, &run(&config(1.0).with_dense_layers(all)).0);
    assert!(error < model_tolerance(1e-4), "every key is kept: {error:e}");
    let sparse = run(&config(0.25)).0;
    let error = relative_error(&sparse, &dense);
    assert!(error > 1e-6 && error < 1.0, "{error:e}");
}

#[test]
fn dit_hunyuan3d_reads_its_part_of_a_whole_pipeline() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(fixture(FOLDER).join("weights.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: Vec<_> = file.tensors().into_iter().map(|(name, view)| (format!("model.{name}"), view)).collect();
    let other = tensors[0].1.clone();
    tensors.push(("vae.decoder.weight".into(), other.clone()));
    tensors.push(("conditioner.main_image_encoder.weight".into(), other));
    let path = folder.path().join("model.fp16.safetensors");
    safetensors::serialize_to_file(tensors, None, &path).unwrap();
    let (device, io, config) = (device(), io(), config_of::<Hunyuan3dConfig>(FOLDER));
    let run = |model: Hunyuan3d| {
        let prepared = model.prepare(io.tensor("in.context", &device)).unwrap();
        model.forward(io.tensor("in.latents", &device), 0.3, &prepared, &mut DenseAttention::default()).unwrap()
    };
    let loaded = Hunyuan3d::load(&path, &config, DType::F32, &device).unwrap();
    assert_eq!(relative_error(&run(loaded), &run(model())), 0.0);

    // Written and read again, under the names of the authors.
    let saved = folder.path().join("saved.safetensors");
    model().save(&saved).unwrap();
    let text = std::fs::read(&saved).unwrap();
    let names: Vec<_> = SafeTensors::deserialize(&text).unwrap().names().into_iter().map(String::from).collect();
    let own: Vec<_> = file.names().into_iter().map(String::from).collect();
    assert!(own.iter().all(|name| names.contains(name)) && names.len() == own.len(), "{names:?}");
    let loaded = Hunyuan3d::load(&saved, &config, DType::F32, &device).unwrap();
    assert_eq!(relative_error(&run(loaded), &run(model())), 0.0);

    let wider = Hunyuan3dConfig { num_experts: 5, ..config };
    match Hunyuan3d::load(&path, &wider, DType::F32, &device).unwrap_err() {
        LoadError::Mismatch { mismatch, .. } => {
            assert!(mismatch.missing.iter().any(|name| name == "blocks.5.moe.experts.4.net.0.proj.weight"));
            assert_eq!(mismatch.misshaped[0].name, "blocks.5.moe.gate.weight");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn dit_hunyuan3d_has_the_published_form() {
    // Counted from the names and shapes of `fixtures/make_hunyuan3d.py` at full size.
    assert_eq!(Hunyuan3dConfig::v2_1().parameters(&device()), 3_050_758_720);
}

#[test]
fn dit_hunyuan3d_refuses_by_name() {
    let (device, model) = (device(), model());
    let prepared = model.prepare(Tensor::zeros([1, 5, 20], &device)).unwrap();
    let mut recorder = Recorder::default();
    let mut refused = |latents: [usize; 3], time: f64| {
        let error = model.forward(Tensor::zeros(latents, &device), time, &prepared, &mut recorder).unwrap_err();
        assert!(recorder.calls.is_empty());
        error.to_string()
    };
    assert_eq!(refused([1, 9, 5], 0.0), "latents: expected [batch, tokens, 6], got [1, 9, 5]");
    assert_eq!(refused([2, 9, 6], 0.0), "image: expected a batch of 2, as latents have, for 7 blocks, got 1 for 7");
    assert_eq!(refused([1, 9, 6], f64::NAN), "time: expected a finite number, got NaN");
    let error = model.prepare(Tensor::zeros([1, 5, 21], &device)).unwrap_err().to_string();
    assert_eq!(error, "image: expected [batch, image tokens, 20], got [1, 5, 21]");
    let error = VelocityModel::prepare(&model, Tensor::zeros([1, 5, 20], &device), [1, 6, 1, 2, 9]).unwrap_err();
    assert!(matches!(error, Error::InvalidTensor { argument: "latents", .. }), "{error}");
    assert!(error.to_string().ends_with("expected [batch, 6, 1, 1, tokens], got [1, 6, 1, 2, 9]"), "{error}");
    // A value that is none reaches the gate.
    let broken = Tensor::<3>::full([1, 9, 6], f32::NAN, &device);
    let error = model.forward(broken, 0.0, &prepared, &mut DenseAttention::default()).unwrap_err();
    assert!(error.to_string().starts_with("weights of the experts: expected numbers"), "{error}");
}
