//! The promises of the whole method, over random shapes: density 1 is dense, anchors are exact, reuse on unchanged inputs
//! reproduces the dense output.

use burn::tensor::{DType, Tensor};
use mcsparse::{
    Error, McSparseConfig, MetaCache, ResidualGain, Schedule, SinkTokens, StepKind,
    check::Problem,
    ops::{self, Kernels, Stage},
    reference::dense_attention,
};
use mcsparse_tests::{
    Shape,
    case::reference_tolerance,
    cases, device, half_dtypes,
    naive::{Naive, index_rows},
    relative_error, relative_error_of, shapes, values,
};
use proptest::prelude::*;

fn config(shape: &Shape, density: f64) -> McSparseConfig {
    McSparseConfig::density(density).with_group_size(shape.group_size).with_schedule(Schedule::warm_up(2))
}

/// Runs the same inputs through every step of a 4-step run (dense, anchor, reuse, reuse).
fn run(config: &McSparseConfig, [q, k, v]: [Tensor<4>; 3]) -> Result<Vec<Tensor<4>>, Error> {
    let attention = config.init(1)?;
    let mut cache = MetaCache::new(config, 4)?;
    let outputs = (0..4)
        .map(|step| {
            cache.begin_step(step)?;
            attention.forward(q.clone(), k.clone(), v.clone(), &mut cache)
        })
        .collect();
    let kinds: Vec<_> = cache.report().calls().iter().map(|call| call.kind).collect();
    assert_eq!(kinds, [StepKind::Dense, StepKind::Anchor, StepKind::Reuse, StepKind::Reuse]);
    outputs
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn anchors_are_dense_and_reuse_reproduces_them(
        shape in shapes(), density in 0.01f64..1.0, sinks in (0usize..3, 0usize..3), within in any::<bool>(), seed in any::<u64>(),
    ) {
        let qkv = shape.qkv(&device());
        let [q, k, v] = qkv.clone();
        let dense = dense_attention(q, k, v, (shape.head_dim as f64).powf(-0.5), 1 << 24).0;
        let room = shape.tokens > 8 + sinks.0 + sinks.1;
        let sink = SinkTokens { prefix: sinks.0, suffix: sinks.1, within_budget: within && density > 0.7 };
        let sink = if room { sink } else { SinkTokens::default() };
        let outputs = run(&config(&shape, density).with_sink(sink).with_seed(seed), qkv).unwrap();
        prop_assert!(outputs[1].to_data() == outputs[0].to_data(), "the anchor is not exactly the dense output");
        for (step, output) in outputs.iter().enumerate() {
            let error = relative_error(output, &dense);
            prop_assert!(error < reference_tolerance(), "step {step}: {error:e}");
        }
    }

    #[test]
    fn reuse_is_sparse_attention_of_this_step_plus_the_residual(
        shape in shapes(), density in 0.05f64..0.9, decay in 0.3f64..1.0, entry in -2.0f64..2.0, plain in any::<bool>(),
    ) {
        let gain = if plain {
            ResidualGain::default()
        } else {
            ResidualGain { factor: 1.5, decay, table: Some(vec![vec![7.0; 3], vec![7.0, entry]]) }
        };
        let gains = [gain.at(1, 1), gain.at(1, 2)];
        let config = config(&shape, density).with_residual_gain(gain);
        let attention = config.init(1).unwrap();
        let mut cache = MetaCache::new(&config, 4).unwrap();
        for step in 0..4 {
            cache.begin_step(step).unwrap();
            let [q, k, v] = Shape { seed: shape.seed ^ step as u64, ..shape.clone() }.qkv(&device());
            let output = attention.forward(q.clone(), k.clone(), v.clone(), &mut cache).unwrap();
            if step < 2 {
                continue;
            }
            let slot = &cache.slots()[0];
            let (orders, kept) = (index_rows(slot.order()), index_rows(&slot.indices()));
            let size = slot.group_size();
            let groups = shape.tokens.div_ceil(size);
            let sparse = Naive::new(&q, &k, &v, (shape.head_dim as f64).powf(-0.5)).rows(|z, i| {
                let place = orders[z].iter().position(|&x| x == i).unwrap();
                kept[z * groups + place / size].clone()
            });
            let expected: Vec<f64> = sparse.0.iter().zip(values(&slot.residual())).map(|(s, r)| s + gains[step - 2] * r).collect();
            let error = relative_error_of(&values(&output), &expected);
            prop_assert!(error < reference_tolerance(), "{error:e}");
        }
    }

    #[test]
    fn density_one_is_dense_on_changed_inputs(shape in shapes()) {
        let config = config(&shape, 1.0);
        let attention = config.init(3).unwrap();
        let mut cache = MetaCache::new(&config, 4).unwrap();
        for step in 0..4 {
            cache.begin_step(step).unwrap();
            let [q, k, v] = Shape { seed: shape.seed ^ step as u64, ..shape.clone() }.qkv(&device());
            let dense = dense_attention(q.clone(), k.clone(), v.clone(), (shape.head_dim as f64).powf(-0.5), 1 << 24).0;
            let error = relative_error(&attention.forward(q, k, v, &mut cache).unwrap(), &dense);
            // The residual of an anchor at density 1 is rounding itself.
            prop_assert!(error < reference_tolerance(), "step {step}: {error:e}");
        }
    }

    #[test]
    fn half_precision_keeps_its_dtype_and_its_error(shape in shapes(), density in 0.1f64..1.0) {
        let device = device();
        for (dtype, epsilon) in half_dtypes(&device, "half_precision_keeps_its_dtype_and_its_error") {
            let qkv = shape.qkv(&device).map(|t| t.cast(dtype));
            let [q, k, v] = qkv.clone().map(|t| t.cast(DType::F32));
            let dense = dense_attention(q, k, v, (shape.head_dim as f64).powf(-0.5), 1 << 24).0;
            for output in run(&config(&shape, density), qkv).unwrap() {
                prop_assert_eq!(output.dtype(), dtype);
                let error = relative_error(&output.cast(DType::F32), &dense);
                // Up to four roundings to the dtype: sparse, its difference to dense, dense and the sum. Sparse rows can be
                // larger than the dense ones they are subtracted from, by about sqrt(tokens / kept).
                let limit = 4.0 * epsilon * (1.0 / density).sqrt().max(1.0) * 1.5;
                prop_assert!(error < limit, "{dtype:?}: {error:e} over {limit:e}");
            }
        }
    }

    #[test]
    fn batch_elements_do_not_meet(shape in shapes(), density in 0.05f64..0.9) {
        let qkv = shape.qkv(&device());
        let config = config(&shape, density);
        let whole = run(&config, qkv.clone()).unwrap();
        for b in 0..shape.batch {
            let alone = run(&config, qkv.clone().map(|t| t.slice_dim(0, b..b + 1))).unwrap();
            for (one, all) in alone.iter().zip(&whole) {
                let error = relative_error(one, &all.clone().slice_dim(0, b..b + 1));
                prop_assert!(error < reference_tolerance(), "batch {b}: {error:e}");
            }
        }
    }
}

/// Kernels compiled ahead: takes a shape or refuses it as a call does, whatever the schedule and the dense layers are, and
/// leaves nothing behind.
#[test]
fn warming_up_changes_nothing() {
    let shape = Shape { batch: 1, kv_heads: 2, shared: 1, tokens: 40, head_dim: 16, group_size: 16, seed: 3 };
    let [q, k, v] = shape.qkv(&device());
    let outputs = |warm: bool| {
        let config = config(&shape, 0.3);
        let attention = config.init(1).unwrap();
        let mut cache = MetaCache::new(&config, 4).unwrap();
        if warm {
            attention.warm_up(q.clone(), k.clone(), v.clone()).unwrap();
        }
        let outputs: Vec<_> = (0..4)
            .map(|step| {
                cache.begin_step(step).unwrap();
                attention.forward(q.clone(), k.clone(), v.clone(), &mut cache).unwrap().to_data()
            })
            .collect();
        (outputs, cache.report().to_string())
    };
    assert!(outputs(true) == outputs(false));
    let dense = config(&shape, 0.3).with_dense_layers(vec![1]).with_schedule(Schedule::warm_up(7));
    assert!(dense.init(1).unwrap().warm_up(q.clone(), k, v.clone()).is_ok());
    let refused = config(&shape, 0.3).init(1).unwrap().warm_up(q, v.clone().slice_dim(1, 0..1), v);
    assert!(refused.is_err(), "key and value differ");
}

/// Parts of the keys on several devices: their attention, put together, is that over all keys.
#[test]
fn parts_of_the_keys_merge() {
    let device = device();
    let shape = Shape { batch: 2, kv_heads: 2, shared: 2, tokens: 70, head_dim: 24, group_size: 16, seed: 8 };
    let [q, k, v] = shape.qkv(&device);
    let scale = 1.5;
    let whole = Naive::new(&q, &k, &v, scale).dense();
    let part = |from: usize, to: usize| {
        let (k, v) = (k.clone().slice_dim(2, from..to), v.clone().slice_dim(2, from..to));
        let route = ops::route(Stage::Dense, &Problem::of(&q, &k, &v).unwrap(), Kernels::Auto);
        ops::dense_attention(&route, q.clone(), k, v, scale, 1 << 24)
    };
    for cuts in [vec![0, 70], vec![0, 35, 70], vec![0, 1, 3, 69, 70]] {
        let parts: Vec<_> = cuts.windows(2).map(|cut| part(cut[0], cut[1])).collect();
        let (output, lse) = ops::merge_parts(&parts);
        let (o, l) = (relative_error_of(&values(&output), &whole.0), relative_error_of(&values(&lse), &whole.1));
        assert!(o < reference_tolerance() && l < reference_tolerance(), "{cuts:?}: {o:e}, {l:e}");
    }
    // One part far above the others takes everything, without overflow.
    let (output, lse) = part(0, 35);
    let far = (output.clone() * 0.0 + 7.0, lse.clone() + 1.0e4);
    let (merged, _) = ops::merge_parts(&[(output, lse), far]);
    assert!(values(&merged).iter().all(|x| (x - 7.0).abs() < 1e-6));
}

#[test]
#[should_panic(expected = "parts: expected outputs [1, 1, 2, 3]")]
fn parts_of_different_shapes_do_not_merge() {
    let zeros = |n| (Tensor::zeros([1, 1, n, 3], &device()), Tensor::zeros([1, 1, n], &device()));
    ops::merge_parts(&[zeros(2), zeros(4)]);
}
