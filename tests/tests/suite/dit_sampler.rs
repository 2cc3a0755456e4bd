//! Samplers against the schedulers of diffusers (`fixtures/make_schedulers.py`).

use burn::tensor::{Distribution, Tensor};
use mcsparse::Error;
use mcsparse_dit::minimax_h3::H3Euler;
use mcsparse_dit::sampler::{FlowEuler, Sampler, Schedule, UniPc};
use mcsparse_tests::{case::model_tolerance, device, relative_error};

use super::dit_support::{Tensors, fixture};

/// The error that a step of a trajectory may have. About 6e-7 is reached on Flex.
const TOLERANCE: f64 = 1e-5;

/// The velocity that the fixture was made with.
fn velocity(x: Tensor<5>, step: usize) -> Tensor<5> {
    let shift = ((step + 1) as f64).sin() / 2.0;
    x.clone().mul_scalar(0.7).add_scalar(shift).tanh().mul_scalar(1.3) - x.mul_scalar(0.2)
}

fn compare(name: &str, sampler: &mut dyn Sampler) {
    let device = device();
    let file = Tensors::open(&fixture("schedulers").join("schedulers.safetensors"));
    for (what, ours) in [("timesteps", sampler.timesteps()), ("sigmas", sampler.sigmas())] {
        let expected = file.values(&format!("{name}.{what}"));
        assert_eq!(ours.len(), expected.len(), "{name} {what}");
        let worst = ours.iter().zip(&expected).map(|(&ours, &expected)| {
            let expected = f64::from(expected);
            (ours - expected).abs() / expected.abs().max(1e-3)
        });
        let worst = worst.fold(0.0, f64::max);
        println!("{name} {what}: {worst:.1e}");
        assert!(worst <= 5e-7, "{name} {what}: {worst:e}");
    }
    let trajectory = file.tensor::<6>(&format!("{name}.trajectory"), &device);
    // Twice, so that a reset forgets everything.
    for _ in 0..2 {
        sampler.reset();
        let (mut x, mut worst) = (file.tensor::<5>("x0", &device), 0f64);
        for step in 0..sampler.timesteps().len() {
            assert_eq!(sampler.steps_taken(), step);
            x = sampler.step(velocity(x.clone(), step), x).unwrap();
            let error = relative_error(&x, &trajectory.clone().slice_dim(0, step..step + 1).squeeze_dim(0));
            assert!(error <= model_tolerance(TOLERANCE), "{name} step {step}: {error:e}");
            worst = worst.max(error);
        }
        println!("{name} trajectory: {worst:.1e}");
    }
}

#[test]
fn dit_unipc_follows_diffusers() {
    compare("wan_unipc_shift5_50", &mut UniPc::wan(50, 5.0).unwrap());
    compare("wan_unipc_shift3_40", &mut UniPc::wan(40, 3.0).unwrap());
}

#[test]
fn dit_euler_follows_diffusers() {
    compare("euler_shift7_50", &mut FlowEuler::trained_range(50, 7.0).unwrap());
    compare("euler_shift5_50", &mut FlowEuler::trained_range(50, 5.0).unwrap());
    compare("hunyuan_euler_shift7_50", &mut FlowEuler::uniform(50, 7.0).unwrap());
}

#[test]
fn dit_h3_clock_follows_diffusers() {
    let device = device();
    let file = Tensors::open(&fixture("schedulers").join("schedulers.safetensors"));
    for (name, shift) in [("h3_shift12_50", H3Euler::VIDEO_SHIFT), ("h3_shift3_50", H3Euler::AUDIO_SHIFT)] {
        let mut clock = H3Euler::new(50, shift).unwrap();
        let (times, sigmas) = (file.values(&format!("{name}.timesteps")), file.values(&format!("{name}.sigmas")));
        let (steps, ours) = (Sampler::<5>::schedule(&clock).steps(), Sampler::<5>::sigmas(&clock).to_vec());
        assert_eq!((steps, times.len(), sigmas.len()), (49, 49, 50));
        for step in 0..steps {
            let (time, expected) = (clock.time(step), f64::from(times[step]));
            assert!((time - expected).abs() < 1e-6, "{name} step {step}: {time} for {expected}");
            assert!((ours[step] - f64::from(sigmas[step])).abs() < 1e-6, "{name} step {step}");
        }
        let trajectory = file.tensor::<6>(&format!("{name}.trajectory"), &device);
        let mut x = file.tensor::<5>("x0", &device);
        for step in 0..steps {
            x = clock.step(velocity(x.clone(), step), x).unwrap();
            let error = relative_error(&x, &trajectory.clone().slice_dim(0, step..step + 1).squeeze_dim(0));
            assert!(error <= model_tolerance(TOLERANCE), "{name} step {step}: {error:e}");
        }
        assert!(matches!(clock.step(x.clone(), x), Err(Error::Clock(_))));
    }
    assert!(matches!(H3Euler::new(1, 3.0), Err(Error::InvalidConfig { argument: "points", .. })));
}

#[test]
fn dit_samplers_go_on_from_their_state() {
    let device = device();
    let make: [fn() -> Box<dyn Sampler>; 3] = [
        || Box::new(UniPc::wan(6, 5.0).unwrap()),
        || Box::new(FlowEuler::uniform(6, 7.0).unwrap()),
        || Box::new(H3Euler::new(7, 12.0).unwrap()),
    ];
    let start = Tensor::<5>::random([1, 2, 2, 3, 3], Distribution::Normal(0.0, 1.0), &device);
    for make in make {
        let mut whole = make();
        let (mut x, mut after) = (start.clone(), Vec::new());
        for step in 0..6 {
            x = whole.step(velocity(x.clone(), step), x).unwrap();
            after.push((x.clone(), whole.state()));
        }
        for stop in 0..6 {
            let mut rest = make();
            let (mut x, state) = if stop == 0 { (start.clone(), Vec::new()) } else { after[stop - 1].clone() };
            rest.restore(stop, state.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()).unwrap();
            assert_eq!(rest.steps_taken(), stop);
            for step in stop..6 {
                x = rest.step(velocity(x.clone(), step), x).unwrap();
            }
            // Fusion may compile the steps of the two runs in other groups, whose sums are contracted in other places.
            let error = relative_error(&x, &after[5].0);
            assert!(error <= if cfg!(feature = "fusion") { 1e-6 } else { 0.0 }, "stopped after {stop}: {error:e}");
        }
        assert!(matches!(make().restore(7, Vec::new()), Err(Error::Clock(_))));
    }
    let error = UniPc::<5>::wan(6, 5.0).unwrap().restore(2, Vec::new()).unwrap_err();
    assert!(matches!(error, Error::InvalidTensor { argument: "state", .. }), "{error}");
}

#[test]
fn dit_given_sigmas_are_those_of_the_uniform_grid() {
    let sigmas: Vec<f64> = (0..20).map(|step| 1.0 - f64::from(step) / 20.0).collect();
    assert_eq!(Schedule::from_sigmas(&sigmas, 3.0).unwrap(), Schedule::uniform(20, 3.0).unwrap());
}

#[test]
fn dit_samplers_work_at_any_rank_and_with_few_steps() {
    let device = device();
    // A constant velocity is the truth: every sampler then arrives at sample - velocity times the first sigma.
    for steps in 1..5 {
        let (start, velocity) = (Tensor::<2>::ones([3, 2], &device), Tensor::<2>::full([3, 2], 0.25, &device));
        let mut samplers: [Box<dyn Sampler<2>>; 3] = [
            Box::new(UniPc::wan(steps, 5.0).unwrap()),
            Box::new(FlowEuler::uniform(steps, 5.0).unwrap()),
            Box::new(FlowEuler::trained_range(steps, 1.0).unwrap()),
        ];
        for sampler in &mut samplers {
            let mut x = start.clone();
            for _ in 0..steps {
                x = sampler.step(velocity.clone(), x).unwrap();
            }
            let expected = Tensor::full([3, 2], 1.0 - 0.25 * sampler.sigmas()[0], &device);
            assert!(relative_error(&x, &expected) < 1e-5, "{steps} steps");
        }
    }
}

#[test]
fn dit_samplers_refuse_what_does_not_fit() {
    let device = device();
    let zeros = |size: usize| Tensor::<1>::zeros([size], &device);
    let mut unipc = UniPc::<1>::wan(2, 5.0).unwrap();
    assert!(matches!(unipc.step(zeros(3), zeros(4)), Err(Error::InvalidTensor { argument: "velocity", .. })));
    unipc.step(zeros(4), zeros(4)).unwrap();
    assert!(matches!(unipc.step(zeros(3), zeros(3)), Err(Error::InvalidTensor { argument: "sample", .. })));
    unipc.step(zeros(4), zeros(4)).unwrap();
    assert!(matches!(unipc.step(zeros(4), zeros(4)), Err(Error::Clock(_))));

    for (refused, name) in [
        (Schedule::flow_unipc(0, 5.0), "steps"),
        (Schedule::uniform(0, 5.0), "steps"),
        (Schedule::uniform(5, 0.0), "shift"),
        (Schedule::trained_range(5, f64::NAN), "shift"),
        (Schedule::from_sigmas(&[0.5, 0.5], 1.0), "sigmas"),
        (Schedule::from_sigmas(&[1.5, 0.5], 1.0), "sigmas"),
        (Schedule::from_sigmas(&[0.5, 0.0], 1.0), "sigmas"),
    ] {
        match refused {
            Err(Error::InvalidConfig { argument, .. }) => assert_eq!(argument, name),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert!(UniPc::<1>::new(Schedule::uniform(5, 5.0).unwrap()).is_err());
}
