//! Linear layers of many tokens.

use burn::nn::Linear;
use burn::tensor::{DType, Tensor};
use mcsparse::ops::{self, Kernels, Route};

/// `layer` of `x` `[.., inputs]`, by the kernel of [`mcsparse::ops::linear`] where the device has one for it.
pub(crate) fn linear<const D: usize>(layer: &Linear, x: Tensor<D>) -> Tensor<D> {
    // The kernel works on 16-bit floats: what it does not take is not even asked for.
    if x.dtype() == DType::F32 || x.is_autodiff() {
        return layer.forward(x);
    }
    let mut shape = x.dims();
    let inputs = shape[D - 1];
    let (rows, weight) = (shape[..D - 1].iter().product::<usize>(), layer.weight.val());
    let flat = x.reshape([rows, inputs]);
    let route = ops::linear_route(&flat, &weight, Kernels::Auto);
    if let Route::Reference { .. } = route {
        return layer.forward(flat.reshape(shape));
    }
    shape[D - 1] = weight.dims()[1];
    ops::linear(&route, flat, weight, layer.bias.as_ref().map(|bias| bias.val())).reshape(shape)
}
