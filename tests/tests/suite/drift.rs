//! Anchors that follow the drift of attention.

use burn::{module::Module, tensor::Tensor};
use mcsparse::{
    DriftRecord, McSparse, McSparseConfig, MetaCache, ResidualGain, Schedule, SelfAttention, StepKind, Tail,
};
use mcsparse_tests::{device, random, values};

/// What the values are multiplied by at each step: sparse outputs are then that many times those of the first.
const FACTORS: [f64; 7] = [1.0, 1.1, 1.2, 1.4, 1.4, 1.5, 1.5];

fn config() -> McSparseConfig {
    McSparseConfig::density(0.25).with_group_size(8).with_schedule(Schedule::warm_up(1).with_drift_bound(0.3))
}

/// More rows than are watched.
fn qkv(layer: usize, tokens: usize) -> [Tensor<4>; 3] {
    [1, 2, 3].map(|seed| random([2, 3, tokens, 16], seed + 10 * layer as u64, &device()))
}

fn run(config: &McSparseConfig, tokens: usize) -> McSparse {
    let mut run = McSparse::new(config, FACTORS.len()).unwrap();
    for (step, factor) in FACTORS.into_iter().enumerate() {
        run.begin_step(step).unwrap();
        for layer in 0..3 {
            let [q, k, v] = qkv(layer, tokens);
            run.attend(layer, q, k, v * factor).unwrap();
        }
    }
    run
}

fn assert_looks(looks: &[DriftRecord], expected: &[(usize, f64, bool)], what: &str) {
    assert_eq!(looks.len(), expected.len(), "{what}: {looks:?}");
    for (look, &(step, change, refreshed)) in looks.iter().zip(expected) {
        assert_eq!((look.step, look.refreshed), (step, refreshed), "{what}: {looks:?}");
        assert!((look.change - change).abs() < 2e-3, "{what}: {looks:?}");
    }
}

#[test]
fn drift_past_the_bound_refreshes_the_cache() {
    let looks = [(2, 0.1, false), (3, 0.2, false), (4, 0.4, true), (6, 1.5 / 1.4 - 1.0, false)];
    let gain = ResidualGain { factor: 0.5, decay: 0.9, table: None };
    for (what, config) in [
        ("published", config()),
        ("with a gain", config().with_residual_gain(gain)),
        ("with a tail", config().with_tail(Tail::BlockMeans { block: 8 })),
        ("with sinks", config().with_sink(mcsparse::SinkTokens { prefix: 3, suffix: 2, within_budget: false })),
    ] {
        for tokens in [40, 300] {
            let run = run(&config, tokens);
            let report = run.report();
            assert_looks(report.drift(), &looks, what);
            assert_eq!(report.anchors(), [0, 4], "{what}");
            let kinds = |layer: usize| -> Vec<StepKind> {
                report.calls().iter().filter(|call| call.slot.layer == layer).map(|call| call.kind).collect()
            };
            use StepKind::{Anchor, Dense, Reuse};
            assert_eq!(kinds(0), [Dense; 7], "{what}");
            assert_eq!(kinds(2), [Anchor, Reuse, Reuse, Reuse, Anchor, Reuse, Reuse], "{what}");
            let budget = config.budget_for(tokens).unwrap();
            let layer = (2.0 * budget.anchor_density() + 5.0 * budget.reuse_density()) / 7.0;
            assert!((report.effective_density() - (1.0 + 2.0 * layer) / 3.0).abs() < 1e-9, "{what}");
            assert!(report.to_string().contains("drift: 4 looks, at most 0.4"), "{report}");
            assert!(report.to_string().contains("anchors for it at steps [4]"), "{report}");
        }
    }
}

/// 256 rows at most for each head, beside the slots.
#[test]
fn drift_counts_its_memory() {
    for tokens in [40, 300] {
        let (watched, plain) = (run(&config(), tokens), run(&config().with_schedule(Schedule::warm_up(1)), tokens));
        let rows = tokens.div_ceil(tokens.div_ceil(256));
        let bytes = watched.cache().size_in_bytes() - plain.cache().size_in_bytes();
        assert_eq!(bytes, 2 * 2 * 3 * rows * 16 * 4);
        assert_eq!(watched.cache().device_bytes(), plain.cache().device_bytes());
        assert!(plain.report().drift().is_empty());
    }
}

/// A layer that does not run at such an anchor has an old slot.
#[test]
fn drift_anchors_must_not_be_missed() {
    let config = config();
    let mut run = McSparse::new(&config, FACTORS.len()).unwrap();
    let attend = |run: &mut McSparse, layer, step: usize| {
        let [q, k, v] = qkv(layer, 40);
        run.attend(layer, q, k, v * FACTORS[step])
    };
    for step in 0..5 {
        run.begin_step(step).unwrap();
        attend(&mut run, 1, step).unwrap();
        if step < 4 {
            attend(&mut run, 2, step).unwrap();
        }
    }
    run.begin_step(5).unwrap();
    attend(&mut run, 1, 5).unwrap();
    let message = attend(&mut run, 2, 5).unwrap_err().to_string();
    assert!(message.contains("the slot is from step 0, the refresh at step 4 was missed"), "{message}");
}

/// Another run of the same cache starts anew, and what is watched moves with the cache.
#[test]
fn drift_is_forgotten_and_moved_with_the_cache() {
    let config = config();
    let attention = config.init(1).unwrap();
    let [q, k, v] = qkv(1, 40);
    let mut cache = MetaCache::new(&config, FACTORS.len()).unwrap();
    let mut outputs = Vec::new();
    for round in 0..2 {
        for (step, factor) in FACTORS.into_iter().enumerate() {
            cache.begin_step(step).unwrap();
            let output = attention.forward(q.clone(), k.clone(), v.clone() * factor, &mut cache).unwrap();
            outputs.push(values(&output));
            if step == 2 {
                cache = cache.to_device(&device());
            }
        }
        assert_eq!(cache.report().anchors(), [0, 4], "round {round}");
        cache.clear();
    }
    let (first, second) = outputs.split_at(FACTORS.len());
    assert!(first == second, "two rounds differ");
}
