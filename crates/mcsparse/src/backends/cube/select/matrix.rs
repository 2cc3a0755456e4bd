//! From the inputs of a selection to a launch of the matrix-unit column sums.

use burn::backend::{TensorMetadata, cubecl::dtype_to_storage_type};
use burn_cubecl::tensor::CubeTensor;
use cubecl::{ir::DeviceProperties, prelude::*};

use super::{
    super::{CUBES_X, fits, matrix_units},
    Inputs,
    mma::{self, Tile},
};

/// Cubes that a launch should have at least, so that every multiprocessor has a few.
const MANY_CUBES: usize = 1024;

/// The tile for a problem on a device with matrix units, or what it lacks.
pub(in super::super) fn tile(properties: &DeviceProperties, head_dim: usize) -> Result<Tile, String> {
    // Two strips of keys share each query operand; above 128 their registers would not fit.
    let strips = if head_dim <= 128 { 2 } else { 1 };
    let ptx = matrix_units::has_ptx(properties);
    // Measured on an H200 at 16,384 tokens x 24 heads, head_dim 128: CUDA C++ 6.0 ms with 4 planes against 6.8 with 8, LLVM
    // 8.3 against 8.2. Registers for three small cubes, or one large one.
    let tile = Tile { planes: if ptx { 4 } else { 8 }, strips, ptx };
    fits(&properties.hardware, tile.units() as u32, Tile::shared_bytes(head_dim))?;
    Ok(tile)
}

/// Fills the first `rows` rows of `mass` with the column sums of the rows from `first_row` on.
pub(super) fn launch(inputs: &Inputs, mass: &CubeTensor, first_row: usize, rows: usize) {
    let Inputs { query, key, lse, order, .. } = inputs;
    let [_, _, keys, head_dim] = key.shape().dims();
    let tile = tile(query.client.properties(), head_dim).expect("the tier was chosen");
    // Few rows share their keys out to more cubes.
    let splits = MANY_CUBES.div_ceil(rows).clamp(1, keys.div_ceil(tile.planes * tile.keys()));
    let sizes = inputs.sizes(first_row, rows, splits);
    let cubes = rows * splits;
    let x = cubes.min(CUBES_X);
    let address = [query, key, lse, order, mass].map(CubeTensor::required_address_type);
    // SAFETY: every access stays inside the tensors whose strides and sizes are passed: `select_keys` has checked that they
    // fit each other, rows and keys are bounded by the sizes, the kernel clamps what the order holds, and vectors are read
    // only where aligned.
    unsafe {
        mma::column_sums::launch_unchecked(
            &query.client,
            CubeCount::Static(x as u32, cubes.div_ceil(x) as u32, 1),
            CubeDim::new_1d(tile.units() as u32),
            address.into_iter().max().unwrap_or_default(),
            matrix_units::vector_size(&[query, key]),
            query.clone().into_tensor_arg(),
            key.clone().into_tensor_arg(),
            lse.clone().into_buffer_arg(),
            order.clone().into_buffer_arg(),
            mass.clone().into_buffer_arg(),
            sizes,
            tile,
            head_dim,
            dtype_to_storage_type(query.dtype),
        );
    }
}
