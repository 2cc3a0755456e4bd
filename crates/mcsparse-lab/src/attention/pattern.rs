//! Which pairs of queries and keys are computed, and attention over them.

use burn::tensor::{DType, Int, Tensor};
use mcsparse::{
    check::Problem,
    ops::{self, Epilogue, Kernels, SparseOptions, Stage},
};

use super::{
    WORKSPACE,
    groups::Groups,
    rows::{INDEX, arange, join, marks},
    select::Call,
};

/// The pairs of one layer.
#[derive(Debug, Clone)]
pub enum Pattern {
    /// Groups of one size with keys for each.
    Groups {
        /// The queries.
        groups: Groups,
        /// The keys.
        kept: Kept,
    },
    /// Rows of keys that any number of queries share.
    Clusters {
        /// 1 for kept keys, 0 for others: `[z, rows, tokens]`.
        mask: Tensor<3>,
        /// The row of each query, `[z, tokens]`.
        row_of: Tensor<2, Int>,
    },
}

/// The keys of groups.
#[derive(Debug, Clone)]
pub enum Kept {
    /// As many for each group: `[batch, heads, groups, kept]`.
    Indices(Tensor<4, Int>),
    /// 1 for kept keys, 0 for others: `[z, groups, tokens]`.
    Mask(Tensor<3>),
}

/// Attention over kept keys alone.
#[derive(Debug, Clone)]
pub struct Exact {
    /// `[batch, heads, tokens, head_dim]`, f32.
    pub output: Tensor<4>,
    /// Log-sum-exp over the kept keys, `[batch, heads, tokens]`, f32.
    pub lse: Tensor<3>,
}

impl Kept {
    /// As a mask over `tokens` keys, `[z, groups, tokens]`.
    pub(super) fn mask(&self, tokens: usize) -> Tensor<3> {
        match self {
            Self::Mask(mask) => mask.clone(),
            Self::Indices(indices) => {
                let [batch, heads, groups, kept] = indices.dims();
                let flat = indices.clone().cast(INDEX).reshape([batch * heads * groups, kept]);
                marks(flat, tokens).reshape([batch * heads, groups, tokens])
            }
        }
    }
}

impl Pattern {
    /// Share of all pairs that is computed, over the whole batch. Reads it back from the device.
    pub fn density(&self) -> f64 {
        let rows = self.mask_of_queries();
        let [z, queries, keys] = rows.dims();
        f64::from(rows.sum().into_scalar::<f32>()) / (z * queries * keys) as f64
    }

    /// 1 where a query attends to a key, `[z, tokens, tokens]`: for tests and analysis of short sequences.
    pub fn mask_of_queries(&self) -> Tensor<3> {
        match self {
            Self::Clusters { mask, row_of } => super::rows::take(mask.clone(), row_of.clone()),
            Self::Groups { groups, kept } => {
                let mask = kept.mask(groups.tokens());
                let [z, count, keys] = mask.dims();
                groups.join(mask.reshape([z, count, 1, keys]).expand([z, count, groups.size, keys]))
            }
        }
    }

    /// 1 where a group keeps a key, `[z, groups, tokens]`; rows of clusters for those.
    pub fn kept_by_group(&self) -> Tensor<3> {
        match self {
            Self::Groups { groups, kept } => kept.mask(groups.tokens()),
            Self::Clusters { mask, .. } => mask.clone(),
        }
    }

    /// The same groups with the keys that [`Select::Keys`](super::Select::Keys) gives them now; clusters keep theirs.
    pub fn with_fresh_keys(&self, recipe: &super::Recipe, call: &Call<'_>, lse: &Tensor<3>) -> Self {
        match self {
            Self::Groups { groups, .. } => {
                let kept = super::select::single_keys(call, groups, lse, recipe.keys(call.problem.queries));
                Self::Groups { groups: groups.clone(), kept }
            }
            Self::Clusters { .. } => self.clone(),
        }
    }

    /// Output of `recipe` with these pairs, what it makes of the others included; without a residual.
    pub fn output(&self, recipe: &super::Recipe, call: &Call<'_>) -> Tensor<4> {
        super::rest::with_rest(self.attend(call), recipe.rest, self, call).output
    }

    /// Order `[batch, heads, tokens]` and indices `[batch, heads, groups, kept]`, where groups keep equal numbers.
    pub fn lists(&self, call: &Call<'_>) -> Option<(Tensor<3, Int>, Tensor<4, Int>)> {
        let Problem { batch, heads, queries, .. } = call.problem;
        match self {
            Self::Groups { groups, kept: Kept::Indices(indices) } => {
                Some((groups.order.clone().reshape([batch, heads, queries]), indices.clone()))
            }
            _ => None,
        }
    }

    /// Attention over the pairs alone. Lists of equal length run the library's kernel, masks run tensor operations.
    pub fn attend(&self, call: &Call<'_>) -> Exact {
        match self {
            Self::Groups { groups, kept: Kept::Indices(indices) } => gathered(call, groups, indices),
            Self::Groups { groups, kept: Kept::Mask(mask) } => masked(call, groups, mask),
            Self::Clusters { mask, row_of } => clustered(call, mask, row_of),
        }
    }
}

fn gathered(call: &Call<'_>, groups: &Groups, indices: &Tensor<4, Int>) -> Exact {
    let Problem { batch, heads, queries, .. } = call.problem;
    let route = ops::route(Stage::Sparse, &call.problem, Kernels::Auto);
    let (output, lse) = ops::sparse_attention(
        &route,
        call.query.clone(),
        call.key.clone(),
        call.value.clone(),
        groups.order.clone().reshape([batch, heads, queries]),
        indices.clone(),
        Epilogue::Output,
        SparseOptions { group_size: groups.size, scale: call.scale(), workspace_bytes: WORKSPACE },
    );
    Exact { output: output.cast(DType::F32), lse }
}

/// Softmax attention of `scores` `[z, rows, keys]` where `bias` is 0 and not where it is negative infinity.
fn softmax(scores: Tensor<3>, bias: Tensor<3>, values: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
    let scores = scores + bias;
    let max = scores.clone().max_dim(2);
    let weights = (scores - max.clone()).exp();
    let sum = weights.clone().sum_dim(2);
    (weights.matmul(values) / sum.clone(), max + sum.log())
}

/// 0 for kept keys and a very large negative number for others; a finite one, so that nothing becomes NaN.
fn bias(mask: Tensor<3>) -> Tensor<3> {
    (mask - 1.0).mul_scalar(1e30)
}

/// Rows in the order of the queries, `[z, tokens, d]` and `[z, tokens, 1]`, by batch and head.
fn exact(call: &Call<'_>, output: Tensor<3>, lse: Tensor<3>) -> Exact {
    let Problem { batch, heads, queries, head_dim, .. } = call.problem;
    Exact { output: output.reshape([batch, heads, queries, head_dim]), lse: lse.reshape([batch, heads, queries]) }
}

fn masked(call: &Call<'_>, groups: &Groups, mask: &Tensor<3>) -> Exact {
    let Problem { keys, head_dim, .. } = call.problem;
    let query = groups.split(join(call.query.clone()).mul_scalar(call.scale()));
    let [z, count, size, _] = query.dims();
    let (keys_t, values) = (join(call.key.clone()).swap_dims(1, 2), join(call.value.clone()));
    let chunk = (WORKSPACE / (12 * z * size * keys)).clamp(1, count);
    let (mut outputs, mut lses) = (Vec::new(), Vec::new());
    for first in (0..count).step_by(chunk) {
        let range = first..(first + chunk).min(count);
        let rows = range.len() * size;
        let query = query.clone().slice_dim(1, range.clone()).reshape([z, rows, head_dim]);
        let mask = mask.clone().slice_dim(1, range.clone()).reshape([z, range.len(), 1, keys]);
        let mask = mask.expand([z, range.len(), size, keys]).reshape([z, rows, keys]);
        let (output, lse) = softmax(query.matmul(keys_t.clone()), bias(mask), values.clone());
        outputs.push(output.reshape([z, range.len(), size, head_dim]));
        lses.push(lse.reshape([z, range.len(), size, 1]));
    }
    exact(call, groups.join(Tensor::cat(outputs, 1)), groups.join(Tensor::cat(lses, 1)))
}

fn clustered(call: &Call<'_>, mask: &Tensor<3>, row_of: &Tensor<2, Int>) -> Exact {
    let Problem { queries, keys, ref device, .. } = call.problem;
    let query = join(call.query.clone()).mul_scalar(call.scale());
    let (keys_t, values) = (join(call.key.clone()).swap_dims(1, 2), join(call.value.clone()));
    let [z, rows, _] = mask.dims();
    let bias = bias(mask.clone()).reshape([z * rows, keys]);
    let first_row = arange(z, device).mul_scalar(rows as i64).reshape([z, 1]);
    let row_of = row_of.clone().cast(INDEX) + first_row;
    let chunk = (WORKSPACE / (12 * z * keys)).clamp(1, queries);
    let (mut outputs, mut lses) = (Vec::new(), Vec::new());
    for first in (0..queries).step_by(chunk) {
        let range = first..(first + chunk).min(queries);
        let count = range.len();
        let row_of = row_of.clone().slice_dim(1, range.clone()).reshape([z * count]);
        let bias = bias.clone().select(0, row_of).reshape([z, count, keys]);
        let scores = query.clone().slice_dim(1, range).matmul(keys_t.clone());
        let (output, lse) = softmax(scores, bias, values.clone());
        outputs.push(output);
        lses.push(lse);
    }
    exact(call, Tensor::cat(outputs, 1), Tensor::cat(lses, 1))
}
