//! The operations of a backend that has kernels.

use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
#[cfg(feature = "fusion")]
use burn::tensor::Shape;

use crate::{HeadNorm, Norm, Pairs};

/// Kernels; callers go through the functions of this crate, which check the shapes and ask first whether there is a kernel.
/// Tables are f32, outputs have the dtype of `x`.
#[backend_extension(
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "fusion"),
)]
pub trait LayerOps: Backend {
    /// See [`crate::scaled_norm`], equally many rows for each row of the tables.
    #[fusion(dtype = x, shape = x.clone())]
    fn dit_norm(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        norm: Norm,
    ) -> FloatTensor<Self>;

    /// See [`crate::scaled_norm`].
    #[fusion(dtype = x, shape = x.clone())]
    fn dit_norm_by_row(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        rows: IntTensor<Self>,
        norm: Norm,
    ) -> FloatTensor<Self>;

    /// See [`crate::gated_add`], equally many rows for each row of the table.
    #[fusion(dtype = x, shape = x.clone())]
    fn dit_gated_add(x: FloatTensor<Self>, update: FloatTensor<Self>, gate: FloatTensor<Self>) -> FloatTensor<Self>;

    /// See [`crate::gated_add`].
    #[fusion(dtype = x, shape = x.clone())]
    fn dit_gated_add_by_row(
        x: FloatTensor<Self>,
        update: FloatTensor<Self>,
        gate: FloatTensor<Self>,
        rows: IntTensor<Self>,
    ) -> FloatTensor<Self>;

    /// See [`crate::swiglu`].
    #[fusion(dtype = x, shape = halved(x))]
    fn dit_swiglu(x: FloatTensor<Self>) -> FloatTensor<Self>;

    /// See [`crate::rms_norm`]; the output has the shape of `x`.
    #[fusion(dtype = x, shape = x.clone())]
    fn dit_rms_norm(x: FloatTensor<Self>, weight: FloatTensor<Self>, norm: HeadNorm) -> FloatTensor<Self>;

    /// See [`crate::norm_and_rotate`]; the output has the shape of `x`.
    #[fusion(dtype = x, shape = x.clone())]
    fn dit_norm_and_rotate(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        norm: HeadNorm,
        pairs: Pairs,
    ) -> FloatTensor<Self>;
}

#[cfg(feature = "fusion")]
fn halved(x: &Shape) -> Shape {
    let [rows, size] = x.dims();
    Shape::new([rows, size / 2])
}
