//! Dense attention with log-sum-exp.

use burn::tensor::{DType, Tensor};

use super::rows::chunk_len;
use crate::check::Problem;

/// Dense attention `softmax(scale * Q K^T) V` and the log-sum-exp of its scores.
///
/// # Shapes
///
/// - `query`: `[batch, heads, queries, head_dim]`; `key`, `value`: `[batch, kv_heads, keys, head_dim]`
/// - returns the output `[batch, heads, queries, head_dim]` in the dtype of `query`, and `ln sum exp(scale * q . k)`
///   (natural logarithm) `[batch, heads, queries]` in f32
///
/// # Panics
///
/// If the shapes do not fit each other.
pub fn dense_attention(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    scale: f64,
    workspace_bytes: usize,
) -> (Tensor<4>, Tensor<3>) {
    let problem = Problem::of(&query, &key, &value).expect("shapes are checked before");
    let keys_t = problem.expand_kv(key.cast(DType::F32)).swap_dims(2, 3);
    let values = problem.expand_kv(value.cast(DType::F32));
    // Scores, their exponentials and one temporary of the same size live at once.
    let row_bytes = 3 * 4 * problem.batch * problem.heads * problem.keys;
    let chunk = chunk_len(problem.queries, row_bytes, workspace_bytes);

    let (mut outputs, mut lses) = (Vec::new(), Vec::new());
    for start in (0..problem.queries).step_by(chunk) {
        let end = (start + chunk).min(problem.queries);
        let rows = query.clone().slice_dim(2, start..end).cast(DType::F32).mul_scalar(scale);
        let (output, lse) = attend(rows, keys_t.clone(), values.clone(), None);
        outputs.push(output.cast(problem.dtype));
        lses.push(lse.squeeze_dim::<3>(3));
    }
    (Tensor::cat(outputs, 2), Tensor::cat(lses, 2))
}

/// Softmax attention of already scaled `rows` over transposed keys, `bias` added to the scores; the log-sum-exp keeps a last
/// axis of one.
pub(super) fn attend<const D: usize>(
    rows: Tensor<D>,
    keys_t: Tensor<D>,
    values: Tensor<D>,
    bias: Option<Tensor<D>>,
) -> (Tensor<D>, Tensor<D>) {
    let scores = product(rows, keys_t);
    let scores = match bias {
        Some(bias) => scores + bias,
        None => scores,
    };
    let max = scores.clone().max_dim(D - 1);
    let weights = (scores - max.clone()).exp();
    let sum = weights.clone().sum_dim(D - 1);
    (product(weights, values) / sum.clone(), max + sum.log())
}

/// Matrix product. An inner dimension of 1 goes by broadcasting: Burn's CubeCL product refuses strided views of such shapes.
pub(super) fn product<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
    if a.dims()[D - 1] == 1 { a * b } else { a.matmul(b) }
}
