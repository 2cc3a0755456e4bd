//! All of it in tensor operations: the oracle of the kernels, and what runs where there is none.

use burn::tensor::{DType, Int, Tensor, activation::silu, module::layer_norm};

use crate::{HeadNorm, Norm, Pairs};

/// See [`crate::scaled_norm`].
pub fn scaled_norm(
    x: Tensor<2>,
    scale: Tensor<2>,
    shift: Tensor<2>,
    rows: Option<Tensor<1, Int>>,
    norm: Norm,
) -> Tensor<2> {
    let (dtype, [_, size], [n, _]) = (x.dtype(), x.dims(), scale.dims());
    let x = x.cast(DType::F32);
    let scale = scale.cast(DType::F32).add_scalar(norm.offset);
    let shift = shift.cast(DType::F32);
    if norm.centred && n == 1 && rows.is_none() {
        // One scale for all rows: the backend's norm applies it in the same pass.
        return layer_norm(x, scale.reshape([size]), Some(shift.reshape([size])), norm.eps).cast(dtype);
    }
    let normed = if norm.centred {
        let ones = Tensor::ones([size], (&x.device(), DType::F32));
        layer_norm(x, ones, None, norm.eps)
    } else {
        x.clone() * root_mean_square(x, norm.eps).recip()
    };
    let count = normed.dims()[0];
    (spread(normed, n, &rows) * table(scale, &rows) + table(shift, &rows)).reshape([count, size]).cast(dtype)
}

/// See [`crate::gated_add`].
pub fn gated_add(x: Tensor<2>, update: Tensor<2>, gate: Tensor<2>, rows: Option<Tensor<1, Int>>) -> Tensor<2> {
    let (dtype, shape, [n, _]) = (x.dtype(), x.dims(), gate.dims());
    let [x, update] = [x, update].map(|x| spread(x.cast(DType::F32), n, &rows));
    (update * table(gate.cast(DType::F32), &rows) + x).reshape(shape).cast(dtype)
}

/// Rows `[n, rows that share a row of a table, size]`, or `[rows, 1, size]` if each has one of its own.
fn spread(x: Tensor<2>, n: usize, rows: &Option<Tensor<1, Int>>) -> Tensor<3> {
    let [count, size] = x.dims();
    let runs = if rows.is_some() { count } else { n };
    x.reshape([runs, count / runs, size])
}

fn table(table: Tensor<2>, rows: &Option<Tensor<1, Int>>) -> Tensor<3> {
    match rows {
        Some(rows) => table.select(0, rows.clone()),
        None => table,
    }
    .unsqueeze_dim(1)
}

/// See [`crate::swiglu`].
pub fn swiglu(x: Tensor<2>) -> Tensor<2> {
    let (dtype, hidden) = (x.dtype(), x.dims()[1] / 2);
    let [value, gate] = [0, 1].map(|i| x.clone().slice_dim(1, i * hidden..(i + 1) * hidden).cast(DType::F32));
    (value * silu(gate)).cast(dtype)
}

fn root_mean_square<const D: usize>(x: Tensor<D>, eps: f64) -> Tensor<D> {
    (x.clone() * x).mean_dim(D - 1).add_scalar(eps).sqrt()
}

/// See [`crate::rms_norm`]; the result has the shape of `x`.
pub fn rms_norm(x: Tensor<2>, weight: Tensor<1>, norm: HeadNorm) -> Tensor<2> {
    let dtype = x.dtype();
    normed(x, weight, norm).cast(dtype)
}

fn normed(x: Tensor<2>, weight: Tensor<1>, norm: HeadNorm) -> Tensor<2> {
    let ([rows, size], HeadNorm { heads, all_heads, eps }) = (x.dims(), norm);
    let (x, weight) = (x.cast(DType::F32), weight.cast(DType::F32));
    if all_heads {
        return x.clone() / root_mean_square(x, eps) * weight.unsqueeze::<2>();
    }
    let x = x.reshape([rows, heads, size / heads]);
    (x.clone() / root_mean_square(x, eps) * weight.unsqueeze::<3>()).reshape([rows, size])
}

/// See [`crate::norm_and_rotate`].
pub fn norm_and_rotate(
    x: Tensor<2>,
    weight: Tensor<1>,
    [cos, sin]: [Tensor<2>; 2],
    norm: HeadNorm,
    pairs: Pairs,
) -> Tensor<3> {
    let ([rows, size], [tokens, _], dtype) = (x.dims(), cos.dims(), x.dtype());
    let shape = [rows / tokens, tokens, norm.heads, size / norm.heads];
    let rotated = rotate(normed(x, weight, norm).reshape(shape), [cos, sin], pairs);
    rotated.reshape([rows, shape[2], shape[3]]).cast(dtype)
}

/// The rotary embedding alone, in f32; the result in the dtype of `x`.
///
/// # Shapes
///
/// - `x`: `[batch, tokens, heads, head_dim]`; `cos`, `sin`: `[tokens, turned / 2]`
/// - returns the shape of `x`
pub fn rotate(x: Tensor<4>, [cos, sin]: [Tensor<2>; 2], pairs: Pairs) -> Tensor<4> {
    let (dtype, [batch, tokens, heads, dim], [_, half]) = (x.dtype(), x.dims(), cos.dims());
    if 2 * half < dim {
        let turned = rotate(x.clone().slice_dim(3, 0..2 * half), [cos, sin], pairs);
        return Tensor::cat(vec![turned, x.slice_dim(3, 2 * half..dim)], 3);
    }
    // Pairs along an axis of their own, the second of two values of a pair beside the first.
    let (split, axis) = match pairs {
        Pairs::Neighbours => ([batch, tokens, heads, half, 2], 4),
        Pairs::Halves => ([batch, tokens, heads, 2, half], 3),
    };
    // Swapped in its own dtype: half the bytes. The rest is elementwise, one kernel with fusion.
    let swapped = x.clone().reshape(split).flip([axis as isize]).reshape([batch, tokens, heads, dim]);
    let both = |first: Tensor<2>, second: Tensor<2>| {
        let table = Tensor::stack::<3>(vec![first, second], axis - 2).reshape([1, tokens, 1, dim]);
        table.cast(DType::F32)
    };
    let (cos, sin) = (both(cos.clone(), cos), both(sin.clone().neg(), sin));
    (x.cast(DType::F32) * cos + swapped.cast(DType::F32) * sin).cast(dtype)
}
