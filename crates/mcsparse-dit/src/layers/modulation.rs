//! Norms whose scale and shift the timestep decides.

use burn::nn::LayerNorm;
use burn::tensor::{DType, Tensor, module::layer_norm};

/// Splits `[a, b, parts, inner]` into `PARTS` tensors `[a, b, inner]`.
pub(crate) fn parts<const PARTS: usize>(tensor: Tensor<4>) -> [Tensor<3>; PARTS] {
    let [a, b, _, inner] = tensor.dims();
    std::array::from_fn(|part| tensor.clone().slice_dim(2, part..part + 1).reshape([a, b, inner]))
}

/// `norm(x) * (1 + scale) + shift`, the norm a layer norm without weights, in f32; the result in the dtype of `x`.
///
/// `scale` and `shift` are f32 `[1 or batch, 1 or tokens, inner]`.
pub(crate) fn modulated_norm(x: Tensor<3>, scale: Tensor<3>, shift: Tensor<3>, eps: f64) -> Tensor<3> {
    let (dtype, [a, b, inner]) = (x.dtype(), scale.dims());
    let x = x.cast(DType::F32);
    let scale = scale.add_scalar(1.0);
    let normed = if a * b == 1 {
        // One scale for all tokens: the backend's norm applies it in the same pass.
        layer_norm(x, scale.reshape([inner]), Some(shift.reshape([inner])), eps)
    } else {
        let ones = Tensor::ones([inner], (&x.device(), DType::F32));
        layer_norm(x, ones, None, eps) * scale + shift
    };
    normed.cast(dtype)
}

/// A layer norm with weights, in f32; the result in the dtype of `x`.
pub(crate) fn f32_norm(norm: &LayerNorm, x: Tensor<3>) -> Tensor<3> {
    let dtype = x.dtype();
    norm.forward(x.cast(DType::F32)).cast(dtype)
}

/// `x + update * gate`, added in f32; the result in the dtype of `x`.
pub(crate) fn gated_add(x: Tensor<3>, update: Tensor<3>, gate: Tensor<3>) -> Tensor<3> {
    let dtype = x.dtype();
    (update.cast(DType::F32) * gate + x.cast(DType::F32)).cast(dtype)
}
