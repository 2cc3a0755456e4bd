//! Two runs of a stage on the same inputs give the same bits, on every device: no sum depends on which thread comes first.

use mcsparse::ops::{Epilogue, Stage, partition_indices};
use mcsparse_tests::{
    Shape,
    case::{Case, reference_lists},
    device, half_dtypes, is_flex, random,
};

/// Large enough for many threads and cubes to run at once; less on software devices.
fn cases() -> Vec<Case> {
    let (device, tokens) = (device(), if is_flex() { 600 } else { 130 });
    let shape = Shape { batch: 2, kv_heads: 2, shared: 2, tokens, head_dim: 64, group_size: 32, seed: 51 };
    let case = Case::new("repeat", &shape, tokens / 6, &device);
    let half = half_dtypes(&device, "repeat").into_iter().map(|(dtype, _)| case.cast(dtype)).collect();
    [vec![case], half].concat()
}

#[test]
fn repeat_dense_attention() {
    for case in cases() {
        for route in case.routes(Stage::Dense) {
            let [a, b] = [0; 2].map(|_| case.dense(&route));
            assert!(a.0.to_data() == b.0.to_data(), "{}: {route}: output", case.name);
            assert!(a.1.to_data() == b.1.to_data(), "{}: {route}: log-sum-exp", case.name);
        }
    }
}

#[test]
fn repeat_grouping_and_selection() {
    for case in cases() {
        for route in case.routes(Stage::Group) {
            let [a, b] = [0; 2].map(|_| case.group(&route).to_data());
            assert!(a == b, "{}: {route}: order", case.name);
        }
        let order = reference_lists(&case).order;
        let lse = case.dense(&case.routes(Stage::Dense)[0]).1;
        for route in case.routes(Stage::Select) {
            let [a, b] = [0; 2].map(|_| case.select(&route, lse.clone(), order.clone()).to_data());
            assert!(a == b, "{}: {route}: indices", case.name);
        }
    }
}

#[test]
fn repeat_partition() {
    let (device, case) = (device(), &cases()[0]);
    let values = random([7, 5000], 61, &device).mul_scalar(3.0).round();
    for route in case.routes(Stage::Group) {
        let [a, b] = [0; 2].map(|_| partition_indices(&route, values.clone(), 900, true).to_data());
        assert!(a == b, "{route}");
    }
}

#[test]
fn repeat_sparse_attention() {
    for case in cases() {
        let lists = reference_lists(&case);
        let other = random(case.qkv[0].dims(), 52, &device()).cast(case.qkv[0].dtype());
        for route in case.routes(Stage::Sparse) {
            let epilogues =
                [Epilogue::Output, Epilogue::AddResidual(other.clone()), Epilogue::ResidualOf(other.clone())];
            for epilogue in epilogues {
                let [a, b] = [0; 2].map(|_| case.sparse(&route, &lists, epilogue.clone()));
                assert!(a.0.to_data() == b.0.to_data(), "{}: {route}: output", case.name);
                assert!(a.1.to_data() == b.1.to_data(), "{}: {route}: log-sum-exp", case.name);
            }
        }
    }
}
