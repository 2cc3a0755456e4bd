//! Sizes at which the kernels with warpgroup products change their way: steps of 128 keys, tiles of 128 queries, three groups
//! a cube, more pieces of work than cubes. The device's own kernels against the oracle; every backend runs them.

use burn::tensor::{DType, Tensor, TensorData};
use mcsparse::{
    ops::{self, Epilogue, Kernels, Route, Stage},
    reference::SelectOptions,
};
use mcsparse_tests::{
    Shape,
    case::{Case, absolute_error, tolerance},
    device, half_dtypes,
    naive::index_rows,
    random, values,
};

const BASE: Shape = Shape { batch: 1, kv_heads: 2, shared: 1, tokens: 300, head_dim: 128, group_size: 128, seed: 51 };

/// The same values as rows at odd elements of a wider tensor: no vector of them is aligned.
fn unaligned(case: Case) -> Case {
    let name = format!("{}, unaligned", case.name);
    let shift = |t: &Tensor<4>| {
        let [b, h, n, d] = t.dims();
        let wide = Tensor::<4>::zeros([b, h, n, d + 1], &t.device()).cast(t.dtype());
        wide.slice_assign([0..b, 0..h, 0..n, 1..d + 1], t.clone()).slice_dim(3, 1..d + 1)
    };
    Case { qkv: case.qkv.each_ref().map(shift), name, ..case }
}

fn cases(test: &str) -> Vec<(Case, f64)> {
    let device = device();
    let shapes = [
        (BASE, 200, 1.0),
        // More queries a group than a tile has, and every key.
        (Shape { tokens: 257, group_size: 192, head_dim: 64, ..BASE }, 257, 1.0),
        // Groups that do not fill a tile; key/value heads that share.
        (Shape { batch: 3, shared: 2, tokens: 129, group_size: 50, ..BASE }, 128, 1.0),
        (Shape { tokens: 1, head_dim: 64, ..BASE }, 1, 1.0),
        // 600 tiles: several for each multiprocessor.
        (Shape { group_size: 1, head_dim: 64, ..BASE }, 140, 1.0),
        // Whole tiles and whole steps; the smallest product is the heaviest.
        (Shape { tokens: 256, head_dim: 64, ..BASE }, 129, -1.0),
        (Shape { tokens: 130, ..BASE }, 1, -1.0),
    ];
    let mut all = Vec::new();
    for (dtype, epsilon) in half_dtypes(&device, test) {
        for (shape, keys, sign) in &shapes {
            let case = Case::new(format!("{shape:?}, sign {sign}"), shape, *keys, &device);
            all.push((Case { scale: sign * case.scale, ..case }.cast(dtype), epsilon));
        }
        let case = Case::new("rows at odd elements", &Shape { tokens: 140, ..BASE }, 131, &device).cast(dtype);
        all.push((unaligned(case), epsilon));
    }
    all
}

fn kernel(case: &Case, stage: Stage) -> Route {
    let route = ops::route(stage, &case.problem(), Kernels::Auto);
    assert!(matches!(route, Route::Kernel { .. }), "{}: {stage:?} by {route}", case.name);
    route
}

#[test]
fn warpgroup_dense_attention() {
    for (case, epsilon) in cases("warpgroup") {
        let route = kernel(&case, Stage::Dense);
        let ((output, lse), (exact, exact_lse)) = (case.dense(&route), case.naive().dense());
        case.assert_rounded(&route, "dense", &values(&output), &exact, epsilon, 0.0);
        let error = absolute_error(&values(&lse), &exact_lse);
        assert!(error < tolerance(&route), "{}: {route}: log-sum-exp is off by {error:e}", case.name);
    }
}

#[test]
fn warpgroup_sparse_attention() {
    for (i, (case, epsilon)) in cases("warpgroup").into_iter().enumerate() {
        let route = kernel(&case, Stage::Sparse);
        let lists = case.random_lists(5, 0..case.problem().keys);
        let (exact, exact_lse) = case.sparse_oracle(&lists);
        let dtype = case.qkv[0].dtype();
        let [b, h, n, d] = case.qkv[0].dims();
        // Contiguous, of the model's order, or with columns apart.
        let other = match i % 3 {
            0 => random([b, h, n, d], 61, &device()),
            1 => random([b, n, h, d], 61, &device()).swap_dims(1, 2),
            _ => random([b, h, d, n], 61, &device()).swap_dims(2, 3),
        };
        let other = other.cast(dtype);
        let third = values(&other);
        let largest = third.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
        for (epilogue, sign, share) in [
            (Epilogue::Output, 1.0, 0.0),
            (Epilogue::AddResidual(other.clone()), 1.0, 1.0),
            (Epilogue::AddScaledResidual(other.clone(), -0.625), 1.0, -0.625),
            (Epilogue::ResidualOf(other), -1.0, 1.0),
        ] {
            let what = format!("{epilogue:?}").chars().take(12).collect::<String>();
            let (output, lse) = case.sparse(&route, &lists, epilogue);
            let exact: Vec<f64> = exact.iter().zip(&third).map(|(o, r)| sign * o + share * r).collect();
            case.assert_rounded(&route, &what, &values(&output), &exact, epsilon, largest + 1.0);
            let error = absolute_error(&values(&lse), &exact_lse);
            assert!(error < tolerance(&route), "{}: {route}: log-sum-exp is off by {error:e}", case.name);
        }
    }
}

/// Column sums that ride in the dense pass: the log-sum-exps before are not those of the pass, and not the same distance from them
/// for every query.
#[test]
fn warpgroup_attention_with_selection() {
    let mut all = cases("warpgroup");
    for (dtype, epsilon) in half_dtypes(&device(), "warpgroup") {
        // 720 groups of one query: as one launch, several for each multiprocessor.
        let shape = Shape { kv_heads: 4, tokens: 180, group_size: 1, ..BASE };
        all.push((Case::new("many groups", &shape, 40, &device()).cast(dtype), epsilon));
    }
    for (i, (case, epsilon)) in all.into_iter().enumerate() {
        let problem = case.problem();
        let route = ops::attend_and_select_route(&problem, case.group_size, Kernels::Auto);
        if matches!(ops::route(Stage::DenseSelect, &problem, Kernels::Auto), Route::Kernel { .. }) {
            assert_eq!(matches!(route, Route::Kernel { .. }), case.group_size <= 128, "{}: {route}", case.name);
        }
        let order = case.random_lists(9, 0..problem.keys).order;
        let (exact, exact_lse) = case.naive().dense();
        let [b, h, n, _] = case.qkv[0].dims();
        let before: Vec<f32> =
            exact_lse.iter().enumerate().map(|(j, lse)| (lse + [0.0, 1.5, -0.75][(i + j) % 3]) as f32).collect();
        let before = Tensor::<3>::from_data(TensorData::new(before, [b, h, n]), (&device(), DType::F32));
        // Several launches, with fewer tiles than multiprocessors or as many; one launch, with several tiles for each.
        let workspaces = if matches!(route, Route::Kernel { .. }) { vec![200, 1 << 16] } else { vec![200] };
        for rows in workspaces {
            let options = SelectOptions { workspace_bytes: 4 * problem.keys * rows, ..case.select_options() };
            let [q, k, v] = case.qkv.clone();
            let (output, lse, indices) =
                ops::attend_and_select(&route, q, k, v, order.clone(), before.clone(), options);
            case.assert_rounded(&route, "dense", &values(&output), &exact, epsilon, 0.0);
            let error = absolute_error(&values(&lse), &exact_lse);
            assert!(error < tolerance(&route), "{}: {route}: log-sum-exp is off by {error:e}", case.name);
            case.assert_selection_by(&route, &before, &order, &indices);
        }
    }
}

/// Sinks are kept whatever they weigh, and ties go to the lowest key.
#[test]
fn warpgroup_attention_with_selection_keeps_sinks() {
    let device = device();
    for (dtype, _) in half_dtypes(&device, "warpgroup") {
        let case = Case::new("sinks", &Shape { tokens: 300, ..BASE }, 40, &device).cast(dtype);
        let [q, k, v] = case.qkv.clone();
        let [b, h, n, _] = q.dims();
        let order = case.random_lists(9, 0..n).order;
        // Scores are equal, so that all sums are.
        let k = k.zeros_like();
        let before = Tensor::<3>::full([b, h, n], (n as f32).ln(), (&device, DType::F32));
        let options = SelectOptions { sink_prefix: 3, sink_suffix: 5, ..case.select_options() };
        let route = ops::attend_and_select_route(&case.problem(), case.group_size, Kernels::Auto);
        let (.., indices) = ops::attend_and_select(&route, q, k, v, order, before, options);
        let expected: Vec<usize> = (0..35).chain(295..300).collect();
        for row in index_rows(&indices) {
            assert_eq!(row, expected, "{route}");
        }
    }
}

#[test]
fn warpgroup_selection() {
    for (case, _) in cases("warpgroup") {
        let route = kernel(&case, Stage::Select);
        let order = case.random_lists(9, 0..case.problem().keys).order;
        let exact: Vec<f32> = case.naive().dense().1.into_iter().map(|x| x as f32).collect();
        let [b, h, n, _] = case.qkv[0].dims();
        let lse = Tensor::<3>::from_data(TensorData::new(exact, [b, h, n]), (&device(), DType::F32));
        let chosen = case.select(&route, lse.clone(), order.clone());
        case.assert_selection(&route, &order, &chosen);
        let again = case.select(&route, lse, order);
        assert_eq!(chosen.to_data(), again.to_data(), "{}: {route}: two runs differ", case.name);
    }
}

/// Many runs of both kernels on the same inputs give the same bits: a missing barrier would hardly.
#[test]
fn warpgroup_repeats() {
    let runs = if std::env::var("BURN_DEVICE").is_ok_and(|name| name == "cuda") { 50 } else { 3 };
    for (dtype, _) in half_dtypes(&device(), "warpgroup") {
        let case = Case::new("repeats", &Shape { kv_heads: 4, tokens: 520, ..BASE }, 300, &device()).cast(dtype);
        let lists = case.random_lists(13, 0..520);
        let (dense, sparse) = (kernel(&case, Stage::Dense), kernel(&case, Stage::Sparse));
        let first = (case.dense(&dense).0.to_data(), case.sparse(&sparse, &lists, Epilogue::Output).0.to_data());
        let riding = ops::attend_and_select_route(&case.problem(), case.group_size, Kernels::Auto);
        let before = case.dense(&dense).1;
        let both = || {
            let ([q, k, v], order) = (case.qkv.clone(), lists.order.clone());
            let (output, lse, indices) =
                ops::attend_and_select(&riding, q, k, v, order, before.clone(), case.select_options());
            [output.to_data(), lse.to_data(), indices.to_data()]
        };
        let rode = both();
        // 1,040 groups in one launch.
        let long = || {
            let [q, k, v] = case.qkv.clone();
            let options = SelectOptions { workspace_bytes: 1 << 28, group_size: 2, ..case.select_options() };
            ops::attend_and_select(&riding, q, k, v, lists.order.clone(), before.clone(), options).2.to_data()
        };
        let rode_long = matches!(riding, Route::Kernel { .. }).then(&long);
        for run in 1..runs {
            assert_eq!(case.dense(&dense).0.to_data(), first.0, "{dense}: run {run}");
            assert_eq!(case.sparse(&sparse, &lists, Epilogue::Output).0.to_data(), first.1, "{sparse}: run {run}");
            // Elsewhere it is the reference, which other tests repeat.
            if matches!(riding, Route::Kernel { .. }) {
                assert_eq!(both(), rode, "{riding}: run {run}");
                assert_eq!(Some(long()), rode_long, "{riding}: long run {run}");
            }
        }
    }
}
