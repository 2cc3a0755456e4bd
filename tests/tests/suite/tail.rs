//! Block means for the keys that groups do not keep, against plain loops in f64, and within the method.

use burn::tensor::{DType, Tensor};
use mcsparse::{
    IndexFormat, McSparseConfig, MetaCache, ResidualFormat, ResidualGain, Schedule, SinkTokens, Tail,
    check::Problem,
    ops::{self, Epilogue, Kernels, Route, Stage},
    reference::{TailOptions, dense_attention},
};
use mcsparse_tests::{
    Shape,
    case::{Case, Lists, WORKSPACE, absolute_error, reference_tolerance, tolerance},
    cases, device, half_dtypes,
    naive::{Naive, index_rows},
    random, relative_error, relative_error_of, shapes, values,
};
use proptest::prelude::*;

fn options(case: &Case, block: usize, (prefix, suffix): (usize, usize)) -> TailOptions {
    TailOptions {
        group_size: case.group_size,
        block,
        sink_prefix: prefix,
        sink_suffix: suffix,
        scale: case.scale,
        workspace_bytes: WORKSPACE,
    }
}

/// Sparse attention by the reference, and then the tail by `route`.
fn with_tail(
    case: &Case,
    route: &Route,
    lists: &Lists,
    epilogue: Epilogue,
    options: TailOptions,
) -> (Tensor<4>, Tensor<3>) {
    // A kernel goes with a kernel: products of tensor operations may be in TF32.
    let kernels = if matches!(route, Route::Kernel { .. }) { Kernels::Auto } else { Kernels::Reference };
    let sparse = case.sparse(&ops::route(Stage::Sparse, &case.problem(), kernels), lists, Epilogue::Output);
    let [q, k, v] = case.qkv.clone();
    ops::add_tail(route, q, k, v, lists.order.clone(), lists.indices.clone(), sparse, epilogue, options)
}

/// The formula of `reference::add_tail`, row by row: output and log-sum-exp.
fn oracle(case: &Case, lists: &Lists, options: &TailOptions) -> (Vec<f64>, Vec<f64>) {
    let Problem { batch, heads, kv_heads, queries, keys, head_dim, .. } = case.problem();
    let [q, k, v] = case.qkv.each_ref().map(values);
    let (orders, kept) = (index_rows(&lists.order), index_rows(&lists.indices));
    let groups = queries.div_ceil(case.group_size);
    let blocks: Vec<Vec<usize>> = (options.sink_prefix..keys - options.sink_suffix)
        .collect::<Vec<_>>()
        .chunks(options.block)
        .map(<[usize]>::to_vec)
        .collect();
    let row =
        |data: &[f64], head: usize, rows: usize, i: usize| data[(head * rows + i) * head_dim..][..head_dim].to_vec();
    let (mut outputs, mut lses) = (vec![0.0; batch * heads * queries * head_dim], vec![0.0; batch * heads * queries]);
    for z in 0..batch * heads {
        let kv = z / heads * kv_heads + z % heads / (heads / kv_heads);
        for (place, &i) in orders[z].iter().enumerate() {
            let list = &kept[z * groups + place / case.group_size];
            let query = row(&q, z, queries, i);
            let mut parts: Vec<(f64, Vec<f64>, Vec<f64>)> =
                list.iter().map(|&j| (1.0, row(&k, kv, keys, j), row(&v, kv, keys, j))).collect();
            for block in &blocks {
                let count = block.iter().filter(|j| !list.contains(j)).count() as f64;
                let mean = |data: &[f64]| {
                    (0..head_dim)
                        .map(|d| block.iter().map(|&j| row(data, kv, keys, j)[d]).sum::<f64>() / block.len() as f64)
                        .collect::<Vec<_>>()
                };
                parts.push((count, mean(&k), mean(&v)));
            }
            let score = |key: &[f64]| case.scale * query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>();
            let scores: Vec<f64> = parts.iter().map(|(_, key, _)| score(key)).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().zip(&parts).map(|(s, (count, ..))| count * (s - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for d in 0..head_dim {
                outputs[(z * queries + i) * head_dim + d] =
                    weights.iter().zip(&parts).map(|(w, (.., value))| w * value[d]).sum::<f64>() / sum;
            }
            lses[z * queries + i] = max + sum.ln();
        }
    }
    (outputs, lses)
}

/// Sinks at either end that a sequence has room for.
fn sinks(tokens: usize, (prefix, suffix): (usize, usize)) -> (usize, usize) {
    if prefix + suffix + 2 < tokens { (prefix, suffix) } else { (0, 0) }
}

/// Lists that keep all sinks, and some of the others.
fn lists(case: &mut Case, density: f64, (prefix, suffix): (usize, usize), seed: u64) -> Lists {
    let tokens = case.problem().keys;
    let free = tokens - prefix - suffix;
    case.keys = ((density * free as f64) as usize).clamp(1, free);
    let mut lists = case.random_lists(seed, prefix..tokens - suffix);
    let [batch, heads, groups, _] = lists.indices.dims();
    let fixed = |range: std::ops::Range<usize>| {
        let n = range.len();
        let row = Tensor::arange(range.start as i64..range.end as i64, &device()).cast(DType::I32);
        row.reshape([1, 1, 1, n]).expand([batch, heads, groups, n])
    };
    let mut parts = vec![lists.indices.clone()];
    if prefix > 0 {
        parts.insert(0, fixed(0..prefix));
    }
    if suffix > 0 {
        parts.push(fixed(tokens - suffix..tokens));
    }
    case.keys += prefix + suffix;
    lists.indices = Tensor::cat(parts, 3);
    lists
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn tail_counts_what_is_not_kept_by_its_block_means(
        shape in shapes(), density in 0.01f64..1.0, block in prop_oneof![1usize..9, 9usize..200], ends in (0usize..4, 0usize..4),
        negative in any::<bool>(),
    ) {
        let mut case = Case::new("tail", &shape, 1, &device());
        case.scale *= if negative { -1.0 } else { 1.0 };
        let ends = sinks(shape.tokens, ends);
        let lists = lists(&mut case, density, ends, shape.seed ^ 5);
        let options = options(&case, block, ends);
        let (output, lse) = oracle(&case, &lists, &options);
        let other = random(case.qkv[0].dims(), shape.seed ^ 9, &device());
        let third = values(&other);
        let with = |sign: f64, factor: f64| -> Vec<f64> {
            output.iter().zip(&third).map(|(o, r)| sign * o + factor * r).collect()
        };
        for route in case.routes(Stage::Tail) {
            for (epilogue, expected) in [
                (Epilogue::Output, output.clone()),
                (Epilogue::AddResidual(other.clone()), with(1.0, 1.0)),
                (Epilogue::AddScaledResidual(other.clone(), 0.5), with(1.0, 0.5)),
                (Epilogue::ResidualOf(other.clone()), with(-1.0, 1.0)),
            ] {
                let got = with_tail(&case, &route, &lists, epilogue, options);
                let (o, l) = (relative_error_of(&values(&got.0), &expected), absolute_error(&values(&got.1), &lse));
                prop_assert!(o < tolerance(&route) && l < tolerance(&route), "{route}: output {o:e}, log-sum-exp {l:e}");
            }
        }
    }

    #[test]
    fn tail_keeps_the_promises_of_the_method(
        shape in shapes(), density in 0.01f64..1.0, block in 1usize..80, ends in (0usize..3, 0usize..3), fp8 in any::<bool>(),
    ) {
        let (prefix, suffix) = if shape.tokens > 8 { sinks(shape.tokens, ends) } else { (0, 0) };
        let config = McSparseConfig::density(density)
            .with_group_size(shape.group_size)
            .with_schedule(Schedule::warm_up(2))
            .with_sink(SinkTokens { prefix, suffix, within_budget: false })
            .with_tail(Tail::BlockMeans { block });
        let [q, k, v] = shape.qkv(&device());
        let dense = dense_attention(q.clone(), k.clone(), v.clone(), (shape.head_dim as f64).powf(-0.5), 1 << 24).0;
        let attention = config.init(1).unwrap();
        let mut cache = MetaCache::new(&config, 4).unwrap();
        for step in 0..4 {
            cache.begin_step(step).unwrap();
            let output = attention.forward(q.clone(), k.clone(), v.clone(), &mut cache).unwrap();
            let error = relative_error(&output, &dense);
            prop_assert!(error < reference_tolerance(), "step {step}: {error:e}");
        }
        let ran: usize = cache.report().stages().filter(|(s, ..)| *s == Stage::Tail).map(|(.., record)| record.runs).sum();
        prop_assert_eq!(ran, 3);
        // Exactly the planned density, means counted.
        let planned = config.effective_density(cache.plan(), 1, shape.tokens);
        let config = config.with_dense_layers(Vec::new());
        let planned = config.effective_density(cache.plan(), 1, shape.tokens).or(planned).unwrap();
        prop_assert!((cache.report().effective_density() - planned).abs() < 1e-9);
        // The residual is that of both parts, in the stored form asked for.
        let form = if fp8 { ResidualFormat::Fp8 } else { ResidualFormat::Input };
        let config = config.with_residual_format(form).with_residual_gain(ResidualGain::constant(0.0));
        let mut cache = MetaCache::new(&config, 4).unwrap();
        let attention = config.init(1).unwrap();
        for step in 0..3 {
            cache.begin_step(step).unwrap();
            let output = attention.forward(q.clone(), k.clone(), v.clone(), &mut cache).unwrap();
            if step == 2 {
                let sum = output.slice_dim(2, prefix..shape.tokens - suffix) + cache.slots()[0].residual();
                let error = relative_error(&sum, &dense.clone().slice_dim(2, prefix..shape.tokens - suffix));
                let limit = if fp8 { 0.1 } else { reference_tolerance() };
                prop_assert!(error < limit, "{form}: {error:e}");
            }
        }
    }
}

/// A block of one key is that key: with all of them the tail is dense attention.
#[test]
fn tail_of_single_keys_is_dense_attention() {
    let shape = Shape { batch: 2, kv_heads: 2, shared: 2, tokens: 90, head_dim: 24, group_size: 16, seed: 5 };
    let mut case = Case::new("single keys", &shape, 1, &device());
    let lists = lists(&mut case, 0.2, (3, 1), 8);
    let options = options(&case, 1, (3, 1));
    let [q, k, v] = &case.qkv;
    let expected = Naive::new(q, k, v, case.scale).dense();
    for route in case.routes(Stage::Tail) {
        let got = with_tail(&case, &route, &lists, Epilogue::Output, options);
        case.assert_near(&route, "tail of single keys", &got, &expected);
    }
}

#[test]
fn tail_in_half_precision() {
    let shapes = [(77, 64, 16), (200, 128, 64), (65, 72, 32)];
    for (dtype, epsilon) in half_dtypes(&device(), "tail_in_half_precision") {
        for (tokens, head_dim, group_size) in shapes {
            let shape = Shape { batch: 1, kv_heads: 2, shared: 2, tokens, head_dim, group_size, seed: 6 };
            let mut case = Case::new("tail", &shape, 1, &device()).cast(dtype);
            let lists = lists(&mut case, 0.2, (0, 0), 8);
            let options = options(&case, 16, (0, 0));
            let other = random(case.qkv[0].dims(), 17, &device()).cast(dtype);
            let third = values(&other);
            let (output, lse) = oracle(&case, &lists, &options);
            let expected: Vec<f64> = output.iter().zip(&third).map(|(o, r)| o + 0.5 * r).collect();
            for route in case.routes(Stage::Tail) {
                let epilogue = Epilogue::AddScaledResidual(other.clone(), 0.5);
                let got = with_tail(&case, &route, &lists, epilogue, options);
                prop_assert_dtype(&got.0, dtype);
                // Weights, sparse part, means and the sum are rounded once each; a mean key moves scores of a spread of 2 by
                // twice its rounding.
                let (o, l) = (relative_error_of(&values(&got.0), &expected), absolute_error(&values(&got.1), &lse));
                assert!(o < 4.0 * epsilon && l < 4.0 * epsilon, "{dtype:?}, {route}: output {o:e}, log-sum-exp {l:e}");
            }
        }
    }
}

fn prop_assert_dtype(tensor: &Tensor<4>, dtype: DType) {
    assert_eq!(tensor.dtype(), dtype);
}

/// What the sparse part holds is read, never written over where somebody else has it too.
#[test]
fn tail_leaves_its_inputs_alone() {
    let shape = Shape { batch: 1, kv_heads: 2, shared: 1, tokens: 60, head_dim: 16, group_size: 16, seed: 5 };
    let mut case = Case::new("inputs", &shape, 1, &device());
    let lists = lists(&mut case, 0.2, (0, 0), 8);
    let options = options(&case, 8, (0, 0));
    for route in case.routes(Stage::Tail) {
        let sparse_route = ops::route(Stage::Sparse, &case.problem(), Kernels::Auto);
        let sparse = case.sparse(&sparse_route, &lists, Epilogue::Output);
        let before = (sparse.0.to_data(), sparse.1.to_data());
        let run = || {
            let [q, k, v] = case.qkv.clone();
            let (order, indices) = (lists.order.clone(), lists.indices.clone());
            ops::add_tail(&route, q, k, v, order, indices, sparse.clone(), Epilogue::Output, options).0.to_data()
        };
        let (first, second) = (run(), run());
        assert!(first == second, "{route}: two runs differ");
        assert!((sparse.0.to_data(), sparse.1.to_data()) == before, "{route}: the sparse part has changed");
    }
}

/// Slots with and without a tail hold other residuals, so that neither serves the other; files say which they are.
#[test]
fn tail_slots_serve_no_other_tail() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let config = |tail, anchors| {
        McSparseConfig::density(0.25)
            .with_group_size(8)
            .with_schedule(Schedule::warm_up(1).with_anchors(anchors))
            .with_index_format(Some(IndexFormat::Plain))
            .with_tail(tail)
    };
    let means = Tail::BlockMeans { block: 8 };
    let [q, k, v] = [1, 2, 3].map(|seed| random([1, 2, 40, 16], seed, &device()));
    let first = config(means, mcsparse::Anchors::EndOfWarmUp);
    let mut cache = MetaCache::new(&first, 2).unwrap();
    cache.begin_step(0).unwrap();
    first.init(1).unwrap().forward(q.clone(), k.clone(), v.clone(), &mut cache).unwrap();
    cache.save(&path).unwrap();
    cache.begin_step(1).unwrap();
    let expected = first.init(1).unwrap().forward(q.clone(), k.clone(), v.clone(), &mut cache).unwrap();
    for (tail, got) in [(means, None), (Tail::Dropped, Some("0")), (Tail::BlockMeans { block: 9 }, Some("9"))] {
        let config = config(tail, mcsparse::Anchors::Loaded);
        let mut cache = MetaCache::new(&config, 2).unwrap();
        cache.load(&path, &device()).unwrap();
        for step in 0..2 {
            cache.begin_step(step).unwrap();
            let result = config.init(1).unwrap().forward(q.clone(), k.clone(), v.clone(), &mut cache);
            match (step, got) {
                (0, _) => drop(result.unwrap()),
                (_, None) => assert!(result.unwrap().to_data() == expected.to_data()),
                (_, Some(got)) => {
                    let message = result.unwrap_err().to_string();
                    assert!(message.contains("tail block") && message.contains(got), "{message}");
                }
            }
        }
    }
}

/// The report names the route and the block.
#[test]
fn tail_is_in_the_report() {
    let config = McSparseConfig::density(0.25)
        .with_group_size(8)
        .with_schedule(Schedule::warm_up(1))
        .with_residual_gain(ResidualGain::decay(0.5))
        .with_tail(Tail::BlockMeans { block: 8 });
    let mut cache = MetaCache::new(&config, 3).unwrap();
    let [q, k, v] = [1, 2, 3].map(|seed| random([1, 2, 40, 16], seed, &device()));
    for step in 0..3 {
        cache.begin_step(step).unwrap();
        config.init(1).unwrap().forward(q.clone(), k.clone(), v.clone(), &mut cache).unwrap();
    }
    let text = cache.report().to_string();
    let problem = Problem::of(&q, &k, &v).unwrap();
    let route = ops::route(Stage::Tail, &problem, Kernels::Auto);
    for line in [
        format!("tail by block means: 3 runs by {route}"),
        "keys that are not kept stand in as means of 8 keys".into(),
        "residuals times 0.25 to 0.5".into(),
    ] {
        assert!(text.contains(&line), "{line:?} is not in {text}");
    }
    assert_eq!(cache.report().residual_gains(), Some((0.25, 0.5)));
    // 2 heads of 5 blocks: means of keys and values of 16 f32, and counts of 5 groups.
    assert_eq!(cache.report().workspace_bytes(Stage::Tail), Some(2 * 5 * (2 * 16 * 4 + 5 * 4)));
}

/// Memory for a head at a time changes nothing: tails, stored forms, drift, sinks and shared key/value heads together.
#[test]
fn tail_of_some_heads_at_a_time() {
    let shape = Shape { batch: 2, kv_heads: 3, shared: 2, tokens: 90, head_dim: 16, group_size: 16, seed: 11 };
    let run = |workspace_bytes: usize| {
        let config = McSparseConfig::density(0.3)
            .with_group_size(shape.group_size)
            .with_schedule(Schedule::warm_up(1).with_drift_bound(1e9))
            .with_sink(SinkTokens { prefix: 2, suffix: 3, within_budget: false })
            .with_residual_format(ResidualFormat::Fp8)
            .with_tail(Tail::BlockMeans { block: 8 })
            .with_workspace_bytes(workspace_bytes);
        let attention = config.init(1).unwrap();
        let mut cache = MetaCache::new(&config, 3).unwrap();
        let mut outputs = Vec::new();
        for step in 0..3 {
            cache.begin_step(step).unwrap();
            let [q, k, v] = Shape { seed: shape.seed + step as u64, ..shape.clone() }.qkv(&device());
            outputs.push(attention.forward(q, k, v, &mut cache).unwrap());
        }
        let runs: usize = cache.report().stages().filter(|(s, ..)| *s == Stage::Tail).map(|(.., r)| r.runs).sum();
        (outputs, runs)
    };
    let (whole, once) = run(1 << 28);
    let (parts, often) = run(1);
    assert_eq!((once, often), (3, 9), "an anchor and two reuse steps, three key/value heads");
    for (step, (whole, part)) in whole.into_iter().zip(parts).enumerate() {
        let error = relative_error(&part, &whole);
        assert!(error < reference_tolerance(), "step {step}: {error:e}");
    }
}
