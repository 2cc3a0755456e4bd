//! Rows by index, for every joined head.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

/// The integer type of all index tensors, as in the library.
pub(super) const INDEX: DType = DType::I32;

/// `0..n` as indices, from the host: on fused devices Burn 0.22's `arange` takes time that grows with the square of `n`.
pub(super) fn arange(n: usize, device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::new((0..n as i32).collect(), [n]), (device, INDEX))
}

/// Joins the batch and head axes, in f32.
pub(super) fn join(tensor: Tensor<4>) -> Tensor<3> {
    let [b, h, n, d] = tensor.dims();
    tensor.cast(DType::F32).reshape([b * h, n, d])
}

/// Takes rows `index[z, i]` of `rows[z]`: `[z, n, d]` and `[z, m]` give `[z, m, d]`.
pub(super) fn take(rows: Tensor<3>, index: Tensor<2, Int>) -> Tensor<3> {
    let ([z, n, d], [_, m]) = (rows.dims(), index.dims());
    let first = arange(z, &rows.device()).mul_scalar(n as i64).reshape([z, 1]);
    rows.reshape([z * n, d]).select(0, (index.cast(INDEX) + first).reshape([z * m])).reshape([z, m, d])
}

/// `[z, n, d]` with rows of `fill` up to `[z, to, d]`.
pub(super) fn padded(rows: Tensor<3>, to: usize, fill: f32) -> Tensor<3> {
    let [z, n, d] = rows.dims();
    if n == to {
        return rows;
    }
    let more = Tensor::full([z, to - n, d], fill, (&rows.device(), rows.dtype()));
    Tensor::cat(vec![rows, more], 1)
}

/// 1 at each of `indices` `[rows, kept]`, 0 elsewhere: `[rows, n]`.
pub(super) fn marks(indices: Tensor<2, Int>, n: usize) -> Tensor<2> {
    let ([rows, kept], device) = (indices.dims(), indices.device());
    let ones = Tensor::<2>::ones([rows, kept], (&device, DType::F32));
    let zeros = Tensor::<2>::zeros([rows, n], (&device, DType::F32));
    zeros.scatter(1, indices, ones, burn::tensor::IndexingUpdateOp::Add)
}
