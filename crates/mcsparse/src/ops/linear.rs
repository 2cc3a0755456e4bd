//! Linear layers. They are no stage of the method, but where attention is fast a transformer block waits for them, and Burn's
//! own matrix product leaves most of a Hopper GPU idle.

#[cfg(any(feature = "flex", feature = "cube"))]
use burn::backend::Dispatch;
use burn::tensor::{Tensor, module};

#[cfg(any(feature = "flex", feature = "cube"))]
use super::McSparseOps;
use super::{Kernels, Route};

/// What [`linear`] should run for `input` `[rows, inputs]` and `weight` `[inputs, outputs]`: a kernel of ours, or Burn's own
/// product and why.
pub fn linear_route(input: &Tensor<2>, weight: &Tensor<2>, kernels: Kernels) -> Route {
    let [inputs, outputs] = weight.dims();
    let found = match kernels {
        Kernels::Reference => Err("the configuration asks for the reference".to_string()),
        Kernels::Auto => crate::backends::supports_linear(&input.device(), input.dtype(), inputs, outputs),
    };
    found.unwrap_or_else(|reason| Route::Reference { reason })
}

/// `input * weight + bias`, summed in f32 and rounded once.
///
/// # Shapes
///
/// - `input`: `[rows, inputs]`; `weight`: `[inputs, outputs]`, as Burn's `Linear` keeps it; `bias`: `[outputs]`
/// - returns `[rows, outputs]` in the dtype of `input`
///
/// # Panics
///
/// If shapes or dtypes do not fit each other.
pub fn linear(route: &Route, input: Tensor<2>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
    let [_, inputs] = input.dims();
    let [depth, outputs] = weight.dims();
    assert_eq!(depth, inputs, "linear: weight: expected [{inputs}, outputs], got {:?}", weight.dims());
    if let Some(bias) = &bias {
        assert_eq!(bias.dims(), [outputs], "linear: bias: expected one value an output");
    }
    match route {
        #[cfg(any(feature = "flex", feature = "cube"))]
        Route::Kernel { .. } => {
            let (biased, weight) = (bias.is_some(), weight.into_dispatch());
            // Unread where there is none; an operation has a fixed number of tensors.
            let bias = bias.map_or_else(|| weight.clone(), Tensor::into_dispatch);
            let output = <Dispatch as McSparseOps>::mc_linear(input.into_dispatch(), weight, bias, biased);
            Tensor::from_dispatch(output)
        }
        _ => module::linear(input, weight, bias),
    }
}
