//! Stored forms of the cache: key lists as words, residuals as 8-bit codes. Plain kernels that every device runs.

mod codes;
mod lists;

pub(super) use codes::{decode, encode};
pub(super) use lists::{SHARED_BYTES, expand, pack};

use cubecl::prelude::*;

use super::CUBES_X;

/// Units of a cube: the WebGPU limit.
pub(super) const UNITS: u32 = 256;

/// A launch of `cubes` cubes.
pub(super) fn count(cubes: usize) -> CubeCount {
    let x = cubes.clamp(1, CUBES_X);
    CubeCount::Static(x as u32, cubes.div_ceil(x) as u32, 1)
}

/// The number of this cube.
#[cube]
pub(super) fn cube() -> u32 {
    CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X
}
