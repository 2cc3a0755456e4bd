//! From Burn tensors to a launch of the warpgroup attention kernel.

mod consume;
mod kernel;
mod layouts;
mod produce;
mod ride;
mod softmax;
mod step;
mod tile;
#[cfg(feature = "cuda-source")]
mod variants;

use burn::{backend::cubecl::dtype_to_storage_type, tensor::DType};
use burn_cubecl::tensor::CubeTensor;
use cubecl::{ir::DeviceProperties, prelude::*};

pub(super) use self::tile::QUERIES;
pub(in super::super) use self::tile::Tile;
#[cfg(feature = "cuda-source")]
pub(in super::super) use self::variants::variants;
use self::{layouts::LayoutsLaunch, ride::SpanLaunch, step::Addend, tile::UNITS};
use super::{
    super::{
        fits,
        fragment::CHUNK,
        hopper::{self, layout::LayoutLaunch},
        reads_by,
    },
    Lists,
    shape::SizesLaunch,
};
use crate::ops::Finish;

/// The tile for a problem on a device with warpgroup products, or what it lacks.
pub(in super::super) fn tile(
    properties: &DeviceProperties,
    dtype: DType,
    head_dim: usize,
    scale: f32,
) -> Result<Tile, String> {
    hopper::supports(properties, dtype, head_dim)?;
    let element = hopper::element(dtype);
    let stages = if head_dim == 64 { 4 } else { 2 };
    let negative = scale < 0.0;
    let (gathered, whole, finish, addend) = (false, true, Finish::Output, Addend::None);
    let tile = Tile { head_dim, stages, element, negative, gathered, whole, finish, addend, rides: false };
    fits(&properties.hardware, UNITS as u32, tile.shared_bytes())?;
    Ok(tile)
}

/// Launches the kernel. Shapes fit each other, `lse` is contiguous, and `output` is laid out as `output_row` says.
#[allow(clippy::too_many_arguments)]
pub(super) fn launch(
    tile: Tile,
    [query, key, value]: [CubeTensor; 3],
    lists: Lists,
    (finish, other): (Finish, CubeTensor),
    (output, lse): (CubeTensor, CubeTensor),
    sizes: SizesLaunch,
    tiles: usize,
    address: AddressType,
) {
    let (client, dtype) = (query.client.clone(), query.dtype);
    let cubes = client.properties().hardware.num_streaming_multiprocessors.unwrap_or(1).min(tiles as u32);
    let addend = match finish {
        Finish::Output => Addend::None,
        _ if reads_by(&other, 2) => Addend::Pairs,
        _ => Addend::Single,
    };
    let whole = [&query, &key, &value].into_iter().all(|tensor| reads_by(tensor, CHUNK));
    let tile = Tile { gathered: lists.group_size.is_some(), whole, finish, addend, ..tile };
    let [of_query, of_key, of_value, of_other] = [&query, &key, &value, &other].map(LayoutLaunch::of);
    // SAFETY: every access stays inside the tensors whose strides and sizes are passed: the shapes fit each other, rows and
    // keys are bounded by the sizes, the kernel clamps what order and indices hold, and 16 or 4 bytes are read only where
    // aligned.
    unsafe {
        kernel::attend::launch_unchecked(
            &client,
            CubeCount::new_1d(cubes),
            CubeDim::new_1d(UNITS as u32),
            address,
            query.into_buffer_arg(),
            key.into_buffer_arg(),
            value.into_buffer_arg(),
            lists.order.into_buffer_arg(),
            lists.indices.into_buffer_arg(),
            other.into_buffer_arg(),
            output.into_buffer_arg(),
            lse.into_buffer_arg(),
            sizes,
            LayoutsLaunch::new(of_query, of_key, of_value, of_other),
            tile,
            dtype_to_storage_type(dtype),
        );
    }
}

/// What a dense pass with column sums is launched with: tensors as [`launch`] takes them, `before` and `order` contiguous.
pub(super) struct Riding {
    pub query: CubeTensor,
    pub key: CubeTensor,
    pub value: CubeTensor,
    pub order: CubeTensor,
    /// Log-sum-exps of an earlier step.
    pub before: CubeTensor,
    pub output: CubeTensor,
    pub lse: CubeTensor,
    /// Column sums, contiguous.
    pub mass: CubeTensor,
    /// Keys before the first are sinks, and those from the second one on.
    pub between_sinks: (usize, usize),
}

/// The tile for a dense pass with column sums of groups of `group_size`, or why there is none.
pub(in super::super) fn riding_tile(
    properties: &DeviceProperties,
    dtype: DType,
    head_dim: usize,
    scale: f32,
    group_size: usize,
) -> Result<Tile, String> {
    let tile = Tile { rides: true, ..tile(properties, dtype, head_dim, scale)? };
    if group_size > QUERIES {
        return Err(format!("groups of {group_size} queries; column sums ride with at most {QUERIES}"));
    }
    fits(&properties.hardware, UNITS as u32, tile.shared_bytes())?;
    Ok(tile)
}

/// Launches the pass of the groups `first..end` of all heads, counted head after head.
pub(super) fn launch_riding(tile: Tile, tensors: &Riding, sizes: SizesLaunch, first: usize, end: usize) {
    let Riding { query, key, value, order, before, output, lse, mass, between_sinks } = tensors;
    let client = query.client.clone();
    let cubes = client.properties().hardware.num_streaming_multiprocessors.unwrap_or(1).min((end - first) as u32);
    let whole = [query, key, value].into_iter().all(|tensor| reads_by(tensor, CHUNK));
    let tile = Tile { whole, ..tile };
    let address = [query, key, value, output, mass, lse].map(CubeTensor::required_address_type);
    let [of_query, of_key, of_value] = [query, key, value].map(LayoutLaunch::of);
    let unread = LayoutLaunch::of(query);
    // SAFETY: as in [`launch`]; the kernel writes a row of `mass` for each tile from `first` to `end`, as many as it has.
    unsafe {
        kernel::attend_and_sum::launch_unchecked(
            &client,
            CubeCount::new_1d(cubes),
            CubeDim::new_1d(UNITS as u32),
            address.into_iter().max().unwrap_or_default(),
            query.clone().into_buffer_arg(),
            key.clone().into_buffer_arg(),
            value.clone().into_buffer_arg(),
            order.clone().into_buffer_arg(),
            before.clone().into_buffer_arg(),
            output.clone().into_buffer_arg(),
            lse.clone().into_buffer_arg(),
            mass.clone().into_buffer_arg(),
            sizes,
            LayoutsLaunch::new(of_query, of_key, of_value, unread),
            SpanLaunch::new(first as u32, end as u32, between_sinks.0 as u32, between_sinks.1 as u32),
            tile,
            dtype_to_storage_type(query.dtype),
        );
    }
}
