//! From Burn tensors to a launch of the attention kernel of cooperative matrices.

mod bring;
mod kernel;
mod step;
mod store;
mod tile;
#[cfg(feature = "cuda-source")]
mod variants;
mod weigh;

use burn::{backend::cubecl::dtype_to_storage_type, tensor::DType};
use burn_cubecl::tensor::CubeTensor;
use cubecl::{ir::DeviceProperties, prelude::*};

pub(in super::super) use self::tile::Tile;
#[cfg(feature = "cuda-source")]
pub(in super::super) use self::variants::variants;
use super::{
    super::{
        cooperative::{self, emulated, products::Form},
        fits, matrix_units,
    },
    Lists,
    shape::SizesLaunch,
};
use crate::ops::Finish;

/// The tile for a problem on a device with cooperative matrices, or what it lacks. `rows` are the queries that a cube may take
/// at most.
pub(in super::super) fn tile(
    properties: &DeviceProperties,
    dtype: DType,
    head_dim: usize,
    rows: usize,
) -> Result<Tile, String> {
    let form = cooperative::supports(properties, dtype)?;
    let hardware = &properties.hardware;
    let steady = hardware.plane_size_min == hardware.plane_size_max;
    let (plane, ptx) = (hardware.plane_size_max as usize, matrix_units::has_ptx(properties));
    fitting(properties, Tile { planes: 0, plane, steady, keys: 0, form, emulated: false, ptx }, head_dim, rows)
}

/// The tile of the same kernel with its products written out.
pub(in super::super) fn emulated_tile(
    properties: &DeviceProperties,
    dtype: DType,
    head_dim: usize,
    rows: usize,
) -> Result<Tile, String> {
    if !matches!(dtype, DType::F16 | DType::BF16) {
        return Err(format!("cooperative matrices take f16 and bf16, not {dtype:?}"));
    }
    let form = Form { m: 16, n: 16, k: 16 };
    let tile = Tile { planes: 0, plane: emulated::PLANE, steady: true, keys: 0, form, emulated: true, ptx: false };
    fitting(properties, tile, head_dim, rows)
}

/// As many planes and keys as a group and the shared memory have room for.
fn fitting(properties: &DeviceProperties, tile: Tile, head_dim: usize, rows: usize) -> Result<Tile, String> {
    // Queries and sums of a plane stay in its registers: half of those that a unit may have at 128.
    if head_dim > 128 {
        return Err(format!("head_dim {head_dim} is above 128"));
    }
    let most = rows.div_ceil(tile.form.m).clamp(1, 4);
    let choices = [(most, 32), (most, tile.form.unit()), (most.min(2), tile.form.unit())];
    let mut fitted = Err(String::new());
    for (planes, keys) in choices {
        let tile = Tile { planes, keys, ..tile };
        fitted = fits(&properties.hardware, tile.units() as u32, tile.shared_bytes(head_dim)).map(|()| tile);
        if fitted.is_ok() {
            break;
        }
    }
    fitted
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
    let read_by = cooperative::vector_size(client.properties(), &[&query, &key, &value]);
    let write_by = if head_dim.is_multiple_of(4) { 4 } else { 1 };
    let keys = lists.keys;
    // SAFETY: every access stays inside the tensors whose strides and sizes are passed: the shapes fit each other, rows and
    // keys are bounded by the sizes, the kernel clamps what order and indices hold, and vectors are read only where aligned.
    unsafe {
        kernel::attend::launch_unchecked(
            &client,
            cube_count,
            CubeDim::new_1d(tile.units() as u32),
            address,
            read_by,
            write_by,
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
