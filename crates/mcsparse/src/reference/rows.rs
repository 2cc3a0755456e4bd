//! Gathering and scattering whole rows by an index tensor of its own for every `[batch, head]`.

use burn::tensor::{Bool, DType, Device, IndexingUpdateOp, Int, Tensor, TensorData};

/// The integer type of all index tensors: 32 bits, half the memory of the usual 64.
pub(crate) const INDEX: DType = DType::I32;

/// `0..n` as indices, from the host: on fused devices Burn 0.22's `arange` is a `cumsum`, see [`running_count`].
pub(crate) fn arange(n: usize, device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::new((0..n as i32).collect(), [n]), (device, INDEX))
}

/// Takes rows `index[z, i]` of `rows[z]`.
///
/// # Shapes
///
/// - `rows`: `[z, n, d]`, `index`: `[z, m]` with values below `n`
/// - returns `[z, m, d]`
pub(crate) fn take_rows(rows: Tensor<3>, index: Tensor<2, Int>) -> Tensor<3> {
    let [z, n, d] = rows.dims();
    let [_, m] = index.dims();
    let offset = arange(z, &rows.device()).mul_scalar(n as i64).reshape([z, 1]);
    let flat = (index.cast(INDEX) + offset).reshape([z * m]);
    rows.reshape([z * n, d]).select(0, flat).reshape([z, m, d])
}

/// The inverse of each row of a permutation, `[z, n]`.
pub(crate) fn invert(permutation: Tensor<2, Int>) -> Tensor<2, Int> {
    let [z, n] = permutation.dims();
    let device = permutation.device();
    let positions = arange(n, &device).reshape([1, n]).expand([z, n]);
    permute_into(permutation, positions)
}

/// Writes `values[z, i]` to place `destination[z, i]`; `destination` is a permutation in each row.
pub(crate) fn permute_into(destination: Tensor<2, Int>, values: Tensor<2, Int>) -> Tensor<2, Int> {
    // Adding to zeros is assignment here, and the one update that every backend has for integers.
    values.zeros_like().scatter(1, destination, values, IndexingUpdateOp::Add)
}

/// How many marks each row has up to and including each column, `[rows, n]`.
///
/// In blocks: on CubeCL devices Burn 0.22's `cumsum` sums every element's row from its start, which takes time that grows with
/// the square of its length, and is cut off on software Vulkan, where Mesa ends the loops of a shader after 65,535 rounds.
pub(crate) fn running_count(marks: Tensor<2, Bool>) -> Tensor<2, Int> {
    const BLOCK: usize = 1024;
    let ([rows, n], device) = (marks.dims(), marks.device());
    let counts = marks.int().cast(INDEX);
    let blocks = n.div_ceil(BLOCK);
    if blocks == 1 {
        return counts.cumsum(1);
    }
    let padding = Tensor::zeros([rows, blocks * BLOCK - n], (&device, INDEX));
    let padded = if n.is_multiple_of(BLOCK) { counts } else { Tensor::cat(vec![counts, padding], 1) };
    let within = padded.reshape([rows, blocks, BLOCK]).cumsum(2);
    let totals = within.clone().slice_dim(2, BLOCK - 1..BLOCK).reshape([rows, blocks]);
    let before = totals.clone().cumsum(1) - totals;
    (within + before.reshape([rows, blocks, 1])).reshape([rows, blocks * BLOCK]).slice_dim(1, 0..n)
}

/// Joins the batch and head axes.
pub(crate) fn join_heads(tensor: Tensor<4>) -> Tensor<3> {
    let [b, h, n, d] = tensor.dims();
    tensor.reshape([b * h, n, d])
}

/// How many of `items` fit `workspace_bytes` when each takes `bytes_each`; at least one.
pub(crate) fn chunk_len(items: usize, bytes_each: usize, workspace_bytes: usize) -> usize {
    (workspace_bytes / bytes_each.max(1)).clamp(1, items.max(1))
}
