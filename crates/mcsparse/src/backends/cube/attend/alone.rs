//! Attention by units that work alone, see [`super::super::alone`]: one takes [`QUERIES`] queries of a group and goes through the keys
//! [`KEYS`] at a time. Online softmax in f32 (Milakov and Gimelshein 2018).

use cubecl::prelude::*;

use super::{
    super::alone::{element, piece, read_row, total},
    shape::{Keys, Sizes, output_row},
    simt::{key_at, log_count, query_at},
    softmax::join,
};
use crate::ops::Finish;

/// Queries of a unit: each key that is read serves all of them.
pub(super) const QUERIES: usize = 4;
/// Keys whose scores are known before any value is read.
const KEYS: usize = 8;

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attend<E: Float, N: Size>(
    query: &Tensor<Vector<E, N>>,
    key: &Tensor<Vector<E, N>>,
    value: &Tensor<Vector<E, N>>,
    order: &[i32],
    indices: &[i32],
    other: &Tensor<E>,
    past_lse: &[f32],
    output: &mut Tensor<E>,
    lse: &mut [f32],
    sizes: Sizes,
    #[comptime] dim: usize,
    #[comptime] vector: usize,
    #[comptime] keys: Keys,
    #[comptime] finish: Finish,
    #[define(E)] _dtype: ElemType,
) {
    let vectors = comptime!(dim / vector);
    let gathered = comptime!(keys == Keys::Listed);
    let (piece, tiles) = (piece(), sizes.groups * sizes.tiles_per_group);
    let (joined, tile_in_head) = (piece / tiles, piece % tiles);
    if joined >= sizes.batch * sizes.heads {
        terminate!();
    }
    let group = tile_in_head / sizes.tiles_per_group;
    let first = group * sizes.group_size + tile_in_head % sizes.tiles_per_group * comptime!(QUERIES as u32);
    let end = min((group + 1) * sizes.group_size, sizes.queries);
    if first >= end {
        terminate!();
    }
    let (head, batch) = ((joined % sizes.heads) as usize, (joined / sizes.heads) as usize);
    let kv_head = head / sizes.heads_per_kv as usize;
    let places = joined as usize * sizes.queries as usize;
    let list = (joined as usize * sizes.groups as usize + group as usize) * sizes.keys as usize;
    let query_head = batch * query.stride(0) + head * query.stride(1);
    let key_head = batch * key.stride(0) + kv_head * key.stride(1);
    let value_head = batch * value.stride(0) + kv_head * value.stride(1);

    let mut tokens = Array::<usize>::new(QUERIES);
    let mut rows = Array::<Vector<f32, N>>::new(comptime!(QUERIES * vectors));
    let mut sums = Array::<Vector<f32, N>>::new(comptime!(QUERIES * vectors));
    let mut top = Array::<f32>::new(QUERIES);
    let mut sum = Array::<f32>::new(QUERIES);
    #[unroll]
    for i in 0..QUERIES {
        // Places past the last one repeat it and are not written.
        let place = first + comptime!(i as u32);
        tokens[i] = query_at(order, places, place, end, sizes.queries, comptime!(keys.grouped()));
        let row = query_head + tokens[i] * query.stride(2);
        read_row(query, row, sizes.scale, &mut rows, comptime!(i * vectors), dim, vector);
        top[i] = f32::new(-3.0e38);
        sum[i] = 0.0f32;
        for c in 0..vectors {
            sums[comptime!(i * vectors) + c] = Vector::new(0.0f32);
        }
    }

    let mut start = 0u32;
    while start < sizes.keys {
        let count = min(sizes.keys - start, comptime!(KEYS as u32));
        let mut scores = Array::<f32>::new(comptime!(KEYS * QUERIES));
        let mut log_counts = Array::<f32>::new(KEYS);
        let mut values = Array::<usize>::new(KEYS);
        for j in 0..KEYS {
            let token = key_at(indices, list, start, min(j as u32, count - 1), sizes.all_keys, gathered);
            values[j] = value_head + token * value.stride(2);
            log_counts[j] = log_count(indices, list + start as usize, j as u32, count, keys);
            let row = key_head + token * key.stride(2);
            let mut products = Array::<Vector<f32, N>>::new(QUERIES);
            #[unroll]
            for i in 0..QUERIES {
                products[i] = Vector::new(0.0f32);
            }
            for c in 0..vectors {
                let this = element(key, row, c, vector);
                #[unroll]
                for i in 0..QUERIES {
                    products[i] += rows[comptime!(i * vectors) + c] * this;
                }
            }
            #[unroll]
            for i in 0..QUERIES {
                let mut score = total(products[i], vector);
                if comptime!(keys == Keys::Counted) {
                    score += log_counts[j];
                }
                scores[j * QUERIES + i] = score;
            }
        }
        let mut shrink = Array::<f32>::new(QUERIES);
        #[unroll]
        for i in 0..QUERIES {
            let mut new_top = top[i];
            for j in 0..KEYS {
                let score = select(log_counts[j] >= 0.0f32, scores[j * QUERIES + i], f32::new(-3.0e38));
                new_top = max(new_top, score);
            }
            shrink[i] = (top[i] - new_top).exp();
            top[i] = new_top;
            sum[i] *= shrink[i];
            for j in 0..KEYS {
                let weight = (scores[j * QUERIES + i] - new_top).exp();
                let weight = select(log_counts[j] >= 0.0f32, weight, f32::new(0.0));
                scores[j * QUERIES + i] = weight;
                sum[i] += weight;
            }
        }
        for c in 0..vectors {
            let mut output = Array::<Vector<f32, N>>::new(QUERIES);
            #[unroll]
            for i in 0..QUERIES {
                output[i] = sums[comptime!(i * vectors) + c] * Vector::new(shrink[i]);
            }
            for j in 0..count as usize {
                let this = element(value, values[j], c, vector);
                #[unroll]
                for i in 0..QUERIES {
                    output[i] += Vector::new(scores[j * QUERIES + i]) * this;
                }
            }
            #[unroll]
            for i in 0..QUERIES {
                sums[comptime!(i * vectors) + c] = output[i];
            }
        }
        start += comptime!(KEYS as u32);
    }

    #[unroll]
    for i in 0..QUERIES {
        if first + comptime!(i as u32) < end {
            let token = tokens[i];
            let mut before = 0.0f32;
            if comptime!(keys == Keys::Counted) {
                before = past_lse[places + token];
            }
            let (mine, theirs, log_sum) = join(top[i], sum[i], before, keys);
            let other_row = batch * other.stride(0) + head * other.stride(1) + token * other.stride(2);
            let row = output_row(batch, head, token, &sizes, finish, keys);
            for c in 0..vectors {
                let result = sums[comptime!(i * vectors) + c] * Vector::new(mine);
                #[unroll]
                for e in 0..vector {
                    let element = c * vector + e;
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
            lse[places + token] = log_sum;
        }
    }
}
