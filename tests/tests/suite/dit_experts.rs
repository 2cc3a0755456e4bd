//! Wan 2.2 A14B: two experts in one run, and named configurations.

use burn::tensor::{Distribution, Tensor};
use mcsparse::{Anchors, Branch, Error, McSparse, McSparseConfig, Schedule, SelfAttention, StepKind};
use mcsparse_dit::hunyuan::{HunyuanVideo15Config, HunyuanVideoConfig};
use mcsparse_dit::minimax_h3::MiniMaxH3Config;
use mcsparse_dit::sampler::{FlowEuler, Sampler};
use mcsparse_dit::wan::{WanConfig, WanExperts};
use mcsparse_dit::{Conditions, VelocityModel, denoise};
use mcsparse_tests::{device, relative_error};

use super::dit_support::{Call, Recorder, config, model};

const LATENTS: [usize; 5] = [1, 16, 2, 4, 6];

fn random<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &device())
}

fn experts() -> WanExperts {
    let low = config("wan_tiny").init(&device());
    WanExperts::new(model("wan_tiny", &device()), low, 500.0).unwrap()
}

#[test]
fn dit_named_configurations_have_the_published_sizes() {
    let device = device();
    // In millions, of the released models.
    for (name, parameters, expected) in [
        ("Wan 2.1 1.3B", WanConfig::t2v_1_3b().parameters(&device), 1_419),
        ("Wan 2.1 14B", WanConfig::t2v_14b().parameters(&device), 14_288),
        ("Wan 2.1 14B image-to-video", WanConfig::i2v_14b().parameters(&device), 16_395),
        ("Wan 2.2 A14B, an expert", WanConfig::t2v_a14b().parameters(&device), 14_288),
        ("Wan 2.2 5B", WanConfig::ti2v_5b().parameters(&device), 5_000),
        ("HunyuanVideo", HunyuanVideoConfig::t2v().parameters(&device), 12_821),
        ("HunyuanVideo-1.5", HunyuanVideo15Config::video().parameters(&device), 8_327),
        ("MiniMax-H3", MiniMaxH3Config::h3().parameters(&device), 33_123),
    ] {
        assert_eq!((parameters as f64 / 1e6).round() as usize, expected, "{name}");
    }
    assert_eq!(WanConfig::t2v_1_3b().grid([21, 60, 104]).unwrap().iter().product::<usize>(), 32_760);
    assert_eq!(WanConfig::i2v_a14b().in_channels, 36);
}

#[test]
fn dit_experts_share_a_run_with_slots_of_their_own() {
    let experts = experts();
    let mut sampler = FlowEuler::uniform(6, 1.0).unwrap();
    // 1000, 833, 667, 500 for the first, 333, 167 for the second.
    assert_eq!(experts.first_steps(sampler.schedule().timesteps()), [0, 4]);
    let conditions = || Conditions::guided(random([1, 7, 24]), random([1, 7, 24]), 3.0);
    let run = |schedule: Schedule, sampler: &mut FlowEuler| {
        let config = McSparseConfig::density(0.5).with_group_size(4).with_schedule(schedule);
        let mut method = McSparse::new(&config, 6).unwrap();
        let result = denoise(&experts, sampler, random(LATENTS), conditions(), &mut method, |_| ());
        (result, method)
    };
    let (result, method) = run(Schedule::warm_up(1).with_anchors(Anchors::At(vec![0, 4])), &mut sampler);
    result.unwrap();
    // Layer 1 (layer 0 is dense) in two branches of two experts.
    let mut slots: Vec<_> = method.cache().slots().iter().map(|slot| slot.key().branch.to_string()).collect();
    slots.sort();
    let expected =
        ["conditional/high_noise", "conditional/low_noise", "unconditional/high_noise", "unconditional/low_noise"];
    assert_eq!(slots, expected.map(|name| format!("branch {name}")));
    assert_eq!(method.report().count(StepKind::Anchor), 4);
    // Without an anchor where the second expert takes over, that is an error and no dense run.
    let (result, _) = run(Schedule::warm_up(1), &mut sampler);
    assert!(matches!(result, Err(Error::NoAnchor { step: 4, .. })), "{result:?}");
}

#[test]
fn dit_experts_take_their_steps_and_guidance() {
    let experts = experts();
    let (noise, text, negative) = (random(LATENTS), random([1, 7, 24]), random([1, 5, 24]));
    let mut recorder = Recorder::default();
    let mut sampler = FlowEuler::uniform(2, 0.5).unwrap();
    // Timesteps 1000 and 333.
    let conditions = Conditions::guided(text.clone(), negative.clone(), 4.0).with_expert_guidance("low_noise", 3.0);
    let got = denoise(&experts, &mut sampler, noise.clone(), conditions, &mut recorder, |_| ()).unwrap();
    let branches: Vec<_> = recorder
        .calls
        .iter()
        .filter_map(|call| match call {
            Call::Branch(branch) => Some(branch.clone()),
            _ => None,
        })
        .collect();
    let both = |expert: &str| [Branch::conditional(), Branch::unconditional()].map(|branch| branch.with_expert(expert));
    assert_eq!(branches, [both("high_noise"), both("low_noise")].concat());

    // The same by hand.
    let mut attention = Recorder::default();
    let mut velocity = |latents: &Tensor<5>, timestep: f64, guidance: f64| {
        let expert = experts.expert_at(timestep);
        let mut of =
            |text: &Tensor<3>| expert.forward(latents.clone(), timestep, text.clone(), &mut attention).unwrap();
        let (with, without) = (of(&text), of(&negative));
        (with - without.clone()).mul_scalar(guidance) + without
    };
    Sampler::<5>::reset(&mut sampler);
    let first = velocity(&noise, sampler.schedule().timesteps()[0], 4.0);
    let latents = sampler.step(first, noise).unwrap();
    let second = velocity(&latents, sampler.schedule().timesteps()[1], 3.0);
    let expected = sampler.step(second, latents).unwrap();
    assert!(relative_error(&got, &expected) < 1e-5);
}

#[test]
fn dit_experts_of_two_forms_are_refused() {
    let other = WanConfig { num_layers: 1, ..config("wan_tiny") }.init(&device());
    let error = WanExperts::new(model("wan_tiny", &device()), other, 500.0).unwrap_err();
    assert!(matches!(error, Error::InvalidConfig { argument: "low_noise", .. }), "{error}");
    let (high, low) = (model("wan_tiny", &device()), model("wan_tiny", &device()));
    let error = WanExperts::new(high, low, 1000.0).unwrap_err();
    assert!(matches!(error, Error::InvalidConfig { argument: "boundary", .. }), "{error}");
}

#[test]
fn dit_layouts_make_sinks() {
    // A model that announces 3 tokens around a grid, under settings that ask for 2 more at the start.
    let config = McSparseConfig::density(0.5)
        .with_group_size(4)
        .with_dense_layers(vec![])
        .with_schedule(Schedule::warm_up(1))
        .with_sink(mcsparse::SinkTokens { prefix: 2, suffix: 0, within_budget: false });
    let mut method = McSparse::new(&config, 2).unwrap();
    let layout = mcsparse::TokenLayout { prefix: 1, grid: [2, 3, 4], suffix: 2 };
    assert_eq!(layout.tokens(), 27);
    for step in 0..2 {
        method.begin_step(step).unwrap();
        method.begin_sequence(&layout).unwrap();
        let [q, k, v] = [0; 3].map(|_| random([1, 1, 27, 8]));
        method.attend(0, q, k, v).unwrap();
    }
    // 23 rows in groups of 4, with 12 of 23 keys and 4 sinks each.
    let budget =
        McSparseConfig { sink: mcsparse::SinkTokens { prefix: 2, suffix: 2, within_budget: false }, ..config.clone() }
            .budget_for(27)
            .unwrap();
    let expected = (budget.anchor_density() + budget.reuse_density()) / 2.0;
    assert!((method.report().effective_density() - expected).abs() < 1e-9);
    // A sequence that is nothing but sinks is refused before it is attended to.
    let error = method.begin_sequence(&mcsparse::TokenLayout { prefix: 3, grid: [0, 0, 0], suffix: 0 }).unwrap_err();
    assert!(error.to_string().starts_with("sink: "), "{error}");
}
