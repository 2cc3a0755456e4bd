//! What a diffusion transformer does around attention that tensor operations do in many passes over memory, in one pass:
//! norms whose scale and shift the timestep decides ([`modulated_norm`], [`scaled_norm`], [`layer_norm`]), the
//! root-mean-square norm of queries or keys with the rotary embedding behind it ([`norm_and_rotate`]) or without
//! ([`rms_norm`]), the gated sum of a residual connection ([`gated_add`]) and the inside of a gated feed-forward network
//! ([`swiglu`]).
//!
//! Everything is computed in f32 and rounded once, whatever the dtype. CubeCL devices run one kernel for each; elsewhere, and
//! for sizes that the kernels do not take, [`mod@reference`] runs in tensor operations. [`kernel`] says which it will be,
//! and why.

#![warn(missing_docs)]

#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "cube")]
mod extension;
mod gate;
mod layer;
mod norm;
pub mod reference;
mod rotate;

#[cfg(feature = "cube")]
use burn::{
    backend::{
        Dispatch,
        tensor::{FloatTensor, IntTensor},
    },
    tensor::{DType, Int, Tensor},
};

#[cfg(feature = "cube")]
pub use extension::LayerOps;
pub use gate::{gated_add, swiglu};
pub use layer::{Layer, kernel};
pub use norm::{Norm, layer_norm, modulated_norm, scaled_norm};
pub use rotate::{HeadNorm, Pairs, norm_and_rotate, rms_norm};

/// Which row of a table of `n` each of `count` rows takes: `rows` says so, or else equally many rows one after the other share
/// one.
///
/// # Panics
///
/// If neither goes out.
fn check_rows(what: &str, n: usize, count: usize, rows: Option<[usize; 1]>) {
    match rows {
        Some(rows) => assert_eq!(rows, [count], "{what}: rows: expected one number a row of x"),
        None => {
            assert!(n > 0 && count.is_multiple_of(n), "{what}: {n} rows of a table do not share out {count} rows of x")
        }
    }
}

/// A table of small values as the kernels read it.
#[cfg(feature = "cube")]
fn f32_table<const D: usize>(table: Tensor<D>) -> FloatTensor<Dispatch> {
    table.cast(DType::F32).into_dispatch()
}

#[cfg(feature = "cube")]
fn row_numbers(rows: Tensor<1, Int>) -> IntTensor<Dispatch> {
    rows.cast(DType::I32).into_dispatch()
}
