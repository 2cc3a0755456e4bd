//! Exact top-K with a defined answer for ties.

use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor};

use super::rows::{INDEX, arange};

/// Indices of the `k` largest values of each row, in ascending order; among equal values the lowest index wins, and NaN
/// counts as smaller than everything. The result does not depend on the sorting algorithm of the backend.
///
/// # Shapes
///
/// - `values`: `[rows, n]`, f32
/// - returns `[rows, k]`, 32-bit integers
///
/// # Panics
///
/// If `k` is 0 or over `n`.
pub fn top_k_indices(values: Tensor<2>, k: usize) -> Tensor<2, Int> {
    let [rows, n] = values.dims();
    assert!((1..=n).contains(&k), "top_k_indices: expected k from 1 to {n}, got {k}");
    let device = values.device();
    let columns = arange(n, &device).reshape([1, n]).expand([rows, n]);
    if k == n {
        return columns;
    }
    let keep = largest(values, k);
    // The j-th kept column goes to place j; everything else to one spare place behind, which is cut off.
    let place = keep.clone().int().cast(INDEX).cumsum(1).sub_scalar(1);
    let destination = place.full_like(k as i64).mask_where(keep.clone(), place);
    let kept_columns = columns.mask_fill(keep.bool_not(), 0);
    Tensor::<2, Int>::zeros([rows, k + 1], (&device, INDEX))
        .scatter(1, destination, kept_columns, IndexingUpdateOp::Add)
        .slice_dim(1, 0..k)
}

/// Marks the `k` largest values of each row `[rows, n]`, ties to the lowest column, NaN last.
pub(super) fn largest(values: Tensor<2>, k: usize) -> Tensor<2, burn::tensor::Bool> {
    let nan = values.clone().is_nan();
    let values = values.cast(DType::F32).mask_fill(nan, f32::NEG_INFINITY);
    let threshold = values.clone().sort_descending(1).slice_dim(1, k - 1..k).expand(values.dims());
    let above = values.clone().greater(threshold.clone());
    let equal = values.equal(threshold);
    let missing = above.clone().int().cast(INDEX).sum_dim(1).neg().add_scalar(k as i64);
    let rank = equal.clone().int().cast(INDEX).cumsum(1);
    let chosen = rank.clone().lower_equal(missing.expand(rank.dims()));
    above.bool_or(equal.bool_and(chosen))
}
