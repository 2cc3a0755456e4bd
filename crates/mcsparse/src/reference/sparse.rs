//! Attention of each query group over its own gathered keys.

use burn::tensor::{DType, Int, Tensor};

use super::{
    dense::attend,
    rows::{INDEX, arange, chunk_len, invert, join_heads, take_rows},
};
use crate::{
    check::Problem,
    ops::{Epilogue, SparseOptions},
};

/// Sparse attention: the queries of group `g` attend to the keys `indices[g]`, gathered one by one.
///
/// # Shapes
///
/// - `query`: `[batch, heads, queries, head_dim]`; `key`, `value`: `[batch, kv_heads, keys, head_dim]`
/// - `order`: `[batch, heads, queries]`, the groups as [`super::group_queries`] returns them
/// - `indices`: `[batch, heads, groups, kept]`, `groups = ceil(queries / group_size)`
/// - returns the output `[batch, heads, queries, head_dim]` in the order and dtype of `query`, and the log-sum-exp
///   (natural logarithm) over the kept keys `[batch, heads, queries]` in f32; `epilogue` may add or take a tensor of the
///   output's shape
///
/// # Panics
///
/// If the shapes do not fit each other.
pub fn sparse_attention(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    order: Tensor<3, Int>,
    indices: Tensor<4, Int>,
    epilogue: Epilogue,
    options: &SparseOptions,
) -> (Tensor<4>, Tensor<3>) {
    let SparseOptions { group_size, scale, workspace_bytes } = *options;
    let problem = Problem::of(&query, &key, &value).expect("shapes are checked before");
    let Problem { batch, heads, queries, head_dim, .. } = problem;
    let (z, [.., groups, kept]) = (batch * heads, indices.dims());
    assert_eq!(groups, queries.div_ceil(group_size), "sparse_attention: indices must have one row for each group");
    let order = order.reshape([z, queries]);
    let sorted = take_rows(join_heads(query.cast(DType::F32)), order.clone()).mul_scalar(scale);
    let keys = SharedRows::new(key, &problem);
    let values = SharedRows::new(value, &problem);
    let indices = indices.cast(INDEX).reshape([z, groups, kept]);

    // Gathered keys and values with a temporary, and scores with theirs, for each group.
    let group_bytes = 3 * 4 * z * (2 * kept * head_dim + group_size * kept) / 2;
    let whole = queries / group_size;
    let chunk = chunk_len(whole, group_bytes, workspace_bytes);
    let (mut outputs, mut lses) = (Vec::new(), Vec::new());
    let mut attend_groups = |first: usize, count: usize, size: usize| {
        let row = first * group_size;
        let rows = sorted.clone().slice_dim(1, row..row + count * size).reshape([z, count, size, head_dim]);
        let chosen = indices.clone().slice_dim(1, first..first + count).reshape([z, count * kept]);
        let gather = |from: &SharedRows| from.take(chosen.clone()).reshape([z, count, kept, head_dim]);
        let (output, lse) = attend(rows, gather(&keys).swap_dims(2, 3), gather(&values), None);
        outputs.push(output.reshape([z, count * size, head_dim]));
        lses.push(lse.reshape([z, count * size, 1]));
    };
    for first in (0..whole).step_by(chunk) {
        attend_groups(first, chunk.min(whole - first), group_size);
    }
    if queries % group_size > 0 {
        attend_groups(whole, 1, queries % group_size);
    }

    let place = invert(order);
    let output = take_rows(Tensor::cat(outputs, 1), place.clone()).reshape([batch, heads, queries, head_dim]);
    let lse = take_rows(Tensor::cat(lses, 1), place).reshape([batch, heads, queries]);
    (finish(output, epilogue).cast(problem.dtype), lse)
}

/// An output in f32 with what the epilogue makes of it.
pub(super) fn finish(output: Tensor<4>, epilogue: Epilogue) -> Tensor<4> {
    match epilogue {
        Epilogue::Output => output,
        Epilogue::AddResidual(residual) => output + residual.cast(DType::F32),
        Epilogue::AddScaledResidual(residual, factor) => output + residual.cast(DType::F32).mul_scalar(factor),
        Epilogue::ResidualOf(dense) => dense.cast(DType::F32) - output,
    }
}

/// Key or value rows, one set for each key/value head, addressed by query head without repeating them.
struct SharedRows {
    flat: Tensor<2>,
    offset: Tensor<2, Int>,
}

impl SharedRows {
    fn new(tensor: Tensor<4>, problem: &Problem) -> Self {
        let [batch, kv_heads, keys, dim] = tensor.dims();
        let z = batch * problem.heads;
        // Query heads of one key/value head are neighbours, so the joined index divides through.
        let offset = arange(z, &tensor.device()).div_scalar(problem.heads_per_kv() as i64).mul_scalar(keys as i64);
        let flat = tensor.cast(DType::F32).reshape([batch * kv_heads * keys, dim]);
        Self { flat, offset: offset.reshape([z, 1]) }
    }

    /// Rows `index[z, i]` of query head `z`: `[z * m, dim]`.
    fn take(&self, index: Tensor<2, Int>) -> Tensor<2> {
        let [z, m] = index.dims();
        self.flat.clone().select(0, (index + self.offset.clone()).reshape([z * m]))
    }
}
