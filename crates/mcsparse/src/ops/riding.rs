//! Dense attention and selection in one pass over the keys.

#[cfg(any(feature = "flex", feature = "cube"))]
use burn::backend::Dispatch;
use burn::tensor::{Int, Tensor};

#[cfg(any(feature = "flex", feature = "cube"))]
use super::McSparseOps;
use super::{Kernels, Route};
use crate::{
    check::Problem,
    reference::{self, SelectOptions},
};

/// The kernel that computes column sums of groups of `group_size` queries beside dense attention, or why there is none.
pub fn attend_and_select_route(problem: &Problem, group_size: usize, kernels: Kernels) -> Route {
    let refusal = match kernels {
        Kernels::Reference => Err("the configuration asks for the reference".to_string()),
        Kernels::Auto => crate::backends::supports_riding(problem, group_size),
    };
    refusal.unwrap_or_else(|reason| Route::Reference { reason })
}

/// Dense attention and selection: output and log-sum-exp as [`super::dense_attention`], the keys of each group of `order` as
/// [`super::select_keys`] by the log-sum-exps `before`, those of an earlier step.
///
/// The weights of a pass come before its log-sum-exps, so that column sums which ride in it can only be weighed by earlier ones: each
/// query counts `exp(lse - before)` times as much as it should. docs/performance.md says what that saves.
pub fn attend_and_select(
    route: &Route,
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    order: Tensor<3, Int>,
    before: Tensor<3>,
    options: SelectOptions,
) -> (Tensor<4>, Tensor<3>, Tensor<4, Int>) {
    match route {
        #[cfg(any(feature = "flex", feature = "cube"))]
        Route::Kernel { .. } => {
            let (output, lse, indices) = <Dispatch as McSparseOps>::mc_attend_and_select(
                query.into_dispatch(),
                key.into_dispatch(),
                value.into_dispatch(),
                order.into_dispatch(),
                before.into_dispatch(),
                options,
            );
            (Tensor::from_dispatch(output), Tensor::from_dispatch(lse), Tensor::from_dispatch(indices))
        }
        _ => {
            let (scale, workspace) = (options.scale, options.workspace_bytes);
            let (output, lse) = reference::dense_attention(query.clone(), key.clone(), value, scale, workspace);
            (output, lse, reference::select_keys(query, key, before, order, &options))
        }
    }
}
