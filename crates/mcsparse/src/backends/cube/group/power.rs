//! The principal direction of a Gram matrix that the units of a cube hold in registers.
//!
//! Normalised by the largest element first, so that squaring neither overflows nor vanishes. Identical rows give zero.

use cubecl::prelude::*;

use super::plan::{GRID, Tiling};

/// Values of shared memory for the partial sums of a product, `partials` for each row of the matrix; padded so that
/// neighbouring rows lie in different banks.
pub(super) const fn power_scratch(tiling: &Tiling, partials: usize) -> usize {
    tiling.padded() * (partials + 1)
}

/// Power iteration on a matrix of which unit `(y, x)` of the grid holds rows `y + 16 i` and columns `x + 16 j` at
/// `gram[i * side + j]`. The result is left in `direction`, zero past the last column.
#[cube]
pub(super) fn power_iteration(
    gram: &Array<f32>,
    start: &[f32],
    iterations: u32,
    scratch: &mut Shared<[f32]>,
    direction: &mut Shared<[f32]>,
    #[comptime] tiling: Tiling,
) {
    let side = comptime!(tiling.side());
    let unit = UNIT_POS as usize;
    let (y, x) = (unit / GRID, unit % GRID);
    begin(start, direction, tiling);
    for _ in 0..iterations {
        #[unroll]
        for i in 0..side {
            let mut sum = 0.0f32;
            #[unroll]
            for j in 0..side {
                sum += gram[i * side + j] * direction[x + GRID * j];
            }
            scratch[(y + GRID * i) * comptime!(GRID + 1) + x] = sum;
        }
        finish(scratch, direction, GRID, tiling);
    }
}

/// Puts the start vector into `direction`.
#[cube]
pub(super) fn begin(start: &[f32], direction: &mut Shared<[f32]>, #[comptime] tiling: Tiling) {
    let unit = UNIT_POS as usize;
    if unit < comptime!(tiling.padded()) {
        let mut first = 0.0f32;
        if unit < comptime!(tiling.dim) {
            first = start[unit];
        }
        direction[unit] = first;
    }
    sync_cube();
}

/// Normalises the product whose partial sums the units have just put into `scratch`, a run of `partials` for each row.
#[cube]
pub(super) fn finish(
    scratch: &mut Shared<[f32]>,
    direction: &mut Shared<[f32]>,
    #[comptime] partials: usize,
    #[comptime] tiling: Tiling,
) {
    let side = comptime!(tiling.side());
    let padded = comptime!(tiling.padded());
    let unit = UNIT_POS as usize;
    let mut extremes = Shared::<[f32]>::new_slice(comptime!(2 * GRID));
    sync_cube();
    let mut mine = 0.0f32;
    if unit < padded {
        #[unroll]
        for t in 0..partials {
            mine += scratch[unit * comptime!(partials + 1) + t];
        }
        direction[unit] = mine;
    }
    sync_cube();
    if unit < GRID {
        let mut largest = 0.0f32;
        #[unroll]
        for i in 0..side {
            largest = max(largest, direction[unit + GRID * i].abs());
        }
        extremes[unit] = largest;
    }
    sync_cube();
    // Just above the smallest normal number.
    let mut largest = f32::new(1.2e-38);
    #[unroll]
    for t in 0..GRID {
        largest = max(largest, extremes[t]);
    }
    if unit < GRID {
        let mut squares = 0.0f32;
        #[unroll]
        for i in 0..side {
            let scaled = direction[unit + GRID * i] / largest;
            squares += scaled * scaled;
        }
        extremes[GRID + unit] = squares;
    }
    sync_cube();
    let mut squares = 0.0f32;
    #[unroll]
    for t in 0..GRID {
        squares += extremes[GRID + t];
    }
    if unit < padded {
        direction[unit] = mine / largest / max(squares.sqrt(), f32::new(1.2e-38));
    }
    sync_cube();
}
