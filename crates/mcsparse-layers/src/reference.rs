//! Both in tensor operations: the oracle of the kernels, and what runs where there is none.

use burn::tensor::{DType, Tensor, module::layer_norm};

use crate::{Pairs, Rotation};

/// See [`crate::modulated_norm`].
pub fn modulated_norm(x: Tensor<2>, scale: Tensor<1>, shift: Tensor<1>, eps: f64) -> Tensor<2> {
    let dtype = x.dtype();
    let [scale, shift] = [scale, shift].map(|given| given.cast(DType::F32));
    layer_norm(x.cast(DType::F32), scale.add_scalar(1.0), Some(shift), eps).cast(dtype)
}

/// See [`crate::norm_and_rotate`].
pub fn norm_and_rotate(
    x: Tensor<2>,
    weight: Tensor<1>,
    cos: Tensor<2>,
    sin: Tensor<2>,
    rotation: Rotation,
) -> Tensor<3> {
    let ([tokens, size], dtype, Rotation { heads, all_heads, pairs, eps }) = (x.dims(), x.dtype(), rotation);
    let (dim, weight) = (size / heads, weight.cast(DType::F32));
    let x = x.cast(DType::F32);
    let normed: Tensor<3> = if all_heads {
        let factor = (x.clone() * x.clone()).mean_dim(1).add_scalar(eps).sqrt().recip();
        (x * factor * weight.unsqueeze::<2>()).reshape([tokens, heads, dim])
    } else {
        let x = x.reshape([tokens, heads, dim]);
        let factor = (x.clone() * x.clone()).mean_dim(2).add_scalar(eps).sqrt().recip();
        x * factor * weight.unsqueeze::<3>()
    };
    // Pairs along an axis of their own, the second of two values of a pair beside the first.
    let (split, axis) = match pairs {
        Pairs::Neighbours => ([tokens, heads, dim / 2, 2], 3),
        Pairs::Halves => ([tokens, heads, 2, dim / 2], 2),
    };
    let normed = normed.reshape(split);
    let [first, second] = [0, 1].map(|i| normed.clone().slice_dim(axis, i..i + 1).squeeze_dim::<3>(axis));
    let [cos, sin] = [cos, sin].map(|table| table.cast(DType::F32).unsqueeze_dim::<3>(1));
    let turned = vec![first.clone() * cos.clone() - second.clone() * sin.clone(), second * cos + first * sin];
    Tensor::stack::<4>(turned, axis).reshape([tokens, heads, dim]).cast(dtype)
}
