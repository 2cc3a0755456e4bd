//! Units that work alone: what the kernels for CubeCL's CPU runtime share.
//!
//! A unit is a thread there, a cube has as many as the machine has cores, and a barrier makes all of them wait for the slowest. So
//! each unit takes a piece of the work by itself: no shared memory, no barriers, vectors as wide as the device reads them.

use burn_cubecl::tensor::CubeTensor;
use cubecl::{ir::HardwareProperties, prelude::*};

use super::{CUBES_X, reads_by, tier::Tier};

/// The most units of a cube: the WebGPU limit.
const MOST: u32 = 256;

/// Whether kernels are to be those of single units: on CPUs, or by name.
pub(super) fn applies(hardware: &HardwareProperties) -> bool {
    is_cpu(hardware) || Tier::limit() == Tier::Units
}

/// Whether units are threads.
pub(super) fn is_cpu(hardware: &HardwareProperties) -> bool {
    hardware.num_cpu_cores.is_some()
}

/// Units of a cube of kernels whose units need nothing of each other.
pub(super) fn units(client: &Client) -> u32 {
    client.properties().hardware.max_units_per_cube.clamp(1, MOST)
}

/// A launch of at least `pieces` such units.
pub(super) fn launch(client: &Client, pieces: usize) -> (CubeCount, CubeDim) {
    let units = units(client);
    (count(pieces.div_ceil(units as usize)), CubeDim::new_1d(units))
}

/// A launch of at least `cubes` cubes.
pub(super) fn count(cubes: usize) -> CubeCount {
    let x = cubes.clamp(1, CUBES_X);
    CubeCount::Static(x as u32, cubes.div_ceil(x) as u32, 1)
}

/// The number of this cube.
#[cube]
pub(super) fn cube() -> u32 {
    CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X
}

/// The number of this unit's piece.
#[cube]
pub(super) fn piece() -> u32 {
    cube() * CUBE_DIM_X + UNIT_POS
}

/// Elements by which rows of all `tensors` can be read as they lie.
pub(super) fn vector(tensors: &[&CubeTensor]) -> usize {
    let size = tensors[0].dtype.size();
    let sizes = tensors[0].client.io_optimized_vector_sizes(size);
    sizes.filter(|&vector| tensors.iter().all(|tensor| reads_by(tensor, vector))).max().unwrap_or(1)
}

/// The row of `tensor` that begins at element `row`, in f32 and times `scale`, into `rows` from `to` on.
#[cube]
pub(super) fn read_row<E: Float, N: Size>(
    tensor: &Tensor<Vector<E, N>>,
    row: usize,
    scale: f32,
    rows: &mut Array<Vector<f32, N>>,
    to: usize,
    #[comptime] dim: usize,
    #[comptime] vector: usize,
) {
    for c in 0..comptime!(dim / vector) {
        rows[to + c] = element(tensor, row, c, vector) * Vector::new(scale);
    }
}

/// The `c`-th vector of the row that begins at element `row`.
#[cube]
pub(super) fn element<E: Float, N: Size>(
    tensor: &Tensor<Vector<E, N>>,
    row: usize,
    c: usize,
    #[comptime] vector: usize,
) -> Vector<f32, N> {
    Vector::cast_from(tensor[(row + c * vector * tensor.stride(3)) / vector])
}

/// The sum of a vector's elements, always in the same order.
#[cube]
pub(super) fn total<N: Size>(values: Vector<f32, N>, #[comptime] vector: usize) -> f32 {
    let mut sum = 0.0f32;
    #[unroll]
    for e in 0..vector {
        sum += values.extract(e);
    }
    sum
}
