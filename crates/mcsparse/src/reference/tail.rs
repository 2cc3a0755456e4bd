//! The keys that groups do not keep, by the means of their blocks.

use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor};

use super::{
    dense::attend,
    rows::{INDEX, chunk_len, invert, join_heads, take_rows},
    sparse::finish,
};
use crate::{
    check::Problem,
    ops::{Epilogue, merge_parts},
};

/// How the keys that are not kept stand in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TailOptions {
    /// Queries in a group.
    pub group_size: usize,
    /// Keys in a block.
    pub block: usize,
    /// Keys at the start that every group keeps; they belong to no block.
    pub sink_prefix: usize,
    /// Keys at the end that every group keeps.
    pub sink_suffix: usize,
    /// Factor on the scores.
    pub scale: f64,
    /// Bytes that temporary tensors may take.
    pub workspace_bytes: usize,
}

impl TailOptions {
    /// Blocks of `keys` keys, sinks counted among them.
    pub fn blocks(&self, keys: usize) -> usize {
        (keys - self.sink_prefix - self.sink_suffix).div_ceil(self.block)
    }

    /// Keys of each of the blocks of `keys` keys.
    pub(crate) fn sizes(&self, keys: usize) -> Vec<usize> {
        let free = keys - self.sink_prefix - self.sink_suffix;
        (0..self.blocks(keys)).map(|b| self.block.min(free - b * self.block)).collect()
    }
}

/// Adds to sparse attention what the keys weigh that it leaves out: with `c[g, b]` keys of block `b` not kept by group `g`,
/// and `k[b]`, `v[b]` the means of all keys and values of the block, query `i` of the group counts the block as `c[g, b]` keys
/// of score `scale * q_i . k[b]` and value `v[b]`, in one softmax with the kept keys.
///
/// # Shapes
///
/// - `query`, `key`, `value`, `order`, `indices` as in [`super::sparse_attention`], `indices` with all sinks
/// - `sparse`: its output, without an epilogue, and log-sum-exp
/// - returns both for all keys; `epilogue` may add or take a tensor of the output's shape
///
/// # Panics
///
/// If the shapes do not fit each other.
#[allow(clippy::too_many_arguments)] // the tensors of the stage
pub fn add_tail(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    order: Tensor<3, Int>,
    indices: Tensor<4, Int>,
    sparse: (Tensor<4>, Tensor<3>),
    epilogue: Epilogue,
    options: &TailOptions,
) -> (Tensor<4>, Tensor<3>) {
    let problem = Problem::of(&query, &key, &value).expect("shapes are checked before");
    let Problem { batch, heads, queries, head_dim, keys, .. } = problem;
    let (z, blocks, size) = (batch * heads, options.blocks(keys), options.group_size);
    let log_count = log_counts(indices, keys, options);
    let [_, groups, _] = log_count.dims();
    let mean = |rows: Tensor<4>| join_heads(problem.expand_kv(block_means(rows, options)));
    let (keys_t, values) = (mean(key).swap_dims(1, 2), mean(value));
    let order = order.reshape([z, queries]);
    let sorted = take_rows(join_heads(query.cast(DType::F32)), order.clone()).mul_scalar(options.scale);

    // Scores with two temporaries of the same size.
    let chunk = chunk_len(groups, 3 * 4 * z * size * blocks, options.workspace_bytes);
    let (mut outputs, mut lses) = (Vec::new(), Vec::new());
    for first in (0..groups).step_by(chunk) {
        let count = chunk.min(groups - first);
        let rows = first * size..((first + count) * size).min(queries);
        let bias = log_count.clone().slice_dim(1, first..first + count).reshape([z, count, 1, blocks]);
        let bias = bias.expand([z, count, size, blocks]).reshape([z, count * size, blocks]);
        let bias = bias.slice_dim(1, 0..rows.len());
        let (output, lse) = attend(sorted.clone().slice_dim(1, rows), keys_t.clone(), values.clone(), Some(bias));
        outputs.push(output);
        lses.push(lse);
    }
    let place = invert(order);
    let output = take_rows(Tensor::cat(outputs, 1), place.clone()).reshape([batch, heads, queries, head_dim]);
    let lse = take_rows(Tensor::cat(lses, 1), place).reshape([batch, heads, queries]);
    let (output, lse) = merge_parts(&[(sparse.0.cast(DType::F32), sparse.1), (output, lse)]);
    (finish(output, epilogue).cast(problem.dtype), lse)
}

/// Means over blocks of the keys that are no sinks: `[batch, kv_heads, blocks, head_dim]` in f32.
fn block_means(rows: Tensor<4>, options: &TailOptions) -> Tensor<4> {
    let [batch, heads, keys, dim] = rows.dims();
    let (block, prefix) = (options.block, options.sink_prefix);
    let free = keys - prefix - options.sink_suffix;
    let part = |from: usize, count: usize, block: usize| {
        let rows = rows.clone().slice_dim(2, prefix + from..prefix + from + count * block).cast(DType::F32);
        rows.reshape([batch, heads, count, block, dim]).mean_dim(3).reshape([batch, heads, count, dim])
    };
    let (whole, left) = (free / block, free % block);
    let mut parts = Vec::new();
    if whole > 0 {
        parts.push(part(0, whole, block));
    }
    if left > 0 {
        parts.push(part(whole * block, 1, left));
    }
    Tensor::cat(parts, 2)
}

/// Logarithms of how many keys of each block each group does not keep, `[z, groups, blocks]`; where that is none a finite
/// number that no weight comes of, so that no NaN does either.
fn log_counts(indices: Tensor<4, Int>, keys: usize, options: &TailOptions) -> Tensor<3> {
    let ([batch, heads, groups, kept], device) = (indices.dims(), indices.device());
    let (rows, blocks) = (batch * heads * groups, options.blocks(keys));
    // One column before and after the blocks takes the sinks.
    let at = indices.cast(INDEX).reshape([rows, kept]);
    let free = keys - options.sink_prefix - options.sink_suffix;
    let past = at.clone().greater_equal_scalar((options.sink_prefix + free) as i64);
    let before = at.clone().lower_scalar(options.sink_prefix as i64);
    let column = at.sub_scalar(options.sink_prefix as i64).clamp_min(0).div_scalar(options.block as i64).add_scalar(1);
    let column = column.mask_fill(before, 0).mask_fill(past, blocks as i64 + 1);
    let ones = Tensor::<2>::ones([rows, kept], (&device, DType::F32));
    let zeros = Tensor::<2>::zeros([rows, blocks + 2], (&device, DType::F32));
    let taken = zeros.scatter(1, column, ones, IndexingUpdateOp::Add).slice_dim(1, 1..blocks + 1);
    let sizes: Vec<f32> = options.sizes(keys).into_iter().map(|size| size as f32).collect();
    let sizes = Tensor::<1>::from_data(sizes.as_slice(), (&device, DType::F32)).reshape([1, blocks]);
    let left = sizes - taken;
    let none = left.clone().lower_scalar(0.5);
    left.clamp_min(1.0).log().mask_fill(none, -1.0e30).reshape([batch * heads, groups, blocks])
}
