//! Exact selection of each group's keys by summed attention weight.

use burn::tensor::{DType, Int, Tensor};

use super::{
    dense::product,
    rows::{chunk_len, join_heads, take_rows},
    top_k::partition_indices,
};
use crate::check::Problem;

/// How keys are selected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SelectOptions {
    /// Queries in a group.
    pub group_size: usize,
    /// Keys that each group keeps, sinks included.
    pub keys: usize,
    /// Keys at the start that are always kept.
    pub sink_prefix: usize,
    /// Keys at the end that are always kept.
    pub sink_suffix: usize,
    /// Factor on the scores.
    pub scale: f64,
    /// Bytes that temporary tensors may take.
    pub workspace_bytes: usize,
}

/// Selects the `options.keys` keys of largest [`attention_mass`] for each group, ties to the lowest key index; the sink
/// keys are always among them.
///
/// # Shapes
///
/// - `query`: `[batch, heads, queries, head_dim]`; `key`: `[batch, kv_heads, keys, head_dim]`
/// - `lse`: `[batch, heads, queries]`, f32, natural logarithm, of the same scores over all keys
/// - `order`: `[batch, heads, queries]` as [`super::group_queries`] returns it
/// - returns `[batch, heads, groups, options.keys]`, 32-bit integers, ascending in each row
pub fn select_keys(
    query: Tensor<4>,
    key: Tensor<4>,
    lse: Tensor<3>,
    order: Tensor<3, Int>,
    options: &SelectOptions,
) -> Tensor<4, Int> {
    let [batch, heads, ..] = query.dims();
    let mut selected = Vec::new();
    for_each_chunk(query, key, lse, order, options, |mass| {
        let [b, h, groups, keys] = mass.dims();
        let mass = with_sinks(mass, options).reshape([b * h * groups, keys]);
        selected.push(partition_indices(mass, options.keys, false).reshape([batch, heads, groups, options.keys]));
    });
    Tensor::cat(selected, 2)
}

/// `mass[g, j] = sum over queries i of group g of exp(scale * q_i . k_j - lse_i)`: the attention weight that the group
/// gives to key `j`, each query counting with its own softmax.
///
/// Shapes as in [`select_keys`]; returns `[batch, heads, groups, keys]` in f32, a tensor of `tokens x tokens / group_size`
/// elements a head, for tests and analysis.
pub fn attention_mass(
    query: Tensor<4>,
    key: Tensor<4>,
    lse: Tensor<3>,
    order: Tensor<3, Int>,
    options: &SelectOptions,
) -> Tensor<4> {
    let mut chunks = Vec::new();
    for_each_chunk(query, key, lse, order, options, |mass| chunks.push(mass));
    Tensor::cat(chunks, 2)
}

fn with_sinks(mass: Tensor<4>, options: &SelectOptions) -> Tensor<4> {
    let [b, h, groups, keys] = mass.dims();
    let always = |n: usize| Tensor::<4>::full([b, h, groups, n], f32::INFINITY, (&mass.device(), DType::F32));
    let (prefix, suffix) = (options.sink_prefix, options.sink_suffix);
    let middle = mass.clone().slice_dim(3, prefix..keys - suffix);
    let mut parts = Vec::new();
    if prefix > 0 {
        parts.push(always(prefix));
    }
    parts.push(middle);
    if suffix > 0 {
        parts.push(always(suffix));
    }
    Tensor::cat(parts, 3)
}

fn for_each_chunk(
    query: Tensor<4>,
    key: Tensor<4>,
    lse: Tensor<3>,
    order: Tensor<3, Int>,
    options: &SelectOptions,
    mut visit: impl FnMut(Tensor<4>),
) {
    let problem = Problem::of(&query, &key, &key).expect("shapes are checked before");
    let Problem { batch, heads, queries, keys, head_dim, .. } = problem;
    let (z, size) = (batch * heads, options.group_size);
    let keys_t = problem.expand_kv(key.cast(DType::F32)).swap_dims(2, 3).reshape([z, head_dim, keys]);
    let order = order.reshape([z, queries]);
    let query = take_rows(join_heads(query.cast(DType::F32)), order.clone()).mul_scalar(options.scale);
    let lse = take_rows(lse.reshape([z, queries, 1]), order);

    // Whole groups in chunks, then the partial one.
    let whole = queries / size;
    let chunk = chunk_len(whole, 3 * 4 * z * size * keys, options.workspace_bytes);
    let mut visit_groups = |first: usize, groups: usize, size: usize| {
        let rows = first..first + groups * size;
        let scores = product(query.clone().slice_dim(1, rows.clone()), keys_t.clone());
        let weights = (scores - lse.clone().slice_dim(1, rows)).exp();
        visit(weights.reshape([z * groups, size, keys]).sum_dim(1).reshape([batch, heads, groups, keys]));
    };
    for first in (0..whole).step_by(chunk) {
        visit_groups(first * size, chunk.min(whole - first), size);
    }
    if queries % size > 0 {
        visit_groups(whole * size, 1, queries % size);
    }
}
