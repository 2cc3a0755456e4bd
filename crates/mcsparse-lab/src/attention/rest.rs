//! The keys that are not kept, by the statistics of their blocks.

use burn::tensor::Tensor;
use mcsparse::{check::Problem, ops};

use super::{
    blocks::Blocks,
    pattern::{Exact, Pattern},
    recipe::Rest,
    rows::join,
    select::Call,
};

/// `exact` with what `rest` makes of the keys that `pattern` does not keep.
///
/// The keys of block `b` that group `g` does not keep number `c`, with mean key `k`, mean value `v`. A query counts them as
/// `c` keys of score `q . k`, and their output is `v`. The first-order term of PISA adds, for all of them together, the
/// share `scale / tokens * q H` with `H = sum over blocks of sum over j of (k_j - k_b) v_j^T`, over all keys.
///
/// # Panics
///
/// If the pattern is one of clusters, whose recipes have no rest.
pub(super) fn with_rest(exact: Exact, rest: Rest, pattern: &Pattern, call: &Call<'_>) -> Exact {
    let (block, first_order) = match rest {
        Rest::Dropped => return exact,
        Rest::Means { block } => (block, false),
        Rest::FirstOrder { block } => (block, true),
    };
    let Pattern::Groups { groups, kept } = pattern else { panic!("clusters have no rest") };
    let Problem { batch, heads, queries, head_dim, ref device, .. } = call.problem;
    let blocks = Blocks::new(call.layout, block.min(queries), device);
    let (count, group_count) = (blocks.count(), groups.count());
    let z = batch * heads;
    let (key, value) = (join(call.key.clone()), join(call.value.clone()));

    // Statistics of what is left of each block for each group: all of it less what is kept.
    let kept = kept.mask(queries).swap_dims(1, 2);
    let kept = blocks.split(kept).swap_dims(2, 3); // [z, blocks, groups, size]
    let left = |rows: Tensor<3>| {
        let rows = blocks.split(rows); // [z, blocks, size, d]
        rows.clone().sum_dim(2) - kept.clone().matmul(rows)
    };
    let sizes = blocks.sizes().reshape([1, count, 1, 1]);
    let number = sizes - kept.clone().sum_dim(3); // [z, blocks, groups, 1]
    let present = number.clone().clamp_min(1.0);
    let by_group = |t: Tensor<4>| t.swap_dims(1, 2); // [z, groups, blocks, d]
    let keys = by_group(left(key.clone()) / present.clone());
    let values = by_group(left(value.clone()) / present.clone());
    // Nothing left counts for nothing: a finite logarithm, so that no NaN arises.
    let log_number = present.log() - number.lower_scalar(0.5).float().mul_scalar(1e30);
    let log_number = log_number.reshape([z, count, group_count]).swap_dims(1, 2).unsqueeze_dim::<4>(2);

    let query = join(call.query.clone()).mul_scalar(call.scale());
    let scores = groups.split(query.clone()).matmul(keys.swap_dims(2, 3)) + log_number;
    let max = scores.clone().max_dim(3);
    let weights = (scores - max.clone()).exp();
    let sum = weights.clone().sum_dim(3);
    let mut output = groups.join(weights.matmul(values) / sum.clone());
    let lse = groups.join(max + sum.log());
    if first_order {
        let sums = |rows: Tensor<3>| blocks.split(rows).sum_dim(2).squeeze_dim::<3>(2);
        let by_means = blocks.means(key.clone()).swap_dims(1, 2).matmul(sums(value.clone()));
        let covariance = key.swap_dims(1, 2).matmul(value) - by_means;
        output = output + query.matmul(covariance).div_scalar(queries as f64);
    }
    let rest = (output.reshape([batch, heads, queries, head_dim]), lse.reshape([batch, heads, queries]));
    let (output, lse) = ops::merge_parts(&[(exact.output, exact.lse), rest]);
    Exact { output, lse }
}
