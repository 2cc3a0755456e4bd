//! Attention of a tile of queries over all keys, over gathered ones or over counted ones, without matrix units.
//!
//! One cube of [`UNITS`] units takes [`Tile::queries`] queries of one group and goes through the keys [`TILE_KEYS`] at a time:
//! each unit computes the scores of some queries and keys in registers, the weights go through shared memory, and each unit
//! then accumulates some columns of the output of its queries. Online softmax in f32 (Milakov and Gimelshein 2018): all
//! units of a row know its maximum so far; the sum stays in parts, one of each unit, until the end.

use cubecl::prelude::*;

use super::{
    super::tile::{KEYS, SIDE, TILE_KEYS, UNITS, V, VECTOR, add_products, load, query_of},
    shape::{Keys, Sizes, Tile, WEIGHTS_PITCH, output_row},
    softmax::join,
};
use crate::ops::Finish;

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attend<E: Float>(
    query: &Tensor<E>,
    key: &Tensor<E>,
    value: &Tensor<E>,
    order: &[i32],
    indices: &[i32],
    other: &Tensor<E>,
    past_lse: &[f32],
    output: &mut Tensor<E>,
    lse: &mut [f32],
    sizes: Sizes,
    #[comptime] tile: Tile,
    #[comptime] dim: usize,
    #[comptime] keys: Keys,
    #[comptime] finish: Finish,
    #[define(E)] _dtype: ElemType,
) {
    let rows = comptime!(tile.rows);
    let slice = comptime!(tile.slice);
    let vectors = comptime!(dim.div_ceil(VECTOR));
    let columns = comptime!(vectors.div_ceil(SIDE));
    let values = comptime!(tile.values(vectors));

    // Cubes are numbered tile by tile, then head by head: those of one head run together and share its keys in the cache.
    let cube = CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X;
    let tiles = sizes.groups * sizes.tiles_per_group;
    let (joined, tile_in_head) = (cube / tiles, cube % tiles);
    if joined >= sizes.batch * sizes.heads {
        terminate!();
    }
    let group = tile_in_head / sizes.tiles_per_group;
    let first = group * sizes.group_size + tile_in_head % sizes.tiles_per_group * comptime!(tile.queries() as u32);
    let end = min((group + 1) * sizes.group_size, sizes.queries);
    if first >= end {
        terminate!();
    }
    let (head, batch) = (joined % sizes.heads, (joined / sizes.heads) as usize);
    let kv_head = (head / sizes.heads_per_kv) as usize;
    let places = joined as usize * sizes.queries as usize;
    let list = (joined as usize * sizes.groups as usize + group as usize) * sizes.keys as usize;
    let query_head = batch * query.stride(0) + head as usize * query.stride(1);
    let key_head = batch * key.stride(0) + kv_head * key.stride(1);
    let value_head = batch * value.stride(0) + kv_head * value.stride(1);

    let unit = UNIT_POS as usize;
    let (y, x) = (unit / comptime!(SIDE), unit % comptime!(SIDE));
    let mut stage = Shared::<[Vector<f32, V>]>::new_slice(comptime!(tile.stage()));
    let mut weights = Shared::<[Vector<f32, V>]>::new_slice(comptime!(tile.queries() * WEIGHTS_PITCH));
    let mut before = Array::<f32>::new(rows);
    if comptime!(keys == Keys::Counted) {
        #[unroll]
        for i in 0..rows {
            let place = first + (y + comptime!(i * SIDE)) as u32;
            before[i] = past_lse[places + query_at(order, places, place, end, sizes.queries, true)];
        }
    }
    let mut top = Array::<f32>::new(rows);
    let mut sum = Array::<f32>::new(rows);
    let mut accumulator = Array::<Vector<f32, V>>::new(comptime!(rows * columns));
    #[unroll]
    for i in 0..rows {
        top[i] = f32::new(-3.0e38);
        sum[i] = 0.0f32;
        #[unroll]
        for c in 0..columns {
            accumulator[comptime!(i * columns + c)] = Vector::new(0.0f32);
        }
    }

    let mut start = 0u32;
    while start < sizes.keys {
        let count = min(sizes.keys - start, comptime!(TILE_KEYS as u32));
        let mut scores = Array::<f32>::new(comptime!(rows * KEYS));
        #[unroll]
        for s in 0..comptime!(rows * KEYS) {
            scores[s] = 0.0f32;
        }
        let mut from = 0usize;
        while from < comptime!(dim) {
            let whole = comptime!(dim.is_multiple_of(slice * VECTOR));
            sync_cube();
            let mut i = unit;
            while i < comptime!(tile.queries() * slice) {
                let (line, column) = (i / slice, i % slice);
                let token = query_at(order, places, first + line as u32, end, sizes.queries, comptime!(keys.grouped()));
                let row = query_head + token * query.stride(2);
                stage[line * comptime!(tile.pitch()) + column] =
                    load(query, row, from + column * comptime!(VECTOR), dim, whole) * Vector::new(sizes.scale);
                i += comptime!(UNITS as usize);
            }
            let mut i = unit;
            while i < comptime!(TILE_KEYS * slice) {
                let (line, column) = (i / slice, i % slice);
                // Dealt out so that the keys of a unit are neighbours while its reads spread over the banks.
                let j = (line % comptime!(SIDE) * comptime!(KEYS) + line / comptime!(SIDE)) as u32;
                let token =
                    key_at(indices, list, start, min(j, count - 1), sizes.all_keys, comptime!(keys == Keys::Listed));
                let row = key_head + token * key.stride(2);
                stage[(line + comptime!(tile.queries())) * comptime!(tile.pitch()) + column] =
                    load(key, row, from + column * comptime!(VECTOR), dim, whole);
                i += comptime!(UNITS as usize);
            }
            sync_cube();
            let filled = min((comptime!(dim) - from).div_ceil(comptime!(VECTOR)), slice);
            add_products(&mut scores, &mut stage, y, x, filled, rows, comptime!(tile.pitch()));
            from += comptime!(slice * VECTOR);
        }

        let mut log_counts = Array::<f32>::new(comptime!(KEYS));
        #[unroll]
        for j in 0..comptime!(KEYS) {
            let key = (x * comptime!(KEYS) + j) as u32;
            log_counts[j] = log_count(indices, list + start as usize, key, count, keys);
            if comptime!(keys == Keys::Counted) {
                #[unroll]
                for i in 0..rows {
                    scores[comptime!(i * KEYS + j)] += log_counts[j];
                }
            }
        }
        let mut new_top = Array::<f32>::new(rows);
        #[unroll]
        for i in 0..rows {
            new_top[i] = top[i];
            #[unroll]
            for j in 0..comptime!(KEYS) {
                new_top[i] = max(
                    new_top[i],
                    select(log_counts[j] >= 0.0f32, scores[comptime!(i * KEYS + j)], f32::new(-3.0e38)),
                );
            }
        }
        across_row(&mut new_top, &mut stage, y, tile, false);
        #[unroll]
        for i in 0..rows {
            let shrink = (top[i] - new_top[i]).exp();
            top[i] = new_top[i];
            sum[i] *= shrink;
            #[unroll]
            for c in 0..columns {
                accumulator[comptime!(i * columns + c)] *= Vector::new(shrink);
            }
            let mut weight = Vector::<f32, V>::new(0.0f32);
            #[unroll]
            for j in 0..comptime!(KEYS) {
                let this =
                    select(log_counts[j] >= 0.0f32, (scores[comptime!(i * KEYS + j)] - top[i]).exp(), f32::new(0.0));
                sum[i] += this;
                weight.insert(j, this);
            }
            weights[(y + comptime!(i * SIDE)) * comptime!(WEIGHTS_PITCH) + x] = weight;
        }

        let mut from = 0u32;
        while from < count {
            sync_cube();
            let mut i = unit;
            while i < comptime!(values * vectors) {
                let (j, column) = (from + (i / vectors) as u32, i % vectors);
                let mut vector = Vector::<f32, V>::new(0.0f32);
                // Zero past the last key: its weight is zero, but not times infinity.
                if j < count {
                    let token = key_at(indices, list, start, j, sizes.all_keys, comptime!(keys == Keys::Listed));
                    let row = value_head + token * value.stride(2);
                    let whole = comptime!(dim.is_multiple_of(VECTOR));
                    vector = load(value, row, column * comptime!(VECTOR), dim, whole);
                }
                stage[i] = vector;
                i += comptime!(UNITS as usize);
            }
            sync_cube();
            for quad in 0..comptime!(values / KEYS) {
                let mut weight = Array::<Vector<f32, V>>::new(rows);
                #[unroll]
                for i in 0..rows {
                    let row = (y + comptime!(i * SIDE)) * comptime!(WEIGHTS_PITCH);
                    weight[i] = weights[row + from as usize / comptime!(KEYS) + quad];
                }
                #[unroll]
                for j in 0..comptime!(KEYS) {
                    #[unroll]
                    for c in 0..columns {
                        // Units past the last column repeat it and do not write.
                        let column = min(x + comptime!(c * SIDE), comptime!(vectors - 1));
                        let this = stage[(quad * comptime!(KEYS) + j) * vectors + column];
                        #[unroll]
                        for i in 0..rows {
                            accumulator[comptime!(i * columns + c)] += Vector::new(weight[i].extract(j)) * this;
                        }
                    }
                }
            }
            from += comptime!(values as u32);
        }
        start += comptime!(TILE_KEYS as u32);
    }

    across_row(&mut sum, &mut stage, y, tile, true);
    #[unroll]
    for i in 0..rows {
        let place = first + (y + comptime!(i * SIDE)) as u32;
        if place < end {
            let token = query_at(order, places, place, end, sizes.queries, comptime!(keys.grouped()));
            let (mine, theirs, log_sum) = join(top[i], sum[i], before[i], keys);
            let other_row = batch * other.stride(0) + head as usize * other.stride(1) + token * other.stride(2);
            let row = output_row(batch, head as usize, token, &sizes, finish, keys);
            #[unroll]
            for c in 0..columns {
                let column = x + comptime!(c * SIDE);
                let sums = accumulator[comptime!(i * columns + c)];
                let result = if comptime!(keys == Keys::Counted) {
                    sums * Vector::new(mine)
                } else {
                    sums / Vector::new(sum[i])
                };
                #[unroll]
                for e in 0..comptime!(VECTOR) {
                    let element = column * comptime!(VECTOR) + e;
                    if element < comptime!(dim) {
                        let mut this = result.extract(e);
                        if comptime!(keys == Keys::Counted) {
                            this += f32::cast_from(output[row * dim + element]) * theirs;
                        }
                        if comptime!(finish != Finish::Output) {
                            let that = f32::cast_from(other[other_row + element * other.stride(3)]);
                            this = if comptime!(finish == Finish::AddResidual) {
                                that * sizes.factor + this
                            } else {
                                that - this
                            };
                        }
                        output[row * dim + element] = E::cast_from(this);
                    }
                }
            }
            if x == 0 {
                lse[places + token] = log_sum;
            }
        }
    }
}

/// Replaces each value, one for each row of the unit, by the maximum or the sum over the units of the row; always in the
/// same order. Without planes it takes the stage, once all units are done with what was there.
#[cube]
fn across_row(
    values: &mut Array<f32>,
    stage: &mut Shared<[Vector<f32, V>]>,
    y: usize,
    #[comptime] tile: Tile,
    #[comptime] sum: bool,
) {
    if comptime!(tile.planes) {
        #[unroll]
        for i in 0..comptime!(tile.rows) {
            let mut value = values[i];
            #[unroll]
            for step in 0..comptime!(SIDE.ilog2()) {
                let theirs = plane_shuffle_xor(value, comptime!(1u32 << step));
                value = if comptime!(sum) { value + theirs } else { max(value, theirs) };
            }
            values[i] = value;
        }
    } else {
        let mut mine = Vector::<f32, V>::new(0.0f32);
        #[unroll]
        for i in 0..comptime!(tile.rows) {
            mine.insert(i, values[i]);
        }
        sync_cube();
        stage[UNIT_POS as usize] = mine;
        sync_cube();
        let mut all = stage[y * comptime!(SIDE)];
        for unit in 1..comptime!(SIDE) {
            let theirs = stage[y * comptime!(SIDE) + unit];
            all = if comptime!(sum) { all + theirs } else { max(all, theirs) };
        }
        #[unroll]
        for i in 0..comptime!(tile.rows) {
            values[i] = all.extract(i);
        }
    }
}

/// Logarithm of how many keys the `j`-th of a tile of `count` stands for; below zero if it is none.
#[cube]
pub(super) fn log_count(indices: &[i32], tile: usize, j: u32, count: u32, #[comptime] keys: Keys) -> f32 {
    let mut result = 0.0f32;
    if comptime!(keys == Keys::Counted) {
        result = f32::reinterpret(indices[tile + min(j, count - 1) as usize] as u32);
    }
    select(j < count, result, f32::new(-1.0))
}

/// The query at `place`, or the last one before `end` for places past it.
#[cube]
pub(super) fn query_at(
    order: &[i32],
    places: usize,
    place: u32,
    end: u32,
    queries: u32,
    #[comptime] gathered: bool,
) -> usize {
    let mut token = min(place, end - 1) as usize;
    if comptime!(gathered) {
        token = query_of(order, places, place, end, queries);
    }
    token
}

/// The `j`-th key from `start` on.
#[cube]
pub(super) fn key_at(
    indices: &[i32],
    list: usize,
    start: u32,
    j: u32,
    all_keys: u32,
    #[comptime] gathered: bool,
) -> usize {
    let mut token = (start + j) as usize;
    if comptime!(gathered) {
        token = min(indices[list + token] as u32, all_keys - 1) as usize;
    }
    token
}
