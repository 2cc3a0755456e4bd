//! The lab's methods compute on every device what their masks say, and its parts are the library's method there too.

use burn::tensor::Tensor;
use mcsparse::{McSparse, McSparseConfig, Schedule as Steps, SelfAttention};
use mcsparse_lab::attention::{
    Call, LabAttention, Layout, Recipe, Residual, Schedule, Select,
    rivals::{chipmunk, content_keys, lite, mc_sparse, pisa, reused_blocks, sol, svg2, token_keys, vanilla},
    select,
};
use mcsparse_tests::{
    Shape, case::reference_tolerance, device, naive::Naive, relative_error, relative_error_of, values,
};

const TOKENS: usize = 90; // no multiple of a group or block
const DIM: usize = 16;

fn qkv(seed: u64) -> [Tensor<4>; 3] {
    let shape = Shape { batch: 2, kv_heads: 2, shared: 1, tokens: TOKENS, head_dim: DIM, group_size: 16, seed };
    shape.qkv(&device()).map(|tensor| tensor.mul_scalar(1.5))
}

#[test]
fn lab_methods_are_masked_attention() {
    let layout = Layout::raster(TOKENS);
    let [q, k, v] = qkv(1);
    let naive = Naive::new(&q, &k, &v, (DIM as f64).powf(-0.5));
    let call = Call::new(q, k, v, &layout).unwrap();
    let (_, lse) = call.dense();
    let competing = Select::CompetingKeys { heads: true };
    for recipe in [
        vanilla(0.3, 16, 16),
        reused_blocks(0.3, 16, 8),
        token_keys(0.3, 16),
        token_keys(0.3, 1),
        content_keys(0.3, 16),
        lite(0.3, 16, 8),
        sol(0.4, 16),
        svg2(0.3, 16, 8),
        Recipe { select: competing, ..token_keys(0.3, 16) },
    ] {
        let pattern = select(&recipe, &call, Some(&lse));
        let exact = pattern.attend(&call);
        let masks: Vec<Vec<usize>> = values(&pattern.mask_of_queries())
            .chunks(TOKENS)
            .map(|row| (0..TOKENS).filter(|&j| row[j] > 0.5).collect())
            .collect();
        let equal = !matches!(recipe.select, Select::ThresholdBlocks { .. } | Select::CompetingKeys { .. });
        if equal {
            assert!(masks.iter().all(|keys| keys.len() == recipe.keys(TOKENS)), "{recipe:?}");
        }
        let output = values(&exact.output);
        let lse = values(&exact.lse);
        let (mut ours, mut expected) = (Vec::new(), Vec::new());
        for (row, keys) in masks.iter().enumerate().filter(|(_, keys)| !keys.is_empty()) {
            let (rows, sum) = naive.attend(row / TOKENS, row % TOKENS, keys);
            ours.extend_from_slice(&output[row * DIM..][..DIM]);
            ours.push(lse[row]);
            expected.extend(rows);
            expected.push(sum);
        }
        let error = relative_error_of(&ours, &expected);
        assert!(error < reference_tolerance(), "{recipe:?}: {error:e}");
    }
}

/// The last of three steps: dense, anchor, reuse.
fn reuse(attention: &mut dyn SelfAttention) -> Tensor<4> {
    let mut output = None;
    for step in 0..3 {
        attention.begin_step(step).unwrap();
        let [q, k, v] = qkv(2 + step as u64 / 2);
        output = Some(attention.attend(1, q, k, v).unwrap());
    }
    output.expect("three steps")
}

#[test]
fn lab_parts_together_are_the_library() {
    let steps = Steps::warm_up(2);
    let config = McSparseConfig::density(0.2).with_group_size(16).with_schedule(steps.clone());
    let theirs = reuse(&mut McSparse::new(&config, 3).unwrap());
    let run = |recipe| {
        let schedule = Schedule::new(steps.plan(3).unwrap(), vec![0]);
        reuse(&mut LabAttention::new(recipe, schedule, Layout::raster(TOKENS)).unwrap())
    };
    let error = relative_error(&run(mc_sparse(0.2, 16)), &theirs);
    assert!(error < reference_tolerance(), "{error:e}");
    // The others run here as well, and each differs.
    for recipe in [
        content_keys(0.2, 16),
        content_keys(0.2, 16).with_residual(Residual::Tail),
        content_keys(0.2, 16).with_residual(Residual::Renormalised),
        pisa(0.2, 8).plus_residual(),
        sol(0.2, 8),
        svg2(0.2, 16, 8).plus_residual(),
        chipmunk(0.2, 16, true),
    ] {
        let error = relative_error(&run(recipe.clone()), &theirs);
        assert!((1e-3..10.0).contains(&error), "{recipe:?}: {error:e}");
    }
}
