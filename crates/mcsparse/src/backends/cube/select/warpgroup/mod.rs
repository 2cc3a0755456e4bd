//! From the inputs of a selection to a launch of the warpgroup column sums.

mod consume;
mod kernel;
mod produce;
mod step;
mod tile;
#[cfg(feature = "cuda-source")]
mod variants;

use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::DType,
};
use burn_cubecl::tensor::CubeTensor;
use cubecl::{ir::DeviceProperties, prelude::*};

use self::{
    kernel::LayoutsLaunch,
    tile::{KEYS, UNITS, pieces},
};
use super::{
    super::{
        fits,
        fragment::CHUNK,
        hopper::{self, layout::LayoutLaunch},
        reads_by,
    },
    Inputs,
};

pub(in super::super) use self::tile::Tile;
#[cfg(feature = "cuda-source")]
pub(in super::super) use self::variants::variants;

/// Pieces of work for each multiprocessor that a launch should have at least, so that none waits long for the last.
const PIECES: usize = 16;

/// The tile for a problem on a device with warpgroup products, or what it lacks.
pub(in super::super) fn tile(properties: &DeviceProperties, dtype: DType, head_dim: usize) -> Result<Tile, String> {
    hopper::supports(properties, dtype, head_dim)?;
    let element = hopper::element(dtype);
    let tile = Tile { head_dim, element, whole: true };
    fits(&properties.hardware, UNITS as u32, tile.shared_bytes())?;
    Ok(tile)
}

/// Fills the first `rows` rows of `mass` with the column sums of the rows from `first_row` on.
pub(super) fn launch(inputs: &Inputs, mass: &CubeTensor, first_row: usize, rows: usize) {
    let Inputs { query, key, lse, order, options } = inputs;
    let [_, _, queries, _] = query.shape().dims();
    let [_, _, keys, head_dim] = key.shape().dims();
    let properties = query.client.properties();
    let tile = tile(properties, query.dtype, head_dim).expect("the tier was chosen");
    let tile = Tile { whole: [query, key].into_iter().all(|tensor| reads_by(tensor, CHUNK)), ..tile };
    let processors = properties.hardware.num_streaming_multiprocessors.unwrap_or(1) as usize;
    let pairs = pieces(first_row, rows, queries.div_ceil(options.group_size));
    // No piece without keys.
    let splits = (PIECES * processors).div_ceil(pairs).clamp(1, keys.div_ceil(KEYS));
    let sizes = inputs.sizes(first_row, rows, splits);
    let pieces = pairs * splits;
    let address = [query, key, lse, order, mass].map(CubeTensor::required_address_type);
    // SAFETY: every access stays inside the tensors whose strides and sizes are passed: `select_keys` has checked that they
    // fit each other, rows and keys are bounded by the sizes, the kernel clamps what the order holds, and 16 bytes are read
    // only where aligned.
    unsafe {
        kernel::column_sums::launch_unchecked(
            &query.client,
            CubeCount::new_1d(processors.min(pieces) as u32),
            CubeDim::new_1d(UNITS as u32),
            address.into_iter().max().unwrap_or_default(),
            query.clone().into_buffer_arg(),
            key.clone().into_buffer_arg(),
            lse.clone().into_buffer_arg(),
            order.clone().into_buffer_arg(),
            mass.clone().into_buffer_arg(),
            pieces as u32,
            sizes,
            LayoutsLaunch::new(LayoutLaunch::of(query), LayoutLaunch::of(key)),
            tile,
            dtype_to_storage_type(query.dtype),
        );
    }
}
