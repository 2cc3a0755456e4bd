//! Sums over a cube, by shared memory alone, in a fixed order.

use cubecl::prelude::*;

/// Units whose values one unit adds up first.
const RUN: usize = 16;

/// Values of shared memory that [`cube_sum`] works in with `units` units, a multiple of 16.
pub(super) const fn scratch(units: usize) -> usize {
    units + units / RUN
}

/// The sum of all units' values. To be called by all units of the cube.
#[cube]
pub(super) fn cube_sum(value: f32, scratch: &mut Shared<[f32]>, #[comptime] units: usize) -> f32 {
    let unit = UNIT_POS as usize;
    scratch[unit] = value;
    sync_cube();
    if unit < comptime!(units / RUN) {
        let mut sum = 0.0f32;
        for i in 0..comptime!(RUN) {
            sum += scratch[unit * comptime!(RUN) + i];
        }
        scratch[units + unit] = sum;
    }
    sync_cube();
    let mut total = 0.0f32;
    for run in 0..comptime!(units / RUN) {
        total += scratch[units + run];
    }
    total
}

/// The sum of a vector's elements.
#[cube]
pub(super) fn lanes<N: Size>(vector: Vector<f32, N>, #[comptime] size: usize) -> f32 {
    let mut sum = 0.0f32;
    #[unroll]
    for e in 0..size {
        sum += vector.extract(e);
    }
    sum
}
