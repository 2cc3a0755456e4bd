//! The transformer against what diffusers computes with the same weights (`fixtures/make_fixtures.py`).

use burn::tensor::{DType, Distribution, Tensor};
use mcsparse::{DenseAttention, Error, SelfAttention};
use mcsparse_dit::wan::{RotaryTables, Timestep, WanCondition, WanConfig, WanTransformer, axis_dims};
use mcsparse_tests::{
    case::{model_tolerance, reference_tolerance},
    device, half_dtypes, relative_error,
};

use super::dit_support::{Recorder, Tensors, config, fixture, model};

/// The error that a tap or an output may have. About 3e-6 is reached on Flex.
const TOLERANCE: f64 = 1e-5;

const IMAGE: &str = "in.encoder_hidden_states_image";

/// Runs a fixture and compares every self-attention and the output; `calls` are the numbers of the taps in the file.
fn compare(folder: &str, calls: &[usize], timestep: impl Fn(&Tensors) -> Timestep) {
    let device = device();
    let io = Tensors::open(&fixture(folder).join("io.safetensors"));
    let taps = Tensors::open(&fixture(folder).join("attn.safetensors"));
    assert_eq!(taps.names().len(), 4 * calls.len());

    let mut recorder = Recorder::default();
    let output = model(folder, &device)
        .forward(
            io.tensor("in.hidden_states", &device),
            timestep(&io),
            WanCondition {
                text: io.tensor("in.encoder_hidden_states", &device),
                image: io.names().iter().any(|name| name == IMAGE).then(|| io.tensor(IMAGE, &device)),
                latents: None,
            },
            &mut recorder,
        )
        .unwrap();

    assert_eq!(recorder.taps.len(), calls.len());
    for (tap, call) in recorder.taps.iter().zip(calls) {
        for (tensor, name) in tap.iter().zip(["q", "k", "v", "o"]) {
            // The file has tokens before heads.
            let expected = taps.tensor::<4>(&format!("call{call:02}.{name}"), &device).swap_dims(1, 2);
            let error = relative_error(tensor, &expected);
            println!("{folder} call {call} {name}: {error:.1e}");
            assert!(error <= model_tolerance(TOLERANCE), "{folder}, call {call}, {name}: {error:e}");
        }
    }
    let error = relative_error(&output, &io.tensor("out.sample", &device));
    println!("{folder} output: {error:.1e}");
    assert!(error <= model_tolerance(TOLERANCE), "{folder}, output: {error:e}");
}

#[test]
fn dit_text_to_video_matches_diffusers() {
    compare("wan_tiny", &[0, 2], |io| Timestep::PerSample(io.tensor("in.timestep", &device())));
}

#[test]
fn dit_image_to_video_matches_diffusers() {
    compare("wan_tiny_i2v", &[0], |io| Timestep::PerSample(io.tensor("in.timestep", &device())));
}

#[test]
fn dit_timestep_of_every_token_matches_diffusers() {
    compare("wan_tiny_ti2v", &[0], |io| Timestep::PerToken(io.tensor("in.timestep", &device())));
}

#[test]
fn dit_ways_to_give_one_timestep_agree() {
    let device = device();
    let model = model("wan_tiny", &device);
    let io = Tensors::open(&fixture("wan_tiny").join("io.safetensors"));
    let run = |timestep: Timestep| {
        let text = io.tensor("in.encoder_hidden_states", &device);
        model.forward(io.tensor("in.hidden_states", &device), timestep, text, &mut DenseAttention::default()).unwrap()
    };
    let shared = run(Timestep::Shared(437.0));
    let full = |shape: [usize; 2]| Tensor::<2>::full(shape, 437.0, (&device, DType::F32));
    assert!(relative_error(&run(Timestep::PerSample(full([1, 2]).reshape([2]))), &shared) < 1e-5);
    assert!(relative_error(&run(Timestep::PerToken(full([2, 72]))), &shared) < 1e-5);
}

#[test]
fn dit_prepared_forward_is_the_forward() {
    let device = device();
    let model = model("wan_tiny", &device);
    let io = Tensors::open(&fixture("wan_tiny").join("io.safetensors"));
    let (latents, text) =
        (io.tensor::<5>("in.hidden_states", &device), io.tensor::<3>("in.encoder_hidden_states", &device));
    let direct = model.forward(latents.clone(), 250.0, text.clone(), &mut DenseAttention::default()).unwrap();
    let prepared = model.prepare(text, [3, 8, 12]).unwrap();
    assert_eq!(prepared.grid(), [3, 4, 6]);
    for _ in 0..2 {
        let again = model.forward_prepared(latents.clone(), 250.0, &prepared, &mut DenseAttention::default()).unwrap();
        assert_eq!(relative_error(&again, &direct), 0.0);
    }
}

#[test]
fn dit_feed_forward_in_parts_is_the_whole() {
    let device = device();
    // 16 tokens at a time on the CPU; 2 * 19 of them do not come out even.
    let wide = WanConfig { ffn_dim: 16 * 1024, num_layers: 1, ..config("wan_tiny") }.init(&device);
    let x = Tensor::<3>::random([2, 19, 64], Distribution::Normal(0.0, 1.0), &device);
    let whole = wide.blocks[0].ffn.forward(x.clone());
    let tokens: Vec<Tensor<3>> =
        (0..19).map(|at| wide.blocks[0].ffn.forward(x.clone().slice_dim(1, at..at + 1))).collect();
    assert!(relative_error(&whole, &Tensor::cat(tokens, 1)) < 1e-5);
}

#[test]
fn dit_rotation_keeps_lengths_and_depends_on_distance() {
    let device = device();
    assert_eq!((axis_dims(128), axis_dims(32)), ([44, 42, 42], [12, 10, 10]));
    let [frames, height, width] = [3, 4, 5];
    let tables = RotaryTables::new([frames, height, width], 32, &device);
    assert_eq!(tables.tokens(), 60);
    // The same vector at every token.
    let one =
        |seed: f64| (Tensor::arange(0..32, &device).float() + seed).sin().reshape([1, 1, 1, 32]).expand([1, 60, 1, 32]);
    let (q, k) = (one(0.3), one(0.5));
    let (turned, length) = (tables.rotate(q.clone()), |x: Tensor<4>| x.powi_scalar(2).sum_dim(3));
    assert!(relative_error(&length(turned.clone()), &length(q)) < 1e-6);
    // Scores of two pairs that lie equally far apart along each axis.
    let scores = turned.reshape([60, 32]).matmul(tables.rotate(k).reshape([60, 32]).transpose());
    let at = |[f, h, w]: [usize; 3]| (f * height + h) * width + w;
    let score = |from, to| scores.clone().slice([at(from)..at(from) + 1, at(to)..at(to) + 1]);
    let (here, there) = (score([0, 1, 1], [1, 3, 0]), score([1, 0, 4], [2, 2, 3]));
    // Scores are a product of Burn's.
    assert!(relative_error(&here, &there) < reference_tolerance());
    assert!(relative_error(&here, &score([0, 1, 1], [1, 3, 1])) > 1e-2);
}

/// Returns what it must not.
struct Wrong;

impl SelfAttention for Wrong {
    fn attend(&mut self, _: usize, query: Tensor<4>, _: Tensor<4>, _: Tensor<4>) -> Result<Tensor<4>, Error> {
        Ok(query.swap_dims(1, 2))
    }
}

#[test]
fn dit_attention_of_another_shape_is_refused() {
    let device = device();
    let (latents, text) = (Tensor::zeros([1, 16, 3, 8, 12], &device), Tensor::zeros([1, 7, 24], &device));
    let error = model("wan_tiny", &device).forward(latents, 1.0, text, &mut Wrong).unwrap_err();
    assert!(matches!(error, Error::InvalidTensor { argument: "attention output", .. }), "{error}");
}

#[test]
fn dit_half_precision_is_near() {
    let device = device();
    let io = Tensors::open(&fixture("wan_tiny").join("io.safetensors"));
    let weights = fixture("wan_tiny").join("weights.safetensors");
    for (dtype, epsilon) in half_dtypes(&device, "dit_half_precision_is_near") {
        let model = WanTransformer::load(&weights, &config("wan_tiny"), dtype, &device).unwrap();
        assert_eq!(model.dtype(), dtype);
        // As in diffusers, the modulations stay in f32.
        assert_eq!(model.blocks[1].scale_shift_table.val().dtype(), DType::F32);
        assert_eq!(model.condition_embedder.time_embedder.linear_2.bias.as_ref().unwrap().val().dtype(), DType::F32);
        let output = model
            .forward(
                io.tensor("in.hidden_states", &device),
                Timestep::PerSample(io.tensor("in.timestep", &device)),
                io.tensor("in.encoder_hidden_states", &device),
                &mut DenseAttention::default(),
            )
            .unwrap();
        assert_eq!(output.dtype(), DType::F32);
        let error = relative_error(&output, &io.tensor("out.sample", &device));
        println!("{dtype:?}: {error:.1e}");
        assert!(error < 10.0 * epsilon, "{dtype:?}: {error:e}");
    }
}

#[test]
fn dit_wrong_shapes_are_refused_by_name() {
    let device = device();
    let model = model("wan_tiny", &device);
    let refused = |latents: [usize; 5], text: [usize; 3], timestep: Timestep| {
        let mut recorder = Recorder::default();
        let (latents, text) = (Tensor::zeros(latents, &device), Tensor::zeros(text, &device));
        let error = model.forward(latents, timestep, text, &mut recorder).unwrap_err();
        assert!(recorder.taps.is_empty());
        match error {
            Error::InvalidTensor { argument, expected, got } => (argument, format!("{expected} | {got}")),
            other => panic!("{other:?}"),
        }
    };
    let one = || Timestep::Shared(500.0);
    let cases = [
        (refused([1, 15, 3, 8, 12], [1, 7, 24], one()), "latents", "[batch, 16,"),
        (refused([1, 16, 3, 9, 12], [1, 7, 24], one()), "latents", "height a multiple of the patch size 2 | 9"),
        (refused([1, 16, 3, 8, 1], [1, 7, 24], one()), "latents", "width a multiple"),
        (refused([1, 16, 33, 8, 12], [1, 7, 24], one()), "latents", "frames of at most 32"),
        (refused([1, 16, 3, 8, 12], [1, 7, 23], one()), "text", "[batch, text tokens, 24] | [1, 7, 23]"),
        (refused([2, 16, 3, 8, 12], [1, 7, 24], one()), "text", "batch of 2"),
        (
            refused([2, 16, 3, 8, 12], [2, 7, 24], Timestep::PerSample(Tensor::zeros([3], &device))),
            "timestep",
            "[2], one for each of the batch | [3]",
        ),
        (
            refused([1, 16, 3, 8, 12], [1, 7, 24], Timestep::PerToken(Tensor::zeros([1, 71], &device))),
            "timestep",
            "[1, 72], one a token | [1, 71]",
        ),
    ];
    for ((argument, text), expected_argument, part) in cases {
        assert_eq!(argument, expected_argument);
        assert!(text.contains(part), "{text} has no {part}");
    }
}
