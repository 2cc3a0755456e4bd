//! Each stage against plain loops in f64, by the reference and by the kernel that the device would use.

use burn::tensor::{DType, Tensor};
use mcsparse::{
    check::Problem,
    ops::{self, Epilogue, Kernels, Route, SparseOptions, Stage},
    reference::{self, GroupOptions, SelectOptions},
};
use mcsparse_tests::{
    Shape,
    case::{WORKSPACE, routes, tolerance},
    cases, device,
    naive::{Naive, groups, index_rows},
    random, relative_error_of, shapes, values,
};
use proptest::prelude::*;

fn group_options(shape: &Shape) -> GroupOptions {
    GroupOptions { group_size: shape.group_size, power_iterations: 4, seed: 0, workspace_bytes: WORKSPACE }
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn dense_attention_and_log_sum_exp(shape in shapes(), scale in 0.02f64..0.5) {
        let [q, k, v] = shape.qkv(&device());
        let (output, lse) = Naive::new(&q, &k, &v, scale).dense();
        for route in routes(Stage::Dense, &Problem::of(&q, &k, &v).unwrap()) {
            let (o, l) = ops::dense_attention(&route, q.clone(), k.clone(), v.clone(), scale, WORKSPACE);
            prop_assert_eq!(o.dims(), q.dims());
            let (o, l) = (relative_error_of(&values(&o), &output), relative_error_of(&values(&l), &lse));
            prop_assert!(o < tolerance(&route) && l < tolerance(&route), "{route}: output {o:e}, log-sum-exp {l:e}");
        }
    }

    #[test]
    fn groups_are_exact_sorted_and_repeatable(shape in shapes()) {
        let [q, k, v] = shape.qkv(&device());
        for route in routes(Stage::Group, &Problem::of(&q, &k, &v).unwrap()) {
            let order = index_rows(&ops::group_queries(&route, q.clone(), group_options(&shape)));
            prop_assert_eq!(order.len(), shape.batch * shape.heads());
            for row in &order {
                let mut sorted = row.clone();
                sorted.sort_unstable();
                prop_assert!(sorted.iter().copied().eq(0..shape.tokens), "{route}: no permutation: {row:?}");
                for group in groups(row, shape.group_size) {
                    prop_assert!(group.is_sorted(), "{route}: a group is not in ascending order: {group:?}");
                }
            }
            let again = index_rows(&ops::group_queries(&route, q.clone(), group_options(&shape)));
            prop_assert!(order == again, "{route}: two runs differ");
        }
    }

    #[test]
    fn selection_keeps_the_most_mass(shape in shapes(), density in 0.01f64..1.0, sinks in (0usize..3, 0usize..3)) {
        let [q, k, v] = shape.qkv(&device());
        let problem = Problem::of(&q, &k, &v).unwrap();
        let (scale, n) = (0.3, shape.tokens);
        let (prefix, suffix) = if sinks.0 + sinks.1 < n { sinks } else { (0, 0) };
        let keys = ((density * n as f64) as usize).clamp((prefix + suffix).max(1), n);
        let options = SelectOptions {
            group_size: shape.group_size, keys, sink_prefix: prefix, sink_suffix: suffix, scale, workspace_bytes: WORKSPACE,
        };
        let order = reference::group_queries(q.clone(), &group_options(&shape));
        let lse = reference::dense_attention(q.clone(), k.clone(), v.clone(), scale, WORKSPACE).1;
        let naive = Naive::new(&q, &k, &v, scale);
        for route in routes(Stage::Select, &problem) {
            let chosen = ops::select_keys(&route, q.clone(), k.clone(), lse.clone(), order.clone(), options);
            let [.., m, width] = chosen.dims();
            prop_assert_eq!((m, width), (n.div_ceil(shape.group_size), keys));
            let chosen = index_rows(&chosen);
            for (z, row) in index_rows(&order).iter().enumerate() {
                for (g, group) in groups(row, shape.group_size).iter().enumerate() {
                    let picked = &chosen[z * m + g];
                    prop_assert!(picked.windows(2).all(|w| w[0] < w[1]), "{route}: not ascending: {picked:?}");
                    prop_assert!(picked.iter().all(|&j| j < n), "{route}: out of range: {picked:?}");
                    let sink = |j: usize| j < prefix || j >= n - suffix;
                    prop_assert!((0..n).filter(|&j| sink(j)).all(|j| picked.contains(&j)), "{route}: a sink is missing");
                    let mass = naive.mass(z, group);
                    let mut free: Vec<f64> = (0..n).filter(|&j| !sink(j)).map(|j| mass[j]).collect();
                    free.sort_by(|a, b| b.total_cmp(a));
                    let best: f64 = free.iter().take(keys - prefix - suffix).sum();
                    let kept: f64 = picked.iter().filter(|&&j| !sink(j)).map(|&j| mass[j]).sum();
                    // Only keys whose mass ties within rounding may be exchanged.
                    prop_assert!(kept >= best * (1.0 - tolerance(&route)), "{route}: kept {kept}, best {best}");
                }
            }
        }
    }

    #[test]
    fn sparse_attention_reads_the_keys_it_is_given(shape in shapes(), density in 0.01f64..1.0) {
        let [q, k, v] = shape.qkv(&device());
        let problem = Problem::of(&q, &k, &v).unwrap();
        let (scale, n) = (0.3, shape.tokens);
        let keys = ((density * n as f64) as usize).max(1);
        let order = reference::group_queries(q.clone(), &group_options(&shape));
        // Random keys rather than selected ones: any ascending list must do.
        let (z, m) = (shape.batch * shape.heads(), n.div_ceil(shape.group_size));
        let noise = random([z * m, n], shape.seed ^ 7, &device());
        let indices = reference::top_k_indices(noise, keys).reshape([shape.batch, shape.heads(), m, keys]);
        let (orders, chosen) = (index_rows(&order), index_rows(&indices));
        let (output, lse) = Naive::new(&q, &k, &v, scale).rows(|z, i| {
            let place = orders[z].iter().position(|&x| x == i).unwrap();
            chosen[z * m + place / shape.group_size].clone()
        });
        let options = SparseOptions { group_size: shape.group_size, scale, workspace_bytes: WORKSPACE };
        for route in routes(Stage::Sparse, &problem) {
            let (o, l) =
                ops::sparse_attention(&route, q.clone(), k.clone(), v.clone(), order.clone(), indices.clone(), Epilogue::Output, options);
            let (o, l) = (relative_error_of(&values(&o), &output), relative_error_of(&values(&l), &lse));
            prop_assert!(o < tolerance(&route) && l < tolerance(&route), "{route}: output {o:e}, log-sum-exp {l:e}");
        }
    }

    #[test]
    fn partitions_are_exact_with_ties_to_the_lowest_index(
        rows in 1usize..5, n in prop_oneof![1usize..60, 250usize..1500], share in 0.0f64..1.0, levels in 1u64..400, seed in any::<u64>(),
    ) {
        let k = ((share * n as f64) as usize).clamp(1, n);
        // Few distinct values, so that many rows have ties across the threshold; some NaN, infinite and negative zero.
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 33
        };
        let values: Vec<f32> = (0..rows * n)
            .map(|_| match next() % 50 {
                0 => f32::NAN,
                1 => f32::INFINITY,
                2 => -0.0,
                3 | 4 => f32::NEG_INFINITY,
                _ => (next() % levels) as f32 * 0.37 - 3.0,
            })
            .collect();
        let device = device();
        let tensor = Tensor::<1>::from_floats(values.as_slice(), &device).reshape([rows, n]);
        let q = random([1, 1, 1, 16], 1, &device);
        for route in routes(Stage::Select, &Problem::of(&q, &q, &q).unwrap()) {
            let whole = index_rows(&ops::partition_indices(&route, tensor.clone(), k, true));
            let short = index_rows(&ops::partition_indices(&route, tensor.clone(), k, false));
            for (r, row) in values.chunks(n).enumerate() {
                let key = |j: usize| (!row[j].is_nan(), if row[j].is_nan() { 0.0 } else { row[j] + 0.0 });
                let mut expected: Vec<usize> = (0..n).collect();
                expected.sort_by(|&a, &b| {
                    let (a_key, b_key) = (key(a), key(b));
                    b_key.0.cmp(&a_key.0).then(b_key.1.total_cmp(&a_key.1)).then(a.cmp(&b))
                });
                expected[..k].sort_unstable();
                expected[k..].sort_unstable();
                prop_assert_eq!(&whole[r], &expected, "{} row {}", route, r);
                prop_assert_eq!(&short[r], &expected[..k], "{} row {}", route, r);
            }
        }
    }
}

/// What the README's table of backends says. Without this the comparisons above would pass with no kernel at all.
#[test]
fn the_kernels_that_the_backend_has_are_taken() {
    let device = device();
    let kernels = |head_dim: usize, dtype: DType| {
        let q = random([1, 2, 5, head_dim], 1, &device).cast(dtype);
        let problem = Problem::of(&q, &q, &q).unwrap();
        [Stage::Dense, Stage::Group, Stage::Select, Stage::Sparse].map(|stage| {
            match ops::route(stage, &problem, Kernels::Auto) {
                Route::Kernel { name, .. } => name.to_string(),
                Route::Reference { reason } => format!("({reason})"),
            }
        })
    };
    let name = std::env::var("BURN_DEVICE").unwrap_or_default();
    let units = name == "cpu" || std::env::var("MCSPARSE_TIER").is_ok_and(|tier| tier == "units");
    let [single, shared, planes, matrix, warpgroup] = [
        [
            "cube single units",
            "cube pddp of single units",
            "cube column sums of single units",
            "cube gathering single units",
        ],
        ["cube shared-memory tiles", "cube pddp", "cube column sums", "cube gathered shared-memory tiles"],
        ["cube plane tiles", "cube pddp", "cube column sums", "cube gathered plane tiles"],
        ["cube matrix tiles", "cube matrix pddp", "cube matrix column sums", "cube gathered matrix tiles"],
        ["cube warpgroup tiles", "cube matrix pddp", "cube warpgroup column sums", "cube gathered warpgroup tiles"],
    ];
    for head_dim in [1, 80] {
        let found = kernels(head_dim, DType::F32);
        match (mcsparse_tests::is_flex(), name.as_str()) {
            (true, _) => assert_eq!(found, ["cpu tiles", "cpu pddp", "cpu column sums", "cpu gathered tiles"]),
            _ if units => assert_eq!(found, single),
            (_, "cuda") => assert_eq!(found, planes),
            // Which of the two depends on the driver.
            _ => assert!(found == shared || found == planes, "{found:?}"),
        }
    }
    if name == "cuda" && !units {
        // Matrix units with 16-bit floats: from compute capability 8.0 on.
        assert_eq!(kernels(80, DType::BF16), matrix);
        // Hopper with the CUDA C++ compiler, and nothing else.
        let found = kernels(128, DType::F16);
        let q = random([1, 2, 5, 128], 1, &device).cast(DType::F16);
        match ops::route(Stage::Dense, &Problem::of(&q, &q, &q).unwrap(), Kernels::Auto) {
            Route::Kernel { declined, .. } if declined.is_empty() => assert_eq!(found, warpgroup),
            Route::Kernel { declined, .. } => {
                assert_eq!(found, matrix);
                let known = ["compute capability 9.0", "`cuda-cpp`", "MCSPARSE_TIER"];
                assert!(known.iter().any(|reason| declined[0].contains(reason)), "{declined:?}");
            }
            other => panic!("{other}"),
        }
        assert_eq!(kernels(20, DType::BF16)[0], "cube plane tiles");
    }
    let q = random([1, 2, 5, 16], 1, &device);
    let reference = ops::route(Stage::Dense, &Problem::of(&q, &q, &q).unwrap(), Kernels::Reference);
    assert_eq!(reference.to_string(), "tensor operations (the configuration asks for the reference)");
}

/// Queries drawn from well separated clusters, one group's worth each: grouping must find the clusters.
#[test]
fn grouping_recovers_clusters() {
    let device = device();
    let (clusters, size, dim) = (8, 16, 32);
    let n = clusters * size;
    let centres = random([1, 1, clusters, dim], 3, &device).mul_scalar(20.0);
    // Interleaved, so that position says nothing.
    let q = centres.repeat_dim(2, size) + random([1, 1, n, dim], 4, &device);
    let options = GroupOptions { group_size: size, power_iterations: 12, seed: 1, workspace_bytes: 1 << 20 };
    for route in routes(Stage::Group, &Problem::of(&q, &q, &q).unwrap()) {
        let order = index_rows(&ops::group_queries(&route, q.clone(), options));
        for group in groups(&order[0], size) {
            assert!(group.iter().all(|i| i % clusters == group[0] % clusters), "{route}: mixed group {group:?}");
        }
    }
}

/// NaN, infinity, equal rows and one huge row: garbage may come out, but groups and keys stay valid indices.
#[test]
fn hostile_values_never_spoil_indices() {
    let device = device();
    let (n, dim, size) = (45, 16, 8);
    let plain = || random([1, 2, n, dim], 5, &device);
    let one_row = |value: f32| plain().slice_fill([0..1, 0..2, 7..8, 0..dim], value);
    let hostile = [
        Tensor::zeros([1, 2, n, dim], &device),
        plain().slice_fill([0..1, 0..2, 0..n, 0..dim], f32::NAN),
        one_row(f32::NAN),
        one_row(f32::INFINITY),
        one_row(1e30),
    ];
    let options = GroupOptions { group_size: size, power_iterations: 4, seed: 0, workspace_bytes: 1 << 20 };
    let select = SelectOptions {
        group_size: size,
        keys: 9,
        sink_prefix: 0,
        sink_suffix: 0,
        scale: 0.25,
        workspace_bytes: 1 << 20,
    };
    for q in hostile {
        let problem = Problem::of(&q, &q, &q).unwrap();
        for route in routes(Stage::Group, &problem) {
            let order = ops::group_queries(&route, q.clone(), options);
            for mut row in index_rows(&order) {
                row.sort_unstable();
                assert!(row.into_iter().eq(0..n), "{route}: no permutation");
            }
            let lse = reference::dense_attention(q.clone(), q.clone(), q.clone(), 0.25, 1 << 20).1;
            for route in routes(Stage::Select, &problem) {
                let keys = ops::select_keys(&route, q.clone(), q.clone(), lse.clone(), order.clone(), select);
                for row in index_rows(&keys) {
                    assert!(row.windows(2).all(|w| w[0] < w[1]) && row[8] < n, "{route}: {row:?}");
                }
            }
        }
    }
}

/// Views as models and users hand them in: heads before tokens, slices, one head for all, reversed tokens.
#[test]
fn strided_views_are_read_as_they_are() {
    let device = device();
    let (b, h, n, d) = (2, 3, 41, 24);
    type View<'a> = Box<dyn Fn(u64) -> Tensor<4> + 'a>;
    let views: [(&str, View<'_>); 5] = [
        ("heads before tokens", Box::new(|s| random([b, n, h, d], s, &device).swap_dims(1, 2))),
        (
            "a slice of every axis",
            Box::new(|s| random([b + 1, h + 2, n + 7, d + 8], s, &device).slice([1..3, 1..4, 5..46, 8..32])),
        ),
        ("one head for all", Box::new(|s| random([b, 1, n, d], s, &device).expand([b, h, n, d]))),
        ("reversed tokens", Box::new(|s| random([b, h, n, d], s, &device).flip([2]))),
        ("head_dim not innermost", Box::new(|s| random([b, h, d, n], s, &device).swap_dims(2, 3))),
    ];
    for (name, view) in &views {
        let qkv = [1, 2, 3].map(view);
        // Adding zero packs a view.
        let packed = qkv.clone().map(|t| t.clone() + Tensor::zeros_like(&t));
        let mut results = Vec::new();
        for [q, k, v] in [qkv, packed] {
            let problem = Problem::of(&q, &k, &v).unwrap();
            let route = |stage| ops::route(stage, &problem, Kernels::Auto);
            let shape = Shape { batch: b, kv_heads: h, shared: 1, tokens: n, head_dim: d, group_size: 8, seed: 0 };
            let (dense, lse) =
                ops::dense_attention(&route(Stage::Dense), q.clone(), k.clone(), v.clone(), 0.3, WORKSPACE);
            let order = ops::group_queries(&route(Stage::Group), q.clone(), group_options(&shape));
            let select = SelectOptions {
                group_size: 8,
                keys: 9,
                sink_prefix: 0,
                sink_suffix: 0,
                scale: 0.3,
                workspace_bytes: WORKSPACE,
            };
            let indices = ops::select_keys(&route(Stage::Select), q.clone(), k.clone(), lse, order.clone(), select);
            let options = SparseOptions { group_size: 8, scale: 0.3, workspace_bytes: WORKSPACE };
            let sparse = ops::sparse_attention(
                &route(Stage::Sparse),
                q,
                k,
                v,
                order.clone(),
                indices.clone(),
                Epilogue::Output,
                options,
            )
            .0;
            results.push((dense, index_rows(&order), index_rows(&indices), sparse));
        }
        let (a, b) = (&results[0], &results[1]);
        let dense = relative_error_of(&values(&a.0), &values(&b.0));
        assert!(dense < 1e-6, "{name}: dense {dense:e}");
        assert_eq!((&a.1, &a.2), (&b.1, &b.2), "{name}: groups or keys");
        let sparse = relative_error_of(&values(&a.3), &values(&b.3));
        assert!(sparse < 1e-6, "{name}: sparse {sparse:e}");
    }
}
