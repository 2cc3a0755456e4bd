//! The principal direction of a Gram matrix that the units of a cube hold in registers.

use cubecl::prelude::*;

use super::plan::{GRID, Tiling};

/// Values of shared memory that [`power_iteration`] works in: a row of partial sums for each row of the matrix, padded so
/// that neighbouring rows lie in different banks.
pub(super) const fn power_scratch(tiling: &Tiling) -> usize {
    tiling.padded() * (GRID + 1)
}

/// Power iteration from `start`. Unit `(y, x)` of the grid holds the elements of rows `y + 16 i` and columns `x + 16 j` at
/// `gram[i * side + j]`. The direction is left in `direction`, zero past the last column; identical rows give zero.
///
/// Normalised by the largest element first, so that squaring neither overflows nor vanishes.
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
    let padded = comptime!(tiling.padded());
    let pitch = comptime!(GRID + 1);
    let unit = UNIT_POS as usize;
    let (y, x) = (unit / GRID, unit % GRID);
    let mut extremes = Shared::<[f32]>::new_slice(comptime!(2 * GRID));

    if unit < padded {
        let mut first = 0.0f32;
        if unit < comptime!(tiling.dim) {
            first = start[unit];
        }
        direction[unit] = first;
    }
    sync_cube();
    for _ in 0..iterations {
        #[unroll]
        for i in 0..side {
            let mut sum = 0.0f32;
            #[unroll]
            for j in 0..side {
                sum += gram[i * side + j] * direction[x + GRID * j];
            }
            scratch[(y + GRID * i) * pitch + x] = sum;
        }
        sync_cube();
        let mut mine = 0.0f32;
        if unit < padded {
            #[unroll]
            for t in 0..GRID {
                mine += scratch[unit * pitch + t];
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
        // Above the smallest normal number, where all devices still divide exactly enough.
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
}
