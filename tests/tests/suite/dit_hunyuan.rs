//! HunyuanVideo and HunyuanVideo-1.5 against what diffusers computes with the same weights (`fixtures/make_fixtures.py`).
//!
//! diffusers takes padded text with masks, this crate text without padding: what is compared are the tokens that are none.

use burn::tensor::{DType, Device, Tensor};
use mcsparse::{DenseAttention, Error, McSparse, McSparseConfig, Schedule, SelfAttention, TokenLayout};
use mcsparse_dit::hunyuan::{
    Hunyuan15Condition, HunyuanCondition, HunyuanVideo, HunyuanVideo15, HunyuanVideo15Config, HunyuanVideoConfig, trim,
};
use mcsparse_dit::layers::Timestep;
use mcsparse_tests::{case::model_tolerance, device, relative_error};

use super::dit_support::{Call, Recorder, Tensors, config_of, fixture};

/// The error that a tap or an output may have. 1.3e-5 is reached on Flex, at the first attention of HunyuanVideo.
const TOLERANCE: f64 = 5e-5;
/// Video tokens of both fixtures' grids.
const VIDEO: usize = 72;

fn io(folder: &str) -> Tensors {
    Tensors::open(&fixture(folder).join("io.safetensors"))
}

fn mask(io: &Tensors, name: &str, element: usize, tokens: usize) -> Vec<bool> {
    io.integers(name)[element * tokens..(element + 1) * tokens].iter().map(|&value| value != 0).collect()
}

fn close(name: &str, got: &Tensor<4>, expected: Tensor<4>) {
    let error = relative_error(got, &expected);
    println!("{name}: {error:.1e}");
    assert!(error <= model_tolerance(TOLERANCE), "{name}: {error:e}");
}

/// Compares the taps of `recorder` with those of one batch element of a fixture; there `tokens` of a sequence count.
fn compare_taps(folder: &str, recorder: &Recorder, element: usize, tokens: usize, device: &Device) {
    let taps = Tensors::open(&fixture(folder).join("attn.safetensors"));
    let calls = taps.names().iter().filter(|name| name.ends_with(".q")).count();
    assert_eq!(recorder.taps.len(), calls);
    for (call, tap) in recorder.taps.iter().enumerate() {
        for (tensor, name) in tap.iter().zip(["q", "k", "v", "o"]) {
            let all = taps.tensor::<4>(&format!("call{call:02}.{name}"), device);
            let expected = all.slice([element..element + 1, 0..tokens]).swap_dims(1, 2);
            close(&format!("{folder} element {element} call {call} {name}"), tensor, expected);
        }
    }
}

fn hunyuan() -> HunyuanVideo {
    let (folder, device) = (fixture("hunyuan_tiny"), device());
    let config: HunyuanVideoConfig = config_of("hunyuan_tiny");
    HunyuanVideo::load(folder.join("weights.safetensors"), &config, DType::F32, &device).unwrap()
}

fn condition(element: usize) -> HunyuanCondition {
    let (io, device) = (io("hunyuan_tiny"), device());
    let element_of = |name: &str| io.tensor::<3>(name, &device).slice_dim(0, element..element + 1);
    let text = element_of("in.encoder_hidden_states");
    HunyuanCondition {
        text: trim(text, &mask(&io, "in.encoder_attention_mask", element, 6)).unwrap(),
        pooled: io.tensor::<2>("in.pooled_projections", &device).slice_dim(0, element..element + 1),
        guidance: Some(6.0),
        latents: None,
    }
}

#[test]
fn dit_hunyuan_video_matches_diffusers() {
    let (device, io, model) = (device(), io("hunyuan_tiny"), hunyuan());
    for element in 0..2 {
        let of = |tensor: Tensor<5>| tensor.slice_dim(0, element..element + 1);
        let prepared = model.prepare(condition(element), [3, 8, 12]).unwrap();
        let text = [6, 4][element];
        assert_eq!(prepared.layout(), TokenLayout { prefix: 0, grid: [3, 4, 6], suffix: text });
        let mut recorder = Recorder::default();
        let timestep = io.integers("in.timestep")[element] as f64;
        let latents = of(io.tensor("in.hidden_states", &device));
        let output = model.forward_prepared(latents, timestep, &prepared, &mut recorder).unwrap();
        // Announced once, then one dual and two single blocks.
        let sequence = Call::Sequence(prepared.layout());
        assert_eq!(recorder.calls, [sequence, Call::Layer(0), Call::Layer(1), Call::Layer(2)]);
        compare_taps("hunyuan_tiny", &recorder, element, VIDEO + text, &device);
        let expected: Tensor<5> = of(io.tensor("out.sample", &device));
        let error = relative_error(&output, &expected);
        println!("hunyuan_tiny element {element}: {error:.1e}");
        assert!(error <= model_tolerance(TOLERANCE), "{error:e}");
    }
}

fn hunyuan15() -> HunyuanVideo15 {
    let config = HunyuanVideo15Config { text_embed_2_hidden: 16, ..config_of("hunyuan15_tiny") };
    let weights = fixture("hunyuan15_tiny").join("weights.safetensors");
    HunyuanVideo15::load(weights, &config, DType::F32, &device()).unwrap()
}

fn condition15(prefix: &str) -> Hunyuan15Condition {
    let (io, device) = (io("hunyuan15_tiny"), device());
    let name = |part: &str| format!("{prefix}.{part}");
    let characters = mask(&io, &name("encoder_attention_mask_2"), 0, 4);
    let image = io.tensor::<3>(&name("image_embeds"), &device);
    let text = io.tensor(&name("encoder_hidden_states"), &device);
    Hunyuan15Condition {
        text: trim(text, &mask(&io, &name("encoder_attention_mask"), 0, 6)).unwrap(),
        characters: characters
            .contains(&true)
            .then(|| trim(io.tensor(&name("encoder_hidden_states_2"), &device), &characters).unwrap()),
        // All zeros stand for no image there.
        image: (image.clone().abs().max().into_scalar::<f32>() > 0.0).then_some(image),
        latents: None,
    }
}

#[test]
fn dit_hunyuan_video_15_matches_diffusers() {
    let (device, io, model) = (device(), io("hunyuan15_tiny"), hunyuan15());
    // Text-to-video with characters, then an image without characters.
    for (prefix, out, suffix) in [("in", "out.sample", 5 + 2), ("image", "image.out", 5 + 6)] {
        let prepared = model.prepare(condition15(prefix), [3, 4, 6]).unwrap();
        assert_eq!(prepared.layout(), TokenLayout { prefix: 0, grid: [3, 4, 6], suffix });
        let mut recorder = Recorder::default();
        let timestep = Timestep::PerSample(io.tensor(&format!("{prefix}.timestep"), &device));
        let latents = io.tensor(&format!("{prefix}.hidden_states"), &device);
        let output = model.forward_prepared(latents, timestep, &prepared, &mut recorder).unwrap();
        if prefix == "in" {
            compare_taps("hunyuan15_tiny", &recorder, 0, VIDEO + suffix, &device);
        }
        let error = relative_error(&output, &io.tensor(out, &device));
        println!("hunyuan15_tiny {prefix}: {error:.1e}");
        assert!(error <= model_tolerance(TOLERANCE), "{prefix}: {error:e}");
    }
}

fn sparse(density: f64, steps: usize) -> McSparse {
    let config = McSparseConfig::density(density)
        .with_group_size(16)
        .with_dense_layers(vec![])
        .with_schedule(Schedule::warm_up(1));
    McSparse::new(&config, steps).unwrap()
}

/// MC-Sparse beside dense attention on the same inputs, layer by layer.
struct Beside {
    sparse: McSparse,
    text: usize,
    /// Largest relative error of the text rows and of the video rows on reuse steps.
    errors: [f64; 2],
    reuse: bool,
}

impl SelfAttention for Beside {
    fn attend(&mut self, layer: usize, query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Result<Tensor<4>, Error> {
        let dense = DenseAttention::default().attend(layer, query.clone(), key.clone(), value.clone())?;
        let sparse = self.sparse.attend(layer, query, key, value)?;
        let (tokens, video) = (dense.dims()[2], dense.dims()[2] - self.text);
        let rows = [video..tokens, 0..video];
        for (error, rows) in self.errors.iter_mut().zip(rows).filter(|_| self.reuse) {
            let of = |tensor: &Tensor<4>| tensor.clone().slice_dim(2, rows.clone());
            *error = error.max(relative_error(&of(&sparse), &of(&dense)));
        }
        // Both arms go on from the same hidden states.
        Ok(dense)
    }

    fn begin_step(&mut self, step: usize) -> Result<(), Error> {
        self.reuse = step > 0;
        self.sparse.begin_step(step)
    }

    fn begin_sequence(&mut self, layout: &TokenLayout) -> Result<(), Error> {
        self.sparse.begin_sequence(layout)
    }
}

#[test]
fn dit_text_rows_are_dense_and_density_one_is_dense() {
    let (device, io, model) = (device(), io("hunyuan_tiny"), hunyuan());
    let prepared = model.prepare(condition(0), [3, 8, 12]).unwrap();
    let latents: Tensor<5> = io.tensor::<5>("in.hidden_states", &device).slice_dim(0, 0..1);
    let errors = |density: f64| {
        let mut beside = Beside { sparse: sparse(density, 2), text: 6, errors: [0.0; 2], reuse: false };
        for step in 0..2 {
            beside.begin_step(step).unwrap();
            // Other latents at the second step, so that the residual is not exact.
            let latents = latents.clone().mul_scalar(1.0 - 0.5 * step as f64);
            model.forward_prepared(latents, 900.0 - 500.0 * step as f64, &prepared, &mut beside).unwrap();
        }
        beside.errors
    };
    let [text, video] = errors(0.1);
    println!("density 0.1: text {text:.1e}, video {video:.1e}");
    assert!(text < model_tolerance(1e-5) && video > 1e-3, "text {text:e}, video {video:e}");
    let [text, video] = errors(1.0);
    println!("density 1: text {text:.1e}, video {video:.1e}");
    assert!(text < model_tolerance(1e-5) && video < model_tolerance(1e-5), "text {text:e}, video {video:e}");
}

#[test]
fn dit_text_of_each_branch_may_have_its_own_length() {
    use mcsparse_dit::sampler::FlowEuler;
    use mcsparse_dit::{Conditions, denoise};
    let (device, model) = (device(), hunyuan15());
    let mut method = sparse(0.25, 3);
    let negative = Hunyuan15Condition {
        text: condition15("in").text.slice_dim(1, 0..2),
        characters: None,
        image: None,
        latents: None,
    };
    let noise = Tensor::<5>::random([1, 4, 3, 4, 6], burn::tensor::Distribution::Normal(0.0, 1.0), &device);
    let mut sampler = FlowEuler::uniform(3, 5.0).unwrap();
    let conditions = Conditions::guided(condition15("in"), negative, 6.0);
    denoise(&model, &mut sampler, noise, conditions, &mut method, |_| ()).unwrap();
    // Two layers in two branches.
    assert_eq!(method.cache().slots().len(), 4);
    assert!(method.report().effective_density() < 1.0);
}

#[test]
fn dit_hunyuan_refuses_by_name() {
    let (device, model) = (device(), hunyuan());
    let refused = |condition: HunyuanCondition, size: [usize; 3]| match model.prepare(condition, size).unwrap_err() {
        Error::InvalidTensor { argument, .. } | Error::InvalidConfig { argument, .. } => argument,
        other => panic!("{other}"),
    };
    let whole = [3, 8, 12];
    assert_eq!(refused(condition(0), [3, 7, 12]), "latents");
    let text = Tensor::zeros([1, 6, 23], &device);
    assert_eq!(refused(HunyuanCondition { text, ..condition(0) }, whole), "text");
    let pooled = Tensor::zeros([2, 12], &device);
    assert_eq!(refused(HunyuanCondition { pooled, ..condition(0) }, whole), "pooled");
    assert_eq!(refused(HunyuanCondition { guidance: None, ..condition(0) }, whole), "guidance");
    let latents = Some(Tensor::zeros([1, 1, 3, 8, 12], &device));
    assert_eq!(refused(HunyuanCondition { latents, ..condition(0) }, whole), "condition latents");

    let text = || Tensor::<3>::zeros([1, 4, 24], &device);
    for (mask, part) in [
        (&[true, true, false][..], "expected 4 values"),
        (&[false; 4][..], "at least one"),
        (&[true, false, true, false][..], "valid tokens first"),
    ] {
        let error = trim(text(), mask).unwrap_err().to_string();
        assert!(error.starts_with("mask: ") && error.contains(part), "{error}");
    }
    for (json, part) in [
        (r#"{"image_condition_type": "token_replace"}"#, "image_condition_type: expected null or latent_concat"),
        (r#"{"rope_axes_dim": [16, 56, 55]}"#, "rope_axes_dim: expected even numbers"),
        (r#"{"qk_norm": "layer_norm"}"#, "qk_norm: expected rms_norm"),
    ] {
        let error = serde_json::from_str::<HunyuanVideoConfig>(json).unwrap().validate().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
