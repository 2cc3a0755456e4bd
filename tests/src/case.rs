//! One attention problem and every stage of it: by a route, and by the f64 oracle that judges the route.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use mcsparse::{
    check::Problem,
    ops::{self, Epilogue, Kernels, Route, SparseOptions, Stage},
    reference::{self, GroupOptions, SelectOptions},
};

use crate::{
    Shape,
    naive::{Naive, groups, index_rows},
    random, relative_error_of, values,
};

/// f32 sums of up to 256 products and a few hundred weights: a few hundred roundings of 6e-8.
pub const F32: f64 = 2e-5;

/// What f32 results of `route` may be off by: Burn may run the products of tensor operations in TF32, with 11 bits.
pub fn tolerance(route: &Route) -> f64 {
    if matches!(route, Route::Reference { .. }) { reference_tolerance() } else { F32 }
}

/// What f32 results may be off by where they are compared with those of the reference on the device.
pub fn reference_tolerance() -> f64 {
    let tf32 = std::env::var("BURN_DEVICE").is_ok_and(|name| name == "cuda");
    if tf32 { 2e-3 } else { F32 }
}

/// What f32 results of whole models, that are to be right to `limit`, may be off by on this device: dozens of products after one
/// another may be in TF32.
pub fn model_tolerance(limit: f64) -> f64 {
    if reference_tolerance() > F32 { limit.max(5e-3) } else { limit }
}

/// Small on purpose, so that every stage has to work in chunks.
pub const WORKSPACE: usize = 40_000;

/// The reference, and the device's kernel if it has one.
pub fn routes(stage: Stage, problem: &Problem) -> Vec<Route> {
    let mut routes = vec![ops::route(stage, problem, Kernels::Reference)];
    let auto = ops::route(stage, problem, Kernels::Auto);
    if !matches!(auto, Route::Reference { .. }) {
        routes.push(auto);
    }
    routes
}

/// Tensors and settings of one problem.
#[derive(Debug, Clone)]
pub struct Case {
    /// What failures are reported under.
    pub name: String,
    /// Query, key and value.
    pub qkv: [Tensor<4>; 3],
    /// Factor on the scores.
    pub scale: f64,
    /// Queries in a group.
    pub group_size: usize,
    /// Keys that each group keeps.
    pub keys: usize,
}

impl Case {
    /// Random values of the given sizes; the scale keeps scores at a spread of about 2, so that no key takes everything.
    pub fn new(name: impl Into<String>, shape: &Shape, keys: usize, device: &Device) -> Self {
        let scale = 2.0 * (shape.head_dim as f64).powf(-0.5);
        Self { name: name.into(), qkv: shape.qkv(device), scale, group_size: shape.group_size, keys }
    }

    /// The same with the tensors rounded to `dtype`.
    pub fn cast(&self, dtype: DType) -> Self {
        Self { qkv: self.qkv.clone().map(|t| t.cast(dtype)), name: format!("{}, {dtype:?}", self.name), ..self.clone() }
    }

    /// The sizes.
    pub fn problem(&self) -> Problem {
        let [q, k, v] = &self.qkv;
        Problem::of(q, k, v).expect("a valid case")
    }

    /// All routes of a stage.
    pub fn routes(&self, stage: Stage) -> Vec<Route> {
        routes(stage, &self.problem())
    }

    /// The oracle on these tensors.
    pub fn naive(&self) -> Naive {
        let [q, k, v] = &self.qkv;
        Naive::new(q, k, v, self.scale)
    }

    /// Settings of grouping.
    pub fn group_options(&self) -> GroupOptions {
        GroupOptions { group_size: self.group_size, power_iterations: 4, seed: 0, workspace_bytes: WORKSPACE }
    }

    /// Settings of selection, without sinks.
    pub fn select_options(&self) -> SelectOptions {
        SelectOptions {
            group_size: self.group_size,
            keys: self.keys,
            sink_prefix: 0,
            sink_suffix: 0,
            scale: self.scale,
            workspace_bytes: WORKSPACE,
        }
    }

    /// Dense attention and its log-sum-exp.
    pub fn dense(&self, route: &Route) -> (Tensor<4>, Tensor<3>) {
        let [q, k, v] = self.qkv.clone();
        ops::dense_attention(route, q, k, v, self.scale, WORKSPACE)
    }

    /// The order of the queries.
    pub fn group(&self, route: &Route) -> Tensor<3, Int> {
        ops::group_queries(route, self.qkv[0].clone(), self.group_options())
    }

    /// The kept keys.
    pub fn select(&self, route: &Route, lse: Tensor<3>, order: Tensor<3, Int>) -> Tensor<4, Int> {
        let [q, k, _] = self.qkv.clone();
        ops::select_keys(route, q, k, lse, order, self.select_options())
    }

    /// Attention over the kept keys and its log-sum-exp.
    pub fn sparse(&self, route: &Route, lists: &Lists, epilogue: Epilogue) -> (Tensor<4>, Tensor<3>) {
        let [q, k, v] = self.qkv.clone();
        let options = SparseOptions { group_size: self.group_size, scale: self.scale, workspace_bytes: WORKSPACE };
        ops::sparse_attention(route, q, k, v, lists.order.clone(), lists.indices.clone(), epilogue, options)
    }

    /// Random groups and ascending random key lists, other ones for every batch element, head and group. `allowed` leaves
    /// keys out.
    pub fn random_lists(&self, seed: u64, allowed: std::ops::Range<usize>) -> Lists {
        let Problem { batch, heads, queries, device, .. } = self.problem();
        let (z, m) = (batch * heads, queries.div_ceil(self.group_size));
        let shuffled = |seed: u64, rows: usize, n: usize| -> Vec<Vec<usize>> {
            let noise = values(&random([rows, n], seed, &device));
            let row = |noise: &[f64]| {
                let mut places: Vec<usize> = (0..n).collect();
                places.sort_by(|&a, &b| noise[a].total_cmp(&noise[b]));
                places
            };
            noise.chunks(n).map(row).collect()
        };
        let orders = shuffled(seed, z, queries).into_iter().map(|order| {
            // Groups are sorted inside, as every grouping returns them.
            groups(&order, self.group_size).into_iter().flat_map(sorted).collect::<Vec<_>>()
        });
        let kept = shuffled(seed ^ 1, z * m, allowed.len())
            .into_iter()
            .map(|order| sorted(order[..self.keys].iter().map(|j| j + allowed.start).collect()));
        Lists {
            order: ints(orders.flatten(), [batch, heads, queries], &device),
            indices: ints(kept.flatten(), [batch, heads, m, self.keys], &device),
        }
    }

    /// What sparse attention over `lists` should give: output and log-sum-exp, flat.
    pub fn sparse_oracle(&self, lists: &Lists) -> (Vec<f64>, Vec<f64>) {
        let naive = self.naive();
        let (orders, kept) = (index_rows(&lists.order), index_rows(&lists.indices));
        let groups = naive.queries.div_ceil(self.group_size);
        let mut group_of = vec![vec![0; naive.queries]; orders.len()];
        for (z, order) in orders.iter().enumerate() {
            order.iter().enumerate().for_each(|(place, &i)| group_of[z][i] = place / self.group_size);
        }
        naive.rows(|z, i| kept[z * groups + group_of[z][i]].clone())
    }

    /// Fails unless `(output, lse)` are near `expected`.
    pub fn assert_near(
        &self,
        route: &Route,
        what: &str,
        got: &(Tensor<4>, Tensor<3>),
        expected: &(Vec<f64>, Vec<f64>),
    ) {
        assert_eq!(got.0.dims(), self.qkv[0].dims(), "{}: {what} by {route}", self.name);
        let (o, l) = (values(&got.0), values(&got.1));
        assert_eq!((o.len(), l.len()), (expected.0.len(), expected.1.len()), "{}: {what} by {route}", self.name);
        let (o, l) = (relative_error_of(&o, &expected.0), absolute_error(&l, &expected.1));
        assert!(o < tolerance(route), "{}: {what} by {route}: output is off by {o:e}", self.name);
        assert!(l < tolerance(route), "{}: {what} by {route}: log-sum-exp is off by {l:e}", self.name);
    }

    /// Fails unless `got` is finite and as near `exact` as weights that are rounded to the dtype and a result that is rounded once more let
    /// it be; `epsilon` is the rounding error, `other` a value that was added to, at most.
    pub fn assert_rounded(&self, route: &Route, what: &str, got: &[f64], exact: &[f64], epsilon: f64, other: f64) {
        let largest = values(&self.qkv[2].clone().cast(DType::F32)).iter().fold(other, |a, b| a.max(b.abs()));
        let error = got.iter().zip(exact).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(got.iter().all(|x| x.is_finite()), "{}: {what} by {route}: not finite", self.name);
        assert!(error <= 2.0 * epsilon * largest, "{}: {what} by {route}: off by {error:e}", self.name);
    }

    /// Fails unless `indices` are valid, ascending and keep as much attention weight as any `keys` keys can.
    pub fn assert_selection(&self, route: &Route, order: &Tensor<3, Int>, indices: &Tensor<4, Int>) {
        let naive = self.naive();
        self.assert_kept(route, order, indices, |z, group| naive.mass(z, group));
    }

    /// The same of the weight that these log-sum-exps leave the scores.
    pub fn assert_selection_by(
        &self,
        route: &Route,
        lse: &Tensor<3>,
        order: &Tensor<3, Int>,
        indices: &Tensor<4, Int>,
    ) {
        let (naive, lse) = (self.naive(), values(lse));
        self.assert_kept(route, order, indices, |z, group| naive.mass_by(z, group, |i| lse[z * naive.queries + i]));
    }

    fn assert_kept(
        &self,
        route: &Route,
        order: &Tensor<3, Int>,
        indices: &Tensor<4, Int>,
        mass: impl Fn(usize, &[usize]) -> Vec<f64>,
    ) {
        let (naive, name) = (self.naive(), &self.name);
        let m = naive.queries.div_ceil(self.group_size);
        assert_eq!(indices.dims(), [naive.batch, naive.heads, m, self.keys], "{name}: {route}");
        let chosen = index_rows(indices);
        for (z, order) in index_rows(order).iter().enumerate() {
            for (g, group) in groups(order, self.group_size).iter().enumerate() {
                let picked = &chosen[z * m + g];
                assert!(picked.windows(2).all(|w| w[0] < w[1]), "{name}: {route}: not ascending: {picked:?}");
                assert!(picked.iter().all(|&j| j < naive.keys), "{name}: {route}: out of range: {picked:?}");
                let mass = mass(z, group);
                let mut best = mass.clone();
                best.sort_by(|a, b| b.total_cmp(a));
                let (kept, best) =
                    (picked.iter().map(|&j| mass[j]).sum::<f64>(), best[..self.keys].iter().sum::<f64>());
                // Only keys whose mass ties within rounding may be exchanged.
                assert!(
                    kept >= best * (1.0 - tolerance(route)),
                    "{name}: {route}: head {z}, group {g} kept {kept}, best is {best}"
                );
            }
        }
    }
}

/// Groups and their keys.
#[derive(Debug, Clone)]
pub struct Lists {
    /// `[batch, heads, queries]`.
    pub order: Tensor<3, Int>,
    /// `[batch, heads, groups, kept]`.
    pub indices: Tensor<4, Int>,
}

/// Groups by the reference and the keys it selects for them.
pub fn reference_lists(case: &Case) -> Lists {
    let [q, k, v] = case.qkv.clone();
    let order = reference::group_queries(q.clone(), &case.group_options());
    let lse = reference::dense_attention(q.clone(), k.clone(), v, case.scale, WORKSPACE).1;
    let indices = reference::select_keys(q, k, lse, order.clone(), &case.select_options());
    Lists { order, indices }
}

/// The largest difference in absolute terms, or relative to numbers above one; infinite if anything is not finite.
pub fn absolute_error(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len(), "lengths differ");
    let error = |(a, b): (&f64, &f64)| (a - b).abs() / b.abs().max(1.0);
    // `f64::max` would drop NaN.
    a.iter().zip(b).map(error).fold(0.0, |worst, e| {
        if e <= worst {
            worst
        } else if e.is_finite() {
            e
        } else {
            f64::INFINITY
        }
    })
}

/// A 32-bit integer tensor.
pub fn ints<const D: usize>(values: impl Iterator<Item = usize>, shape: [usize; D], device: &Device) -> Tensor<D, Int> {
    let values: Vec<i32> = values.map(|i| i32::try_from(i).expect("fits 32 bits")).collect();
    Tensor::from_data(TensorData::new(values, shape), (device, DType::I32))
}

fn sorted(mut list: Vec<usize>) -> Vec<usize> {
    list.sort_unstable();
    list
}
