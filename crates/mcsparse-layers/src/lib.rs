//! What a diffusion transformer does around attention that tensor operations do in many passes over memory, in one pass:
//! the layer norm whose scale and shift the timestep decides ([`modulated_norm`]), and the root-mean-square norm of queries
//! or keys with the rotary embedding behind it ([`norm_and_rotate`]).
//!
//! Everything is computed in f32 and rounded once, whatever the dtype. CubeCL devices run one kernel for each; elsewhere, and
//! for sizes that the kernels do not take, [`mod@reference`] runs in tensor operations. [`kernel`] says which it will be.

#![warn(missing_docs)]

#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "cube")]
mod extension;
pub mod reference;

use burn::tensor::{Device, Tensor};
#[cfg(feature = "cube")]
use burn::{
    backend::{Dispatch, DispatchDevice},
    tensor::DType,
};

#[cfg(feature = "cube")]
pub use extension::LayerOps;

/// Which values of a head turn together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pairs {
    /// Neighbours: `2 i` with `2 i + 1`.
    Neighbours,
    /// Value `i` of the first half with value `i` of the second.
    Halves,
}

/// How [`norm_and_rotate`] treats a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotation {
    /// Heads of a row.
    pub heads: usize,
    /// Whether one mean square serves all heads of a token, or each head has its own.
    pub all_heads: bool,
    /// Which values turn together.
    pub pairs: Pairs,
    /// Added to the mean square.
    pub eps: f64,
}

/// Whether rows of `size` values, in heads of `head_dim`, run in a kernel of `device`, or why they do not.
///
/// # Errors
///
/// The reason.
#[cfg_attr(not(feature = "cube"), allow(unused_variables))]
pub fn kernel(device: &Device, size: usize, head_dim: usize) -> Result<(), String> {
    #[cfg(feature = "cube")]
    if let DispatchDevice::Cube(cube) = device.as_dispatch() {
        return cube::supports(cube, size, head_dim);
    }
    Err(format!("no kernel for {device:?}"))
}

/// `norm(x) * (1 + scale) + shift`: a layer norm without weights, in f32.
///
/// # Shapes
///
/// - `x`: `[rows, size]` in f32, f16 or bf16; `scale`, `shift`: `[size]` in f32
/// - returns the shape and dtype of `x`
///
/// # Panics
///
/// If the shapes do not fit each other.
pub fn modulated_norm(x: Tensor<2>, scale: Tensor<1>, shift: Tensor<1>, eps: f64) -> Tensor<2> {
    let [_, size] = x.dims();
    for (name, given) in [("scale", &scale), ("shift", &shift)] {
        assert_eq!(given.dims(), [size], "modulated_norm: {name}: expected one value a column");
    }
    #[cfg(feature = "cube")]
    if kernel(&x.device(), size, size).is_ok() {
        let [scale, shift] = [scale, shift].map(|given| given.cast(DType::F32));
        return Tensor::from_dispatch(<Dispatch as LayerOps>::dit_modulated_norm(
            x.into_dispatch(),
            scale.into_dispatch(),
            shift.into_dispatch(),
            eps,
        ));
    }
    reference::modulated_norm(x, scale, shift, eps)
}

/// Root-mean-square norm with weights, then the rotary embedding, in f32.
///
/// # Shapes
///
/// - `x`: `[tokens, heads * head_dim]` in f32, f16 or bf16
/// - `weight`: `[heads * head_dim]` if the norm runs over all heads, else `[head_dim]`, in f32
/// - `cos`, `sin`: `[tokens, head_dim / 2]` in f32, one for each pair
/// - returns `[tokens, heads, head_dim]` in the dtype of `x`
///
/// # Panics
///
/// If the shapes do not fit each other.
pub fn norm_and_rotate(
    x: Tensor<2>,
    weight: Tensor<1>,
    cos: Tensor<2>,
    sin: Tensor<2>,
    rotation: Rotation,
) -> Tensor<3> {
    let ([tokens, size], heads) = (x.dims(), rotation.heads);
    assert!(heads > 0 && size.is_multiple_of(heads), "norm_and_rotate: heads: {heads} do not share out {size} values");
    let head_dim = size / heads;
    assert!(head_dim.is_multiple_of(2), "norm_and_rotate: x: heads of {head_dim} values do not make pairs");
    let weights = if rotation.all_heads { size } else { head_dim };
    assert_eq!(weight.dims(), [weights], "norm_and_rotate: weight");
    for (name, given) in [("cos", &cos), ("sin", &sin)] {
        assert_eq!(given.dims(), [tokens, head_dim / 2], "norm_and_rotate: {name}: expected a value a pair");
    }
    #[cfg(feature = "cube")]
    if kernel(&x.device(), size, head_dim).is_ok() {
        let [cos, sin] = [cos, sin].map(|given| given.cast(DType::F32));
        let rotated: Tensor<2> = Tensor::from_dispatch(<Dispatch as LayerOps>::dit_norm_and_rotate(
            x.into_dispatch(),
            weight.cast(DType::F32).into_dispatch(),
            cos.into_dispatch(),
            sin.into_dispatch(),
            rotation,
        ));
        return rotated.reshape([tokens, heads, head_dim]);
    }
    reference::norm_and_rotate(x, weight, cos, sin, rotation)
}
