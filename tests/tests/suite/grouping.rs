//! Every split of the grouping kernel against principal directions in f64, and its groups against the reference's.

use burn::tensor::{DType, Tensor};
use mcsparse::{
    check::Problem,
    ops::{self, Kernels, Route, Stage},
    reference::{self, GroupOptions},
};
use mcsparse_tests::{device, naive::index_rows, random, values};
use rand::{RngExt, SeedableRng, rngs::StdRng};

const OPTIONS: GroupOptions = GroupOptions { group_size: 16, power_iterations: 4, seed: 0, workspace_bytes: 1 << 29 };

/// The order by the kernel of the device, or by the reference where it has none.
fn order(q: &Tensor<4>, options: GroupOptions) -> Vec<Vec<usize>> {
    let route = ops::route(Stage::Group, &Problem::of(q, q, q).unwrap(), Kernels::Auto);
    assert!(matches!(route, Route::Kernel { .. }), "no kernel: {route}");
    index_rows(&ops::group_queries(&route, q.clone(), options))
}

/// Random queries with a few strong directions, so that principal directions are well defined.
fn queries(shape: [usize; 4], seed: u64) -> Tensor<4> {
    let [batch, heads, _, dim] = shape;
    let noise = random(shape, seed, &device());
    let weights = random([batch, heads, 1, dim], seed + 1, &device());
    let along = random([batch, heads, shape[2], 1], seed + 2, &device());
    noise + along.mul_scalar(2.0) * weights
}

/// Queries of one head in f64.
struct Head {
    rows: Vec<f64>,
    dim: usize,
}

impl Head {
    fn all(q: &Tensor<4>) -> Vec<Self> {
        let [.., n, dim] = q.dims();
        values(q).chunks(n * dim).map(|rows| Self { rows: rows.to_vec(), dim }).collect()
    }

    fn centred(&self, members: &[usize]) -> Vec<f64> {
        let row = |i: usize| &self.rows[i * self.dim..][..self.dim];
        let mut mean = vec![0.0; self.dim];
        members.iter().for_each(|&i| mean.iter_mut().zip(row(i)).for_each(|(m, x)| *m += x / members.len() as f64));
        members.iter().flat_map(|&i| row(i).iter().zip(&mean).map(|(x, m)| x - m).collect::<Vec<_>>()).collect()
    }

    /// Projections of centred rows on their principal direction, by the power iteration of the definition.
    fn projections(&self, centred: &[f64], options: &GroupOptions) -> Vec<f64> {
        let dim = self.dim;
        let mut gram = vec![0.0; dim * dim];
        for row in centred.chunks(dim) {
            for (g, a) in gram.chunks_mut(dim).zip(row) {
                g.iter_mut().zip(row).for_each(|(g, b)| *g += a * b);
            }
        }
        let mut rng = StdRng::seed_from_u64(options.seed);
        let mut uniform = move || rng.random_range(f64::EPSILON..1.0);
        let mut direction: Vec<f64> =
            (0..dim).map(|_| (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()).collect();
        for _ in 0..options.power_iterations {
            direction = gram.chunks(dim).map(|g| g.iter().zip(&direction).map(|(a, b)| a * b).sum()).collect();
            let norm = direction.iter().map(|x: &f64| x * x).sum::<f64>().sqrt().max(1e-300);
            direction.iter_mut().for_each(|x| *x /= norm);
        }
        centred.chunks(dim).map(|row| row.iter().zip(&direction).map(|(a, b)| a * b).sum()).collect()
    }

    /// Follows the recursion through the groups of `order`; every split must separate the projections within `tolerance`
    /// of their range.
    fn check(&self, order: &[usize], options: &GroupOptions, tolerance: f64, name: &str) {
        let groups = order.len().div_ceil(options.group_size);
        let lower = groups / 2 * options.group_size;
        assert!(groups > 1 || order.is_sorted(), "{name}: a group is not in ascending order");
        if groups == 1 {
            return;
        }
        let projections = self.projections(&self.centred(order), options);
        let most = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
        let overlap = most(&projections[..lower]) - least(&projections[lower..]);
        let range = most(&projections) - least(&projections);
        assert!(
            overlap <= tolerance * range,
            "{name}: a split of {} queries overlaps by {overlap:e} of {range:e}",
            order.len()
        );
        self.check(&order[..lower], options, tolerance, name);
        self.check(&order[lower..], options, tolerance, name);
    }

    /// Sum of the squared distances to the means of the groups.
    fn scatter(&self, order: &[usize], group_size: usize) -> f64 {
        order.chunks(group_size).flat_map(|group| self.centred(group)).map(|x| x * x).sum()
    }
}

/// Permutation, splits, and likeness within groups no worse than the reference's.
fn check(q: &Tensor<4>, options: GroupOptions, tolerance: f64, name: &str) {
    let orders = order(q, options);
    let references = index_rows(&reference::group_queries(q.clone(), &options));
    let [batch, heads, n, _] = q.dims();
    assert_eq!(orders.len(), batch * heads, "{name}");
    for ((head, order), reference) in Head::all(q).iter().zip(&orders).zip(&references) {
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..n), "{name}: no permutation");
        head.check(order, &options, tolerance, name);
        let (ours, theirs) = (head.scatter(order, options.group_size), head.scatter(reference, options.group_size));
        assert!((ours - theirs).abs() <= 1e-3 * theirs, "{name}: scatter {ours}, by the reference {theirs}");
    }
}

#[test]
fn splits_follow_the_principal_direction_for_any_head_dim() {
    for dim in [1, 2, 16, 18, 72, 80, 96, 128, 132, 160, 256] {
        check(&queries([1, 2, 300, dim], dim as u64), OPTIONS, 1e-4, &format!("head_dim {dim}"));
    }
}

/// Long enough for nodes over many cubes and for nodes that exceed one cube's shared memory; not a multiple of the group
/// size; batch and heads of their own.
#[test]
fn several_levels_of_long_sequences() {
    check(&queries([1, 1, 2900, 64], 1), OPTIONS, 1e-4, "one head");
    check(&queries([3, 2, 1003, 32], 2), OPTIONS, 1e-4, "batch of three");
    check(&queries([1, 2, 1500, 40], 3), GroupOptions { group_size: 128, ..OPTIONS }, 1e-4, "large groups");
    check(&queries([1, 2, 33, 24], 4), GroupOptions { group_size: 1, ..OPTIONS }, 1e-4, "groups of one");
}

#[test]
fn a_mean_far_from_zero_does_no_harm() {
    let q = queries([1, 2, 700, 48], 5);
    let far = q.clone() + random([1, 2, 1, 48], 6, &device()).mul_scalar(1000.0);
    check(&far, OPTIONS, 1e-3, "mean far larger than the spread");
}

#[test]
fn half_precision_where_the_device_has_it() {
    for dtype in [DType::F16, DType::BF16] {
        if device().supports_dtype(dtype) {
            for dim in [64, 72, 128] {
                let q = queries([1, 2, 600, dim], 7).cast(dtype);
                check(&q, OPTIONS, 1e-3, &format!("{dtype:?}, head_dim {dim}"));
            }
        }
    }
}

/// Ties go by position, so any number of equal rows gives the order as it was.
#[test]
fn equal_queries_are_split_by_position() {
    let q = Tensor::<4>::ones([1, 2, 1100, 16], &device());
    for row in order(&q, OPTIONS) {
        assert!(row.into_iter().eq(0..1100));
    }
}

/// Chunks of heads and nodes change neither a bit of the arithmetic nor the result.
#[test]
fn a_small_workspace_gives_the_same_groups() {
    for (shape, name) in [([3, 2, 1003, 32], "one block"), ([2, 2, 700, 160], "several blocks")] {
        let q = queries(shape, 8);
        let ample = order(&q, OPTIONS);
        let problem = Problem::of(&q, &q, &q).unwrap();
        let route = ops::route(Stage::Group, &problem, Kernels::Auto);
        for workspace_bytes in [1, 500_000, 2_000_000] {
            let options = GroupOptions { workspace_bytes, ..OPTIONS };
            assert_eq!(order(&q, options), ample, "{name}, {workspace_bytes} bytes");
            if let Some(bytes) =
                ops::workspace(Stage::Group, &route, &problem, options.group_size, options.workspace_bytes)
            {
                assert!(workspace_bytes == 1 || bytes <= workspace_bytes, "{name}: {bytes} of {workspace_bytes} bytes");
            }
        }
    }
}
