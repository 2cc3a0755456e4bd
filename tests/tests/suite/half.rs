//! f16 and bf16 by the rule of the FlashAttention tests: the error against f64 may be twice that of the f32 reference rounded
//! once to the same type, plus one rounding of the largest value. Inputs are rounded first, so both see the same numbers.

use burn::tensor::{DType, Tensor};
use mcsparse::{
    ops::{Epilogue, Route, SparseOptions, Stage},
    reference,
};
use mcsparse_tests::{
    Shape,
    case::{Case, WORKSPACE, absolute_error, reference_lists, tolerance},
    device, half_dtypes,
    naive::index_rows,
    random, values,
};

const BASE: Shape = Shape { batch: 2, kv_heads: 2, shared: 1, tokens: 75, head_dim: 64, group_size: 32, seed: 31 };

fn cases() -> Vec<(Case, f64)> {
    let shapes = [
        (BASE, 21),
        (Shape { tokens: 1, ..BASE }, 1),
        (Shape { tokens: 257, group_size: 128, head_dim: 128, batch: 1, ..BASE }, 77),
        (Shape { tokens: 129, group_size: 64, head_dim: 80, batch: 1, ..BASE }, 31),
        (Shape { shared: 2, head_dim: 72, ..BASE }, 21),
        (Shape { head_dim: 256, batch: 1, ..BASE }, 40),
        (Shape { head_dim: 18, ..BASE }, 9),
        // Steps of 128 keys and tiles of 128 queries: none whole, all whole, one more; groups of several tiles; and two groups
        // of a head at a time, of which the last is missing.
        (Shape { tokens: 300, group_size: 192, head_dim: 128, batch: 1, shared: 2, ..BASE }, 200),
        (Shape { tokens: 256, group_size: 64, head_dim: 128, batch: 1, ..BASE }, 256),
        (Shape { tokens: 257, group_size: 128, batch: 1, ..BASE }, 129),
    ];
    let device = device();
    let mut cases = Vec::new();
    for (dtype, epsilon) in half_dtypes(&device, "half") {
        for (shape, keys) in &shapes {
            cases.push((Case::new(format!("{shape:?}"), shape, *keys, &device).cast(dtype), epsilon));
        }
        // Rows that start at 16 bytes but do not follow each other, and rows that start anywhere.
        for (name, start) in [("slices of a fused projection", 0), ("slices at odd offsets", 1)] {
            let view = |s: usize| {
                let all: Tensor<5> = random([2, BASE.tokens, 3, 4, 64 + start], 41, &device).cast(dtype);
                all.slice_dim(2, s..s + 1).squeeze_dim::<4>(2).swap_dims(1, 2).slice_dim(3, start..start + 64)
            };
            let case = Case::new(name, &BASE, 21, &device);
            cases.push((Case { qkv: [0, 1, 2].map(view), ..case }, epsilon));
        }
        for scale in [0.0, -0.3] {
            let case = Case::new(format!("scale {scale}"), &BASE, 21, &device);
            cases.push((Case { scale, ..case }.cast(dtype), epsilon));
        }
    }
    cases
}

/// Fails unless `output` keeps to the rule; `rounded` is the f32 reference in the dtype of the case.
fn judge(case: &Case, route: &Route, what: &str, output: &Tensor<4>, rounded: &Tensor<4>, exact: &[f64], epsilon: f64) {
    let name = &case.name;
    assert_eq!(output.dtype(), case.qkv[0].dtype(), "{name}: {what} by {route}");
    let worst = |got: &[f64]| got.iter().zip(exact).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    let (got, largest) = (values(output), exact.iter().fold(0.0, |a: f64, b| a.max(b.abs())));
    assert!(got.iter().all(|x| x.is_finite()), "{name}: {what} by {route}: not finite");
    let (error, limit) = (worst(&got), 2.0 * worst(&values(rounded)) + epsilon * largest);
    assert!(error <= limit, "{name}: {what} by {route}: {error:e} over {limit:e}");
}

fn in_f32(case: &Case) -> [Tensor<4>; 3] {
    case.qkv.clone().map(|t| t.cast(DType::F32))
}

#[test]
fn half_dense_attention() {
    for (case, epsilon) in cases() {
        let [q, k, v] = in_f32(&case);
        let rounded = reference::dense_attention(q, k, v, case.scale, WORKSPACE).0.cast(case.qkv[0].dtype());
        let (exact, exact_lse) = case.naive().dense();
        for route in case.routes(Stage::Dense) {
            let (output, lse) = case.dense(&route);
            judge(&case, &route, "dense", &output, &rounded, &exact, epsilon);
            // Products of two 16-bit numbers are exact in f32.
            let error = absolute_error(&values(&lse), &exact_lse);
            assert!(
                lse.dtype() == DType::F32 && error < tolerance(&route),
                "{}: {route}: log-sum-exp {error:e}",
                case.name
            );
        }
    }
}

#[test]
fn half_sparse_attention() {
    for (case, epsilon) in cases() {
        let dtype = case.qkv[0].dtype();
        let lists = case.random_lists(3, 0..case.problem().keys);
        let other = random(case.qkv[0].dims(), 17, &device()).cast(dtype);
        let third = values(&other);
        let (output, exact_lse) = case.sparse_oracle(&lists);
        let with =
            |sign: f64, factor: f64| output.iter().zip(&third).map(|(o, r)| sign * o + factor * r).collect::<Vec<_>>();
        let options = SparseOptions { group_size: case.group_size, scale: case.scale, workspace_bytes: WORKSPACE };
        let wide = other.clone().cast(DType::F32);
        for (what, epilogue, of_f32, exact) in [
            ("sparse", Epilogue::Output, Epilogue::Output, output.clone()),
            ("+ residual", Epilogue::AddResidual(other.clone()), Epilogue::AddResidual(wide.clone()), with(1.0, 1.0)),
            (
                "+ a part of it",
                Epilogue::AddScaledResidual(other.clone(), 0.625),
                Epilogue::AddScaledResidual(wide.clone(), 0.625),
                with(1.0, 0.625),
            ),
            ("dense -", Epilogue::ResidualOf(other.clone()), Epilogue::ResidualOf(wide), with(-1.0, 1.0)),
        ] {
            let [q, k, v] = in_f32(&case);
            let (order, indices) = (lists.order.clone(), lists.indices.clone());
            let rounded = reference::sparse_attention(q, k, v, order, indices, of_f32, &options).0.cast(dtype);
            for route in case.routes(Stage::Sparse) {
                let (output, lse) = case.sparse(&route, &lists, epilogue.clone());
                judge(&case, &route, what, &output, &rounded, &exact, epsilon);
                let error = absolute_error(&values(&lse), &exact_lse);
                assert!(error < tolerance(&route), "{}: {route}: log-sum-exp {error:e}", case.name);
            }
        }
    }
}

#[test]
fn half_grouping_and_selection() {
    for (case, _) in cases() {
        let order = reference_lists(&case).order;
        for route in case.routes(Stage::Group) {
            for mut row in index_rows(&case.group(&route)) {
                row.sort_unstable();
                assert!(row.into_iter().eq(0..case.problem().queries), "{}: {route}: no permutation", case.name);
            }
        }
        let [q, k, v] = in_f32(&case);
        let lse = reference::dense_attention(q, k, v, case.scale, WORKSPACE).1;
        for route in case.routes(Stage::Select) {
            case.assert_selection(&route, &order, &case.select(&route, lse.clone(), order.clone()));
        }
    }
}
