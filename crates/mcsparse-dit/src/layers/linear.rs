//! Linear layers of many tokens.

use burn::nn::Linear;
use burn::tensor::{DType, Tensor, module};
use mcsparse::ops::{self, Kernels, Route};

/// `layer` of `x` `[.., inputs]`, by the kernel of [`mcsparse::ops::linear`] where the device has one for it.
pub(crate) fn linear<const D: usize>(layer: &Linear, x: Tensor<D>) -> Tensor<D> {
    linear_of(x, layer.weight.val(), layer.bias.as_ref().map(|bias| bias.val()))
}

/// As [`linear`], of a `weight` `[inputs, outputs]` and a `bias` `[outputs]`.
pub(crate) fn linear_of<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    // The kernel takes 16-bit floats and knows no gradient: nothing else is even asked for.
    if x.dtype() == DType::F32 || x.is_autodiff() {
        return module::linear(x, weight, bias);
    }
    let mut shape = x.dims();
    let rows = shape[..D - 1].iter().product::<usize>();
    let flat = x.reshape([rows, shape[D - 1]]);
    match ops::linear_route(&flat, &weight, Kernels::Auto) {
        Route::Reference { .. } => module::linear(flat.reshape(shape), weight, bias),
        route => {
            shape[D - 1] = weight.dims()[1];
            ops::linear(&route, flat, weight, bias).reshape(shape)
        }
    }
}
