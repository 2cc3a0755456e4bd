//! Attention of a tile of queries over all keys, over gathered ones or over counted ones: the tier with matrix units (`mma.sync`).
//!
//! One cube of [`Tile::planes`] planes takes 16 or 32 queries a plane of one group. Keys and values pass through two buffers
//! of shared memory, the next tile on its way while this one is computed ([`super::tiles`]). Scores never leave registers:
//! their layout is that of the left operand of the second product (FlashAttention-2, Dao 2023).

use cubecl::{
    cmma::{MatrixIdent, MmaDefinition},
    prelude::*,
};

use super::{
    super::fragment::{BLOCK, C2, C8, CHUNK, Operand, PLANE, Sums, left, load_chunk, right, row_sum, zero_sums},
    shape::{Keys, Sizes, output_row},
    softmax::{Rows, forget_past, join, weigh, weights},
    store::store,
    tiles::Tiles,
};
use crate::ops::Finish;

/// How a cube works; a part of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in super::super) struct Tile {
    /// Planes of a cube.
    pub planes: usize,
    /// Times 16 queries that a plane takes. Two read keys and values from shared memory half as often a query.
    pub strips: usize,
    /// Keys of a tile, a multiple of 16.
    pub keys: usize,
    /// Inline PTX: one instruction for `2^x`.
    pub ptx: bool,
    /// Tiles come by asynchronous copies of 16 bytes.
    pub async_copy: bool,
}

impl Tile {
    pub const fn queries(&self) -> usize {
        16 * self.strips * self.planes
    }

    pub const fn units(&self) -> usize {
        PLANE * self.planes
    }

    /// Chunks from one key row to the next in shared memory: 4 more than a multiple of 8, so that the four chunks that two
    /// neighbouring rows are read by lie in different banks.
    pub const fn key_stride(head_dim: usize) -> usize {
        let chunks = 4 * head_dim.div_ceil(BLOCK);
        if chunks.is_multiple_of(8) { chunks + 4 } else { chunks }
    }

    /// Chunks from one value row to the next: odd, so that eight rows at one chunk lie in different banks.
    pub const fn value_stride(head_dim: usize) -> usize {
        (head_dim / CHUNK) | 1
    }

    /// Two buffers of keys and values.
    pub const fn shared_bytes(&self, head_dim: usize) -> usize {
        16 * 2 * self.keys * (Self::key_stride(head_dim) + Self::value_stride(head_dim))
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(in super::super) fn attend<E: Float, N: Size>(
    query: &Tensor<Vector<E, N>>,
    key: &Tensor<Vector<E, N>>,
    value: &Tensor<Vector<E, N>>,
    order: &[i32],
    indices: &[i32],
    other: &Tensor<E>,
    past_lse: &[f32],
    output: &mut [Vector<E, C2>],
    lse: &mut [f32],
    sizes: Sizes,
    #[comptime] tile: Tile,
    #[comptime] dim: usize,
    #[comptime] keys: Keys,
    #[comptime] finish: Finish,
    #[define(E)] _dtype: ElemType,
) {
    let blocks = comptime!(dim.div_ceil(BLOCK));
    let chunks = comptime!(dim / CHUNK);
    let strips = comptime!(tile.strips);
    let columns = comptime!(tile.keys / 8);
    let key_stride = comptime!(Tile::key_stride(dim));
    let value_stride = comptime!(Tile::value_stride(dim));
    let def = MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize);

    // Cubes of one head run together and share its keys in the cache.
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
    let (head, batch) = (joined % sizes.heads, joined / sizes.heads);
    let kv_head = (head / sizes.heads_per_kv) as usize;
    let of_head = joined as usize * sizes.queries as usize;
    let list = (joined as usize * sizes.groups as usize + group as usize) * sizes.keys as usize;

    let (plane, lane) = (UNIT_POS / comptime!(PLANE as u32), UNIT_POS % comptime!(PLANE as u32));
    let (r, c) = (lane / 4, lane % 4);

    let key_base = batch as usize * key.stride(0) + kv_head * key.stride(1);
    let value_base = batch as usize * value.stride(0) + kv_head * value.stride(1);
    let gathered = comptime!(keys == Keys::Listed);
    let mut buffers = Tiles::<E>::new(tile, dim);
    buffers.look_up(indices, list, 0u32, sizes.keys, sizes.all_keys, tile, dim, gathered);
    buffers.fetch::<N>(key, key_base, value, value_base, 0usize, tile, dim);
    buffers.arrive(0usize, tile, dim);
    buffers.look_up(indices, list, comptime!(tile.keys as u32), sizes.keys, sizes.all_keys, tile, dim, gathered);

    // The tokens of this unit's rows. Rows past the group's end repeat its last query and are not written.
    let place = first + plane * comptime!(16 * strips as u32) + r;
    let mut token = Array::<u32>::new(comptime!(2 * strips));
    #[unroll]
    for i in 0..comptime!(2 * strips) {
        token[i] = min(place + comptime!(8 * i as u32), end - 1);
        if comptime!(keys.grouped()) {
            // Lists are clamped wherever they are read: a wrong one gives wrong values, never foreign memory.
            token[i] = min(order[of_head + token[i] as usize] as u32, sizes.queries - 1);
        }
    }
    let mut before = Array::<f32>::new(comptime!(2 * strips));
    if comptime!(keys == Keys::Counted) {
        #[unroll]
        for i in 0..comptime!(2 * strips) {
            before[i] = past_lse[of_head + token[i] as usize];
        }
    }
    let query_base = batch as usize * query.stride(0) + head as usize * query.stride(1);
    // The sign of the scale goes into the queries, its size into the exponent: the larger score is then the heavier.
    let sign = Vector::<E, C8>::new(E::cast_from(select(sizes.scale < 0.0f32, -1.0f32, 1.0f32)));
    // Never quite zero, so that scores of keys past the last one stay as small as can be.
    let exponent = max(sizes.scale.abs() * comptime!(core::f32::consts::LOG2_E), f32::new(1.0e-30));
    let mut queries = Sequence::<Operand<E>>::new();
    #[unroll]
    for s in 0..strips {
        let upper_base = query_base + token[comptime!(2 * s)] as usize * query.stride(2);
        let lower_base = query_base + token[comptime!(2 * s + 1)] as usize * query.stride(2);
        #[unroll]
        for b in 0..blocks {
            let chunk = comptime!(4 * b as u32) + c;
            let upper = load_chunk::<E, N>(query, upper_base, chunk, dim) * sign;
            let lower = load_chunk::<E, N>(query, lower_base, chunk, dim) * sign;
            queries.push(left::<E>(upper, lower, 0usize));
            queries.push(left::<E>(upper, lower, 1usize));
        }
    }

    let mut out = Sequence::<Sums>::new();
    #[unroll]
    for _ in 0..comptime!(strips * chunks) {
        out.push(zero_sums());
    }
    let mut rows = Rows::new(comptime!(2 * strips));

    let mut start = 0u32;
    let mut buffer = 0usize;
    while start < sizes.keys {
        buffers.wait(tile);
        // Everyone is done with the other buffer: the next tile goes there.
        let next = start + comptime!(tile.keys as u32);
        if next < sizes.keys {
            buffers.fetch::<N>(key, key_base, value, value_base, 1 - buffer, tile, dim);
            let after = next + comptime!(tile.keys as u32);
            buffers.look_up(indices, list, after, sizes.keys, sizes.all_keys, tile, dim, gathered);
        }

        let mut scores = Sequence::<Sums>::new();
        #[unroll]
        for _ in 0..comptime!(strips * columns) {
            scores.push(zero_sums());
        }
        let key_at = (buffer * comptime!(tile.keys) + r as usize) * key_stride + c as usize;
        #[unroll]
        for b in 0..blocks {
            #[unroll]
            for n in 0..columns {
                let chunk = buffers.keys[key_at + comptime!(n * 8 * key_stride + 4 * b)];
                #[unroll]
                for half in 0..2usize {
                    let operand = right::<E>(chunk, half);
                    #[unroll]
                    for s in 0..strips {
                        let sums = scores.index_mut(comptime!(s * columns + n));
                        let at = comptime!(2 * (s * blocks + b) + half);
                        def.execute_inplace(queries.index(at), &operand, sums);
                    }
                }
            }
        }
        if comptime!(keys == Keys::Counted) {
            weigh(&mut scores, indices, list + start as usize, sizes.keys - start, c, exponent, tile);
        } else {
            forget_past(&mut scores, sizes.keys - start, c, tile);
        }
        #[unroll]
        for i in 0..comptime!(2 * strips) {
            let shrink = rows.rise(&scores, i, exponent, tile);
            #[unroll]
            for n in 0..chunks {
                let sums = out.index_mut(comptime!(i / 2 * chunks + n));
                sums[comptime!(i % 2)] *= Vector::new(shrink);
            }
        }

        let value_at = (buffer * comptime!(tile.keys) + (lane % 16) as usize) * value_stride + (lane / 16) as usize;
        #[unroll]
        for k in 0..comptime!(tile.keys / 16) {
            let mut operands = Sequence::<Operand<E>>::new();
            #[unroll]
            for s in 0..strips {
                operands.push(weights::<E>(&scores, &mut rows, s, k, exponent, tile));
            }
            #[unroll]
            for n in 0..comptime!(chunks.div_ceil(2)) {
                let at = value_at + comptime!(k * 16 * value_stride + 2 * n);
                let count = comptime!(if 2 * n + 1 < chunks { 4usize } else { 2usize });
                let loaded =
                    def.load_matrix::<Vector<E, C8>, C2>(&buffers.values[at..at + 1], MatrixIdent::B, count, true);
                #[unroll]
                for i in 0..comptime!(count / 2) {
                    let mut operand = Array::<Vector<E, C2>>::new(2usize);
                    operand[0] = loaded[comptime!(2 * i)];
                    operand[1] = loaded[comptime!(2 * i + 1)];
                    #[unroll]
                    for s in 0..strips {
                        let sums = out.index_mut(comptime!(s * chunks + 2 * n + i));
                        def.execute_inplace(operands.index(s), &operand, sums);
                    }
                }
            }
        }

        if next < sizes.keys {
            buffers.arrive(1 - buffer, tile, dim);
        }
        buffer = 1 - buffer;
        start = next;
    }

    let other_base = batch as usize * other.stride(0) + head as usize * other.stride(1);
    #[unroll]
    for i in 0..comptime!(2 * strips) {
        let sum = row_sum(rows.sum[i]);
        if place + comptime!(8 * i as u32) < end {
            let token = token[i] as usize;
            let other_row = other_base + token * other.stride(2);
            let mut top = rows.top[i] * sizes.scale.abs();
            if comptime!(keys == Keys::Counted) {
                // No key counted: not even a scale of zero makes a weight of it.
                top = select(rows.top[i] <= f32::new(-3.0e38), f32::new(-3.0e38), top);
            }
            let (mine, theirs, log_sum) = join(top, sum, before[i], keys);
            let at = output_row(batch as usize, head as usize, token, &sizes, finish, keys);
            store::<E>(&out, i, mine, theirs, at, other, other_row, sizes.factor, output, c, dim, finish, keys);
            if c == 0 {
                lse[of_head + token] = log_sum;
            }
        }
    }
}
