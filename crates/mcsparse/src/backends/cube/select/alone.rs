//! Column sums by units that work alone, see [`super::super::alone`]: one takes [`KEYS`] keys and goes through the queries of a group.

use cubecl::prelude::*;

use super::{
    super::{
        alone::{element, piece, read_row, total},
        tile::query_of,
    },
    sizes::Sizes,
};

/// Keys of a unit: each query that is read serves all of them.
pub(super) const KEYS: usize = 8;

/// Writes `mass[row, key]`, the sum over the queries of the row's group of `exp(scale * query . key - lse)`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn column_sums<E: Float, N: Size>(
    query: &Tensor<Vector<E, N>>,
    key: &Tensor<Vector<E, N>>,
    lse: &[f32],
    order: &[i32],
    mass: &mut [f32],
    sizes: Sizes,
    #[comptime] dim: usize,
    #[comptime] vector: usize,
    #[define(E)] _dtype: ElemType,
) {
    let vectors = comptime!(dim / vector);
    let (piece, blocks) = (piece(), sizes.keys.div_ceil(comptime!(KEYS as u32)));
    let (row, block) = (piece / blocks, piece % blocks);
    if row >= sizes.rows {
        terminate!();
    }
    let (joined, group) = ((sizes.first_row + row) / sizes.groups, (sizes.first_row + row) % sizes.groups);
    let (head, batch) = ((joined % sizes.heads) as usize, (joined / sizes.heads) as usize);
    let first_key = block * comptime!(KEYS as u32);
    let list = joined as usize * sizes.queries as usize;
    let query_head = batch * query.stride(0) + head * query.stride(1);
    let key_head = batch * key.stride(0) + head / sizes.heads_per_kv as usize * key.stride(1);

    let mut keys = Array::<Vector<f32, N>>::new(comptime!(KEYS * vectors));
    let mut sums = Array::<f32>::new(KEYS);
    #[unroll]
    for j in 0..KEYS {
        // Keys past the last one repeat it and are not written.
        let token = min(first_key + comptime!(j as u32), sizes.keys - 1) as usize;
        let row = key_head + token * key.stride(2);
        read_row(key, row, sizes.scale, &mut keys, comptime!(j * vectors), dim, vector);
        sums[j] = 0.0f32;
    }
    let end = min((group + 1) * sizes.group_size, sizes.queries);
    for place in group * sizes.group_size..end {
        let token = query_of(order, list, place, end, sizes.queries);
        let row = query_head + token * query.stride(2);
        let mut products = Array::<Vector<f32, N>>::new(KEYS);
        #[unroll]
        for j in 0..KEYS {
            products[j] = Vector::new(0.0f32);
        }
        for c in 0..vectors {
            let this = element(query, row, c, vector);
            #[unroll]
            for j in 0..KEYS {
                products[j] += keys[comptime!(j * vectors) + c] * this;
            }
        }
        let norm = lse[list + token];
        #[unroll]
        for j in 0..KEYS {
            sums[j] += (total(products[j], vector) - norm).exp();
        }
    }
    #[unroll]
    for j in 0..KEYS {
        let this = first_key + comptime!(j as u32);
        if this < sizes.keys {
            let sink = this < sizes.sink_end || this >= sizes.sink_start;
            mass[row as usize * sizes.keys as usize + this as usize] = select(sink, sizes.always, sums[j]);
        }
    }
}
