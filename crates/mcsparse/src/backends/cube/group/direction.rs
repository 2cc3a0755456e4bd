//! Principal directions of nodes whose Gram matrix was computed in parts.

use cubecl::prelude::*;

use super::{
    plan::{GRID, Tiling},
    power::{power_iteration, power_scratch},
    rows::{Sizes, place},
};

/// Adds up the Gram matrices `[nodes, chunks, padded, padded]` of a node's chunks and their means `[nodes, chunks, dim]`
/// in one fixed order, each about its own mean (Chan, Golub and LeVeque 1979: terms of one sign, nothing cancels), and
/// iterates. `directions` and `centres` are `[nodes, dim]`.
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
    let (dim, side, padded) = (comptime!(tiling.dim), comptime!(tiling.side()), comptime!(tiling.padded()));
    let place = place(query, table, &sizes, 1u32);
    if !place.exists || place.lower == 0 {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let (y, x) = (unit / GRID, unit % GRID);
    let length = place.len.div_ceil(sizes.chunks);
    let first = place.node * sizes.chunks as usize;

    let mut centre = 0.0f32;
    if unit < dim {
        for c in 0..sizes.chunks {
            let count = min(length, place.len - min(c * length, place.len));
            centre += means[(first + c as usize) * dim + unit] * f32::cast_from(count);
        }
        centre /= f32::cast_from(place.len);
        centres[place.node * dim + unit] = centre;
    }
    let mut off = Shared::<[f32]>::new_slice(comptime!(tiling.padded()));
    let mut gram = Array::<f32>::new(side * side);
    #[unroll]
    for i in 0..side * side {
        gram[i] = 0.0f32;
    }
    for c in 0..sizes.chunks {
        let count = min(length, place.len - min(c * length, place.len));
        let chunk = first + c as usize;
        if unit < padded {
            let mut shift = 0.0f32;
            if unit < dim {
                shift = means[chunk * dim + unit] - centre;
            }
            off[unit] = shift;
        }
        sync_cube();
        #[unroll]
        for i in 0..side {
            let row = y + GRID * i;
            let weighted = off[row] * f32::cast_from(count);
            #[unroll]
            for j in 0..side {
                let column = x + GRID * j;
                gram[i * side + j] += grams[(chunk * padded + row) * padded + column] + weighted * off[column];
            }
        }
        sync_cube();
    }
    let mut shared = Shared::<[f32]>::new_slice(comptime!(power_scratch(&tiling)));
    let mut direction = Shared::<[f32]>::new_slice(comptime!(tiling.padded()));
    power_iteration(&gram, start, sizes.iterations, &mut shared, &mut direction, tiling);
    if unit < dim {
        directions[place.node * dim + unit] = direction[unit];
    }
}
