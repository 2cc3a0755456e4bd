//! The warpgroups that compute: a group of queries each, against all keys that come by.

use cubecl::prelude::*;

use super::{
    super::{
        super::{
            fragment::{C2, row_sum},
            hopper::{
                barrier::{arrive_if_zero, fence_products, sync_plane, wait},
                copy::tile_bytes,
                turn::Turn,
                wgmma::{descriptor, further},
            },
        },
        sizes::Sizes,
    },
    step::{finish, start, sums},
    tile::{Buffers, KEYS, QUERIES, STAGES, Tile, Work},
};

#[cube]
#[allow(clippy::too_many_arguments)]
pub(super) fn consume(
    warpgroup: u32,
    mass: &mut [f32],
    pieces: u32,
    sizes: &Sizes,
    buffers: &Buffers,
    #[comptime] tile: Tile,
) {
    let (dim, element) = comptime!((tile.head_dim, tile.element));
    let bytes = comptime!(tile_bytes(dim) as u32);
    let lane = UNIT_POS % 32;
    let c = lane % 4;
    // The unit's first key of 64.
    let row = UNIT_POS / 32 % 4 * 16 + lane / 4;
    let exponent = sizes.scale * comptime!(core::f32::consts::LOG2_E);
    let queries = descriptor(buffers.queries + warpgroup * bytes);
    let norms = buffers.norms + warpgroup * comptime!(4 * QUERIES as u32) + 8 * c;
    let keys = descriptor(buffers.keys);
    // From the first 64 keys of a step to the others: as many rows of 128 bytes.
    let half = comptime!(64u32 * 128);
    let mut turn = Turn::new(0u32.runtime());
    let mut queries_parity = 0u32;
    let mut index = CUBE_POS_X;
    while index < pieces {
        let work = Work::at(index, sizes);
        let group = work.group + warpgroup;
        let first = group * sizes.group_size;
        let end = min(first + sizes.group_size, sizes.queries);
        let mass_row = (work.row + warpgroup) as usize * sizes.keys as usize;
        for round in 0..sizes.group_size.div_ceil(comptime!(QUERIES as u32)) {
            wait(buffers.full_queries, queries_parity);
            queries_parity = 1 - queries_parity;
            fence_products();
            // Whether there is something to write, and something to add it to.
            let some = group < work.end && first + round * comptime!(QUERIES as u32) < end;
            let more = round > 0;
            let full = buffers.full_keys + turn.stage * 8;
            start(further(keys, turn.stage * bytes), queries, full, turn.parity, false, dim, element);
            finish();
            let last = work.last_step - 1;
            for step in work.first_step..last {
                let key = step * comptime!(KEYS as u32) + row;
                let full = buffers.full_keys + turn.stage * 8;
                start(further(keys, turn.stage * bytes + half), queries, full, turn.parity, true, dim, element);
                add(sums(exponent, norms, false), key, mass, mass_row, c, some, more, sizes);
                finish();
                arrive_if_zero(buffers.empty_keys + turn.stage * 8, lane);
                turn.advance(STAGES);
                let full = buffers.full_keys + turn.stage * 8;
                start(further(keys, turn.stage * bytes), queries, full, turn.parity, false, dim, element);
                add(sums(exponent, norms, true), key + 64, mass, mass_row, c, some, more, sizes);
                finish();
            }
            // The last step by itself: a wait in a branch would have all products wait for each other.
            let key = last * comptime!(KEYS as u32) + row;
            let full = buffers.full_keys + turn.stage * 8;
            start(further(keys, turn.stage * bytes + half), queries, full, turn.parity, true, dim, element);
            add(sums(exponent, norms, false), key, mass, mass_row, c, some, more, sizes);
            finish();
            arrive_if_zero(buffers.empty_keys + turn.stage * 8, lane);
            turn.advance(STAGES);
            add(sums(exponent, norms, true), key + 64, mass, mass_row, c, some, more, sizes);
            // One unit speaks for all, which have read their norms too.
            sync_plane();
            arrive_if_zero(buffers.empty_queries, lane);
        }
        index += CUBE_COUNT_X;
    }
}

/// Writes the sums of the four units that share a key, or adds them to what is there.
#[cube]
#[allow(clippy::too_many_arguments)]
fn add(
    sums: Vector<f32, C2>,
    key: u32,
    mass: &mut [f32],
    mass_row: usize,
    c: u32,
    some: bool,
    more: bool,
    sizes: &Sizes,
) {
    #[unroll]
    for h in 0..2usize {
        let sum = row_sum(sums.extract(h));
        let key = key + comptime!(8 * h as u32);
        if some && c == 0 && key < sizes.keys {
            let place = mass_row + key as usize;
            let mut total = sum;
            if more {
                total += mass[place];
            }
            let sink = key < sizes.sink_end || key >= sizes.sink_start;
            mass[place] = select(sink, sizes.always, total);
        }
    }
}
