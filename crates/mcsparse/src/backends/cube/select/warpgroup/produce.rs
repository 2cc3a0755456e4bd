//! The planes that bring queries, their norms and keys to shared memory.

use cubecl::prelude::*;

use super::{
    super::{
        super::hopper::{
            WARPGROUP,
            barrier::{arrive, wait},
            copy::{gather, tile_bytes, write},
            turn::Turn,
        },
        sizes::Sizes,
    },
    kernel::Layouts,
    tile::{Buffers, CONSUMERS, KEYS, QUERIES, STAGES, Tile, Work},
};

#[cube]
#[allow(clippy::too_many_arguments)]
pub(super) fn produce<E: Float>(
    query: &[E],
    key: &[E],
    lse: &[f32],
    order: &[i32],
    pieces: u32,
    sizes: &Sizes,
    layouts: &Layouts,
    buffers: &Buffers,
    #[comptime] tile: Tile,
) {
    let (dim, whole) = comptime!((tile.head_dim, tile.whole));
    let bytes = comptime!(tile_bytes(dim) as u32);
    let unit = UNIT_POS % comptime!(WARPGROUP as u32);
    let (plane, lane) = (unit / 32, unit % 32);
    // Parity 1: everything is empty.
    let mut turn = Turn::new(1u32.runtime());
    let mut queries_parity = 1u32;
    let mut index = CUBE_POS_X;
    while index < pieces {
        let work = Work::at(index, sizes);
        let of_query = layouts.query.head::<E>(query, work.batch, work.head);
        let of_key = layouts.key.head::<E>(key, work.batch, work.kv_head);
        // Groups of more queries than a tile has take several rounds of all keys.
        for round in 0..sizes.group_size.div_ceil(comptime!(QUERIES as u32)) {
            wait(buffers.empty_queries, queries_parity);
            queries_parity = 1 - queries_parity;
            #[unroll]
            for w in 0..comptime!(CONSUMERS as u32) {
                // A group that is not there repeats the last one.
                let group = min(work.group + w, sizes.groups - 1);
                let place = group * sizes.group_size + round * comptime!(QUERIES as u32) + unit;
                let end = min((group + 1) * sizes.group_size, sizes.queries);
                // Lists are clamped wherever they are read.
                let token = min(order[work.of_head + min(place, end - 1) as usize] as u32, sizes.queries - 1);
                let norm = lse[work.of_head + token as usize] * comptime!(-core::f32::consts::LOG2_E);
                // Places past the group weigh nothing.
                let norm = select(place < end, norm, f32::new(-3.0e38));
                write(buffers.norms + comptime!(4 * QUERIES as u32 * w) + 4 * unit, u32::reinterpret(norm));
                let to = buffers.queries + comptime!(w) * bytes;
                let (apart, columns) = (layouts.query.token, layouts.query.column);
                gather(of_query, apart, columns, token, to, buffers.full_queries, plane, lane, dim, whole);
            }
            arrive(buffers.full_queries);
            for step in work.first_step..work.last_step {
                let token = min(step * comptime!(KEYS as u32) + unit, sizes.keys - 1);
                wait(buffers.empty_keys + turn.stage * 8, turn.parity);
                let (to, full) = (buffers.keys + turn.stage * bytes, buffers.full_keys + turn.stage * 8);
                gather(of_key, layouts.key.token, layouts.key.column, token, to, full, plane, lane, dim, whole);
                turn.advance(STAGES);
            }
        }
        index += CUBE_COUNT_X;
    }
}
