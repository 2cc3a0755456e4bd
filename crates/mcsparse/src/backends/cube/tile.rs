//! What the kernels without matrix units share: a square of units, of which each multiplies several queries by several keys.
//!
//! Rows of the head dimension come through shared memory in slices, so that any head dimension takes the same memory.

use cubecl::prelude::*;

/// Units of a cube: the WebGPU limit.
pub(super) const UNITS: u32 = (SIDE * SIDE) as u32;
/// Units along each side of the square: along queries and along keys.
pub(super) const SIDE: usize = 16;
/// Keys of a unit.
pub(super) const KEYS: usize = 4;
/// Keys of a tile.
pub(super) const TILE_KEYS: usize = SIDE * KEYS;
/// Elements that shared memory is read by.
pub(super) const VECTOR: usize = 4;
pub(super) type V = Const<4>;

/// Queries of a unit where groups have `group_size`: small groups get small tiles.
pub(super) const fn rows_for(group_size: usize) -> usize {
    match group_size {
        0..=16 => 1,
        17..=32 => 2,
        _ => 4,
    }
}

/// Elements `element..element + VECTOR` of a row of `dim` elements in f32, strided as they are, zero past its end. `whole`
/// says that no vector of the caller crosses the end.
#[cube]
#[allow(clippy::if_same_then_else)] // the first at compile time, the second at run time
pub(super) fn load<E: Float>(
    tensor: &Tensor<E>,
    row: usize,
    element: usize,
    #[comptime] dim: usize,
    #[comptime] whole: bool,
) -> Vector<f32, V> {
    let mut vector = Vector::<f32, V>::new(0.0f32);
    #[unroll]
    for e in 0..comptime!(VECTOR) {
        if comptime!(whole) {
            vector.insert(e, f32::cast_from(tensor[row + (element + e) * tensor.stride(3)]));
        } else if element + e < comptime!(dim) {
            vector.insert(e, f32::cast_from(tensor[row + (element + e) * tensor.stride(3)]));
        }
    }
    vector
}

/// Adds to `scores[i * KEYS + j]` the product of query `y + SIDE * i` and key `x + SIDE * j` over the first `vectors` vectors
/// of the slices in `stage`: queries, then keys. Rows lie `pitch` vectors apart; an odd pitch keeps neighbouring ones in
/// different banks.
#[cube]
pub(super) fn add_products(
    scores: &mut Array<f32>,
    stage: &mut Shared<[Vector<f32, V>]>,
    y: usize,
    x: usize,
    vectors: usize,
    #[comptime] rows: usize,
    #[comptime] pitch: usize,
) {
    for c in 0..vectors {
        let mut mine = Array::<Vector<f32, V>>::new(rows);
        #[unroll]
        for i in 0..rows {
            mine[i] = stage[(y + comptime!(i * SIDE)) * pitch + c];
        }
        #[unroll]
        for j in 0..comptime!(KEYS) {
            let theirs = stage[(x + comptime!((rows + j) * SIDE)) * pitch + c];
            #[unroll]
            for i in 0..rows {
                let products = mine[i] * theirs;
                scores[comptime!(i * KEYS + j)] += products.extract(0usize)
                    + products.extract(1usize)
                    + products.extract(2usize)
                    + products.extract(3usize);
            }
        }
    }
}

/// The query at `place` of the order, or the last one before `end` for places past it. Lists are clamped wherever they are
/// read: a wrong one gives wrong values, never foreign memory.
#[cube]
pub(super) fn query_of(order: &[i32], list: usize, place: u32, end: u32, queries: u32) -> usize {
    min(order[list + min(place, end - 1) as usize] as u32, queries - 1) as usize
}
