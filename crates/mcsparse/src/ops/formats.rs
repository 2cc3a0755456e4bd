//! The stored forms of the cache as operations, by [`super::Stage::Encode`]'s and [`super::Stage::Decode`]'s routes.

use burn::tensor::{Int, Tensor};

#[cfg(any(feature = "flex", feature = "cube"))]
use burn::backend::Dispatch;

#[cfg(any(feature = "flex", feature = "cube"))]
use super::McSparseOps;
use super::Route;
use crate::{IndexFormat, ResidualFormat, reference};

/// Ascending key lists in a stored form; shapes as in [`reference::pack_indices`].
pub fn pack_indices(route: &Route, indices: Tensor<4, Int>, format: IndexFormat, keys: usize) -> Tensor<4, Int> {
    match (format, route) {
        (IndexFormat::Plain, _) => indices,
        #[cfg(any(feature = "flex", feature = "cube"))]
        (_, Route::Kernel { .. }) => {
            Tensor::from_dispatch(<Dispatch as McSparseOps>::mc_pack_indices(indices.into_dispatch(), format, keys))
        }
        _ => reference::pack_indices(indices, format, keys),
    }
}

/// Key lists from their stored form; shapes as in [`reference::expand_indices`], whose temporary tensors keep to
/// `workspace_bytes`.
pub fn expand_indices(
    route: &Route,
    packed: Tensor<4, Int>,
    format: IndexFormat,
    keys: usize,
    kept: usize,
    workspace_bytes: usize,
) -> Tensor<4, Int> {
    match (format, route) {
        (IndexFormat::Plain, _) => packed,
        #[cfg(any(feature = "flex", feature = "cube"))]
        (_, Route::Kernel { .. }) => Tensor::from_dispatch(<Dispatch as McSparseOps>::mc_expand_indices(
            packed.into_dispatch(),
            format,
            keys,
            kept,
        )),
        _ => reference::expand_indices(packed, format, keys, kept, workspace_bytes),
    }
}

/// A residual as 8-bit codes and largest magnitudes; shapes and panics as in [`reference::encode_residual`].
pub fn encode_residual(route: &Route, residual: Tensor<4>, format: ResidualFormat) -> (Tensor<4, Int>, Tensor<3>) {
    match (format, route) {
        #[cfg(any(feature = "flex", feature = "cube"))]
        (ResidualFormat::Fp8 | ResidualFormat::Int8, Route::Kernel { .. }) => {
            let (codes, largest) = <Dispatch as McSparseOps>::mc_encode_residual(residual.into_dispatch(), format);
            (Tensor::from_dispatch(codes), Tensor::from_dispatch(largest))
        }
        _ => reference::encode_residual(residual, format),
    }
}

/// A residual from its codes; shapes and panics as in [`reference::decode_residual`].
pub fn decode_residual(
    route: &Route,
    codes: Tensor<4, Int>,
    largest: Tensor<3>,
    format: ResidualFormat,
    head_dim: usize,
) -> Tensor<4> {
    match (format, route) {
        #[cfg(any(feature = "flex", feature = "cube"))]
        (ResidualFormat::Fp8 | ResidualFormat::Int8, Route::Kernel { .. }) => {
            Tensor::from_dispatch(<Dispatch as McSparseOps>::mc_decode_residual(
                codes.into_dispatch(),
                largest.into_dispatch(),
                format,
                head_dim,
            ))
        }
        _ => reference::decode_residual(codes, largest, format, head_dim),
    }
}
