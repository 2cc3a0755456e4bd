//! Attention of a tile of queries over all keys or over gathered ones: the tier that needs shared memory and nothing else.
//!
//! One cube of [`UNITS`] units takes [`Tile::queries`] queries of one group. Each query row belongs to a run of
//! neighbouring units, which share the keys of a tile when scoring and the columns of the output when accumulating. Online
//! softmax in f32 (Milakov and Gimelshein 2018); the running maximum and sum are kept by every unit of the row, so no
//! reduction across units is needed.

use cubecl::prelude::*;

use super::Sizes;
use crate::ops::Finish;

/// Units of a cube: the WebGPU limit.
pub(in super::super) const UNITS: u32 = 256;
/// Elements that shared memory is read by.
pub(in super::super) const VECTOR: usize = 4;
type V = Const<4>;

/// Queries and keys of a tile.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in super::super) struct Tile {
    pub queries: usize,
    pub keys: usize,
}

impl Tile {
    /// The largest tile that fits 32 KiB of shared memory, what software Vulkan and most WebGPU adapters offer.
    pub const fn of(head_dim: usize) -> Self {
        match head_dim {
            0..=64 => Tile { queries: 32, keys: 32 },   // 8 + 8 + 4 KiB
            65..=128 => Tile { queries: 32, keys: 16 }, // 16 + 8 + 2 KiB
            _ => Tile { queries: 16, keys: 8 },         // 16 + 8 + 0.5 KiB at 256
        }
    }

    /// Bytes of shared memory: queries, then keys or values, and scores.
    pub const fn shared_bytes(&self, head_dim: usize) -> usize {
        4 * ((self.queries + self.keys) * head_dim + self.queries * self.keys)
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attend<E: Float>(
    query: &Tensor<E>,
    key: &Tensor<E>,
    value: &Tensor<E>,
    order: &[i32],
    indices: &[i32],
    other: &Tensor<E>,
    output: &mut Tensor<E>,
    lse: &mut [f32],
    sizes: Sizes,
    #[comptime] tile: Tile,
    #[comptime] dim: usize,
    #[comptime] gathered: bool,
    #[comptime] finish: Finish,
    #[define(E)] _dtype: ElemType,
) {
    let vectors = comptime!(dim / VECTOR);
    let units_per_row = comptime!(UNITS as usize / tile.queries);
    let keys_per_unit = comptime!(tile.keys.div_ceil(units_per_row));
    let columns_per_unit = comptime!(vectors.div_ceil(units_per_row));

    // Cubes are numbered tile by tile, then head by head: those of one head run together and share its keys in the cache.
    let cube = CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X;
    let tiles = sizes.groups * sizes.tiles_per_group;
    let (joined, tile_in_head) = (cube / tiles, cube % tiles);
    if joined >= sizes.batch * sizes.heads {
        terminate!();
    }
    let group = tile_in_head / sizes.tiles_per_group;
    let first = group * sizes.group_size + tile_in_head % sizes.tiles_per_group * comptime!(tile.queries as u32);
    let end = min((group + 1) * sizes.group_size, sizes.queries);
    if first >= end {
        terminate!();
    }
    let (head, batch) = (joined % sizes.heads, joined / sizes.heads);
    let z = joined as usize;
    let kv_head = (head / sizes.heads_per_kv) as usize;
    let list = (z * sizes.groups as usize + group as usize) * sizes.keys as usize;

    let unit = UNIT_POS as usize;
    let (row, lane) = (unit / units_per_row, unit % units_per_row);
    // Rows past the group's end repeat its last query and are not written.
    let place = min(first + row as u32, end - 1);

    let mut q = Shared::<[Vector<f32, V>]>::new_slice(comptime!(tile.queries * vectors));
    let mut kv = Shared::<[Vector<f32, V>]>::new_slice(comptime!(tile.keys * vectors));
    let mut scores = Shared::<[f32]>::new_slice(comptime!(tile.queries * tile.keys));

    let mut token = place as usize;
    if comptime!(gathered) {
        // Lists are clamped wherever they are read: a wrong one gives wrong values, never foreign memory.
        token = min(order[z * sizes.queries as usize + place as usize] as u32, sizes.queries - 1) as usize;
    }
    let base = batch as usize * query.stride(0) + head as usize * query.stride(1) + token * query.stride(2);
    let mut column = lane;
    while column < vectors {
        q[row * vectors + column] = load(query, base, column) * Vector::new(sizes.scale);
        column += units_per_row;
    }

    let mut sum = 0.0f32;
    let mut top = f32::new(-3.0e38);
    let mut accumulator = Array::<Vector<f32, V>>::new(columns_per_unit);
    #[unroll]
    for c in 0..columns_per_unit {
        accumulator[c] = Vector::new(0.0f32);
    }
    let key_base = batch as usize * key.stride(0) + kv_head * key.stride(1);
    let value_base = batch as usize * value.stride(0) + kv_head * value.stride(1);

    let mut start = 0u32;
    while start < sizes.keys {
        let count = min(sizes.keys - start, comptime!(tile.keys as u32));

        load_tile(
            key,
            &mut kv,
            key_base,
            indices,
            list + start as usize,
            start,
            count,
            sizes.all_keys,
            tile,
            dim,
            gathered,
        );
        sync_cube();
        #[unroll]
        for i in 0..keys_per_unit {
            let j = i * units_per_row + lane;
            // More units than keys: the units past the last key have nothing to score.
            if j < comptime!(tile.keys) {
                let mut products = Vector::<f32, V>::new(0.0f32);
                for c in 0..vectors {
                    products += q[row * vectors + c] * kv[j * vectors + c];
                }
                let score = products.extract(0usize)
                    + products.extract(1usize)
                    + products.extract(2usize)
                    + products.extract(3usize);
                scores[row * comptime!(tile.keys) + j] = select((j as u32) < count, score, f32::new(-3.0e38));
            }
        }
        sync_cube();

        // Every unit of a row goes through all its scores: cheaper than a reduction between them.
        let mut new_top = top;
        for j in 0..comptime!(tile.keys) {
            new_top = max(new_top, scores[row * comptime!(tile.keys) + j]);
        }
        load_tile(
            value,
            &mut kv,
            value_base,
            indices,
            list + start as usize,
            start,
            count,
            sizes.all_keys,
            tile,
            dim,
            gathered,
        );
        let shrink = (top - new_top).exp();
        sum *= shrink;
        #[unroll]
        for c in 0..columns_per_unit {
            accumulator[c] *= Vector::new(shrink);
        }
        top = new_top;
        sync_cube();
        for j in 0..count as usize {
            let weight = (scores[row * comptime!(tile.keys) + j] - top).exp();
            sum += weight;
            #[unroll]
            for c in 0..columns_per_unit {
                let column = c * units_per_row + lane;
                if column < vectors {
                    accumulator[c] += Vector::new(weight) * kv[j * vectors + column];
                }
            }
        }
        sync_cube();
        start += comptime!(tile.keys as u32);
    }

    if first + (row as u32) < end {
        let at = z * sizes.queries as usize + token;
        let other_base = batch as usize * other.stride(0) + head as usize * other.stride(1) + token * other.stride(2);
        #[unroll]
        for c in 0..columns_per_unit {
            let column = c * units_per_row + lane;
            if column < vectors {
                let mut result = accumulator[c] / Vector::new(sum);
                if comptime!(finish == Finish::AddResidual) {
                    result += load(other, other_base, column);
                }
                if comptime!(finish == Finish::ResidualOf) {
                    result = load(other, other_base, column) - result;
                }
                #[unroll]
                for e in 0..comptime!(VECTOR) {
                    output[at * dim + column * comptime!(VECTOR) + e] = E::cast_from(result.extract(e));
                }
            }
        }
        if lane == 0 {
            lse[at] = top + sum.ln();
        }
    }
}

/// Four elements of a row, strided as they are.
#[cube]
fn load<E: Float>(tensor: &Tensor<E>, base: usize, column: usize) -> Vector<f32, V> {
    let mut vector = Vector::<f32, V>::new(0.0f32);
    #[unroll]
    for e in 0..comptime!(VECTOR) {
        let at = base + (column * comptime!(VECTOR) + e) * tensor.stride(3);
        vector.insert(e, f32::cast_from(tensor[at]));
    }
    vector
}

/// Brings the rows of one tile of keys or values into shared memory; rows past `count` repeat the last one.
#[cube]
fn load_tile<E: Float>(
    tensor: &Tensor<E>,
    shared: &mut Shared<[Vector<f32, V>]>,
    base: usize,
    indices: &[i32],
    list: usize,
    start: u32,
    count: u32,
    all_keys: u32,
    #[comptime] tile: Tile,
    #[comptime] dim: usize,
    #[comptime] gathered: bool,
) {
    let vectors = comptime!(dim / VECTOR);
    let mut i = UNIT_POS as usize;
    while i < comptime!(tile.keys * vectors) {
        let (j, column) = (i / vectors, i % vectors);
        let j_in = min(j as u32, count - 1);
        let mut token = (start + j_in) as usize;
        if comptime!(gathered) {
            token = min(indices[list + j_in as usize] as u32, all_keys - 1) as usize;
        }
        shared[i] = load(tensor, base + token * tensor.stride(2), column);
        i += comptime!(UNITS as usize);
    }
}
