//! Attention of a tile of queries over all keys or over gathered ones: the tier with matrix units (`mma.sync`).
//!
//! One cube of [`Tile::planes`] planes takes 16 queries a plane of one group. Queries stay in registers; keys and values pass
//! through two buffers of shared memory, the next tile on its way while this one is computed: by asynchronous copies where
//! the compiler has them, through registers where not. Scores never leave registers: their layout is that of the left
//! operand of the second product (FlashAttention-2, Dao 2023).

use cubecl::{
    cmma::{MatrixIdent, MmaDefinition},
    prelude::*,
};

use super::{
    super::fragment::{
        BLOCK, C2, C8, CHUNK, PLANE, Sums, copy_chunk, exp2, left, load_chunk, right, row_max, row_sum,
        wait_for_copies, zero_sums,
    },
    Sizes,
};
use crate::ops::Finish;

/// How a cube works; a part of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in super::super) struct Tile {
    /// Planes, 16 queries each.
    pub planes: usize,
    /// Keys of a tile, a multiple of 16.
    pub keys: usize,
    /// Inline PTX: one instruction for `2^x`.
    pub ptx: bool,
    /// Tiles come by asynchronous copies of 16 bytes.
    pub async_copy: bool,
}

impl Tile {
    pub const fn queries(&self) -> usize {
        16 * self.planes
    }

    pub const fn units(&self) -> usize {
        PLANE * self.planes
    }

    /// Chunks from one key row to the next in shared memory: 4 more than a multiple of 8, so that the four chunks that two
    /// neighbouring rows are read by lie in different banks.
    const fn key_stride(head_dim: usize) -> usize {
        let chunks = 4 * head_dim.div_ceil(BLOCK);
        if chunks.is_multiple_of(8) { chunks + 4 } else { chunks }
    }

    /// Chunks from one value row to the next: odd, so that eight rows at one chunk lie in different banks.
    const fn value_stride(head_dim: usize) -> usize {
        (head_dim / CHUNK) | 1
    }

    /// Two buffers of keys and values.
    pub const fn shared_bytes(&self, head_dim: usize) -> usize {
        2 * self.keys * (Self::key_stride(head_dim) + Self::value_stride(head_dim)) * 16
    }
}

#[cube(launch_unchecked, address_type = "dynamic", create_dummy_kernel)]
pub(in super::super) fn attend<E: Float, N: Size>(
    query: &Tensor<Vector<E, N>>,
    key: &Tensor<Vector<E, N>>,
    value: &Tensor<Vector<E, N>>,
    order: &[i32],
    indices: &[i32],
    other: &Tensor<E>,
    output: &mut [Vector<E, C2>],
    lse: &mut [f32],
    sizes: Sizes,
    #[comptime] tile: Tile,
    #[comptime] dim: usize,
    #[comptime] gathered: bool,
    #[comptime] finish: Finish,
    #[define(E)] _dtype: ElemType,
) {
    let blocks = comptime!(dim.div_ceil(BLOCK));
    let chunks = comptime!(dim / CHUNK);
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
    let z = joined as usize;
    let kv_head = (head / sizes.heads_per_kv) as usize;
    let list = (z * sizes.groups as usize + group as usize) * sizes.keys as usize;

    let (plane, lane) = (UNIT_POS / comptime!(PLANE as u32), UNIT_POS % comptime!(PLANE as u32));
    let (r, c) = (lane / 4, lane % 4);

    let mut keys = Shared::<[Vector<E, C8>]>::new_aligned_slice(comptime!(2 * tile.keys * key_stride), 16usize);
    let mut values = Shared::<[Vector<E, C8>]>::new_aligned_slice(comptime!(2 * tile.keys * value_stride), 16usize);
    // Columns past head_dim meet zeros of the query; they must be numbers.
    if comptime!(4 * blocks > chunks) {
        let mut i = UNIT_POS as usize;
        while i < comptime!(2 * tile.keys * key_stride) {
            keys[i] = Vector::new(E::from_int(0i64));
            i += comptime!(tile.units());
        }
        sync_cube();
    }

    // Rows past the group's end repeat its last query and are not written.
    let place = first + plane * 16 + r;
    let mut token_0 = min(place, end - 1) as usize;
    let mut token_1 = min(place + 8, end - 1) as usize;
    if comptime!(gathered) {
        // Lists are clamped wherever they are read: a wrong one gives wrong values, never foreign memory.
        token_0 = min(order[z * sizes.queries as usize + token_0] as u32, sizes.queries - 1) as usize;
        token_1 = min(order[z * sizes.queries as usize + token_1] as u32, sizes.queries - 1) as usize;
    }
    let query_base = batch as usize * query.stride(0) + head as usize * query.stride(1);
    // The sign of the scale goes into the queries, its size into the exponent: the larger score is then the heavier.
    let sign = E::cast_from(select(sizes.scale < 0.0f32, -1.0f32, 1.0f32));
    let exponent = sizes.scale.abs() * comptime!(core::f32::consts::LOG2_E);
    let mut q = Sequence::<Array<Vector<E, C2>>>::new();
    #[unroll]
    for b in 0..blocks {
        let chunk = comptime!(4 * b as u32) + c;
        let upper = load_chunk::<E, N>(query, query_base + token_0 * query.stride(2), chunk, dim) * Vector::new(sign);
        let lower = load_chunk::<E, N>(query, query_base + token_1 * query.stride(2), chunk, dim) * Vector::new(sign);
        q.push(left::<E>(upper, lower, 0usize));
        q.push(left::<E>(upper, lower, 1usize));
    }

    let mut out = Sequence::<Sums>::new();
    #[unroll]
    for _ in 0..chunks {
        out.push(zero_sums());
    }
    let mut top_0 = f32::new(-3.0e38);
    let mut top_1 = f32::new(-3.0e38);
    let mut sum_0 = 0.0f32;
    let mut sum_1 = 0.0f32;

    let key_base = batch as usize * key.stride(0) + kv_head * key.stride(1);
    let value_base = batch as usize * value.stride(0) + kv_head * value.stride(1);
    let per_unit = comptime!((tile.keys * chunks).div_ceil(tile.units()));
    let exact = comptime!((tile.keys * chunks).is_multiple_of(tile.units()));

    // Tokens of the chunks that this unit brings: looked up one tile ahead, since the rows' addresses depend on them.
    let mut tokens = Array::<u32>::new(per_unit);
    look_up(&mut tokens, indices, list, 0u32, sizes.keys, sizes.all_keys, tile, chunks, per_unit, gathered);
    let mut staged_keys = Array::<Vector<E, C8>>::new(per_unit);
    let mut staged_values = Array::<Vector<E, C8>>::new(per_unit);
    fetch::<E, N>(key, &mut keys, &mut staged_keys, key_base, &tokens, 0usize, tile, dim, key_stride, per_unit, exact);
    fetch::<E, N>(
        value,
        &mut values,
        &mut staged_values,
        value_base,
        &tokens,
        0usize,
        tile,
        dim,
        value_stride,
        per_unit,
        exact,
    );
    if comptime!(!tile.async_copy) {
        put::<E>(&mut keys, &staged_keys, 0usize, tile, chunks, key_stride, per_unit, exact);
        put::<E>(&mut values, &staged_values, 0usize, tile, chunks, value_stride, per_unit, exact);
    }
    let next = comptime!(tile.keys as u32);
    look_up(&mut tokens, indices, list, next, sizes.keys, sizes.all_keys, tile, chunks, per_unit, gathered);

    let mut start = 0u32;
    let mut buffer = 0usize;
    while start < sizes.keys {
        if comptime!(tile.async_copy) {
            wait_for_copies();
        }
        sync_cube();
        // Everyone is done with the other buffer: the next tile goes there.
        let next = start + comptime!(tile.keys as u32);
        if next < sizes.keys {
            fetch::<E, N>(
                key,
                &mut keys,
                &mut staged_keys,
                key_base,
                &tokens,
                1 - buffer,
                tile,
                dim,
                key_stride,
                per_unit,
                exact,
            );
            fetch::<E, N>(
                value,
                &mut values,
                &mut staged_values,
                value_base,
                &tokens,
                1 - buffer,
                tile,
                dim,
                value_stride,
                per_unit,
                exact,
            );
            let after = next + comptime!(tile.keys as u32);
            look_up(&mut tokens, indices, list, after, sizes.keys, sizes.all_keys, tile, chunks, per_unit, gathered);
        }

        let mut scores = Sequence::<Sums>::new();
        #[unroll]
        for _ in 0..comptime!(tile.keys / 8) {
            scores.push(zero_sums());
        }
        let key_at = (buffer * comptime!(tile.keys) + r as usize) * key_stride + c as usize;
        #[unroll]
        for b in 0..blocks {
            #[unroll]
            for n in 0..comptime!(tile.keys / 8) {
                let chunk = keys[key_at + comptime!(n * 8 * key_stride + 4 * b)];
                def.execute_inplace(q.index(comptime!(2 * b)), &right::<E>(chunk, 0usize), scores.index_mut(n));
                def.execute_inplace(q.index(comptime!(2 * b + 1)), &right::<E>(chunk, 1usize), scores.index_mut(n));
            }
        }

        let count = sizes.keys - start;
        if count < comptime!(tile.keys as u32) {
            #[unroll]
            for n in 0..comptime!(tile.keys / 8) {
                let sums = scores.index_mut(n);
                #[unroll]
                for e in 0..2usize {
                    let past = comptime!((8 * n + e) as u32) + 2 * c >= count;
                    #[unroll]
                    for h in 0..2usize {
                        let mut kept = sums[h];
                        kept.insert(e, select(past, f32::new(-3.0e38), kept.extract(e)));
                        sums[h] = kept;
                    }
                }
            }
        }

        let mut new_0 = top_0;
        let mut new_1 = top_1;
        #[unroll]
        for n in 0..comptime!(tile.keys / 8) {
            let sums = scores.index(n);
            new_0 = max(new_0, max(sums[0].extract(0usize), sums[0].extract(1usize)));
            new_1 = max(new_1, max(sums[1].extract(0usize), sums[1].extract(1usize)));
        }
        new_0 = row_max(new_0);
        new_1 = row_max(new_1);
        let shrink_0 = exp2((top_0 - new_0) * exponent, tile.ptx);
        let shrink_1 = exp2((top_1 - new_1) * exponent, tile.ptx);
        top_0 = new_0;
        top_1 = new_1;
        let (offset_0, offset_1) = (top_0 * exponent, top_1 * exponent);
        sum_0 *= shrink_0;
        sum_1 *= shrink_1;
        #[unroll]
        for n in 0..chunks {
            let sums = out.index_mut(n);
            sums[0] *= Vector::new(shrink_0);
            sums[1] *= Vector::new(shrink_1);
        }

        let value_at = (buffer * comptime!(tile.keys) + (lane % 16) as usize) * value_stride + (lane / 16) as usize;
        #[unroll]
        for k in 0..comptime!(tile.keys / 16) {
            // Weights of 16 keys: two tiles of sums are one left operand.
            let mut weights = Array::<Vector<E, C2>>::new(4usize);
            #[unroll]
            for n in 0..2usize {
                let sums = scores.index(comptime!(2 * k + n));
                let weight_0 = weight(sums[0], exponent, offset_0, tile.ptx);
                let weight_1 = weight(sums[1], exponent, offset_1, tile.ptx);
                sum_0 += weight_0.extract(0usize) + weight_0.extract(1usize);
                sum_1 += weight_1.extract(0usize) + weight_1.extract(1usize);
                weights[comptime!(2 * n)] = Vector::cast_from(weight_0);
                weights[comptime!(2 * n + 1)] = Vector::cast_from(weight_1);
            }
            #[unroll]
            for n in 0..comptime!(chunks.div_ceil(2)) {
                let at = value_at + comptime!(k * 16 * value_stride + 2 * n);
                let count = comptime!(if 2 * n + 1 < chunks { 4usize } else { 2usize });
                let loaded = def.load_matrix::<Vector<E, C8>, C2>(&values[at..at + 1], MatrixIdent::B, count, true);
                #[unroll]
                for i in 0..comptime!(count / 2) {
                    let mut operand = Array::<Vector<E, C2>>::new(2usize);
                    operand[0] = loaded[comptime!(2 * i)];
                    operand[1] = loaded[comptime!(2 * i + 1)];
                    def.execute_inplace(&weights, &operand, out.index_mut(comptime!(2 * n + i)));
                }
            }
        }

        if comptime!(!tile.async_copy) && next < sizes.keys {
            put::<E>(&mut keys, &staged_keys, 1 - buffer, tile, chunks, key_stride, per_unit, exact);
            put::<E>(&mut values, &staged_values, 1 - buffer, tile, chunks, value_stride, per_unit, exact);
        }
        buffer = 1 - buffer;
        start = next;
    }

    sum_0 = row_sum(sum_0);
    sum_1 = row_sum(sum_1);
    let other_base = batch as usize * other.stride(0) + head as usize * other.stride(1);
    store::<E>(
        &out,
        0usize,
        sum_0,
        place < end,
        z * sizes.queries as usize + token_0,
        other,
        other_base + token_0 * other.stride(2),
        output,
        c,
        dim,
        finish,
    );
    store::<E>(
        &out,
        1usize,
        sum_1,
        place + 8 < end,
        z * sizes.queries as usize + token_1,
        other,
        other_base + token_1 * other.stride(2),
        output,
        c,
        dim,
        finish,
    );
    let scale = sizes.scale.abs();
    if c == 0 {
        if place < end {
            lse[z * sizes.queries as usize + token_0] = top_0 * scale + sum_0.ln();
        }
        if place + 8 < end {
            lse[z * sizes.queries as usize + token_1] = top_1 * scale + sum_1.ln();
        }
    }
}

/// Writes one row of the output, with the other tensor as `finish` says.
#[cube]
fn store<E: Float>(
    out: &Sequence<Sums>,
    #[comptime] half: usize,
    sum: f32,
    inside: bool,
    at: usize,
    other: &Tensor<E>,
    other_row: usize,
    output: &mut [Vector<E, C2>],
    c: u32,
    #[comptime] dim: usize,
    #[comptime] finish: Finish,
) {
    if inside {
        let inverse = 1.0f32 / sum;
        #[unroll]
        for n in 0..comptime!(dim / CHUNK) {
            let mut result = out.index(n)[half] * Vector::new(inverse);
            let column = comptime!(CHUNK * n) + 2 * c as usize;
            if comptime!(finish != Finish::Output) {
                let mut read = Vector::<f32, C2>::new(f32::cast_from(other[other_row + column * other.stride(3)]));
                read.insert(1usize, f32::cast_from(other[other_row + (column + 1) * other.stride(3)]));
                if comptime!(finish == Finish::AddResidual) {
                    result = read + result;
                } else {
                    result = read - result;
                }
            }
            output[at * comptime!(dim / 2) + comptime!(4 * n) + c as usize] = Vector::cast_from(result);
        }
    }
}

/// `2^(score * exponent - offset)`.
#[cube]
fn weight(score: Vector<f32, C2>, exponent: f32, offset: f32, #[comptime] ptx: bool) -> Vector<f32, C2> {
    let mut result = Vector::<f32, C2>::new(exp2(fma(score.extract(0usize), exponent, -offset), ptx));
    result.insert(1usize, exp2(fma(score.extract(1usize), exponent, -offset), ptx));
    result
}

/// The tokens whose chunks this unit brings for the tile at `start`; those past the last key repeat it.
#[cube]
fn look_up(
    tokens: &mut Array<u32>,
    indices: &[i32],
    list: usize,
    start: u32,
    count: u32,
    all_keys: u32,
    #[comptime] tile: Tile,
    #[comptime] chunks: usize,
    #[comptime] per_unit: usize,
    #[comptime] gathered: bool,
) {
    #[unroll]
    for s in 0..per_unit {
        let row = (comptime!((s * tile.units()) as u32) + UNIT_POS) / comptime!(chunks as u32);
        let place = min(start + row, count - 1);
        if comptime!(gathered) {
            tokens[s] = min(indices[list + place as usize] as u32, all_keys - 1);
        } else {
            tokens[s] = place;
        }
    }
}

/// Starts bringing the chunks of a tile: into shared memory, or into registers.
#[cube]
fn fetch<E: Float, N: Size>(
    tensor: &Tensor<Vector<E, N>>,
    shared: &mut Shared<[Vector<E, C8>]>,
    staged: &mut Array<Vector<E, C8>>,
    base: usize,
    tokens: &Array<u32>,
    buffer: usize,
    #[comptime] tile: Tile,
    #[comptime] dim: usize,
    #[comptime] stride: usize,
    #[comptime] per_unit: usize,
    #[comptime] exact: bool,
) {
    let chunks = comptime!(dim / CHUNK);
    #[unroll]
    for s in 0..per_unit {
        let i = comptime!((s * tile.units()) as u32) + UNIT_POS;
        let (row, chunk) = (i / comptime!(chunks as u32), i % comptime!(chunks as u32));
        let from = base + tokens[s] as usize * tensor.stride(2);
        if comptime!(tile.async_copy) {
            if exact || row < comptime!(tile.keys as u32) {
                let to = (buffer * comptime!(tile.keys) + row as usize) * stride + chunk as usize;
                let at = from / comptime!(CHUNK) + chunk as usize;
                copy_chunk::<Vector<E, N>, Vector<E, C8>>(tensor[at..at + 1].as_ptr(), shared[to..to + 1].as_ptr());
            }
        } else {
            staged[s] = load_chunk::<E, N>(tensor, from, chunk, dim);
        }
    }
}

/// Puts the chunks that were fetched into registers where they belong.
#[cube]
fn put<E: Float>(
    shared: &mut Shared<[Vector<E, C8>]>,
    staged: &Array<Vector<E, C8>>,
    buffer: usize,
    #[comptime] tile: Tile,
    #[comptime] chunks: usize,
    #[comptime] stride: usize,
    #[comptime] per_unit: usize,
    #[comptime] exact: bool,
) {
    #[unroll]
    for s in 0..per_unit {
        let i = comptime!((s * tile.units()) as u32) + UNIT_POS;
        let (row, chunk) = (i / comptime!(chunks as u32), i % comptime!(chunks as u32));
        if exact || row < comptime!(tile.keys as u32) {
            shared[(buffer * comptime!(tile.keys) + row as usize) * stride + chunk as usize] = staged[s];
        }
    }
}
