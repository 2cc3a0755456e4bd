//! Sizes at which the kernel of cooperative matrices changes its way: tiles of 32 keys, products of 16, rows that no vector reads,
//! sums that are relative to a maximum that lags. Every backend runs them by its own kernels; with `MCSPARSE_TIER=emulated`
//! a device without cooperative matrices runs that kernel with its products written out.

use burn::tensor::Tensor;
use mcsparse::ops::{Epilogue, Route, Stage};
use mcsparse_tests::{
    Shape,
    case::{Case, absolute_error, tolerance},
    device, half_dtypes, random, values,
};

const BASE: Shape = Shape { batch: 1, kv_heads: 1, shared: 2, tokens: 75, head_dim: 24, group_size: 40, seed: 71 };

/// Cases, the keys that a group keeps of them, and the rounding error of their type.
fn cases() -> Vec<(Case, f64)> {
    let device = device();
    let mut all = Vec::new();
    for (dtype, epsilon) in half_dtypes(&device, "cooperative") {
        for (shape, keys) in [
            (BASE, 33),
            (Shape { tokens: 1, ..BASE }, 1),
            // Whole tiles; groups of two tiles; batches.
            (Shape { tokens: 96, group_size: 96, batch: 2, kv_heads: 2, ..BASE }, 64),
            // No row but the first starts at a vector.
            (Shape { head_dim: 18, ..BASE }, 32),
        ] {
            all.push((Case::new(format!("{shape:?}"), &shape, keys, &device).cast(dtype), epsilon));
        }
        // Keys of which each is longer than those before it: the maximum rises in every tile, by far more than it may lag, and by less.
        for (name, growth) in [("maxima that rise fast", 0.5), ("maxima that rise slowly", 0.05)] {
            let case = Case::new(name, &BASE, 40, &device);
            let [q, k, v] = case.qkv.clone();
            let ramp = Tensor::<1>::from_floats(
                (0..75).map(|j| 1.0 + growth * j as f32).collect::<Vec<_>>().as_slice(),
                &device,
            );
            // All queries near one direction, and keys along it.
            let along = q.clone().slice_dim(2, 0..1).slice_dim(1, 0..1);
            let [_, heads, tokens, _] = k.dims();
            let k = k.mul_scalar(0.1)
                + along.clone().repeat_dim(1, heads).repeat_dim(2, tokens) * ramp.reshape([1, 1, 75, 1]);
            let q = q.mul_scalar(0.2) + along.repeat_dim(1, 2).repeat_dim(2, 75);
            all.push((Case { qkv: [q, k, v], scale: 0.1, ..case }.cast(dtype), epsilon));
        }
    }
    all
}

fn judge_lse(case: &Case, route: &Route, lse: &Tensor<3>, exact: &[f64]) {
    let error = absolute_error(&values(lse), exact);
    assert!(error < tolerance(route), "{}: {route}: log-sum-exp is off by {error:e}", case.name);
}

#[test]
fn cooperative_dense_attention() {
    for (case, epsilon) in cases() {
        let (exact, exact_lse) = case.naive().dense();
        for route in case.routes(Stage::Dense) {
            let (output, lse) = case.dense(&route);
            case.assert_rounded(&route, "dense", &values(&output), &exact, epsilon, 0.0);
            judge_lse(&case, &route, &lse, &exact_lse);
        }
    }
}

#[test]
fn cooperative_sparse_attention() {
    for (i, (case, epsilon)) in cases().into_iter().enumerate() {
        let lists = case.random_lists(5, 0..case.problem().keys);
        let (exact, exact_lse) = case.sparse_oracle(&lists);
        let other = random(case.qkv[0].dims(), 19, &device()).cast(case.qkv[0].dtype());
        let third = values(&other);
        let largest = third.iter().fold(0.0f64, |a, b| a.max(b.abs()));
        let (epilogue, sign, share) = match i % 3 {
            0 => (Epilogue::AddScaledResidual(other, 0.625), 1.0, 0.625),
            1 => (Epilogue::Output, 1.0, 0.0),
            _ => (Epilogue::ResidualOf(other), -1.0, 1.0),
        };
        let exact: Vec<f64> = exact.iter().zip(&third).map(|(o, r)| sign * o + share * r).collect();
        for route in case.routes(Stage::Sparse) {
            let (output, lse) = case.sparse(&route, &lists, epilogue.clone());
            case.assert_rounded(&route, "sparse", &values(&output), &exact, epsilon, largest + 1.0);
            judge_lse(&case, &route, &lse, &exact_lse);
        }
    }
}

/// The tier that a program is held to is the one that runs, or the run says why not.
#[test]
fn cooperative_tiers_are_named() {
    let held = std::env::var("MCSPARSE_TIER").unwrap_or_default();
    for (case, _) in cases() {
        for route in case.routes(Stage::Dense) {
            let Route::Kernel { name, declined } = &route else { continue };
            match held.as_str() {
                "emulated" => assert_eq!(*name, "cube emulated cooperative tiles"),
                "cooperative" if !name.contains("cooperative") => {
                    assert!(declined.iter().any(|reason| reason.contains("cooperative")), "{route}: {declined:?}");
                }
                _ => assert!(!name.contains("emulated"), "{route}"),
            }
        }
    }
}
