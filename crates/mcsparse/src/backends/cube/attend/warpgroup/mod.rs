//! From Burn tensors to a launch of the warpgroup attention kernel.

mod consume;
mod kernel;
mod layouts;
mod produce;
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
use self::{layouts::LayoutsLaunch, step::Addend, tile::UNITS};
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
    let tile = Tile { head_dim, stages, element, negative, gathered, whole, finish, addend };
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
