//! Projections of rows on the principal direction of their node.

use cubecl::prelude::*;

use super::{
    UNITS,
    plan::Tiling,
    rows::{Place, Sizes, place, read},
};

/// Rows that a unit has at a time: as many as shared memory has room for.
pub(super) const fn steps(tiling: &Tiling) -> usize {
    if tiling.lanes() == 1 { 4 } else { 8 }
}

/// Values of shared memory that [`project`] works in.
pub(super) const fn project_scratch(tiling: &Tiling) -> usize {
    tiling.projected_rows() * (tiling.lanes() + 1)
}

/// Negated projections of all rows of a node into `projections` `[heads of the launch, queries]`, many cubes a node.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn project_nodes<E: Float, N: Size>(
    query: &Tensor<Vector<E, N>>,
    order: &[i32],
    table: &[u32],
    directions: &[f32],
    centres: &[f32],
    projections: &mut [f32],
    sizes: Sizes,
    #[comptime] tiling: Tiling,
    #[define(E)] _dtype: ElemType,
) {
    let place = place(query, table, &sizes, sizes.chunks);
    if !place.exists || place.lower == 0 {
        terminate!();
    }
    let length = place.len.div_ceil(sizes.chunks);
    let begin = min(place.part * length, place.len);
    let count = min(length, place.len - begin);
    let to = place.joined * sizes.queries as usize + (place.first + begin) as usize;
    project(query, order, directions, centres, &place, begin, count, projections, to, tiling);
}

/// Negated projections of the rows from `begin` on of a node into `out[to..to + count]`. A run of neighbouring units
/// shares a row, so that rows are read in whole lines.
#[cube]
pub(super) fn project<E: Float, N: Size>(
    query: &Tensor<Vector<E, N>>,
    order: &[i32],
    directions: &[f32],
    centres: &[f32],
    place: &Place,
    begin: u32,
    count: u32,
    out: &mut [f32],
    to: usize,
    #[comptime] tiling: Tiling,
) {
    let (lanes, rows, vector) =
        (comptime!(tiling.lanes()), comptime!(tiling.projected_rows()), comptime!(tiling.vector));
    let slots = comptime!(UNITS as usize / tiling.lanes());
    let pitch = comptime!(tiling.lanes() + 1);
    let per_lane = comptime!(tiling.vectors().div_ceil(tiling.lanes()));
    let steps = comptime!(steps(&tiling));
    let mut partial = Shared::<[f32]>::new_slice(comptime!(project_scratch(&tiling)));
    let unit = UNIT_POS as usize;
    let (slot, lane) = (unit / lanes, unit % lanes);

    // Each unit needs the same columns for all of its rows.
    let mut centre = Array::<Vector<f32, N>>::new(per_lane);
    let mut direction = Array::<Vector<f32, N>>::new(per_lane);
    #[unroll]
    for c in 0..per_lane {
        centre[c] = Vector::new(0.0f32);
        direction[c] = Vector::new(0.0f32);
        let column = lane + lanes * c;
        if column < comptime!(tiling.vectors()) {
            let at = place.node * comptime!(tiling.padded()) + column * vector;
            let mut from = Vector::<f32, N>::new(0.0f32);
            let mut along = Vector::<f32, N>::new(0.0f32);
            #[unroll]
            for e in 0..vector {
                from.insert(e, centres[at + e]);
                along.insert(e, directions[at + e]);
            }
            centre[c] = from;
            direction[c] = along;
        }
    }
    let from = place.order + (place.first + begin) as usize;
    let mut done = 0usize;
    while done < count as usize {
        // All loads first, tokens and then rows; places past the last repeat it.
        let mut tokens = Array::<i32>::new(steps);
        #[unroll]
        for step in 0..steps {
            tokens[step] = order[from + min(done + slots * step + slot, count as usize - 1)];
        }
        let mut values = Array::<Vector<f32, N>>::new(comptime!(steps * per_lane));
        #[unroll]
        for step in 0..steps {
            #[unroll]
            for c in 0..per_lane {
                // Lanes past the last column read it again and weigh it by zero.
                let column = min(lane + lanes * c, comptime!(tiling.vectors() - 1));
                values[comptime!(step * per_lane + c)] = read(query, place.base, tokens[step], column * vector);
            }
        }
        #[unroll]
        for step in 0..steps {
            let mut products = Vector::<f32, N>::new(0.0f32);
            #[unroll]
            for c in 0..per_lane {
                products += (values[comptime!(step * per_lane + c)] - centre[c]) * direction[c];
            }
            let mut sum = 0.0f32;
            #[unroll]
            for e in 0..vector {
                sum += products.extract(e);
            }
            partial[(slots * step + slot) * pitch + lane] = sum;
        }
        sync_cube();
        let mut r = unit;
        while r < rows {
            if done + r < count as usize {
                let mut sum = 0.0f32;
                #[unroll]
                for l in 0..lanes {
                    sum += partial[r * pitch + l];
                }
                // The partition takes the largest, so the smallest projections go to the lower side.
                out[to + done + r] = -sum;
            }
            r += comptime!(UNITS as usize);
        }
        sync_cube();
        done += rows;
    }
}
