//! The warpgroups that compute: 64 queries each, scores and output in registers.

use cubecl::prelude::*;

use super::{
    super::{
        super::{
            fragment::{C2, row_sum},
            hopper::{
                barrier::{arrive_if_zero, fence_products, sync_plane, wait},
                copy::{read, tile_bytes},
                operand::global_address,
                turn::Turn,
                wgmma::{descriptor, further},
            },
        },
        shape::{Keys, Sizes, output_row},
    },
    layouts::Layouts,
    ride::{Ride, end_of_tiles, factors, first_tile, next_place, ride_of},
    softmax::rise,
    step::{Row, Tiles, clear, first_scores, forget_past, negate, step as advance, step_and_ride, sums, write_rows},
    tile::{Buffers, KEYS, QUERIES, Tile, Work},
};
use crate::ops::Finish;

/// Computes all tiles of this cube.
#[cube]
#[allow(clippy::too_many_arguments)]
pub(super) fn consume<E: Float>(
    warpgroup: u32,
    other: &[E],
    output: &mut [E],
    lse: &mut [f32],
    sizes: &Sizes,
    layouts: &Layouts,
    buffers: &Buffers,
    ride: &Ride,
    #[comptime] tile: Tile,
) {
    let dim = comptime!(tile.head_dim);
    let bytes = comptime!(tile_bytes(dim) as u32);
    let lane = UNIT_POS % 32;
    let (row, c) = (UNIT_POS / 32 * 16 + lane / 4, lane % 4);
    let steps = sizes.keys.div_ceil(comptime!(KEYS as u32));
    // Never quite zero, so that scores of keys past the last one stay as small as can be.
    let exponent = max(sizes.scale.abs() * comptime!(core::f32::consts::LOG2_E), f32::new(1.0e-30));

    // 64 rows of 128 bytes on.
    let queries = descriptor(buffers.query + warpgroup * comptime!(64u32 * 128));
    let keys = descriptor(buffers.keys);
    let values = descriptor(buffers.values);
    let mut turn = Turn::new(0u32.runtime());
    let mut query_parity = 0u32;
    // Where this unit's next column sums go.
    let mut place = 0u32.runtime();
    let mut index = first_tile(ride, tile);
    while index < end_of_tiles(ride, sizes, tile) {
        if Work::at(index, sizes).exists() {
            clear();
            let mut top = Vector::<f32, C2>::new(f32::new(-3.0e38));
            wait(buffers.full_query, query_parity);
            query_parity = 1 - query_parity;
            wait(buffers.full_keys + turn.stage * 8, turn.parity);
            fence_products();
            first_scores(queries, further(keys, turn.stage * bytes), dim, tile.element);
            // The barrier of the last step's values.
            let mut before = buffers.empty_values + turn.stage * 8;
            for step in 1..steps {
                arrive_if_zero(buffers.empty_keys + turn.stage * 8, lane);
                if comptime!(tile.negative) {
                    negate();
                }
                top = rise(top, exponent, buffers.full_values + turn.stage * 8, turn.parity, dim);
                if step > 1 {
                    if comptime!(tile.rides) {
                        // One unit speaks for all, whose column sums are written.
                        sync_plane();
                    }
                    arrive_if_zero(before, lane);
                }
                let (of_values, empty_values) =
                    (further(values, turn.stage * bytes), buffers.empty_values + turn.stage * 8);
                turn.advance(tile.stages);
                let tiles = Tiles {
                    query: queries,
                    keys: further(keys, turn.stage * bytes),
                    full_keys: buffers.full_keys + turn.stage * 8,
                    keys_parity: turn.parity,
                    values: of_values,
                };
                let risen = top * Vector::new(exponent);
                if comptime!(tile.rides) {
                    let factors =
                        factors(risen, buffers.norms + query_parity * comptime!(4 * QUERIES as u32) + 4 * row);
                    step_and_ride(exponent, -risen, factors, ride_of(place, buffers), &tiles, tile, true);
                    place = next_place(place, tile);
                } else {
                    advance(exponent, -risen, &tiles, tile, true);
                }
                before = empty_values;
            }
            arrive_if_zero(buffers.empty_keys + turn.stage * 8, lane);
            arrive_if_zero(buffers.empty_query, lane);
            if comptime!(tile.negative) {
                negate();
            }
            let left = sizes.keys - (steps - 1) * comptime!(KEYS as u32);
            if left < comptime!(KEYS as u32) {
                forget_past(left, c);
            }
            top = rise(top, exponent, buffers.full_values + turn.stage * 8, turn.parity, dim);
            if steps > 1 {
                if comptime!(tile.rides) {
                    sync_plane();
                }
                arrive_if_zero(before, lane);
            }
            let tiles = Tiles {
                query: queries,
                keys,
                full_keys: buffers.full_keys,
                keys_parity: turn.parity,
                values: further(values, turn.stage * bytes),
            };
            let risen = top * Vector::new(exponent);
            if comptime!(tile.rides) {
                let factors = factors(risen, buffers.norms + query_parity * comptime!(4 * QUERIES as u32) + 4 * row);
                step_and_ride(exponent, -risen, factors, ride_of(place, buffers), &tiles, tile, false);
                place = next_place(place, tile);
                sync_plane();
            } else {
                advance(exponent, -risen, &tiles, tile, false);
            }
            arrive_if_zero(buffers.empty_values + turn.stage * 8, lane);
            turn.advance(tile.stages);
            // The parity has changed since the tokens were written.
            let tokens = buffers.tokens + query_parity * comptime!(4 * QUERIES as u32);
            store::<E>(index, tokens, top, row, c, other, output, lse, sizes, layouts, tile);
        }
        index += CUBE_COUNT_X;
    }
}

/// Writes this unit's columns of its two rows, divided by the rows' sums, with the other tensor as the tile says. `tokens` is
/// where those of this tile are.
#[cube]
#[allow(clippy::too_many_arguments)]
fn store<E: Float>(
    index: u32,
    tokens: u32,
    top: Vector<f32, C2>,
    row: u32,
    c: u32,
    other: &[E],
    output: &mut [E],
    lse: &mut [f32],
    sizes: &Sizes,
    layouts: &Layouts,
    #[comptime] tile: Tile,
) {
    // Once more: its numbers would have taken registers from the loop.
    let work = Work::at(index, sizes);
    let sums = sums();
    let column = layouts.other.column;
    let of_other =
        layouts.other.head::<E>(other, work.batch, work.head) + u64::cast_from(2 * c) * u64::cast_from(column);
    let start = global_address::<E>(output[0..1].as_ptr()) + u64::cast_from(4 * c);
    let mut both = Sequence::<Row>::new();
    #[unroll]
    for h in 0..2usize {
        let sum = row_sum(sums.extract(h));
        let place = row + comptime!(8 * h as u32);
        let exists = work.first + place < work.end;
        // Where none is, that of the group's last query.
        let token = read(tokens + 4 * place);
        let at = work.of_head + token as usize;
        let of_output =
            output_row(work.batch as usize, work.head as usize, token as usize, sizes, tile.finish, Keys::Listed);
        let mut factor = 1.0f32 / sum;
        if comptime!(tile.finish == Finish::ResidualOf) {
            factor = -factor;
        }
        both.push(Row {
            to: start + u64::cast_from(of_output) * comptime!(2 * tile.head_dim as u64),
            other: of_other + u64::cast_from(token) * u64::cast_from(layouts.other.token),
            factor,
            exists: u32::cast_from(exists),
        });
        if c == 0 && exists {
            lse[at] = top.extract(h) * sizes.scale.abs() + sum.ln();
        }
    }
    let scaled = comptime!(tile.finish == Finish::AddResidual);
    let (upper, lower) = (both.index(0usize), both.index(1usize));
    write_rows(upper, lower, column, sizes.factor, tile.head_dim, tile.element, tile.addend, scaled);
}
