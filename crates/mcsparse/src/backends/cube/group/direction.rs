//! Principal directions of nodes whose Gram matrix was computed in parts.

use cubecl::prelude::*;

use super::{
    UNITS,
    plan::{GRID, Tiling},
    power::{power_iteration, power_scratch},
    rows::{Sizes, place},
};

/// Adds up the Gram matrices `[nodes, chunks, padded, padded]` of each node's chunks, of means `[nodes, chunks, padded]`, in
/// one fixed order and each about its own mean (Chan, Golub and LeVeque 1979: terms of one sign, nothing cancels). The sum
/// takes the place of the first. A unit has one element, so that even a single node keeps the device busy.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn combine<E: Float, N: Size>(
    query: &Tensor<Vector<E, N>>,
    table: &[u32],
    grams: &mut [f32],
    means: &[f32],
    sizes: Sizes,
    #[comptime] tiling: Tiling,
    #[define(E)] _dtype: ElemType,
) {
    let padded = comptime!(tiling.padded());
    let place = place(query, table, &sizes, comptime!(combining_cubes(&tiling) as u32));
    if !place.exists || place.lower == 0 {
        terminate!();
    }
    let element = place.part as usize * comptime!(UNITS as usize) + UNIT_POS as usize;
    let (row, column) = (element / padded, element % padded);
    let length = place.len.div_ceil(sizes.chunks);
    let first = place.node * sizes.chunks as usize;
    let mut row_mean = 0.0f32;
    let mut column_mean = 0.0f32;
    for c in 0..sizes.chunks {
        let count = f32::cast_from(min(length, place.len - min(c * length, place.len)));
        let chunk = (first + c as usize) * padded;
        row_mean += means[chunk + row] * count;
        column_mean += means[chunk + column] * count;
    }
    row_mean /= f32::cast_from(place.len);
    column_mean /= f32::cast_from(place.len);
    let mut gram = 0.0f32;
    for c in 0..sizes.chunks {
        let count = f32::cast_from(min(length, place.len - min(c * length, place.len)));
        let chunk = (first + c as usize) * padded;
        let weighted = (means[chunk + row] - row_mean) * count;
        gram += grams[(chunk + row) * padded + column] + weighted * (means[chunk + column] - column_mean);
    }
    grams[(first * padded + row) * padded + column] = gram;
}

/// Cubes that combine the Gram matrices of one node.
pub(super) const fn combining_cubes(tiling: &Tiling) -> usize {
    tiling.padded() * tiling.padded() / UNITS as usize
}

/// Power iteration on the combined Gram matrix of each node. `directions` and `centres` are `[nodes, padded]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn direction<E: Float, N: Size>(
    query: &Tensor<Vector<E, N>>,
    table: &[u32],
    start: &[f32],
    grams: &[f32],
    means: &[f32],
    directions: &mut [f32],
    centres: &mut [f32],
    sizes: Sizes,
    #[comptime] tiling: Tiling,
    #[define(E)] _dtype: ElemType,
) {
    let (side, padded) = (comptime!(tiling.side()), comptime!(tiling.padded()));
    let place = place(query, table, &sizes, 1u32);
    if !place.exists || place.lower == 0 {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let (y, x) = (unit / GRID, unit % GRID);
    let length = place.len.div_ceil(sizes.chunks);
    let first = place.node * sizes.chunks as usize;

    if unit < padded {
        let mut sum = 0.0f32;
        for c in 0..sizes.chunks {
            let count = min(length, place.len - min(c * length, place.len));
            sum += means[(first + c as usize) * padded + unit] * f32::cast_from(count);
        }
        centres[place.node * padded + unit] = sum / f32::cast_from(place.len);
    }
    let mut gram = Array::<f32>::new(side * side);
    #[unroll]
    for i in 0..side {
        #[unroll]
        for j in 0..side {
            gram[i * side + j] = grams[(first * padded + y + GRID * i) * padded + x + GRID * j];
        }
    }
    let mut shared = Shared::<[f32]>::new_slice(comptime!(power_scratch(&tiling, GRID)));
    let mut direction = Shared::<[f32]>::new_slice(comptime!(tiling.padded()));
    power_iteration(&gram, start, sizes.iterations, &mut shared, &mut direction, tiling);
    if unit < padded {
        directions[place.node * padded + unit] = direction[unit];
    }
}
