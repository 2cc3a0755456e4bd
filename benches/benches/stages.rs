//! Times of the stages against Burn's own attention, at one shape: `cargo bench -p mcsparse-benches`.
//!
//! Attention and selection are first checked against the tensor-operation reference; grouping has its tests.

use burn::tensor::{Device, Int, Tensor, module::attention};
use divan::Bencher;
use mcsparse::{
    check::Problem,
    ops::{self, Epilogue, Kernels, Route, SparseOptions, Stage},
    reference::{self, GroupOptions, SelectOptions},
};

const TOKENS: usize = 4096;
const HEADS: usize = 2;
const HEAD_DIM: usize = 128;
const GROUP: usize = 128;
const DENSITY: f64 = 0.15;
const WORKSPACE: usize = 512 << 20;

fn main() {
    check(1024);
    println!("{TOKENS} tokens, {HEADS} heads, head_dim {HEAD_DIM}, density {DENSITY}, groups of {GROUP}");
    divan::main();
}

struct Setup {
    qkv: [Tensor<4>; 3],
    lse: Tensor<3>,
    order: Tensor<3, Int>,
    indices: Tensor<4, Int>,
    device: Device,
}

fn scale() -> f64 {
    (HEAD_DIM as f64).powf(-0.5)
}

fn group_options() -> GroupOptions {
    GroupOptions { group_size: GROUP, power_iterations: 4, seed: 0, workspace_bytes: WORKSPACE }
}

fn select_options(tokens: usize) -> SelectOptions {
    let keys = (tokens as f64 * DENSITY).round() as usize;
    SelectOptions {
        group_size: GROUP,
        keys,
        sink_prefix: 0,
        sink_suffix: 0,
        scale: scale(),
        workspace_bytes: WORKSPACE,
    }
}

fn sparse_options() -> SparseOptions {
    SparseOptions { group_size: GROUP, scale: scale(), workspace_bytes: WORKSPACE }
}

impl Setup {
    fn new(tokens: usize) -> Self {
        let device = Device::default();
        let qkv = [0; 3].map(|_| {
            let shape = [1, tokens, HEADS, HEAD_DIM];
            Tensor::random(shape, burn::tensor::Distribution::Normal(0.0, 1.0), &device).swap_dims(1, 2)
        });
        let [q, k, v] = qkv.clone();
        let route = |stage| ops::route(stage, &Problem::of(&q, &k, &v).expect("fits"), Kernels::Auto);
        let lse = ops::dense_attention(&route(Stage::Dense), q.clone(), k.clone(), v.clone(), scale(), WORKSPACE).1;
        let order = ops::group_queries(&route(Stage::Group), q.clone(), group_options());
        let select = route(Stage::Select);
        let indices =
            ops::select_keys(&select, q.clone(), k.clone(), lse.clone(), order.clone(), select_options(tokens));
        Self { qkv, lse, order, indices, device }
    }

    fn route(&self, stage: Stage) -> Route {
        let [q, k, v] = &self.qkv;
        ops::route(stage, &Problem::of(q, k, v).expect("fits"), Kernels::Auto)
    }
}

/// Refuses to time what is wrong.
fn check(tokens: usize) {
    let s = Setup::new(tokens);
    let [q, k, v] = s.qkv.clone();
    let near = |a: Tensor<4>, b: Tensor<4>, what: &str| {
        let error: f32 = ((a - b.clone()).square().sum() / b.square().sum()).sqrt().into_scalar();
        assert!(error < 1e-5, "{what} is off by {error:e}: not timed");
    };
    let dense = ops::dense_attention(&s.route(Stage::Dense), q.clone(), k.clone(), v.clone(), scale(), WORKSPACE).0;
    near(dense, reference::dense_attention(q.clone(), k.clone(), v.clone(), scale(), WORKSPACE).0, "dense attention");
    let (order, indices) = (s.order.clone(), s.indices.clone());
    let sparse = ops::sparse_attention(
        &s.route(Stage::Sparse),
        q.clone(),
        k.clone(),
        v.clone(),
        order.clone(),
        indices.clone(),
        Epilogue::Output,
        sparse_options(),
    );
    near(
        sparse.0,
        reference::sparse_attention(
            q.clone(),
            k.clone(),
            v,
            order.clone(),
            indices.clone(),
            Epilogue::Output,
            &sparse_options(),
        )
        .0,
        "sparse",
    );
    let chosen = reference::select_keys(q, k, s.lse.clone(), order, &select_options(tokens));
    let differ: i64 = chosen.not_equal(indices).int().sum().into_scalar();
    println!(
        "selection: {differ} of {} places differ from the reference (ties within rounding)",
        s.indices.shape().num_elements()
    );
}

fn synced<T>(bencher: Bencher, mut run: impl FnMut(&Setup) -> T) {
    let setup = Setup::new(TOKENS);
    setup.device.sync().expect("the device failed");
    bencher.bench_local(|| {
        let output = run(&setup);
        setup.device.sync().expect("the device failed");
        output
    });
}

#[divan::bench(sample_count = 7)]
fn burn_attention(bencher: Bencher) {
    synced(bencher, |s| {
        let [q, k, v] = s.qkv.clone();
        attention(q, k, v, None, None, Default::default())
    });
}

#[divan::bench(sample_count = 7)]
fn dense(bencher: Bencher) {
    synced(bencher, |s| {
        let [q, k, v] = s.qkv.clone();
        ops::dense_attention(&s.route(Stage::Dense), q, k, v, scale(), WORKSPACE)
    });
}

#[divan::bench(sample_count = 7)]
fn dense_reference(bencher: Bencher) {
    synced(bencher, |s| {
        let [q, k, v] = s.qkv.clone();
        reference::dense_attention(q, k, v, scale(), WORKSPACE)
    });
}

#[divan::bench(sample_count = 7)]
fn group(bencher: Bencher) {
    synced(bencher, |s| ops::group_queries(&s.route(Stage::Group), s.qkv[0].clone(), group_options()));
}

#[divan::bench(sample_count = 7)]
fn select(bencher: Bencher) {
    synced(bencher, |s| {
        let [q, k, _] = s.qkv.clone();
        ops::select_keys(&s.route(Stage::Select), q, k, s.lse.clone(), s.order.clone(), select_options(TOKENS))
    });
}

#[divan::bench(sample_count = 7)]
fn sparse(bencher: Bencher) {
    synced(bencher, |s| {
        let [q, k, v] = s.qkv.clone();
        let route = s.route(Stage::Sparse);
        ops::sparse_attention(&route, q, k, v, s.order.clone(), s.indices.clone(), Epilogue::Output, sparse_options())
    });
}
