//! From Burn tensors to a launch of the matrix-unit attention kernel.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::{ir::DeviceProperties, prelude::*};

use super::{
    super::{fits, fragment::CHUNK, matrix_units},
    Lists,
    mma::{self, Tile},
    shape::SizesLaunch,
};
use crate::ops::Finish;

/// The tile for a problem on a device with matrix units, or what it lacks. `rows` are the queries that a cube may take at
/// most.
pub(in super::super) fn tile(properties: &DeviceProperties, head_dim: usize, rows: usize) -> Result<Tile, String> {
    let ptx = matrix_units::has_ptx(properties);
    // Half as many planes where a group would leave half of them idle.
    let planes = if rows <= 64 { 4 } else { 8 };
    let keys = match head_dim {
        0..=128 if planes == 8 => 64, // 32 registers of scores beside 64 of output and 32 of queries
        _ => 32,                      // 128 of output and 64 of queries at head_dim 256; or few units to bring a tile
    };
    let tile = Tile { planes, strips: 1, keys, ptx, async_copy: ptx };
    // Less shared memory, shorter tiles.
    let short = Tile { keys: 32, ..tile };
    let fitting =
        |tile: Tile| fits(&properties.hardware, tile.units() as u32, tile.shared_bytes(head_dim)).map(|()| tile);
    fitting(tile).or_else(|_| fitting(short))
}

/// Launches the kernel. Shapes fit each other, `lse` is contiguous, and `output` is laid out as `output_row` says.
#[allow(clippy::too_many_arguments)]
pub(super) fn launch(
    tile: Tile,
    [query, key, value]: [CubeTensor; 3],
    lists: Lists,
    (finish, other): (Finish, CubeTensor),
    (past_lse, output, lse): (CubeTensor, CubeTensor, CubeTensor),
    sizes: SizesLaunch,
    cube_count: CubeCount,
    address: AddressType,
) {
    let (client, dtype) = (query.client.clone(), query.dtype);
    let head_dim = query.meta.shape()[3];
    let vector_size = matrix_units::vector_size(&[&query, &key, &value]);
    let tile = Tile { async_copy: tile.async_copy && vector_size == CHUNK, ..tile };
    let keys = lists.keys;
    // SAFETY: every access stays inside the tensors whose strides and sizes are passed: the shapes fit each other, rows and
    // keys are bounded by the sizes, the kernel clamps what order and indices hold, and vectors are read only where aligned.
    unsafe {
        mma::attend::launch_unchecked(
            &client,
            cube_count,
            CubeDim::new_1d(tile.units() as u32),
            address,
            vector_size,
            query.into_tensor_arg(),
            key.into_tensor_arg(),
            value.into_tensor_arg(),
            lists.order.into_buffer_arg(),
            lists.indices.into_buffer_arg(),
            other.into_tensor_arg(),
            past_lse.into_buffer_arg(),
            output.into_buffer_arg(),
            lse.into_buffer_arg(),
            sizes,
            tile,
            head_dim,
            keys,
            finish,
            dtype_to_storage_type(dtype),
        );
    }
}
