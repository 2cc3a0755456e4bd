//! The planes that bring queries, keys and values to shared memory, ahead of those that compute.

use cubecl::prelude::*;

use super::{
    super::{
        super::hopper::{
            WARPGROUP,
            barrier::{arrive, wait},
            copy::{gather, prefetch, tile_bytes, write},
            turn::Turn,
        },
        shape::Sizes,
    },
    layouts::Layouts,
    ride::{Ride, Waiting, end_of_tiles, first_tile},
    step::Addend,
    tile::{Buffers, KEYS, QUERIES, Tile, Work},
};

/// Brings all tiles of this cube, one after another: the first keys of a tile are on their way while the last one's sums are
/// still being written.
#[cube]
#[allow(clippy::too_many_arguments, clippy::collapsible_if)] // one at compile time, one at run time
pub(super) fn produce<E: Float>(
    query: &[E],
    key: &[E],
    value: &[E],
    order: &[i32],
    indices: &[i32],
    other: &[E],
    sizes: &Sizes,
    layouts: &Layouts,
    buffers: &Buffers,
    ride: &Ride,
    #[comptime] tile: Tile,
) {
    let (dim, whole) = comptime!((tile.head_dim, tile.whole));
    let bytes = comptime!(tile_bytes(dim) as u32);
    let unit = UNIT_POS % comptime!(WARPGROUP as u32);
    let (plane, lane) = (unit / 32, unit % 32);
    let steps = sizes.keys.div_ceil(comptime!(KEYS as u32));
    // Parity 1: everything is empty.
    let mut turn = Turn::new(1u32.runtime());
    let mut query_parity = 1u32;
    let mut rides = Waiting::new();
    let mut index = first_tile(ride, tile);
    while index < end_of_tiles(ride, sizes, tile) {
        let work = Work::at(index, sizes);
        if work.exists() {
            let of_query = layouts.query.head::<E>(query, work.batch, work.head);
            let of_key = layouts.key.head::<E>(key, work.batch, work.kv_head);
            let of_value = layouts.value.head::<E>(value, work.batch, work.kv_head);
            let row = work.token(work.first + unit, order, sizes, tile.ordered());
            let mut next = work.key(unit, indices, sizes, tile.gathered);
            for step in 0..steps {
                let token = next;
                // A step ahead, since addresses depend on it.
                next = work.key((step + 1) * comptime!(KEYS as u32) + unit, indices, sizes, tile.gathered);
                let barrier = turn.stage * 8;
                let to = turn.stage * bytes;
                wait(buffers.empty_keys + barrier, turn.parity);
                let full = buffers.full_keys + barrier;
                let (apart, columns) = (layouts.key.token, layouts.key.column);
                gather(of_key, apart, columns, token, buffers.keys + to, full, plane, lane, dim, whole);
                wait(buffers.empty_values + barrier, turn.parity);
                let full = buffers.full_values + barrier;
                let (apart, columns) = (layouts.value.token, layouts.value.column);
                gather(of_value, apart, columns, token, buffers.values + to, full, plane, lane, dim, whole);
                // After the first step, whose buffers are free earlier than the last tile's queries.
                if step == 0 {
                    wait(buffers.empty_query, query_parity);
                    // What computes has done with the tokens of the tile before the last one.
                    write(buffers.tokens + query_parity * comptime!(4 * QUERIES as u32) + 4 * unit, row);
                    if comptime!(tile.rides) {
                        let norm = ride.norm(work.of_head, row, work.first + unit < work.end);
                        write(buffers.norms + query_parity * comptime!(4 * QUERIES as u32) + 4 * unit, norm);
                    }
                    arrive(buffers.full_query);
                    let (apart, columns) = (layouts.query.token, layouts.query.column);
                    gather(of_query, apart, columns, row, buffers.query, buffers.full_query, plane, lane, dim, whole);
                    query_parity = 1 - query_parity;
                }
                if comptime!(tile.addend == Addend::Pairs) {
                    if step + 1 == steps {
                        let of_other = layouts.other.head::<E>(other, work.batch, work.head);
                        prefetch(of_other + u64::cast_from(row) * u64::cast_from(layouts.other.token), 2 * dim);
                    }
                }
                turn.advance(tile.stages);
                if comptime!(tile.rides) {
                    rides.next(unit, steps, ride, sizes, buffers, tile);
                }
            }
        }
        index += CUBE_COUNT_X;
    }
    if comptime!(tile.rides) {
        #[unroll]
        for _ in 0..comptime!(tile.stages as u32) {
            wait(buffers.empty_values + turn.stage * 8, turn.parity);
            turn.advance(tile.stages);
            rides.next(unit, steps, ride, sizes, buffers, tile);
        }
    }
}
