//! The stages as operations: each runs a kernel of the tensors' backend, or the reference where the backend has none for
//! the problem. [`route`] decides, so that the decision can be reported.

// Without a backend nothing can be dispatched, and the generated code leaves its arguments alone.
#[cfg_attr(not(any(feature = "flex", feature = "cube")), allow(unused_variables))]
mod extension;
mod formats;
mod linear;
mod merge;
mod riding;
mod route;
mod tail;

use burn::tensor::{Int, Tensor};

#[cfg(any(feature = "flex", feature = "cube"))]
use burn::backend::Dispatch;

use crate::{
    check::Problem,
    reference::{self, GroupOptions, SelectOptions},
};
pub use extension::{Finish, McSparseOps};
pub use formats::{decode_residual, encode_residual, expand_indices, pack_indices};
pub use linear::{linear, linear_route};
pub use merge::merge_parts;
pub use riding::{attend_and_select, attend_and_select_route};
pub use route::{Kernels, Route, Stage, route};
pub use tail::add_tail;
pub(crate) use tail::tail_workspace;

/// The parameters of token-gather attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SparseOptions {
    /// Queries in a group.
    pub group_size: usize,
    /// Factor on the scores.
    pub scale: f64,
    /// Bytes that temporary tensors may take.
    pub workspace_bytes: usize,
}

/// What token-gather attention returns. The sum is taken in f32, before the conversion to the output's dtype, and by a
/// kernel in the store itself.
#[derive(Debug, Clone)]
pub enum Epilogue {
    /// The attention output.
    Output,
    /// The output plus this residual: what a reuse step returns.
    AddResidual(Tensor<4>),
    /// The output plus this residual times a factor: what a reuse step returns whose residual has aged, see
    /// [`crate::ResidualGain`].
    AddScaledResidual(Tensor<4>, f32),
    /// This dense output less the sparse one: the residual that an anchor step stores.
    ResidualOf(Tensor<4>),
}

#[cfg(any(feature = "flex", feature = "cube"))]
impl Epilogue {
    /// As operations take it. Where there is no other tensor, `unread` stands in its place: an operation has a fixed number.
    fn parts(self, unread: &Tensor<4>) -> (Finish, Tensor<4>, f32) {
        match self {
            Self::Output => (Finish::Output, unread.clone(), 1.0),
            Self::AddResidual(residual) => (Finish::AddResidual, residual, 1.0),
            Self::AddScaledResidual(residual, factor) => (Finish::AddResidual, residual, factor),
            Self::ResidualOf(dense) => (Finish::ResidualOf, dense, 1.0),
        }
    }
}

/// Dense attention and its log-sum-exp; shapes as in [`reference::dense_attention`].
pub fn dense_attention(
    route: &Route,
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    scale: f64,
    workspace_bytes: usize,
) -> (Tensor<4>, Tensor<3>) {
    match route {
        #[cfg(any(feature = "flex", feature = "cube"))]
        Route::Kernel { .. } => {
            let (output, lse) = <Dispatch as McSparseOps>::mc_dense_attention(
                query.into_dispatch(),
                key.into_dispatch(),
                value.into_dispatch(),
                scale,
            );
            (Tensor::from_dispatch(output), Tensor::from_dispatch(lse))
        }
        _ => reference::dense_attention(query, key, value, scale, workspace_bytes),
    }
}

/// Grouping of similar queries; shapes as in [`reference::group_queries`].
pub fn group_queries(route: &Route, query: Tensor<4>, options: GroupOptions) -> Tensor<3, Int> {
    match route {
        #[cfg(any(feature = "flex", feature = "cube"))]
        Route::Kernel { .. } => {
            Tensor::from_dispatch(<Dispatch as McSparseOps>::mc_group_queries(query.into_dispatch(), options))
        }
        _ => reference::group_queries(query, &options),
    }
}

/// Exact key selection; shapes as in [`reference::select_keys`].
pub fn select_keys(
    route: &Route,
    query: Tensor<4>,
    key: Tensor<4>,
    lse: Tensor<3>,
    order: Tensor<3, Int>,
    options: SelectOptions,
) -> Tensor<4, Int> {
    match route {
        #[cfg(any(feature = "flex", feature = "cube"))]
        Route::Kernel { .. } => Tensor::from_dispatch(<Dispatch as McSparseOps>::mc_select_keys(
            query.into_dispatch(),
            key.into_dispatch(),
            lse.into_dispatch(),
            order.into_dispatch(),
            options,
        )),
        _ => reference::select_keys(query, key, lse, order, &options),
    }
}

/// Token-gather attention and its log-sum-exp; shapes as in [`reference::sparse_attention`].
#[allow(clippy::too_many_arguments)] // the tensors of the stage
pub fn sparse_attention(
    route: &Route,
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    order: Tensor<3, Int>,
    indices: Tensor<4, Int>,
    epilogue: Epilogue,
    options: SparseOptions,
) -> (Tensor<4>, Tensor<3>) {
    match route {
        #[cfg(any(feature = "flex", feature = "cube"))]
        Route::Kernel { .. } => {
            let (finish, other, factor) = epilogue.parts(&query);
            let (output, lse) = <Dispatch as McSparseOps>::mc_sparse_attention(
                query.into_dispatch(),
                key.into_dispatch(),
                value.into_dispatch(),
                order.into_dispatch(),
                indices.into_dispatch(),
                other.into_dispatch(),
                finish,
                factor,
                options.group_size,
                options.scale,
            );
            (Tensor::from_dispatch(output), Tensor::from_dispatch(lse))
        }
        _ => reference::sparse_attention(query, key, value, order, indices, epilogue, &options),
    }
}

/// Indices of the largest values of each row, by the kernel of the backend if `route` (that of [`Stage::Select`]) is a
/// kernel; shapes as in [`reference::partition_indices`].
pub fn partition_indices(route: &Route, values: Tensor<2>, k: usize, with_rest: bool) -> Tensor<2, Int> {
    match route {
        #[cfg(any(feature = "flex", feature = "cube"))]
        Route::Kernel { .. } => {
            Tensor::from_dispatch(<Dispatch as McSparseOps>::mc_partition_indices(values.into_dispatch(), k, with_rest))
        }
        _ => reference::partition_indices(values, k, with_rest),
    }
}

/// Bytes of temporary memory that `stage` will take by `route`, for groups of `group_size` under the limit
/// `workspace_bytes`; `None` where that is not known.
pub fn workspace(
    stage: Stage,
    route: &Route,
    problem: &Problem,
    group_size: usize,
    workspace_bytes: usize,
) -> Option<usize> {
    crate::backends::workspace(stage, route, problem, group_size, workspace_bytes)
}

/// `problem` with another number of query rows, as a stage sees it that runs on some of them.
pub(crate) fn with_queries(problem: &Problem, queries: usize) -> Problem {
    Problem { queries, ..problem.clone() }
}
