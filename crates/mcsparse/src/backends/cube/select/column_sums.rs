//! The attention weight that each group gives to each key, by units and shared memory alone.
//!
//! One cube of [`UNITS`] units takes one group and [`TILE_KEYS`] keys, and goes through the group's queries tile by tile.
//! A unit computes the scores of some queries and keys in registers and keeps the sums of its own rows; the units of a key
//! are summed once, at the end and in a fixed order. No atomics: the same bits every run.

use cubecl::prelude::*;

use super::{
    super::tile::{KEYS, SIDE, TILE_KEYS, UNITS, V, VECTOR, add_products, load, query_of},
    sizes::Sizes,
};

/// Vectors of a row that are in shared memory at a time.
const SLICE: usize = 8;
const PITCH: usize = SLICE + 1;
/// Rows that all units together load at once.
const LINES: usize = UNITS as usize / SLICE;
/// The most bytes of shared memory: slices of queries and keys, and the sums of the units.
pub(in super::super) const SHARED_BYTES: usize = 4 * (2 * TILE_KEYS * PITCH * VECTOR + SIDE * TILE_KEYS);

/// Writes `mass[row, key]`, the sum over the queries of the row's group of `exp(scale * query . key - lse)`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn column_sums<E: Float>(
    query: &Tensor<E>,
    key: &Tensor<E>,
    lse: &[f32],
    order: &[i32],
    mass: &mut [f32],
    sizes: Sizes,
    #[comptime] rows: usize,
    #[comptime] dim: usize,
    #[define(E)] _dtype: ElemType,
) {
    let whole = comptime!(dim.is_multiple_of(SLICE * VECTOR));
    // Cubes of one group run together and share its queries in the cache.
    let cube = CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X;
    let blocks = sizes.keys.div_ceil(comptime!(TILE_KEYS as u32));
    let (row, block) = (cube / blocks, cube % blocks);
    if row >= sizes.rows {
        terminate!();
    }
    let (joined, group) = ((sizes.first_row + row) / sizes.groups, (sizes.first_row + row) % sizes.groups);
    let (head, batch) = (joined % sizes.heads, (joined / sizes.heads) as usize);
    let first = group * sizes.group_size;
    let end = min(first + sizes.group_size, sizes.queries);
    let first_key = block * comptime!(TILE_KEYS as u32);
    let list = joined as usize * sizes.queries as usize;

    let unit = UNIT_POS as usize;
    let (y, x) = (unit / comptime!(SIDE), unit % comptime!(SIDE));
    let (line, column) = (unit / comptime!(SLICE), unit % comptime!(SLICE));
    let mut stage = Shared::<[Vector<f32, V>]>::new_slice(comptime!((rows * SIDE + TILE_KEYS) * PITCH));
    let mut partial = Shared::<[f32]>::new_slice(comptime!(SIDE * TILE_KEYS));

    let query_head = batch * query.stride(0) + head as usize * query.stride(1);
    let key_head = batch * key.stride(0) + (head / sizes.heads_per_kv) as usize * key.stride(1);
    let mut sums = Array::<f32>::new(comptime!(KEYS));
    #[unroll]
    for j in 0..comptime!(KEYS) {
        sums[j] = 0.0f32;
    }

    let mut start = first;
    while start < end {
        let mut scores = Array::<f32>::new(comptime!(rows * KEYS));
        #[unroll]
        for s in 0..comptime!(rows * KEYS) {
            scores[s] = 0.0f32;
        }
        let mut from = 0usize;
        while from < comptime!(dim) {
            let element = from + column * comptime!(VECTOR);
            #[unroll]
            for r in 0..comptime!((rows * SIDE).div_ceil(LINES)) {
                let at = line + comptime!(r * LINES);
                if at < comptime!(rows * SIDE) {
                    let token = query_of(order, list, start + at as u32, end, sizes.queries);
                    let vector = load(query, query_head + token * query.stride(2), element, dim, whole);
                    stage[at * comptime!(PITCH) + column] = vector * Vector::new(sizes.scale);
                }
            }
            #[unroll]
            for r in 0..comptime!(TILE_KEYS / LINES) {
                let at = line + comptime!(r * LINES);
                // Keys past the last one repeat it and are not written.
                let token = min(first_key + at as u32, sizes.keys - 1) as usize;
                stage[(at + comptime!(rows * SIDE)) * comptime!(PITCH) + column] =
                    load(key, key_head + token * key.stride(2), element, dim, whole);
            }
            sync_cube();
            let vectors = min((comptime!(dim) - from).div_ceil(comptime!(VECTOR)), comptime!(SLICE));
            add_products(&mut scores, &mut stage, y, x, vectors, rows, PITCH);
            sync_cube();
            from += comptime!(SLICE * VECTOR);
        }
        #[unroll]
        for i in 0..rows {
            let place = start + (y + comptime!(i * SIDE)) as u32;
            let total = lse[list + query_of(order, list, place, end, sizes.queries)];
            #[unroll]
            for j in 0..comptime!(KEYS) {
                let weight = (scores[comptime!(i * KEYS + j)] - total).exp();
                // Rows past the group's end repeat its last query and do not count.
                sums[j] += select(place < end, weight, f32::new(0.0));
            }
        }
        start += comptime!((rows * SIDE) as u32);
    }

    #[unroll]
    for j in 0..comptime!(KEYS) {
        partial[y * comptime!(TILE_KEYS) + x + comptime!(j * SIDE)] = sums[j];
    }
    sync_cube();
    let this = first_key + UNIT_POS;
    if unit < comptime!(TILE_KEYS) && this < sizes.keys {
        let mut sum = 0.0f32;
        for i in 0..comptime!(SIDE) {
            sum += partial[i * comptime!(TILE_KEYS) + unit];
        }
        let sink = this < sizes.sink_end || this >= sizes.sink_start;
        mass[row as usize * sizes.keys as usize + this as usize] = select(sink, sizes.always, sum);
    }
}
