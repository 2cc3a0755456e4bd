//! Principal directions of nodes whose Gram matrix was computed in parts.

use cubecl::prelude::*;

use super::{
    plan::{GRID, Tiling},
    power::{power_iteration, power_scratch},
    rows::{Sizes, place},
};

/// Adds up the Gram matrices `[nodes, chunks, padded, padded]` of a node's chunks and their means `[nodes, chunks, padded]`
/// in one fixed order, each about its own mean (Chan, Golub and LeVeque 1979: terms of one sign, nothing cancels), and
/// iterates. `directions` and `centres` are `[nodes, padded]`.
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

    let mut centre = Shared::<[f32]>::new_slice(comptime!(tiling.padded()));
    if unit < padded {
        let mut sum = 0.0f32;
        for c in 0..sizes.chunks {
            let count = min(length, place.len - min(c * length, place.len));
            sum += means[(first + c as usize) * padded + unit] * f32::cast_from(count);
        }
        let mean = sum / f32::cast_from(place.len);
        centre[unit] = mean;
        centres[place.node * padded + unit] = mean;
    }
    sync_cube();
    let mut gram = Array::<f32>::new(side * side);
    #[unroll]
    for i in 0..side * side {
        gram[i] = 0.0f32;
    }
    for c in 0..sizes.chunks {
        let count = min(length, place.len - min(c * length, place.len));
        let chunk = (first + c as usize) * padded;
        let mut off = Array::<f32>::new(side);
        #[unroll]
        for j in 0..side {
            let column = x + GRID * j;
            off[j] = means[chunk + column] - centre[column];
        }
        #[unroll]
        for i in 0..side {
            let row = y + GRID * i;
            let weighted = (means[chunk + row] - centre[row]) * f32::cast_from(count);
            #[unroll]
            for j in 0..side {
                let column = x + GRID * j;
                gram[i * side + j] += grams[(chunk + row) * padded + column] + weighted * off[j];
            }
        }
    }
    let mut shared = Shared::<[f32]>::new_slice(comptime!(power_scratch(&tiling, GRID)));
    let mut direction = Shared::<[f32]>::new_slice(comptime!(tiling.padded()));
    power_iteration(&gram, start, sizes.iterations, &mut shared, &mut direction, tiling);
    if unit < padded {
        directions[place.node * padded + unit] = direction[unit];
    }
}
