//! Kernels by backend, each beside the predicate that says which problems it takes.

#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

#[cfg(feature = "cuda-source")]
pub use cube::cuda_source;

#[cfg(any(feature = "flex", feature = "cube"))]
use burn::backend::DispatchDevice;
use burn::tensor::{DType, Device};

use crate::{
    check::Problem,
    ops::{Route, Stage},
};

/// How the backend runs `stage` for `problem`, or why it has no kernel for it.
#[cfg_attr(not(any(feature = "flex", feature = "cube")), allow(unused_variables))]
pub(crate) fn supports(stage: Stage, problem: &Problem) -> Result<Route, String> {
    match problem.device.as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => flex::supports(stage, problem),
        #[cfg(feature = "cube")]
        DispatchDevice::Cube(device) => cube::supports(device, stage, problem),
        #[allow(unreachable_patterns)]
        _ => Err(format!("no kernel for {:?}", problem.device)),
    }
}

/// How the backend runs dense attention with the column sums of groups of `group_size` queries, or why it has no kernel for it.
#[cfg_attr(not(feature = "cube"), allow(unused_variables))]
pub(crate) fn supports_riding(problem: &Problem, group_size: usize) -> Result<Route, String> {
    #[cfg(feature = "cube")]
    if let DispatchDevice::Cube(cube) = problem.device.as_dispatch() {
        return cube::supports_riding(cube, problem, group_size);
    }
    Err(format!("no kernel for {:?}", problem.device))
}

/// How the backend runs a linear layer of `inputs` by `outputs` weights in `dtype`, or why it has no kernel for it.
#[cfg_attr(not(feature = "cube"), allow(unused_variables))]
pub(crate) fn supports_linear(device: &Device, dtype: DType, inputs: usize, outputs: usize) -> Result<Route, String> {
    #[cfg(feature = "cube")]
    if let DispatchDevice::Cube(cube) = device.as_dispatch() {
        return cube::supports_linear(cube, dtype, inputs, outputs);
    }
    Err(format!("no kernel for {device:?}"))
}

/// Bytes of temporary memory that the kernel of `route` will take for groups of `group_size` under the limit
/// `workspace_bytes`; `None` where that is not known: for tensor operations, and for CPU kernels, whose threads keep what
/// they need.
#[cfg_attr(not(feature = "cube"), allow(unused_variables))]
pub(crate) fn workspace(
    stage: Stage,
    route: &Route,
    problem: &Problem,
    group_size: usize,
    workspace_bytes: usize,
) -> Option<usize> {
    #[cfg(feature = "cube")]
    if let (Route::Kernel { .. }, DispatchDevice::Cube(device)) = (route, problem.device.as_dispatch()) {
        return cube::workspace(device, stage, problem, group_size, workspace_bytes);
    }
    None
}
