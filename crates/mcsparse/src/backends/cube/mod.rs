//! CubeCL kernels: one source for CUDA, ROCm, Metal, Vulkan, WebGPU and the CubeCL CPU runtime.

mod alone;
mod attend;
mod cooperative;
#[cfg(feature = "cuda-source")]
pub mod cuda_source;
mod formats;
mod fragment;
mod group;
mod hopper;
#[cfg(any(feature = "cuda", feature = "cuda-source"))]
mod linear;
mod matrix_units;
mod radix;
mod select;
mod tail;
mod tier;
mod tile;

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

use attend::Ending;
use select::{column_sums, partition};
use tier::{Choice, Tier};

use crate::{
    IndexFormat, ResidualFormat,
    check::Problem,
    ops::{Finish, McSparseOps, Route, Stage},
    reference::{GroupOptions, SelectOptions, TailOptions},
};

/// Cubes along the first axis of a launch, below the WebGPU limit of 65,535; more go along the second.
const CUBES_X: usize = 32_768;

/// The kernel that takes `problem`, or why none does.
pub(super) fn supports(device: &CubeDevice, stage: Stage, problem: &Problem) -> Result<Route, String> {
    let client = device.client();
    let hardware = &client.properties().hardware;
    match stage {
        Stage::Dense | Stage::Sparse => {
            let Choice { tier, declined } = tier::choose(client.properties(), problem.dtype, problem.head_dim)?;
            Ok(Route::Kernel { name: attend::name(tier, stage == Stage::Sparse), declined })
        }
        Stage::Group if alone::applies(hardware) => Ok(Route::kernel("cube pddp of single units")),
        Stage::Group => {
            counts(&client)?;
            fits(hardware, group::UNITS, group::shared_bytes(problem.head_dim))?;
            Ok(match group::matrix_units(&client, problem.head_dim, problem.dtype) {
                Ok(()) => Route::kernel("cube matrix pddp"),
                Err(reason) => Route::Kernel { name: "cube pddp", declined: vec![reason] },
            })
        }
        Stage::Select if alone::applies(hardware) => Ok(Route::kernel(select::name(Tier::Units))),
        Stage::Select => {
            counts(&client)?;
            fits(hardware, tile::UNITS, column_sums::SHARED_BYTES.max(partition::SHARED_BYTES))?;
            let Choice { tier, declined } = tier::choose(client.properties(), problem.dtype, problem.head_dim)?;
            Ok(Route::Kernel { name: select::name(tier), declined })
        }
        Stage::DenseSelect => supports_riding(device, problem, 1),
        Stage::Tail => {
            let Choice { tier, declined } =
                tier::choose_from(Tier::Matrix, client.properties(), problem.dtype, problem.head_dim)?;
            Ok(Route::Kernel { name: attend::name_of_means(tier), declined })
        }
        Stage::Encode | Stage::Decode if alone::applies(hardware) => Ok(Route::kernel("cube cache formats")),
        Stage::Encode | Stage::Decode => {
            fits(hardware, formats::UNITS, formats::SHARED_BYTES)?;
            Ok(Route::kernel("cube cache formats"))
        }
    }
}

/// The kernel that computes column sums of groups of `group_size` queries beside dense attention, or why there is none.
pub(super) fn supports_riding(device: &CubeDevice, problem: &Problem, group_size: usize) -> Result<Route, String> {
    let client = device.client();
    let (properties, &Problem { dtype, head_dim, .. }) = (client.properties(), problem);
    counts(&client)?;
    fits(&properties.hardware, tile::UNITS, partition::SHARED_BYTES)?;
    if tier::choose(properties, dtype, head_dim)?.tier != Tier::Warpgroup {
        return Err("column sums ride on warpgroup tiles alone".into());
    }
    attend::riding::supports(properties, dtype, head_dim, group_size.min(problem.queries))
        .map(|()| Route::kernel(attend::riding::NAME))
}

/// The kernel that takes a linear layer, or why none does.
pub(super) fn supports_linear(
    device: &CubeDevice,
    dtype: DType,
    inputs: usize,
    outputs: usize,
) -> Result<Route, String> {
    #[cfg(any(feature = "cuda", feature = "cuda-source"))]
    return linear::supports(device.client().properties(), dtype, inputs, outputs)
        .map(|()| Route::kernel(linear::NAME));
    #[cfg(not(any(feature = "cuda", feature = "cuda-source")))]
    {
        let _ = (device, dtype, inputs, outputs);
        Err("the warpgroup linear layer comes with feature `cuda`".into())
    }
}

/// Bytes of temporary memory that the kernel of `stage` will take, if it has one.
pub(super) fn workspace(
    device: &CubeDevice,
    stage: Stage,
    problem: &Problem,
    group_size: usize,
    workspace_bytes: usize,
) -> Option<usize> {
    match stage {
        // Everything that is not output stays in registers and shared memory.
        Stage::Dense | Stage::Sparse | Stage::Encode => Some(0),
        // What they make is the temporary memory; how much depends on settings that the caller knows.
        Stage::Decode | Stage::Tail => None,
        Stage::Group => {
            let options = GroupOptions { group_size, power_iterations: 0, seed: 0, workspace_bytes };
            Some(group::workspace_bytes(&device.client(), problem, &options))
        }
        Stage::DenseSelect => {
            let rows = problem.batch * problem.heads * problem.queries.div_ceil(group_size);
            Some(attend::riding::workspace(device.client().properties(), rows, problem.keys, workspace_bytes))
        }
        Stage::Select => {
            let rows = problem.batch * problem.heads * problem.queries.div_ceil(group_size);
            Some(select::workspace(device.client().properties(), rows, problem.keys, workspace_bytes))
        }
    }
}

/// Whether the rows of `[batch, heads, tokens, head_dim]` can be read by vectors of `size` elements where they lie.
fn reads_by(tensor: &CubeTensor, size: usize) -> bool {
    let (strides, shape) = (tensor.meta.strides(), tensor.meta.shape());
    let rows = (0..3).all(|axis| shape[axis] == 1 || strides[axis].is_multiple_of(size));
    let start = tensor.handle.offset_start.unwrap_or(0);
    let starts = start.is_multiple_of((size * tensor.dtype.size()) as u64);
    size == 1 || (rows && starts && strides[3] == 1 && shape[3].is_multiple_of(size))
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

    fn mc_select_keys(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        order: IntTensor<Self>,
        options: SelectOptions,
    ) -> IntTensor<Self> {
        select::select_keys(query, key, lse, order, options)
    }

    fn mc_attend_and_select(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        order: IntTensor<Self>,
        before: FloatTensor<Self>,
        options: SelectOptions,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, IntTensor<Self>) {
        attend::riding::attend_and_select([query, key, value], order, before, &options)
    }

    fn mc_linear(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        biased: bool,
    ) -> FloatTensor<Self> {
        #[cfg(any(feature = "cuda", feature = "cuda-source"))]
        return linear::linear(input, weight, biased.then_some(bias));
        #[cfg(not(any(feature = "cuda", feature = "cuda-source")))]
        unreachable!("`supports_linear` names no kernel: {:?}", (input, weight, bias, biased));
    }

    fn mc_dense_attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        scale: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (lists, unread) = (attend::Lists::none(&query), query.clone());
        attend::attend(query, key, value, lists, Ending::output(unread), scale as f32)
    }

    fn mc_sparse_attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        order: IntTensor<Self>,
        indices: IntTensor<Self>,
        other: FloatTensor<Self>,
        finish: Finish,
        factor: f32,
        group_size: usize,
        scale: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let lists = attend::Lists::gathered(order, indices, group_size);
        attend::attend(query, key, value, lists, Ending { finish, other, factor, before: None }, scale as f32)
    }

    fn mc_add_tail(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        order: IntTensor<Self>,
        indices: IntTensor<Self>,
        sparse: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        other: FloatTensor<Self>,
        finish: Finish,
        factor: f32,
        options: TailOptions,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let tensors = tail::Tensors { query, key, value, order, indices, sparse, lse, other };
        tail::add_tail(tensors, finish, factor, &options)
    }

    fn mc_pack_indices(indices: IntTensor<Self>, format: IndexFormat, keys: usize) -> IntTensor<Self> {
        formats::pack(indices, format, keys)
    }

    fn mc_expand_indices(packed: IntTensor<Self>, format: IndexFormat, keys: usize, kept: usize) -> IntTensor<Self> {
        formats::expand(packed, format, keys, kept)
    }

    fn mc_encode_residual(residual: FloatTensor<Self>, format: ResidualFormat) -> (IntTensor<Self>, FloatTensor<Self>) {
        formats::encode(residual, format)
    }

    fn mc_decode_residual(
        codes: IntTensor<Self>,
        largest: FloatTensor<Self>,
        format: ResidualFormat,
        head_dim: usize,
    ) -> FloatTensor<Self> {
        formats::decode(codes, largest, format, head_dim)
    }
}

/// An uninitialised tensor on the device of `like`.
fn empty(like: &CubeTensor, shape: &[usize], dtype: DType) -> CubeTensor {
    let (client, device) = (like.client.clone(), like.device.clone());
    empty_device_contiguous_dtype(client, device, Shape::from(shape.to_vec()), dtype)
}
