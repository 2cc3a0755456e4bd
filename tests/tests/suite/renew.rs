//! Anchors that renew the residual alone, and residuals that are extrapolated along a line.

use burn::tensor::{Tensor, Tolerance};
use mcsparse::{
    Anchors, Branch, HeadParallel, IndexFormat, McSparse, McSparseConfig, MetaCache, Placement, Refresh,
    ResidualFormat, ResidualGain, Schedule, Selection, SelfAttention, SinkTokens, Slot, StepKind, Tail, ops::Stage,
};
use mcsparse_tests::{
    Shape,
    case::reference_tolerance,
    device, half_dtypes,
    naive::{Naive, index_rows},
    relative_error, relative_error_of, values,
};

const SHAPE: Shape = Shape { batch: 2, kv_heads: 2, shared: 2, tokens: 60, head_dim: 16, group_size: 16, seed: 3 };
const STEPS: usize = 8;
const SCALE: f64 = 0.25;

/// `dAraRrrr`: anchors at 1, 3, and 5.
fn config() -> McSparseConfig {
    let schedule = Schedule::warm_up(2).with_anchors(Anchors::At(vec![1, 3, 5])).with_refresh(Refresh::Residual);
    McSparseConfig::density(0.3).with_group_size(SHAPE.group_size).with_schedule(schedule).with_dense_layers(vec![])
}

/// Inputs that move along a line, so that residuals do not stay as they are.
fn qkv(step: usize) -> [Tensor<4>; 3] {
    let (start, way) = (SHAPE.qkv(&device()), Shape { seed: 77, ..SHAPE }.qkv(&device()));
    let mut way = way.into_iter();
    start.map(|t| t + way.next().expect("three").mul_scalar(0.3 * step as f64))
}

fn run(config: &McSparseConfig, cache: &mut MetaCache, steps: std::ops::Range<usize>) -> Vec<Tensor<4>> {
    let attention = config.init(1).unwrap();
    let step = |step: usize| {
        cache.begin_step(step).unwrap();
        let [q, k, v] = qkv(step);
        attention.forward(q, k, v, cache).unwrap()
    };
    steps.map(step).collect()
}

fn fresh(config: &McSparseConfig) -> MetaCache {
    MetaCache::new(config, STEPS).unwrap()
}

/// Dense attention of all rows, and sparse attention of those between the sinks over the slot's keys, in f64, `[b, h, n, d]`.
fn oracle(step: usize, slot: &Slot, sink: SinkTokens) -> [Vec<f64>; 2] {
    let [q, k, v] = qkv(step);
    let naive = Naive::new(&q, &k, &v, SCALE);
    let (orders, kept) = (index_rows(slot.order()), index_rows(&slot.indices()));
    let rows = SHAPE.tokens - sink.len();
    let (size, groups) = (slot.group_size(), rows.div_ceil(slot.group_size()));
    let sparse = naive.rows(|z, i| {
        if i < sink.prefix || i >= SHAPE.tokens - sink.suffix {
            return (0..SHAPE.tokens).collect();
        }
        let place = orders[z].iter().position(|&x| x == i - sink.prefix).unwrap();
        kept[z * groups + place / size].clone()
    });
    [naive.dense().0, sparse.0]
}

/// The residual of `slot` with zeros for sinks, flat.
fn residual(slot: &Slot, sink: SinkTokens) -> Vec<f64> {
    let grouped = slot.residual();
    let [b, h, _, d] = grouped.dims();
    let zeros = |n: usize| Tensor::<4>::zeros([b, h, n, d], &grouped.device());
    let mut parts = vec![grouped.clone()];
    if sink.prefix > 0 {
        parts.insert(0, zeros(sink.prefix));
    }
    if sink.suffix > 0 {
        parts.push(zeros(sink.suffix));
    }
    values(&Tensor::cat(parts, 2))
}

#[test]
fn renewed_residuals_are_those_of_the_first_keys() {
    for (sink, workspace, format) in [
        (SinkTokens::default(), 1 << 24, ResidualFormat::Input),
        (SinkTokens { prefix: 2, suffix: 3, within_budget: false }, 1 << 24, ResidualFormat::Input),
        // Some heads at a time.
        (SinkTokens::default(), 5_000, ResidualFormat::Fp8),
        (SinkTokens { prefix: 0, suffix: 1, within_budget: false }, 5_000, ResidualFormat::Int8),
    ] {
        let config = config().with_sink(sink).with_workspace_bytes(workspace).with_residual_format(format);
        let config = config.with_index_format(Some(IndexFormat::Bitmap));
        // Codes of 8 bits, of residuals that are smaller than the outputs.
        let limit = if format == ResidualFormat::Input { reference_tolerance() } else { 3e-2 };
        let mut cache = fresh(&config);
        run(&config, &mut cache, 0..2);
        let first = cache.slots()[0].clone();
        let mut last = first.clone();
        for step in 2..STEPS {
            let output = run(&config, &mut cache, step..step + 1).remove(0);
            let slot = cache.slots()[0].clone();
            assert_eq!(index_rows(slot.order()), index_rows(first.order()), "step {step}: groups");
            assert_eq!(index_rows(&slot.indices()), index_rows(&first.indices()), "step {step}: keys");
            assert_eq!(slot.bytes(), first.bytes(), "step {step}");
            let [dense, sparse] = oracle(step, &slot, sink);
            let got = values(&output);
            if [3, 5].contains(&step) {
                assert_eq!(slot.step(), Some(step));
                assert!(relative_error_of(&got, &dense) < reference_tolerance(), "step {step}: an anchor is dense");
                let exact: Vec<f64> = dense.iter().zip(&sparse).map(|(d, s)| d - s).collect();
                assert!(relative_error_of(&residual(&slot, sink), &exact) < limit.max(1e-4), "step {step}: residual");
                last = slot;
            } else {
                let sum: Vec<f64> = sparse.iter().zip(residual(&last, sink)).map(|(s, r)| s + r).collect();
                assert!(relative_error_of(&got, &sum) < reference_tolerance(), "step {step}: reuse");
            }
        }
        let report = cache.report();
        let runs = |stage: Stage| report.stages().filter(|(s, ..)| *s == stage).map(|(.., r)| r.runs).sum::<usize>();
        // As many as there are parts at one anchor.
        assert!(runs(Stage::Group) == runs(Stage::Select) && runs(Stage::Sparse) == 7 * runs(Stage::Select));
        let budget = config.budget_for(SHAPE.tokens).unwrap();
        let reuse = 4.0 * budget.reuse_density();
        let work = 1.0 + budget.anchor_density() + 2.0 * budget.anchor_density_without_scores() + reuse;
        assert!((report.effective_density() - work / 8.0).abs() < 1e-12);
        assert!((cache.plan().effective_density(&budget) - work / 8.0).abs() < 1e-12);
        assert_eq!(report.count(StepKind::Anchor), 3);
    }
}

#[test]
fn residuals_are_extrapolated_along_a_line() {
    for (damping, workspace, format) in [
        (1.0, 1 << 24, ResidualFormat::Input),
        (0.5, 5_000, ResidualFormat::Input),
        (1.0, 5_000, ResidualFormat::Fp8),
        (0.5, 1 << 24, ResidualFormat::Int8),
    ] {
        let gain = ResidualGain::constant(0.75);
        let config = config().with_workspace_bytes(workspace).with_residual_format(format);
        let config = config.with_residual_forecast(Some(damping)).with_residual_gain(gain);
        let limit = if format == ResidualFormat::Input { reference_tolerance() } else { 3e-2 };
        let sink = SinkTokens::default();
        let mut cache = fresh(&config);
        run(&config, &mut cache, 0..2);
        // Exact residuals of the anchors and their steps.
        let mut line: Vec<(usize, Vec<f64>)> = vec![(1, residual(&cache.slots()[0], sink))];
        for step in 2..STEPS {
            let output = run(&config, &mut cache, step..step + 1).remove(0);
            let slot = cache.slots()[0].clone();
            let bytes = slot.bytes();
            assert_eq!(bytes.slope, if step < 3 { 0 } else { bytes.residual }, "step {step}");
            let [dense, sparse] = oracle(step, &slot, sink);
            if [3, 5].contains(&step) {
                line.push((step, dense.iter().zip(&sparse).map(|(d, s)| d - s).collect()));
                continue;
            }
            let (at, now) = &line[line.len() - 1];
            let (then, before) = if line.len() > 1 { &line[line.len() - 2] } else { &line[0] };
            let times = if then == at { 0.0 } else { damping * (step - at) as f64 / (at - then) as f64 };
            let expected: Vec<f64> =
                (0..now.len()).map(|i| sparse[i] + 0.75 * (now[i] + times * (now[i] - before[i]))).collect();
            let error = relative_error_of(&values(&output), &expected);
            assert!(error < limit, "{format:?}, step {step}: {error:e}");
            // It is not the residual as it was.
            if times > 0.0 {
                let stale: Vec<f64> = (0..now.len()).map(|i| sparse[i] + 0.75 * now[i]).collect();
                assert!(relative_error_of(&stale, &expected) > 1.5 * limit, "step {step}");
            }
        }
        assert_eq!(cache.report().extrapolated_residuals(), 3);
        assert!(cache.report().to_string().contains("residuals extrapolated in 3 calls"));
        let predicted = config.slot_bytes(SHAPE.tokens, 4, 16, qkv(0)[0].dtype()).unwrap();
        assert_eq!(2 * predicted.total(), cache.size_in_bytes());
    }
}

/// Slots in host memory take their slopes along; files do not.
#[test]
fn slopes_wait_in_host_memory() {
    for format in [ResidualFormat::Input, ResidualFormat::Fp8] {
        let config = config().with_residual_forecast(Some(1.0)).with_residual_format(format);
        let (mut here, mut there) = (fresh(&config), fresh(&config).with_placement(Placement::Host));
        for (a, b) in run(&config, &mut here, 0..STEPS).iter().zip(run(&config, &mut there, 0..STEPS)) {
            a.to_data().assert_approx_eq::<f32>(&b.to_data(), Tolerance::absolute(1e-6));
        }
        assert!(there.slots().is_empty());
        assert_eq!(there.size_in_bytes(), here.size_in_bytes());
        let path = std::env::temp_dir().join(format!("mcsparse-slopes-{}-{format:?}.safetensors", std::process::id()));
        for cache in [&here, &there] {
            cache.save(&path).unwrap();
            let loaded_config = config
                .clone()
                .with_residual_forecast(None)
                .with_schedule(Schedule::warm_up(1).with_anchors(Anchors::Loaded));
            let mut loaded = MetaCache::new(&loaded_config, 3).unwrap();
            loaded.load(&path, &device()).unwrap();
            let (slot, full) = (&loaded.slots()[0], &here.slots()[0]);
            assert_eq!((slot.bytes().slope, slot.bytes().residual), (0, full.bytes().residual));
            assert!(relative_error(&slot.residual(), &full.residual()) < 1e-6);
        }
        std::fs::remove_file(&path).unwrap();
    }
}

/// Anchors that follow a drift bound renew the residual alone too, and log-sum-exps wait for no selection that does not come.
#[test]
fn drift_and_riding_go_with_renewals() {
    let schedule = Schedule::warm_up(2).with_drift_bound(1e-6).with_refresh(Refresh::Residual);
    let config = config().with_schedule(schedule).with_selection(Selection::Riding);
    let mut cache = fresh(&config);
    run(&config, &mut cache, 0..2);
    let order = index_rows(cache.slots()[0].order());
    let held = cache.size_in_bytes();
    run(&config, &mut cache, 2..STEPS);
    assert!(cache.report().anchors().len() > 2, "{}", cache.report());
    assert_eq!(index_rows(cache.slots()[0].order()), order);
    assert_eq!(cache.size_in_bytes(), held, "nothing waits beside the slot and what is watched");
}

#[test]
fn heads_on_two_devices_renew_alike() {
    let config = config().with_residual_forecast(Some(1.0));
    let mut whole = McSparse::new(&config, STEPS).unwrap();
    let mut parts = HeadParallel::new(&config, STEPS, &[device(), device()]).unwrap();
    for step in 0..STEPS {
        let [q, k, v] = qkv(step);
        whole.begin_step(step).unwrap();
        parts.begin_step(step).unwrap();
        let expected = whole.attend(1, q.clone(), k.clone(), v.clone()).unwrap();
        assert!(relative_error(&parts.attend(1, q, k, v).unwrap(), &expected) < 1e-6, "step {step}");
    }
}

/// Forecasts beside sinks and a tail, whose residual is another one: at every reuse step the output less the sparse part (that of a run
/// without residual) is the line through the exact residuals.
#[test]
fn forecasts_go_with_sinks_and_tails() {
    let sink = SinkTokens { prefix: 2, suffix: 3, within_budget: false };
    for (tail, workspace) in [(Tail::Dropped, 5_000), (Tail::BlockMeans { block: 8 }, 1 << 24)] {
        let plain = config().with_sink(sink).with_tail(tail).with_workspace_bytes(workspace);
        let forecast = plain.clone().with_residual_forecast(Some(0.5));
        let bare = plain.with_residual_gain(ResidualGain::constant(0.0));
        let (mut cache, mut without) = (fresh(&forecast), fresh(&bare));
        let mut line: Vec<(usize, Vec<f64>)> = Vec::new();
        for step in 0..STEPS {
            let output = values(&run(&forecast, &mut cache, step..step + 1)[0]);
            let sparse = values(&run(&bare, &mut without, step..step + 1)[0]);
            if [1, 3, 5].contains(&step) {
                line.push((step, residual(&cache.slots()[0], sink)));
                continue;
            }
            let Some((at, now)) = line.last() else { continue };
            let (then, before) = &line[line.len().saturating_sub(2)];
            let times = if then == at { 0.0 } else { 0.5 * (step - at) as f64 / (at - then) as f64 };
            let expected: Vec<f64> =
                (0..now.len()).map(|i| sparse[i] + now[i] + times * (now[i] - before[i])).collect();
            let error = relative_error_of(&output, &expected);
            assert!(error < 1e-4, "{tail:?}, step {step}: {error:e}");
        }
    }
}

#[test]
fn half_precision_forecasts_follow_those_of_f32() {
    for (dtype, limit) in half_dtypes(&device(), "forecasts") {
        let config = config().with_residual_forecast(Some(1.0));
        // Keys of the rounded inputs, in both runs.
        let rounded = |step: usize| qkv(step).map(|t| t.cast(dtype));
        let (mut half, mut full) = (McSparse::new(&config, STEPS).unwrap(), McSparse::new(&config, STEPS).unwrap());
        for step in 0..STEPS {
            half.begin_step(step).unwrap();
            full.begin_step(step).unwrap();
            let [q, k, v] = rounded(step);
            let wide = [&q, &k, &v].map(|t| t.clone().cast(burn::tensor::DType::F32));
            let [wq, wk, wv] = wide;
            let (got, expected) = (half.attend(1, q, k, v).unwrap(), full.attend(1, wq, wk, wv).unwrap());
            assert_eq!(got.dtype(), dtype);
            let error = relative_error(&got, &expected);
            println!("{dtype:?} step {step}: {error:e}");
            assert!(error < 4.0 * limit, "{dtype:?}, step {step}: {error:e}");
        }
    }
}

#[test]
fn branches_have_lines_of_their_own() {
    let config = config().with_residual_forecast(Some(1.0));
    let (one, other) = (Branch::conditional(), Branch::unconditional());
    let mut both = McSparse::new(&config, STEPS).unwrap();
    let mut alone = [McSparse::new(&config, STEPS).unwrap(), McSparse::new(&config, STEPS).unwrap()];
    for step in 0..STEPS {
        both.begin_step(step).unwrap();
        for (i, branch) in [&one, &other].into_iter().enumerate() {
            let [q, k, v] = qkv(step + 3 * i);
            both.begin_branch(branch).unwrap();
            alone[i].begin_step(step).unwrap();
            let expected = alone[i].attend(1, q.clone(), k.clone(), v.clone()).unwrap();
            let got = both.attend(1, q, k, v).unwrap();
            got.to_data().assert_eq(&expected.to_data(), true);
        }
    }
}

/// With one anchor there is nothing to renew and no line: the options change no bit.
#[test]
fn one_anchor_is_the_published_method_bit_for_bit() {
    let published = config().with_schedule(Schedule::warm_up(2));
    let options = published.clone().with_schedule(Schedule::warm_up(2).with_refresh(Refresh::Residual));
    let options = options.with_residual_forecast(Some(1.0));
    let (mut a, mut b) = (fresh(&published), fresh(&options));
    for (a, b) in run(&published, &mut a, 0..STEPS).iter().zip(run(&options, &mut b, 0..STEPS)) {
        a.to_data().assert_eq(&b.to_data(), true);
    }
    assert_eq!(a.size_in_bytes(), b.size_in_bytes());
    assert_eq!(b.report().extrapolated_residuals(), 0);
}

/// A slot from a file is another run's: the first anchor finds groups and keys of its own, as it does without a file.
#[test]
fn the_first_anchor_renews_a_loaded_slot_whole() {
    // With a dense step before the anchor, whose log-sum-exps it selects by.
    let config = config().with_residual_forecast(Some(1.0)).with_selection(Selection::Riding);
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut other = fresh(&config);
    let attention = config.init(1).unwrap();
    for step in 0..2 {
        other.begin_step(step).unwrap();
        let [q, k, v] = Shape { seed: 1234, ..SHAPE }.qkv(&device());
        attention.forward(q, k, v, &mut other).unwrap();
    }
    other.save(file.path()).unwrap();
    let (mut plain, mut loaded) = (fresh(&config), fresh(&config));
    loaded.load(file.path(), &device()).unwrap();
    for (a, b) in run(&config, &mut plain, 0..STEPS).iter().zip(run(&config, &mut loaded, 0..STEPS)) {
        a.to_data().assert_eq(&b.to_data(), true);
    }
    assert!((plain.report().effective_density() - loaded.report().effective_density()).abs() < 1e-12);
}
