//! Problems that fill a GPU, row samples of them against the oracle: long sequences, and tensors of more than 2^32 elements,
//! where a product of 32-bit numbers would wrap. `cargo test ... -- --ignored large` on a GPU of 80 GB.

use burn::tensor::{DType, Distribution, Int, Tensor};
use mcsparse::{
    check::Problem,
    ops::{self, Epilogue, Kernels, SparseOptions, Stage},
    reference::{GroupOptions, SelectOptions},
};
use mcsparse_tests::{
    device, half_dtypes,
    naive::{Naive, index_rows},
    values,
};

const GROUP: usize = 128;
const WORKSPACE: usize = 512 << 20;

/// Query, key and value, as views of `[1, tokens, heads, head_dim]` memory.
fn qkv(tokens: usize, heads: usize, head_dim: usize, dtype: DType) -> [Tensor<4>; 3] {
    [1, 2, 3].map(|seed| {
        device().seed(seed);
        let normal = Distribution::Normal(0.0, 1.0);
        Tensor::<4>::random([1, tokens, heads, head_dim], normal, &device()).cast(dtype).swap_dims(1, 2)
    })
}

/// One head of a tensor as a problem of its own.
fn head(tensor: &Tensor<4>, h: usize) -> Tensor<4> {
    tensor.clone().slice_dim(1, h..h + 1)
}

/// Every stage by the device's kernels; rows of the first and the last head against plain loops.
fn check(tokens: usize, heads: usize, head_dim: usize, kept: &[usize], dtype: DType, epsilon: f64) {
    let [q, k, v] = qkv(tokens, heads, head_dim, dtype);
    let problem = Problem::of(&q, &k, &v).expect("a valid problem");
    let (scale, what) =
        (2.0 * (head_dim as f64).powf(-0.5), format!("{tokens} tokens, {heads} x {head_dim}, {dtype:?}"));
    let route = |stage| ops::route(stage, &problem, Kernels::Auto);
    println!("{what}: {}, {}, {}", route(Stage::Dense), route(Stage::Select), route(Stage::Sparse));
    let (dense, lse) = ops::dense_attention(&route(Stage::Dense), q.clone(), k.clone(), v.clone(), scale, WORKSPACE);
    let options = GroupOptions { group_size: GROUP, power_iterations: 4, seed: 0, workspace_bytes: WORKSPACE };
    let order = ops::group_queries(&route(Stage::Group), q.clone(), options);
    let ends = if heads == 1 { vec![0] } else { vec![0, heads - 1] };
    let host: Vec<(usize, Naive, Vec<usize>)> = ends
        .into_iter()
        .map(|h| {
            let order: Tensor<3, Int> = order.clone().slice_dim(1, h..h + 1);
            let naive = Naive::new(&head(&q, h), &head(&k, h), &head(&v, h), scale);
            (h, naive, index_rows(&order).remove(0))
        })
        .collect();
    let all: Vec<usize> = (0..tokens).collect();
    // Places in the order: of the first group, one inside, and of the last group, which may be partial.
    let places = [0, tokens / 2, tokens - 1];
    let judge = |stage: &str, output: &Tensor<4>, h: usize, token: usize, exact: &[f64]| {
        let row = values(&head(output, h).slice_dim(2, token..token + 1));
        let error = row.iter().zip(exact).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        // Values are normal: weighted sums of them stay below 5.
        assert!(error <= 10.0 * epsilon, "{what}: {stage}, head {h}, token {token}: off by {error:e}");
    };
    for (h, naive, order) in &host {
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted == all, "{what}: head {h}: the order is no permutation");
        for place in places {
            let (exact, exact_lse) = naive.attend(0, order[place], &all);
            judge("dense", &dense, *h, order[place], &exact);
            let got = values(&lse.clone().slice_dim(1, *h..h + 1).slice_dim(2, order[place]..order[place] + 1))[0];
            assert!((got - exact_lse).abs() < 1e-3, "{what}: head {h}: log-sum-exp {got} for {exact_lse}");
        }
    }
    // Of the last group, the smallest: what each key weighs, and the same from the heaviest on.
    let last = (tokens - 1) / GROUP;
    let masses: Vec<(Vec<f64>, Vec<f64>)> = host
        .iter()
        .map(|(_, naive, order)| {
            let mass = naive.mass(0, &order[last * GROUP..]);
            let mut sorted = mass.clone();
            sorted.sort_by(|a, b| b.total_cmp(a));
            (mass, sorted)
        })
        .collect();
    for &keys in kept {
        let options = SelectOptions {
            group_size: GROUP,
            keys,
            sink_prefix: 0,
            sink_suffix: 0,
            scale,
            workspace_bytes: WORKSPACE,
        };
        let indices =
            ops::select_keys(&route(Stage::Select), q.clone(), k.clone(), lse.clone(), order.clone(), options);
        let options = SparseOptions { group_size: GROUP, scale, workspace_bytes: WORKSPACE };
        let (sparse, _) = ops::sparse_attention(
            &route(Stage::Sparse),
            q.clone(),
            k.clone(),
            v.clone(),
            order.clone(),
            indices.clone(),
            Epilogue::Output,
            options,
        );
        for ((h, naive, order), (mass, sorted)) in host.iter().zip(&masses) {
            for place in places {
                let g = place / GROUP;
                let chosen = indices.clone().slice_dim(1, *h..h + 1).slice_dim(2, g..g + 1);
                let chosen = index_rows(&chosen).remove(0);
                assert!(
                    chosen.len() == keys && chosen.is_sorted_by(|a, b| a < b) && chosen[keys - 1] < tokens,
                    "{what}: head {h}, group {g}: not {keys} ascending keys"
                );
                judge("sparse", &sparse, *h, order[place], &naive.attend(0, order[place], &chosen).0);
            }
            let chosen = index_rows(&indices.clone().slice_dim(1, *h..h + 1).slice_dim(2, last..last + 1)).remove(0);
            let kept: f64 = chosen.iter().map(|&j| mass[j]).sum();
            let best: f64 = sorted[..keys].iter().sum();
            assert!(kept >= (1.0 - 1e-4) * best, "{what}: head {h}: keeps {kept} of at most {best}");
        }
    }
}

/// Up to 200,000 tokens, from one kept key to all of them.
#[test]
#[ignore = "fills a large GPU"]
fn large_lengths() {
    for (dtype, epsilon) in half_dtypes(&device(), "large") {
        for tokens in [1, 127, 4_097, 65_537] {
            check(tokens, 2, 128, &[1, tokens.div_ceil(5), tokens], dtype, epsilon);
        }
        check(200_000, 1, 64, &[1, 20_000], dtype, epsilon);
        check(200_000, 1, 128, &[1, 20_000, 200_000], dtype, epsilon);
    }
}

/// Tensors of 4,303 million elements: offsets past 2^32 elements, and past 4 GiB.
#[test]
#[ignore = "fills a large GPU"]
fn large_offsets() {
    let (dtype, epsilon) = half_dtypes(&device(), "large").pop().expect("a large GPU has bf16");
    check(16_400, 2_050, 128, &[1_000], dtype, epsilon);
}
