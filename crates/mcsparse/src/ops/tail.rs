//! The keys that groups do not keep, as an operation by [`super::Stage::Tail`]'s route.

use burn::tensor::{DType, Int, Tensor};

#[cfg(any(feature = "flex", feature = "cube"))]
use burn::backend::Dispatch;

#[cfg(any(feature = "flex", feature = "cube"))]
use super::McSparseOps;
use super::{Epilogue, Route};
use crate::{
    check::Problem,
    reference::{self, TailOptions},
};

/// Sparse attention with what the keys weigh that it leaves out; shapes and formula as in [`reference::add_tail`].
///
/// A kernel rounds means to the dtype of the inputs.
#[allow(clippy::too_many_arguments)] // the tensors of the stage
pub fn add_tail(
    route: &Route,
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    order: Tensor<3, Int>,
    indices: Tensor<4, Int>,
    sparse: (Tensor<4>, Tensor<3>),
    epilogue: Epilogue,
    options: TailOptions,
) -> (Tensor<4>, Tensor<3>) {
    match route {
        #[cfg(any(feature = "flex", feature = "cube"))]
        Route::Kernel { .. } => {
            let (finish, other, factor) = epilogue.parts(&query);
            let (output, lse) = <Dispatch as McSparseOps>::mc_add_tail(
                query.into_dispatch(),
                key.into_dispatch(),
                value.into_dispatch(),
                order.into_dispatch(),
                indices.into_dispatch(),
                sparse.0.into_dispatch(),
                sparse.1.into_dispatch(),
                other.into_dispatch(),
                finish,
                factor,
                options,
            );
            (Tensor::from_dispatch(output), Tensor::from_dispatch(lse))
        }
        _ => reference::add_tail(query, key, value, order, indices, sparse, epilogue, &options),
    }
}

/// Bytes of mean keys and values and of the counts of all groups: what a kernel takes as temporary memory.
pub(crate) fn tail_workspace(problem: &Problem, options: &TailOptions) -> usize {
    let Problem { batch, heads, kv_heads, keys, head_dim, dtype, .. } = *problem;
    let groups = (keys - options.sink_prefix - options.sink_suffix).div_ceil(options.group_size);
    batch * options.blocks(keys) * (2 * kv_heads * head_dim * dtype.size() + heads * groups * DType::I32.size())
}
