//! The operations of a backend that has kernels.

use burn::backend::{Backend, backend_extension, tensor::FloatTensor};

use crate::Rotation;

/// Kernels; callers go through [`crate::modulated_norm`] and [`crate::norm_and_rotate`], which check the shapes and ask first
/// whether there is a kernel.
#[backend_extension(
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "fusion"),
)]
pub trait LayerOps: Backend {
    /// See [`crate::modulated_norm`]; the output has the shape and dtype of `x`.
    #[fusion(dtype = x, shape = x.clone())]
    fn dit_modulated_norm(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        eps: f64,
    ) -> FloatTensor<Self>;

    /// See [`crate::norm_and_rotate`]; the output has the shape and dtype of `x`.
    #[fusion(dtype = x, shape = x.clone())]
    fn dit_norm_and_rotate(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        rotation: Rotation,
    ) -> FloatTensor<Self>;
}
