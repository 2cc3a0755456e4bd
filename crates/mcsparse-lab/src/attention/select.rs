//! Choosing keys.

use burn::tensor::{DType, Int, Tensor};
use mcsparse::{
    check::Problem,
    ops::{self, Kernels, Stage},
    reference::{GroupOptions, SelectOptions},
};

use super::{
    WORKSPACE,
    blocks::Blocks,
    clusters,
    groups::Groups,
    layout::Layout,
    pattern::{Kept, Pattern},
    recipe::{Grouping, Recipe, Select},
    rows::{INDEX, join, marks},
};

/// One call of attention.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    /// `[batch, heads, tokens, head_dim]`.
    pub query: Tensor<4>,
    /// `[batch, heads, tokens, head_dim]`.
    pub key: Tensor<4>,
    /// `[batch, heads, tokens, head_dim]`.
    pub value: Tensor<4>,
    /// The sizes.
    pub problem: Problem,
    /// Where tokens lie.
    pub layout: &'a Layout,
}

impl<'a> Call<'a> {
    /// Checks the tensors; key and value heads that are shared are repeated.
    ///
    /// # Errors
    ///
    /// [`mcsparse::Error::InvalidTensor`] if they do not fit each other or the layout.
    pub fn new(
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
        layout: &'a Layout,
    ) -> Result<Self, mcsparse::Error> {
        let problem = Problem::of_self_attention(&query, &key, &value)?;
        if problem.queries != layout.tokens() {
            let (expected, got) =
                (format!("{} tokens, as the layout has", layout.tokens()), problem.queries.to_string());
            return Err(mcsparse::Error::InvalidTensor { argument: "query", expected, got });
        }
        let shared = problem.heads_per_kv();
        let repeated = |tensor: Tensor<4>| match (shared, tensor.dims()) {
            (1, _) => tensor,
            (_, [batch, heads, tokens, dim]) => tensor
                .reshape([batch, heads, 1, tokens, dim])
                .expand([batch, heads, shared, tokens, dim])
                .reshape([batch, heads * shared, tokens, dim]),
        };
        let (key, value) = (repeated(key), repeated(value));
        let problem = Problem { kv_heads: problem.heads, ..problem };
        Ok(Self { query, key, value, problem, layout })
    }

    /// Factor on the scores.
    pub fn scale(&self) -> f64 {
        (self.problem.head_dim as f64).powf(-0.5)
    }

    /// Dense output in the dtype of the query and log-sum-exp, by the library's kernel.
    pub fn dense(&self) -> (Tensor<4>, Tensor<3>) {
        let route = ops::route(Stage::Dense, &self.problem, Kernels::Auto);
        let (query, key, value) = (self.query.clone(), self.key.clone(), self.value.clone());
        ops::dense_attention(&route, query, key, value, self.scale(), WORKSPACE)
    }

    fn groups(&self, recipe: &Recipe) -> Groups {
        let Problem { batch, heads, queries, ref device, .. } = self.problem;
        let size = recipe.group_size.min(queries);
        let order = match recipe.grouping {
            Grouping::Position => self.layout.order_of_heads(batch, heads, device),
            Grouping::Content => {
                let route = ops::route(Stage::Group, &self.problem, Kernels::Auto);
                let options =
                    GroupOptions { group_size: size, power_iterations: 4, seed: 0, workspace_bytes: WORKSPACE };
                ops::group_queries(&route, self.query.clone(), options)
            }
        };
        Groups { order: order.reshape([batch * heads, queries]), size }
    }

    /// The `keys` keys of largest value in each row of `[z, groups, tokens]`, ties to the lowest index:
    /// `[batch, heads, groups, keys]`.
    pub(super) fn largest(&self, values: Tensor<3>, keys: usize) -> Tensor<4, Int> {
        let [z, groups, tokens] = values.dims();
        let route = ops::route(Stage::Select, &self.problem, Kernels::Auto);
        let chosen = ops::partition_indices(&route, values.reshape([z * groups, tokens]), keys, false);
        chosen.reshape([self.problem.batch, self.problem.heads, groups, keys])
    }

    /// `reduce` over the queries of each group of the logarithms of their attention weights, `[z, groups, size, keys]` to
    /// `[z, groups, 1, keys]`: together `[z, groups, keys]`.
    fn over_groups(&self, groups: &Groups, lse: &Tensor<3>, reduce: impl Fn(Tensor<4>) -> Tensor<4>) -> Tensor<3> {
        let Problem { batch, heads, queries, keys, .. } = self.problem;
        let z = batch * heads;
        let query = groups.split(join(self.query.clone()).mul_scalar(self.scale()));
        // A query that only fills up the last group has no weight.
        let lse = groups.split(lse.clone().reshape([z, queries, 1]));
        let missing = groups.count() * groups.size - queries;
        let lse = if missing == 0 {
            lse
        } else {
            let last = groups.count() - 1;
            let size = groups.size;
            let infinite = Tensor::full([z, 1, missing, 1], 1e30, (&lse.device(), DType::F32));
            let tail = lse.clone().slice_dim(1, last..last + 1).slice_dim(2, 0..size - missing);
            let tail = Tensor::cat(vec![tail, infinite], 2);
            if last == 0 { tail } else { Tensor::cat(vec![lse.slice_dim(1, 0..last), tail], 1) }
        };
        let keys_t = join(self.key.clone()).swap_dims(1, 2).unsqueeze_dim::<4>(1);
        let chunk = (WORKSPACE / (12 * z * groups.size * keys)).clamp(1, groups.count());
        let chunks = (0..groups.count()).step_by(chunk).map(|first| {
            let range = first..(first + chunk).min(groups.count());
            let [query, lse] = [&query, &lse].map(|t| t.clone().slice_dim(1, range.clone()));
            // One product for all groups of the chunk: keys are the same for all.
            let [_, count, size, dim] = query.dims();
            let scores =
                query.reshape([z, 1, count * size, dim]).matmul(keys_t.clone()).reshape([z, count, size, keys]);
            reduce(scores - lse).squeeze_dim::<3>(2)
        });
        Tensor::cat(chunks.collect(), 1)
    }
}

/// The keys that `recipe` chooses. `lse` is the log-sum-exp of the dense scores, of this step or, for
/// [`Select::StaleKeys`], of the dense step before; recipes that go by pooled scores do without.
///
/// # Panics
///
/// If the recipe needs it and there is none.
pub fn select(recipe: &Recipe, call: &Call<'_>, lse: Option<&Tensor<3>>) -> Pattern {
    let lse = || lse.expect("recipes that go by weights are only asked at dense steps");
    let (tokens, device) = (call.problem.queries, &call.problem.device);
    let keys = recipe.keys(tokens);
    if let Select::Clusters { queries, keys: of_keys, iterations } = recipe.select {
        return clusters::select(call, [queries, of_keys], iterations, keys);
    }
    let groups = call.groups(recipe);
    let blocks = |size: usize| Blocks::new(call.layout, size.min(tokens), device);
    let pooled = |blocks: &Blocks| {
        let means = groups.means(join(call.query.clone()).mul_scalar(call.scale()));
        means.matmul(blocks.means(join(call.key.clone())).swap_dims(1, 2))
    };
    let kept = match recipe.select {
        Select::PooledBlocks { block } => {
            let blocks = blocks(block);
            Kept::Indices(call.largest(blocks.spread(pooled(&blocks)), keys))
        }
        Select::ExactBlocks { block } => {
            let blocks = blocks(block);
            let weights = call.over_groups(&groups, lse(), |logs| logs.exp().sum_dim(2));
            Kept::Indices(call.largest(blocks.spread(blocks.sums(weights)), keys))
        }
        Select::LargestBlocks { block } => {
            let blocks = blocks(block);
            let largest = call.over_groups(&groups, lse(), |logs| logs.max_dim(2));
            Kept::Indices(call.largest(blocks.spread(blocks.largest(largest)), keys))
        }
        Select::ThresholdBlocks { block } => {
            let blocks = blocks(block);
            Kept::Mask(blocks.spread(above(pooled(&blocks), recipe.density, call)))
        }
        Select::Keys | Select::StaleKeys => single_keys(call, &groups, lse(), keys),
        Select::CompetingKeys { heads } => {
            let weights = call.over_groups(&groups, lse(), |logs| logs.exp().sum_dim(2));
            Kept::Mask(competing(weights, keys, heads, call))
        }
        Select::Clusters { .. } => unreachable!("clusters have groups of their own"),
    };
    Pattern::Groups { groups, kept }
}

/// The `keys` keys of the largest summed attention weight of each group.
pub(super) fn single_keys(call: &Call<'_>, groups: &Groups, lse: &Tensor<3>, keys: usize) -> Kept {
    let tokens = call.problem.queries;
    if groups.size == 1 {
        // A choice for each query: as a mask, for the kernel would gather a tile of keys for every one of them.
        let logs = call.over_groups(groups, lse, |logs| logs);
        let chosen = call.largest(logs, keys).reshape([groups.order.dims()[0] * tokens, keys]);
        return Kept::Mask(marks(chosen.cast(INDEX), tokens).reshape([groups.order.dims()[0], tokens, tokens]));
    }
    let route = ops::route(Stage::Select, &call.problem, Kernels::Auto);
    let options = SelectOptions {
        group_size: groups.size,
        keys,
        sink_prefix: 0,
        sink_suffix: 0,
        scale: call.scale(),
        workspace_bytes: WORKSPACE,
    };
    let order = groups.order.clone().reshape([call.problem.batch, call.problem.heads, tokens]);
    Kept::Indices(ops::select_keys(&route, call.query.clone(), call.key.clone(), lse.clone(), order, options))
}

/// 1 for the keys of largest weight among all groups of a head, or of all heads of a batch element; `keys` a group on average.
fn competing(weights: Tensor<3>, keys: usize, heads: bool, call: &Call<'_>) -> Tensor<3> {
    let [z, groups, tokens] = weights.dims();
    let together = groups * if heads { call.problem.heads } else { 1 };
    let rows = z * groups / together;
    let route = ops::route(Stage::Select, &call.problem, Kernels::Auto);
    let flat = weights.reshape([rows, together * tokens]);
    let chosen = ops::partition_indices(&route, flat, together * keys, false).cast(INDEX);
    marks(chosen, together * tokens).reshape([z, groups, tokens])
}

/// 1 for the share `density` of all pairs of groups and blocks of a head whose score lies furthest above the mean of its
/// row, counted in standard deviations of the row; 0 for the others.
fn above(scores: Tensor<3>, density: f64, call: &Call<'_>) -> Tensor<3> {
    let [z, groups, blocks] = scores.dims();
    let centred = scores.clone() - scores.mean_dim(2);
    let spread = centred.clone().square().mean_dim(2).sqrt().clamp_min(1e-20);
    let pairs = ((density * (groups * blocks) as f64).round() as usize).clamp(1, groups * blocks);
    let standard = (centred / spread).reshape([z, groups * blocks]);
    let route = ops::route(Stage::Select, &call.problem, Kernels::Auto);
    let chosen = ops::partition_indices(&route, standard, pairs, false).cast(INDEX);
    marks(chosen, groups * blocks).reshape([z, groups, blocks])
}
