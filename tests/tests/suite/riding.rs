//! Anchors that select keys by the log-sum-exps of an earlier dense pass. Where a device has the kernel, column sums ride in the
//! anchor's own; elsewhere the second pass takes the same log-sum-exps.

use burn::{
    module::Module,
    tensor::{DType, Tensor},
};
use mcsparse::{
    Anchors, Branch, McSparseAttention, McSparseConfig, MetaCache, Schedule, Selection, SinkTokens, StepKind,
    check::Problem,
    ops::{self, Kernels, Route, Stage},
};
use mcsparse_tests::{
    Shape,
    case::{Case, reference_tolerance},
    device, half_dtypes,
    naive::index_rows,
    relative_error, values,
};

const SHAPE: Shape = Shape { batch: 2, kv_heads: 2, shared: 2, tokens: 200, head_dim: 64, group_size: 40, seed: 5 };
const SINK: SinkTokens = SinkTokens { prefix: 3, suffix: 2, within_budget: false };

fn config(anchors: Vec<usize>) -> McSparseConfig {
    McSparseConfig::density(0.2)
        .with_group_size(SHAPE.group_size)
        .with_schedule(Schedule::warm_up(2).with_anchors(Anchors::At(anchors)))
        .with_selection(Selection::Riding)
}

fn qkv(step: usize, dtype: DType) -> [Tensor<4>; 3] {
    Shape { seed: SHAPE.seed + step as u64, ..SHAPE }.qkv(&device()).map(|t| t.cast(dtype))
}

/// Steps `0..=last`; the output of the last one.
fn run(attention: &McSparseAttention, cache: &mut MetaCache, last: usize, dtype: DType) -> Tensor<4> {
    let mut output = None;
    for step in 0..=last {
        cache.begin_step(step).unwrap();
        let [q, k, v] = qkv(step, dtype);
        output = Some(attention.forward(q, k, v, cache).unwrap());
    }
    output.unwrap()
}

/// The case of the rows that are no sinks at `step`, and their log-sum-exps at `step` and at an earlier one.
fn grouped(step: usize, before: usize, sink: SinkTokens, dtype: DType) -> (Case, Tensor<3>) {
    let rows = |t: Tensor<4>| t.slice_dim(2, sink.prefix..SHAPE.tokens - sink.suffix);
    let lse = |step: usize| {
        let [q, k, v] = qkv(step, dtype);
        let route = ops::route(Stage::Dense, &Problem::of(&q, &k, &v).unwrap(), Kernels::Auto);
        let lse = ops::dense_attention(&route, q, k, v, 0.125, 1 << 20).1;
        lse.slice_dim(2, sink.prefix..SHAPE.tokens - sink.suffix)
    };
    let [q, k, v] = qkv(step, dtype);
    let keys = config(vec![1]).with_sink(sink).budget_for(SHAPE.tokens).unwrap().keys;
    let qkv = [rows(q), k, v];
    (
        Case { name: format!("step {step} by {before}"), qkv, scale: 0.125, group_size: SHAPE.group_size, keys },
        lse(before),
    )
}

fn dtypes() -> Vec<DType> {
    let halves = half_dtypes(&device(), "riding").into_iter().map(|(dtype, _)| dtype);
    std::iter::once(DType::F32).chain(halves).collect()
}

#[test]
fn riding_anchors_select_by_the_dense_pass_before() {
    for dtype in dtypes() {
        // By the dense step before, then by the anchor before. The second limit holds some heads at a time.
        for (last, before, workspace) in [(1, 0, 1 << 20), (1, 0, 60_000), (3, 1, 1 << 20), (3, 1, 60_000)] {
            let config = config(vec![1, 3]).with_workspace_bytes(workspace);
            let attention = config.init(1).unwrap();
            let mut cache = MetaCache::new(&config, 5).unwrap();
            let output = run(&attention, &mut cache, last, dtype).cast(DType::F32);
            let (case, lse) = grouped(last, before, SinkTokens::default(), dtype);
            let slot = &cache.slots()[0];
            assert_eq!(slot.step(), Some(last));
            let route = Route::kernel("riding");
            case.assert_selection_by(&route, &lse, slot.order(), &slot.indices());

            // The anchor's output is dense whatever it selects by, and so is sparse attention with its residual.
            let exact = config.clone().with_selection(Selection::Exact);
            let dense = run(&exact.init(1).unwrap(), &mut MetaCache::new(&exact, 5).unwrap(), last, dtype);
            let limit = if dtype == DType::F32 { reference_tolerance() } else { 2e-2 };
            assert!(relative_error(&output, &dense.cast(DType::F32)) < limit, "{dtype:?}, {last}");
            let [q, k, v] = qkv(last, dtype);
            cache.begin_step(last + 1).unwrap();
            let again = attention.forward(q, k, v, &mut cache).unwrap();
            assert_eq!(cache.report().calls().last().unwrap().kind, StepKind::Reuse);
            assert!(relative_error(&again.cast(DType::F32), &output) < limit, "{dtype:?}, {last}: reuse");
        }
    }
}

#[test]
fn riding_anchors_keep_sinks_dense() {
    for dtype in dtypes() {
        let config = config(vec![1]).with_sink(SINK);
        let attention = config.init(1).unwrap();
        let mut cache = MetaCache::new(&config, 3).unwrap();
        let output = run(&attention, &mut cache, 1, dtype);
        let exact = config.clone().with_selection(Selection::Exact);
        let dense = run(&exact.init(1).unwrap(), &mut MetaCache::new(&exact, 3).unwrap(), 1, dtype);
        let limit = if dtype == DType::F32 { reference_tolerance() } else { 2e-2 };
        assert!(relative_error(&output.cast(DType::F32), &dense.cast(DType::F32)) < limit, "{dtype:?}");
        let late = cache.report().separate_selections().any(|(reason, _)| reason.contains("dense pass"));
        assert!(!late, "{dtype:?}: {}", cache.report());
        // Sinks are kept, and of the others those with the most weight by the step before.
        let (case, lse) = grouped(1, 0, SINK, dtype);
        let (naive, lse, slot) = (case.naive(), values(&lse), &cache.slots()[0]);
        let (orders, kept) = (index_rows(slot.order()), index_rows(&slot.indices()));
        let groups = naive.queries.div_ceil(case.group_size);
        for (z, order) in orders.iter().enumerate() {
            for (g, group) in order.chunks(case.group_size).enumerate() {
                let list = &kept[z * groups + g];
                assert!([0, 1, 2, 198, 199].iter().all(|sink| list.contains(sink)), "{dtype:?}: {list:?}");
                let mass = naive.mass_by(z, group, |i| lse[z * naive.queries + i]);
                let chosen: f64 = list.iter().filter(|j| (3..198).contains(*j)).map(|&j| mass[j]).sum();
                let mut best = mass[3..198].to_vec();
                best.sort_by(|a, b| b.total_cmp(a));
                let best: f64 = best[..list.len() - SINK.len()].iter().sum();
                assert!(chosen >= best * (1.0 - 1e-4), "{dtype:?}: head {z}, group {g}: {chosen}, best is {best}");
            }
        }
    }
}

#[test]
fn riding_anchors_say_what_they_did() {
    let schedule = Schedule::warm_up(1).with_anchors(Anchors::At(vec![0, 2]));
    let config = config(vec![0]).with_schedule(schedule);
    let attention = config.init(1).unwrap();
    let mut cache = MetaCache::new(&config, 4).unwrap();
    let held = SHAPE.batch * SHAPE.kv_heads * SHAPE.shared * SHAPE.tokens * 4;
    let mut sizes = Vec::new();
    for step in 0..4 {
        cache.begin_step(step).unwrap();
        let [q, k, v] = qkv(step, DType::F32);
        attention.forward(q, k, v, &mut cache).unwrap();
        let slots: usize = cache.slots().iter().map(|slot| slot.size_in_bytes()).sum();
        sizes.push(cache.size_in_bytes() - slots);
    }
    // Anchor 0 leaves them to anchor 2. Afterwards nobody needs any.
    assert_eq!(sizes, [held, held, 0, 0]);
    let separate: Vec<(String, usize)> =
        cache.report().separate_selections().map(|(reason, times)| (reason.to_string(), times)).collect();
    assert!(separate.contains(&("no dense pass came before the anchor".into(), 1)), "{separate:?}");
    let problem = Case::new("", &SHAPE, 1, &device()).problem();
    let rides = matches!(ops::attend_and_select_route(&problem, SHAPE.group_size, Kernels::Auto), Route::Kernel { .. });
    let stages: Vec<Stage> = cache.report().stages().map(|(stage, ..)| stage).collect();
    assert_eq!(stages.contains(&Stage::DenseSelect), rides);
    assert_eq!(separate.len(), if rides { 1 } else { 2 }, "{separate:?}");
    assert!(cache.report().to_string().contains("selection in a pass of its own in 1 calls: no dense pass"));
    cache.clear();
    assert_eq!(cache.report().separate_selections().count(), 0);
}

#[test]
fn riding_anchors_ignore_passes_of_other_sizes() {
    let config = config(vec![1]);
    let attention = config.init(1).unwrap();
    let mut cache = MetaCache::new(&config, 3).unwrap();
    cache.begin_step(0).unwrap();
    let [q, k, v] = Shape { tokens: 190, ..SHAPE }.qkv(&device());
    attention.forward(q, k, v, &mut cache).unwrap();
    cache.begin_step(1).unwrap();
    let [q, k, v] = qkv(1, DType::F32);
    attention.forward(q, k, v, &mut cache).unwrap();
    assert_eq!(
        cache.report().separate_selections().next(),
        Some(("the dense pass before the anchor was of other sizes", 1))
    );
    let (case, lse) = grouped(1, 1, SinkTokens::default(), DType::F32);
    let slot = &cache.slots()[0];
    case.assert_selection_by(&Route::kernel("exact"), &lse, slot.order(), &slot.indices());
}

#[test]
fn riding_keeps_nothing_for_dense_layers() {
    let config = config(vec![1]);
    assert_eq!(config.dense_layers, [0]);
    let mut cache = MetaCache::new(&config, 3).unwrap();
    let held: Vec<usize> = (0..2)
        .map(|layer| {
            let before = cache.size_in_bytes();
            if layer == 0 {
                cache.begin_step(0).unwrap();
            }
            let [q, k, v] = qkv(0, DType::F32);
            config.init(layer).unwrap().forward(q, k, v, &mut cache).unwrap();
            cache.size_in_bytes() - before
        })
        .collect();
    let heads = SHAPE.kv_heads * SHAPE.shared;
    assert_eq!(held, [0, SHAPE.batch * config.log_sum_exp_bytes(SHAPE.tokens, heads)]);
    let exact = config.with_selection(Selection::Exact);
    assert_eq!(exact.log_sum_exp_bytes(SHAPE.tokens, heads), 0);
}

/// What no anchor takes is let go, and what waits moves and is forgotten with the cache.
#[test]
fn riding_lets_go_of_what_nobody_takes() {
    let held = SHAPE.batch * SHAPE.kv_heads * SHAPE.shared * SHAPE.tokens * 4;
    let waiting = |cache: &MetaCache| {
        cache.size_in_bytes() - cache.slots().iter().map(|slot| slot.size_in_bytes()).sum::<usize>()
    };
    let attend = |cache: &mut MetaCache, layer: usize, step: usize| {
        let [q, k, v] = qkv(step, DType::F32);
        config(vec![1, 3]).init(layer).unwrap().forward(q, k, v, cache).unwrap();
    };
    let mut cache = MetaCache::new(&config(vec![1, 3]), 6).unwrap();
    for step in 0..2 {
        cache.begin_step(step).unwrap();
        [1, 2].into_iter().for_each(|layer| attend(&mut cache, layer, step));
    }
    assert_eq!(waiting(&cache), 2 * held);
    cache = cache.to_device(&device());
    assert_eq!(waiting(&cache), 2 * held);
    for step in 2..4 {
        cache.begin_step(step).unwrap();
        // Layer 2 misses the anchor at step 3, as an expert does that has handed over.
        attend(&mut cache, 1, step);
    }
    assert_eq!(waiting(&cache), held);
    let late = cache.report().separate_selections().any(|(reason, _)| reason.contains("dense pass"));
    assert!(!late, "{}", cache.report());
    cache.begin_step(4).unwrap();
    assert_eq!(waiting(&cache), 0);
    cache.clear();
    cache.begin_step(0).unwrap();
    attend(&mut cache, 1, 0);
    assert_eq!(waiting(&cache), held);
    cache.clear();
    assert_eq!(cache.size_in_bytes(), 0);
}

/// Branches and anchors by drift have log-sum-exps of their own.
#[test]
fn riding_goes_with_branches_and_drift() {
    let schedule = Schedule::warm_up(2).with_drift_bound(1e-6);
    let config = config(vec![1]).with_schedule(schedule);
    let attention = config.init(1).unwrap();
    let mut cache = MetaCache::new(&config, 5).unwrap();
    let shift = [0, 100];
    let mut last = [0; 2];
    for step in 0..4 {
        cache.begin_step(step).unwrap();
        let anchor = cache.report().drift().last().is_some_and(|look| look.step == step && look.refreshed);
        for (b, branch) in [Branch::conditional(), Branch::unconditional()].into_iter().enumerate() {
            cache.begin_branch(&branch).unwrap();
            let [q, k, v] = qkv(step + shift[b], DType::F32);
            attention.forward(q, k, v, &mut cache).unwrap();
            if step == 1 || anchor {
                let slot = cache.slots().iter().find(|slot| slot.key().branch == branch).unwrap();
                assert_eq!(slot.step(), Some(step));
                let (case, lse) = grouped(step + shift[b], last[b] + shift[b], SinkTokens::default(), DType::F32);
                case.assert_selection_by(&Route::kernel("riding"), &lse, slot.order(), &slot.indices());
                last[b] = step;
            }
        }
    }
    assert_eq!(cache.report().anchors(), [1, 3], "{}", cache.report());
}
