//! CubeCL kernels: one source for CUDA, ROCm, Metal, Vulkan, WebGPU and the CubeCL CPU runtime.

mod attend;
mod group;
mod radix;
mod select;

use burn::{
    backend::{
        CubeDevice,
        tensor::{FloatTensor, IntTensor},
    },
    tensor::{DType, Shape},
};

use burn_cubecl::{CubeBackend, ops::numeric::empty_device_contiguous_dtype, tensor::CubeTensor};
use cubecl::{
    features::AtomicUsage,
    ir::{ElemType, HardwareProperties, Type, UIntKind},
    prelude::*,
};

use attend::simt;
use select::partition;

use crate::{
    check::Problem,
    ops::{Finish, McSparseOps, Route, Stage},
    reference::GroupOptions,
};

/// Cubes along the first axis of a launch, below the WebGPU limit of 65,535; more go along the second.
const CUBES_X: usize = 32_768;

/// The kernel that takes `problem`, or why none does.
pub(super) fn supports(device: &CubeDevice, stage: Stage, problem: &Problem) -> Result<Route, String> {
    let client = device.client();
    let hardware = &client.properties().hardware;
    match stage {
        Stage::Dense | Stage::Sparse => {
            if !problem.head_dim.is_multiple_of(simt::VECTOR) {
                return Err(format!("head_dim {} is no multiple of {}", problem.head_dim, simt::VECTOR));
            }
            let shared = simt::Tile::of(problem.head_dim).shared_bytes(problem.head_dim);
            fits(hardware, simt::UNITS, shared)?;
            Ok(Route::Kernel(if stage == Stage::Dense { "cube shared-memory tiles" } else { "cube gathered tiles" }))
        }
        Stage::Group => {
            counts(&client)?;
            // Where the kernels do not fit, the reference around the one that does is still far from its sort on the host.
            if fits(hardware, group::UNITS, group::shared_bytes(problem.head_dim)).is_err() {
                fits(hardware, partition::UNITS, partition::SHARED_BYTES)?;
                return Ok(Route::Composed("cube radix selection"));
            }
            let matrix_units = group::matrix_units(&client, problem.head_dim, problem.dtype);
            Ok(Route::Kernel(if matrix_units { "cube pddp, matrix units" } else { "cube pddp" }))
        }
        // Without the kernel the tensor operations would sort, which CubeCL backends do on the host.
        Stage::Select => {
            counts(&client)?;
            fits(hardware, partition::UNITS, partition::SHARED_BYTES)?;
            Ok(Route::Composed("cube radix selection"))
        }
    }
}

/// Bytes that the grouping kernels allocate at once besides their result.
pub(super) fn group_workspace(device: &CubeDevice, problem: &Problem, options: &GroupOptions) -> usize {
    group::workspace_bytes(&device.client(), problem, options)
}

/// Refuses what the hardware has too little of.
fn fits(hardware: &HardwareProperties, units: u32, shared_bytes: usize) -> Result<(), String> {
    let (has_units, has_shared) = (hardware.max_units_per_cube, hardware.max_shared_memory_size);
    if has_units < units {
        return Err(format!("{has_units} units a cube, {units} needed"));
    }
    if has_shared < shared_bytes {
        return Err(format!("{has_shared} bytes of shared memory, {shared_bytes} needed"));
    }
    Ok(())
}

/// Refuses devices whose units cannot count together; see [`radix`].
fn counts(client: &Client) -> Result<(), String> {
    let usage = client.properties().atomic_type_usage(Type::atomic(ElemType::UInt(UIntKind::U32)));
    let needed = AtomicUsage::Add | AtomicUsage::LoadStore;
    if usage.is_superset(needed) { Ok(()) } else { Err("no atomic addition of 32-bit integers".to_string()) }
}

impl McSparseOps for CubeBackend {
    fn mc_group_queries(query: FloatTensor<Self>, options: GroupOptions) -> IntTensor<Self> {
        group::group_queries(query, &options)
    }

    fn mc_partition_indices(values: FloatTensor<Self>, k: usize, with_rest: bool) -> IntTensor<Self> {
        partition::partition(values, k, with_rest)
    }

    fn mc_dense_attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        scale: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (lists, unread) = (attend::Lists::none(&query), query.clone());
        attend::attend(query, key, value, lists, (Finish::Output, unread), scale as f32)
    }

    fn mc_sparse_attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        order: IntTensor<Self>,
        indices: IntTensor<Self>,
        other: FloatTensor<Self>,
        finish: Finish,
        group_size: usize,
        scale: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let lists = attend::Lists::gathered(order, indices, group_size);
        attend::attend(query, key, value, lists, (finish, other), scale as f32)
    }
}

/// An uninitialised tensor on the device of `like`.
fn empty(like: &CubeTensor, shape: &[usize], dtype: DType) -> CubeTensor {
    let (client, device) = (like.client.clone(), like.device.clone());
    empty_device_contiguous_dtype(client, device, Shape::from(shape.to_vec()), dtype)
}
