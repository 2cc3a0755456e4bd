//! Selection of keys at its edges: chunks, ties, sinks, views, head and group sizes that no tile divides.

use burn::tensor::{DType, Int, Tensor};
use mcsparse::{
    McSparseConfig, MetaCache, Schedule, StepKind,
    check::Problem,
    ops::{self, Kernels, Route, Stage},
    reference::{self, SelectOptions},
};
use mcsparse_tests::{
    Shape,
    case::routes,
    device, half_dtypes,
    naive::{Naive, groups, index_rows},
    random,
};

/// Enough for everything at once.
const PLENTY: usize = 1 << 26;
const SCALE: f64 = 0.25;

/// Head dimensions and dtypes by which kernels differ.
fn kinds() -> Vec<(usize, DType)> {
    let half = half_dtypes(&device(), "selection").into_iter().map(|(dtype, _)| (64, dtype));
    [(24, DType::F32)].into_iter().chain(half).collect()
}

/// Query, key, log-sum-exp and order of a selection.
struct Inputs {
    q: Tensor<4>,
    k: Tensor<4>,
    lse: Tensor<3>,
    order: Tensor<3, Int>,
}

impl Inputs {
    fn new(q: Tensor<4>, k: Tensor<4>) -> Self {
        let lse = reference::dense_attention(q.clone(), k.clone(), k.clone(), SCALE, PLENTY).1;
        let [batch, heads, queries, _] = q.dims();
        // Any permutation is an order to this stage; each head has its own.
        let order =
            reference::partition_indices(random([batch * heads, queries], 99, &device()), queries / 2 + 1, true);
        Self { q, k, lse, order: order.reshape([batch, heads, queries]) }
    }

    fn of(shape: &Shape, dtype: DType) -> Self {
        let [q, k, _] = shape.qkv(&device()).map(|t| t.cast(dtype));
        Self::new(q, k)
    }

    fn route(&self, kernels: Kernels) -> Route {
        ops::route(Stage::Select, &Problem::of(&self.q, &self.k, &self.k).unwrap(), kernels)
    }

    fn select(&self, kernels: Kernels, options: SelectOptions) -> Vec<Vec<usize>> {
        let (q, k, lse, order) = (self.q.clone(), self.k.clone(), self.lse.clone(), self.order.clone());
        index_rows(&ops::select_keys(&self.route(kernels), q, k, lse, order, options))
    }

    /// Selects by the device's kernel and compares the mass that is kept with the most that can be.
    fn check(&self, options: SelectOptions) {
        let chosen = self.select(Kernels::Auto, options);
        let naive = Naive::new(&self.q, &self.k, &self.k, SCALE);
        let n = naive.keys;
        let case = format!("{:?}, {:?}, {options:?}", self.q.dims(), self.route(Kernels::Auto));
        let mut rows = chosen.iter();
        for (z, row) in index_rows(&self.order).iter().enumerate() {
            for group in groups(row, options.group_size) {
                let picked = rows.next().expect("a row for each group");
                assert_eq!(picked.len(), options.keys, "{case}");
                assert!(picked.windows(2).all(|w| w[0] < w[1]) && picked.iter().all(|&j| j < n), "{case}: {picked:?}");
                let sink = |j: usize| j < options.sink_prefix || j >= n - options.sink_suffix;
                assert!((0..n).filter(|&j| sink(j)).all(|j| picked.contains(&j)), "{case}: a sink is missing");
                let mass = naive.mass(z, &group);
                let mut free: Vec<f64> = (0..n).filter(|&j| !sink(j)).map(|j| mass[j]).collect();
                free.sort_by(|a, b| b.total_cmp(a));
                let best: f64 = free.iter().take(options.keys - options.sink_prefix - options.sink_suffix).sum();
                let kept: f64 = picked.iter().filter(|&&j| !sink(j)).map(|&j| mass[j]).sum();
                // Keys whose mass ties within rounding may be exchanged.
                assert!(kept >= best * (1.0 - 1e-5), "{case}, head {z}: kept {kept}, best {best}");
            }
        }
        assert_eq!(rows.next(), None, "{case}");
    }
}

fn shape(tokens: usize, head_dim: usize) -> Shape {
    Shape { batch: 1, kv_heads: 2, shared: 1, tokens, head_dim, group_size: 0, seed: 11 }
}

fn options(group_size: usize, keys: usize) -> SelectOptions {
    SelectOptions { group_size, keys, sink_prefix: 0, sink_suffix: 0, scale: SCALE, workspace_bytes: PLENTY }
}

#[test]
fn head_and_group_sizes() {
    let tokens = 131;
    let sizes = [1, 63, 64, 65, 127, 128, 129, 130, 131];
    for (head_dim, group_size) in [1, 16, 18, 72, 80, 96, 128, 160, 256].into_iter().zip(sizes) {
        Inputs::of(&shape(tokens, head_dim), DType::F32).check(options(group_size, 20));
    }
}

#[test]
fn one_key_and_every_key() {
    let tokens = 75;
    let inputs = Inputs::of(&shape(tokens, 24), DType::F32);
    inputs.check(options(16, 1));
    inputs.check(options(16, tokens - 1));
    for row in inputs.select(Kernels::Auto, options(16, tokens)) {
        assert!(row.into_iter().eq(0..tokens));
    }
}

#[test]
fn sinks_are_kept() {
    for (head_dim, dtype) in kinds() {
        let inputs = Inputs::of(&shape(77, head_dim), dtype);
        for (sink_prefix, sink_suffix, keys) in [(1, 0, 1), (0, 3, 5), (2, 2, 4), (5, 7, 30)] {
            inputs.check(SelectOptions { sink_prefix, sink_suffix, ..options(20, keys) });
        }
    }
}

/// Heads, groups and batch elements must not be mixed up wherever a chunk ends, shared key heads included.
#[test]
fn chunks_change_nothing() {
    for (head_dim, dtype) in kinds() {
        let shape = Shape { batch: 3, kv_heads: 2, shared: 2, ..shape(101, head_dim) };
        let inputs = Inputs::of(&shape, dtype);
        inputs.check(options(16, 13));
        let whole = inputs.select(Kernels::Auto, options(16, 13));
        for rows in [1, 2, 5, 7, 8, 40] {
            let workspace_bytes = rows * 101 * 4;
            let chunked = inputs.select(Kernels::Auto, SelectOptions { workspace_bytes, ..options(16, 13) });
            assert_eq!(chunked, whole, "{dtype:?}: chunks of {rows} rows");
        }
    }
}

#[test]
fn two_runs_agree_to_the_bit() {
    // Keys in pairs that differ in the last bit of one element: any other order of additions would show.
    let half = random([1, 2, 150, 32], 5, &device());
    let near = half.clone() * 1.000_000_1;
    let inputs = Inputs::new(random([1, 2, 300, 32], 6, &device()), Tensor::cat(vec![half, near], 2));
    let first = inputs.select(Kernels::Auto, options(128, 61));
    for _ in 0..3 {
        assert_eq!(inputs.select(Kernels::Auto, options(128, 61)), first);
    }
}

#[test]
fn equal_scores_go_to_the_lowest_keys() {
    let (tokens, keys) = (140, 33);
    let zeros = Inputs::new(Tensor::zeros([1, 2, tokens, 16], &device()), random([1, 2, tokens, 16], 7, &device()));
    let same = random([1, 2, 1, 16], 8, &device()).expand([1, 2, tokens, 16]);
    let same_keys = Inputs::new(random([1, 2, tokens, 16], 9, &device()), same);
    for inputs in [zeros, same_keys] {
        for row in inputs.select(Kernels::Auto, options(50, keys)) {
            assert!(row.iter().copied().eq(0..keys), "{row:?}");
        }
        for row in inputs.select(Kernels::Auto, SelectOptions { sink_suffix: 2, ..options(50, keys) }) {
            assert!(row.iter().copied().eq((0..keys - 2).chain(tokens - 2..tokens)), "{row:?}");
        }
    }
}

#[test]
fn one_huge_key_takes_it_all() {
    let (tokens, huge) = (90, 37);
    let q = random([1, 2, tokens, 16], 1, &device()).abs();
    let k = random([1, 2, tokens, 16], 2, &device()).slice_fill([0..1, 0..2, huge..huge + 1, 0..16], 50.0);
    for row in Inputs::new(q, k).select(Kernels::Auto, options(32, 1)) {
        assert_eq!(row, [huge]);
    }
}

#[test]
fn half_precision() {
    for dtype in [DType::F16, DType::BF16] {
        if device().supports_dtype(dtype) {
            Inputs::of(&shape(83, 40), dtype).check(options(32, 17));
        }
    }
}

/// Inputs as slices and transpositions; nothing of a row is aligned to anything.
#[test]
fn strided_inputs() {
    let (b, h, n, d) = (2, 2, 70, 18);
    let packed = Inputs::of(&Shape { batch: b, ..shape(n, d) }, DType::F32);
    let (q, k) = (packed.q.clone(), packed.k.clone());
    let wide = |t: Tensor<4>| {
        let edge = random([b, n, h, 3], 4, &device());
        Tensor::cat(vec![edge.clone(), t.swap_dims(1, 2), edge], 3).slice_dim(3, 3..3 + d).swap_dims(1, 2)
    };
    let strided = Inputs {
        q: wide(q),
        k: wide(k),
        lse: Tensor::cat(vec![packed.lse.clone(); 2], 2).slice_dim(2, n..2 * n),
        order: packed.order.clone().swap_dims(0, 2).add_scalar(0).swap_dims(0, 2),
    };
    assert_eq!(strided.select(Kernels::Auto, options(16, 9)), packed.select(Kernels::Auto, options(16, 9)));
}

/// 54,600 cubes: WebGPU takes 65,535 along one axis, the kernels use half of that and go on along the next.
#[test]
fn launches_go_on_along_the_second_axis() {
    Inputs::of(&shape(1300, 4), DType::F32).check(options(1, 5));
}

/// What the report says of memory: known on CubeCL and within the limit, not claimed for CPU kernels.
#[test]
fn workspace_is_reported() {
    let limit = 3000;
    let config =
        McSparseConfig::keys(9).with_group_size(8).with_schedule(Schedule::warm_up(0)).with_workspace_bytes(limit);
    let attention = config.init(1).unwrap();
    let mut cache = MetaCache::new(&config, 2).unwrap();
    cache.begin_step(0).unwrap();
    let [q, k, v] = shape(70, 16).qkv(&device());
    attention.forward(q, k, v, &mut cache).unwrap();
    assert_eq!(cache.report().count(StepKind::Anchor), 1);
    let workspace = [Stage::Select, Stage::Sparse].map(|stage| cache.report().workspace_bytes(stage));
    // Ten of the 18 rows of 70 sums fit.
    let expected = if mcsparse_tests::is_flex() { [None, None] } else { [Some(10 * 70 * 4), Some(0)] };
    assert_eq!(workspace, expected, "{}", cache.report());
}

/// Rows of more than one tile, and of more values than a unit counts at once.
#[test]
fn partitions_of_long_rows() {
    for (rows, n) in [(3, 4096), (2, 4097), (2, 70_001)] {
        let values = random([rows, n], 3, &device()).mul_scalar(40.0).int().float();
        let q = random([1, 1, 1, 16], 1, &device());
        let host = mcsparse_tests::values(&values);
        // Mesa's software Vulkan ends the loops of a shader after 65,535 rounds in all, and Burn's `scatter` goes through a row in one.
        let cut_off = n > 65_535 && std::env::var("BURN_DEVICE").is_ok_and(|name| name == "wgpu");
        let mut routes = routes(Stage::Select, &Problem::of(&q, &q, &q).unwrap());
        routes.retain(|route| !cut_off || matches!(route, Route::Kernel { .. }));
        for (route, k) in routes.iter().flat_map(|route| [1, n / 5, n - 1].map(|k| (route, k))) {
            let found = index_rows(&ops::partition_indices(route, values.clone(), k, true));
            for (found, row) in found.iter().zip(host.chunks(n)) {
                let mut expected: Vec<usize> = (0..n).collect();
                expected.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
                expected[..k].sort_unstable();
                expected[k..].sort_unstable();
                assert!(*found == expected, "{route}: {rows} x {n}, {k} largest");
            }
        }
    }
}
