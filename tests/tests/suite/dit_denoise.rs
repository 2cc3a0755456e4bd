//! The denoising loop.

use burn::tensor::{Distribution, Tensor};
use mcsparse::{Branch, DenseAttention, Error, SelfAttention, TokenLayout};
use mcsparse_dit::sampler::{FlowEuler, Sampler, UniPc};
use mcsparse_dit::wan::WanCondition;
use mcsparse_dit::{Conditions, VelocityModel, denoise};
use mcsparse_tests::{device, relative_error};

use super::dit_support::{Call, Recorder, model};

fn random<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &device())
}

const LATENTS: [usize; 5] = [1, 16, 2, 4, 6];

#[test]
fn dit_guidance_calls_the_branches_in_order() {
    let model = model("wan_tiny", &device());
    let mut recorder = Recorder::default();
    let mut steps = Vec::new();
    let mut sampler = UniPc::wan(3, 5.0).unwrap();
    let conditions = Conditions::guided(random([1, 7, 24]), random([1, 5, 24]), 5.0);
    let result = denoise(&model, &mut sampler, random(LATENTS), conditions, &mut recorder, |info| {
        assert_eq!((info.steps, info.latents.dims()), (3, LATENTS));
        steps.push((info.step, info.timestep, info.sigma));
    });
    assert_eq!(result.unwrap().dims(), LATENTS);

    let branch = |branch: Branch| {
        [Call::Branch(branch), Call::Sequence(TokenLayout::grid([2, 2, 3])), Call::Layer(0), Call::Layer(1)]
    };
    let expected: Vec<Call> = (0..3)
        .flat_map(|step| {
            [Call::Step(step)].into_iter().chain(branch(Branch::conditional())).chain(branch(Branch::unconditional()))
        })
        .collect();
    assert_eq!(recorder.calls, expected);
    let expected: Vec<_> = (0..3).map(|step| (step, sampler.timesteps()[step], sampler.sigmas()[step + 1])).collect();
    assert_eq!(steps, expected);
}

#[test]
fn dit_without_guidance_there_is_one_branch() {
    let model = model("wan_tiny", &device());
    let mut recorder = Recorder::default();
    let conditions = Conditions::unguided(random([1, 7, 24]));
    let mut sampler = FlowEuler::uniform(2, 3.0).unwrap();
    denoise(&model, &mut sampler, random(LATENTS), conditions, &mut recorder, |_| ()).unwrap();
    let step = |step| {
        let sequence = Call::Sequence(TokenLayout::grid([2, 2, 3]));
        [Call::Step(step), Call::Branch(Branch::conditional()), sequence, Call::Layer(0), Call::Layer(1)]
    };
    assert_eq!(recorder.calls, [step(0), step(1)].concat());
}

/// Pretends that the condition is the data: its velocity leads from the latents straight to the text's first value.
struct Straight;

impl VelocityModel for Straight {
    type Condition = Tensor<3>;
    type Prepared = Tensor<5>;

    fn prepare(&self, text: Tensor<3>, latents: [usize; 5]) -> Result<Tensor<5>, Error> {
        Ok(text.slice([0..1, 0..1, 0..1]).reshape([1, 1, 1, 1, 1]).expand(latents))
    }

    fn velocity(
        &self,
        latents: Tensor<5>,
        timestep: f64,
        data: &Tensor<5>,
        _: &mut dyn SelfAttention,
    ) -> Result<Tensor<5>, Error> {
        Ok((latents - data.clone()).div_scalar(timestep / 1000.0))
    }
}

#[test]
fn dit_guidance_goes_past_the_condition() {
    let device = device();
    let text = |value: f64| Tensor::<3>::full([1, 2, 2], value, &device);
    // Data at 2 and 1 with guidance 3: 1 + 3 * (2 - 1).
    for (conditions, end) in
        [(Conditions::unguided(text(2.0)), 2.0), (Conditions::guided(text(2.0), text(1.0), 3.0), 4.0)]
    {
        let (mut sampler, mut dense) = (FlowEuler::uniform(6, 2.0).unwrap(), DenseAttention::default());
        // A second run on the same sampler starts over.
        for _ in 0..2 {
            let noise = random([1, 2, 2, 3, 3]);
            let latents = denoise(&Straight, &mut sampler, noise, conditions.clone(), &mut dense, |_| ()).unwrap();
            assert!(relative_error(&latents, &Tensor::full([1, 2, 2, 3, 3], end, &device)) < 1e-5);
        }
    }
}

#[test]
fn dit_errors_end_the_run() {
    let model = model("wan_tiny", &device());
    let text = || random([1, 7, 24]);
    let run = |noise: [usize; 5], conditions: Conditions<WanCondition>, attention: &mut Recorder| {
        let mut taken = 0;
        let mut sampler = FlowEuler::uniform(4, 3.0).unwrap();
        let error = denoise(&model, &mut sampler, random(noise), conditions, attention, |_| taken += 1).unwrap_err();
        (error, taken)
    };
    // Four layer calls a step: the seventh is in the second step.
    let mut failing = Recorder { fail_at: Some(6), ..Recorder::default() };
    let (error, taken) = run(LATENTS, Conditions::guided(text(), text(), 2.0), &mut failing);
    assert_eq!((error, taken), (Error::Clock("asked to fail".into()), 1));

    let mut recorder = Recorder::default();
    let (error, _) = run([1, 16, 2, 5, 6], Conditions::unguided(text()), &mut recorder);
    assert!(matches!(error, Error::InvalidTensor { argument: "latents", .. }));
    let (error, _) = run(LATENTS, Conditions::unguided(random([1, 7, 25])), &mut recorder);
    assert!(matches!(error, Error::InvalidTensor { argument: "text", .. }));
    let (error, _) = run(LATENTS, Conditions::guided(text(), text(), f64::INFINITY), &mut recorder);
    assert!(matches!(error, Error::InvalidConfig { argument: "guidance", .. }));
    assert!(recorder.calls.is_empty());
}
