//! Anchors that select keys by the log-sum-exps of an earlier dense pass. Where a device has the kernel, column sums ride in the
//! anchor's own; elsewhere the second pass takes the same log-sum-exps.

use burn::tensor::{DType, Tensor};
use mcsparse::{
    Anchors, McSparseAttention, McSparseConfig, MetaCache, Schedule, Selection, SinkTokens, StepKind,
    check::Problem,
    ops::{self, Kernels, Route, Stage},
};
use mcsparse_tests::{
    Shape,
    case::{Case, reference_tolerance},
    device, half_dtypes, relative_error, values,
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
        let slot = &cache.slots()[0];
        let sinks: Vec<f64> = [0, 1, 2, 198, 199].map(f64::from).to_vec();
        let (all, kept) = (values(&slot.indices().float()), slot.indices().dims()[3]);
        for list in all.chunks(kept) {
            assert!(sinks.iter().all(|sink| list.contains(sink)), "{dtype:?}: {list:?}");
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
    assert!(cache.report().to_string().contains("selection in a pass of its own at 1 anchors: no dense pass"));
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
    assert_eq!(cache.report().separate_selections().next(), Some(("no dense pass came before the anchor", 1)));
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
    assert_eq!(held, [0, SHAPE.batch * SHAPE.kv_heads * SHAPE.shared * SHAPE.tokens * 4]);
}
