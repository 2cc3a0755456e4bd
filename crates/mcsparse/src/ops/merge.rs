//! Attention over parts of the keys, put together: what sequence parallelism needs.

use burn::tensor::{DType, Tensor};

/// Attention over all keys from attention over disjoint parts of them, each with its log-sum-exp: exact but for roundings.
/// Weighted means of outputs, by the parts' sums of exponentials, in f32 (Milakov and Gimelshein 2018).
///
/// # Shapes
///
/// - each part: output `[batch, heads, queries, head_dim]` and log-sum-exp `[batch, heads, queries]` in f32, as
///   [`super::dense_attention`] and [`super::sparse_attention`] return them
/// - returns the same for all keys, the output in the dtype of the first part
///
/// # Panics
///
/// If there is no part, or the parts' shapes differ.
pub fn merge_parts(parts: &[(Tensor<4>, Tensor<3>)]) -> (Tensor<4>, Tensor<3>) {
    let (first, _) = parts.first().expect("parts: expected at least one, got none");
    let shape = first.dims();
    for (output, lse) in parts {
        let [batch, heads, queries, _] = shape;
        assert!(
            output.dims() == shape && lse.dims() == [batch, heads, queries],
            "parts: expected outputs {shape:?} with their log-sum-exps, got {:?} with {:?}",
            output.dims(),
            lse.dims()
        );
    }
    let sums = || parts.iter().map(|(_, lse)| lse.clone());
    let largest = sums().reduce(Tensor::max_pair).expect("there is a part");
    let weights: Vec<Tensor<3>> = sums().map(|lse| (lse - largest.clone()).exp()).collect();
    let total = weights.iter().cloned().reduce(|a, b| a + b).expect("there is a part");
    let weighted = parts
        .iter()
        .zip(weights)
        .map(|((output, _), weight)| output.clone().cast(DType::F32) * (weight / total.clone()).unsqueeze_dim::<4>(3));
    let merged = weighted.reduce(|a, b| a + b).expect("there is a part");
    (merged.cast(first.dtype()), largest + total.log())
}
