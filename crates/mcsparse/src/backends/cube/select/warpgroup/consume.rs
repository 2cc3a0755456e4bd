//! The warpgroups that compute: a group of queries each, against all keys that come by.

use cubecl::prelude::*;

use super::{
    super::{
        super::hopper::{
            barrier::{arrive_if_zero, fence_products, pass, sync_plane, wait},
            copy::tile_bytes,
            operand::global_address,
            turn::Turn,
            wgmma::{descriptor, further},
        },
        sizes::Sizes,
    },
    step::{ADD, SINK, STORE, Sums, Tiles, read_norms, scores, store, sum},
    tile::{Buffers, CONSUMERS, KEYS, QUERIES, STAGES, Tile, Work},
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
    // The unit's first query of 8; its first key of 64; the key of 64 whose sum it writes.
    let c = lane % 4;
    let row = UNIT_POS / 32 % 4 * 16 + lane / 4;
    let written = row + c % 2 * 8;
    let exponent = sizes.scale * comptime!(core::f32::consts::LOG2_E);
    let queries = descriptor(buffers.queries + warpgroup * bytes);
    let norms = buffers.norms + warpgroup * comptime!(4 * QUERIES as u32) + 8 * c;
    let keys = descriptor(buffers.keys);
    let start = global_address::<f32>(mass[0..1].as_ptr());
    // Hardware barriers of the turns, from 1 on.
    let (own, next) = (1 + warpgroup, 1 + (warpgroup + 1) % comptime!(CONSUMERS as u32));
    if warpgroup == comptime!(CONSUMERS as u32 - 1) {
        // The first one's first turn.
        pass(next);
    }
    let mut turn = Turn::new(0u32.runtime());
    let mut queries_parity = 0u32;
    let mut index = CUBE_POS_X;
    while index < pieces {
        let work = Work::at(index, sizes);
        let group = work.group + warpgroup;
        let first = group * sizes.group_size;
        let end = min(first + sizes.group_size, sizes.queries);
        let mass_row = start + 4 * u64::cast_from(work.row + warpgroup) * u64::cast_from(sizes.keys);
        for round in 0..sizes.group_size.div_ceil(comptime!(QUERIES as u32)) {
            wait(buffers.full_queries, queries_parity);
            queries_parity = 1 - queries_parity;
            fence_products();
            // Whether there is something to write, and something to add it to.
            let some = c < 2 && group < work.end && first + round * comptime!(QUERIES as u32) < end;
            let how = select(some, select(round > 0, ADD.runtime(), STORE.runtime()), 0u32);
            read_norms(norms);
            // One unit speaks for all, which have read their norms too.
            sync_plane();
            let mut sums = Sums { both: Vector::new(0.0f32.runtime()), to: mass_row, how: 0u32.runtime() };
            for step in work.first_step..work.last_step {
                #[unroll]
                for half in 0..2u32 {
                    // 64 rows of 128 bytes on.
                    let tiles = Tiles {
                        keys: further(keys, turn.stage * bytes + comptime!(half * 64 * 128)),
                        queries,
                        full_keys: buffers.full_keys + turn.stage * 8,
                        parity: turn.parity,
                        own,
                        next,
                    };
                    scores(&tiles, &sums, dim, element);
                    if comptime!(half == 1) {
                        arrive_if_zero(buffers.empty_keys + turn.stage * 8, lane);
                        turn.advance(STAGES);
                    }
                    let key = step * comptime!(KEYS as u32) + comptime!(64 * half) + written;
                    sums.both = sum(exponent);
                    sums.to = mass_row + 4 * u64::cast_from(key);
                    sums.how = place(how, key, sizes);
                }
            }
            store(&sums);
            arrive_if_zero(buffers.empty_queries, lane);
        }
        index += CUBE_COUNT_X;
    }
}

/// What is done with a sum of this key.
#[cube]
fn place(how: u32, key: u32, sizes: &Sizes) -> u32 {
    let sink = key < sizes.sink_end || key >= sizes.sink_start;
    select(key < sizes.keys, how | select(sink, SINK.runtime(), 0u32), 0u32)
}
