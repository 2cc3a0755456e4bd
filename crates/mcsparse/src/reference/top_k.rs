//! Exact top-K with a defined answer for ties.

use burn::tensor::{Bool, DType, Int, Tensor};

use super::rows::{INDEX, arange, permute_into, running_count};

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
    partition_indices(values, k, false)
}

/// As [`top_k_indices`]; with `with_rest` the indices of the other values follow, in ascending order too: `[rows, n]`.
///
/// # Panics
///
/// If `k` is 0 or over `n`.
pub fn partition_indices(values: Tensor<2>, k: usize, with_rest: bool) -> Tensor<2, Int> {
    let [rows, n] = values.dims();
    assert!((1..=n).contains(&k), "partition_indices: expected k from 1 to {n}, got {k}");
    if k == n {
        return arange(n, &values.device()).reshape([1, n]).expand([rows, n]);
    }
    let order = places_of(largest(values, k), k);
    if with_rest { order } else { order.slice_dim(1, 0..k) }
}

/// The marked columns of each row in ascending order, `k` in each, and then the others.
pub(super) fn places_of(keep: Tensor<2, Bool>, k: usize) -> Tensor<2, Int> {
    let [rows, n] = keep.dims();
    let columns = arange(n, &keep.device()).reshape([1, n]).expand([rows, n]);
    // The j-th kept column goes to place j, the j-th of the others to place k + j.
    let kept_before = running_count(keep.clone());
    let rest_place = columns.clone() - kept_before.clone() + k as i64;
    let place = rest_place.mask_where(keep, kept_before.sub_scalar(1));
    permute_into(place, columns)
}

/// Marks the `k` largest values of each row `[rows, n]`, ties to the lowest column, NaN last.
fn largest(values: Tensor<2>, k: usize) -> Tensor<2, Bool> {
    let nan = values.clone().is_nan();
    let values = values.cast(DType::F32).mask_fill(nan.clone(), f32::NEG_INFINITY);
    let threshold = values.clone().sort_descending(1).slice_dim(1, k - 1..k).expand(values.dims());
    let above = values.clone().greater(threshold.clone());
    let equal = values.equal(threshold);
    let missing = above.clone().int().cast(INDEX).sum_dim(1).neg().add_scalar(k as i64);
    // NaN was made equal to negative infinity for the sort; among these two it comes last.
    let numbers = equal.clone().bool_and(nan.clone().bool_not());
    let (chosen, left) = first(numbers, missing);
    let (chosen_nan, _) = first(equal.bool_and(nan), left);
    above.bool_or(chosen).bool_or(chosen_nan)
}

/// The first `count` (`[rows, 1]`) marks of each row, and how many were missing to `count`.
fn first(marks: Tensor<2, Bool>, count: Tensor<2, Int>) -> (Tensor<2, Bool>, Tensor<2, Int>) {
    let rank = running_count(marks.clone());
    let total = marks.clone().int().cast(INDEX).sum_dim(1);
    let within = rank.clone().lower_equal(count.clone().expand(rank.dims()));
    (marks.bool_and(within), (count - total).clamp_min(0))
}
