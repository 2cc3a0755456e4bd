//! MiniMax-H3 against what diffusers computes with the same weights (`fixtures/make_fixtures.py`).

use burn::tensor::{DType, Distribution, Tensor};
use mcsparse::{Error, McSparse, McSparseConfig, Schedule, StepKind, TokenLayout};
use mcsparse_dit::minimax_h3::{
    H3Conditions, H3Euler, H3Velocity, Keyframe, MiniMaxH3, MiniMaxH3Config, PackedLayout, Times, denoise,
};
use mcsparse_tests::{case::model_tolerance, device, relative_error};

use super::dit_support::{Call, Recorder, Tensors, config_of, fixture};

const TOLERANCE: f64 = 1e-5;

fn model() -> MiniMaxH3 {
    let config: MiniMaxH3Config = config_of("minimax_h3_tiny");
    let weights = fixture("minimax_h3_tiny").join("weights.safetensors");
    MiniMaxH3::load(weights, &config, DType::F32, &device()).unwrap()
}

fn io() -> Tensors {
    Tensors::open(&fixture("minimax_h3_tiny").join("io.safetensors"))
}

/// Six text tokens, four latent frames of 8 x 12, five audio latents a channel.
fn layout() -> PackedLayout {
    PackedLayout::text_to_video(6, [4, 8, 12], 5)
}

#[test]
fn dit_h3_matches_diffusers() {
    let (device, io, model) = (device(), io(), model());
    let keyed = PackedLayout {
        text_is_vision: vec![false, true, true, false, false, false],
        keyframes: vec![Keyframe::First, Keyframe::Last],
        ..layout()
    };
    for (prefix, layout, prefix_tokens) in [("in", layout(), 6 + 10), ("key", keyed, 6 + 48 + 10)] {
        let name = |part: &str| format!("{prefix}.{part}");
        let (got, expected) = (layout.positions(), io.doubles(&name("position_ids")));
        assert_eq!(got.len() * 3, expected.len());
        for (got, expected) in got.as_flattened().iter().zip(expected) {
            assert!((got - expected).abs() < 1e-9, "{prefix}: {got} for {expected}");
        }
        let prepared = model.prepare(io.tensor(&name("encoder_hidden_states"), &device), layout).unwrap();
        let latents = H3Velocity {
            video: io.tensor(&name("hidden_states"), &device),
            audio: io.tensor(&name("audio_hidden_states"), &device),
        };
        let times = Times { text: 1.0, keyframes: 0.9, audio: 0.35, video: 0.2 };
        let mut recorder = Recorder::default();
        let output = model.forward_prepared(&latents, times, &prepared, &mut recorder).unwrap();
        // The refiner of the text does not show.
        let sequence = TokenLayout { prefix: prefix_tokens, grid: [4, 4, 6], suffix: 0 };
        assert_eq!(recorder.calls, [Call::Sequence(sequence), Call::Layer(0), Call::Layer(1)]);
        let out = |part: &str| if prefix == "in" { format!("out.{part}") } else { name(part) };
        for (got, part) in [(output.video, "video"), (output.audio, "audio")] {
            let error = relative_error(&got, &io.tensor(&out(part), &device));
            println!("minimax_h3_tiny {prefix} {part}: {error:.1e}");
            assert!(error <= model_tolerance(TOLERANCE), "{prefix} {part}: {error:e}");
        }
        if prefix == "in" {
            let taps = Tensors::open(&fixture("minimax_h3_tiny").join("attn.safetensors"));
            for (call, tap) in (1..).zip(&recorder.taps) {
                for (tensor, name) in tap.iter().zip(["q", "k", "v", "o"]) {
                    let expected = taps.tensor::<4>(&format!("call{call:02}.{name}"), &device).swap_dims(1, 2);
                    let error = relative_error(tensor, &expected);
                    println!("minimax_h3_tiny call {call} {name}: {error:.1e}");
                    assert!(error <= model_tolerance(TOLERANCE), "call {call}, {name}: {error:e}");
                }
            }
        }
    }
}

#[test]
fn dit_h3_denoises_sparsely_and_keeps_keyframes() {
    let (device, model) = (device(), model());
    let random = |shape: [usize; 3]| Tensor::<3>::random(shape, Distribution::Normal(0.0, 1.0), &device);
    let layout = PackedLayout { keyframes: vec![Keyframe::First], ..layout() };
    let config = McSparseConfig::density(0.25)
        .with_group_size(16)
        .with_dense_layers(vec![0])
        .with_schedule(Schedule::warm_up(1));
    let mut method = McSparse::new(&config, 3).unwrap();
    let noise = H3Velocity { video: random([1, 96, 24]), audio: random([1, 10, 5]) };
    let conditions =
        || H3Conditions { text: random([1, 6, 24]), layout: layout.clone(), keyframes: Some(random([1, 24, 24])) };
    let clocks = || [H3Euler::VIDEO_SHIFT, H3Euler::AUDIO_SHIFT].map(|shift| H3Euler::new(4, shift).unwrap());
    let [mut video, mut audio] = clocks();
    let mut steps = Vec::new();
    let latents =
        denoise(&model, [&mut video, &mut audio], noise.clone(), conditions(), &mut method, |step, _| steps.push(step))
            .unwrap();
    assert_eq!((latents.video.dims(), latents.audio.dims(), steps), ([1, 96, 24], [1, 10, 5], vec![0, 1, 2]));
    let report = method.report();
    assert_eq!((report.count(StepKind::Anchor), report.count(StepKind::Reuse)), (1, 2));

    let [mut video, mut audio] = clocks();
    let without = H3Conditions { keyframes: None, ..conditions() };
    let mut recorder = Recorder::default();
    let error =
        denoise(&model, [&mut video, &mut audio], noise.clone(), without, &mut recorder, |_, _| ()).unwrap_err();
    assert!(matches!(error, Error::InvalidTensor { argument: "keyframes", .. }), "{error}");
    let mut longer = H3Euler::new(5, 3.0).unwrap();
    let error = denoise(&model, [&mut video, &mut longer], noise, conditions(), &mut recorder, |_, _| ()).unwrap_err();
    assert!(matches!(error, Error::InvalidConfig { argument: "audio", .. }), "{error}");
    assert!(recorder.calls.is_empty());
}

#[test]
fn dit_h3_refuses_by_name() {
    let (device, model) = (device(), model());
    let refused = |error: Error| match error {
        Error::InvalidTensor { argument, .. } | Error::InvalidConfig { argument, .. } => argument,
        other => panic!("{other}"),
    };
    let text = |tokens: usize| Tensor::<3>::zeros([1, tokens, 24], &device);
    assert_eq!(refused(model.prepare(text(5), layout()).unwrap_err()), "text");
    let odd = PackedLayout { video: [4, 7, 12], ..layout() };
    assert_eq!(refused(model.prepare(text(6), odd).unwrap_err()), "latents");
    let other = PackedLayout { patch: [1, 4, 4], ..layout() };
    assert_eq!(refused(model.prepare(text(6), other).unwrap_err()), "patch");
    let none = PackedLayout { text_is_vision: vec![], ..layout() };
    assert_eq!(refused(model.prepare(text(1), none).unwrap_err()), "text");

    let silent = PackedLayout { audio: 0, ..layout() };
    assert_eq!(refused(model.prepare(text(6), silent).unwrap_err()), "audio");

    let prepared = model.prepare(text(6), layout()).unwrap();
    let times = Times { text: 0.5, keyframes: 0.5, audio: 0.5, video: 0.5 };
    let run = |video: [usize; 3], audio: [usize; 3], times: Times| {
        let latents = H3Velocity { video: Tensor::zeros(video, &device), audio: Tensor::zeros(audio, &device) };
        let mut recorder = Recorder::default();
        let error = model.forward_prepared(&latents, times, &prepared, &mut recorder).unwrap_err();
        assert!(recorder.calls.is_empty());
        refused(error)
    };
    assert_eq!(run([1, 95, 24], [1, 10, 5], times), "video");
    assert_eq!(run([1, 96, 24], [1, 9, 5], times), "audio");
    assert_eq!(run([1, 96, 24], [1, 10, 5], Times { audio: 1.5, ..times }), "times");
}
