//! Attention mass of every key for every group, with matrix units (`mma.sync`).
//!
//! The scores are computed transposed, keys by queries, so that the sum over a group's queries runs along a row: inside a
//! unit first, then over the four units of the row. The group's queries lie in shared memory; the keys go from global memory
//! straight into registers, each plane its own, so that the loop has no barrier. All sums are f32 and in a fixed order.

use cubecl::{cmma::MmaDefinition, prelude::*};

use super::{
    super::fragment::{BLOCK, C2, C8, PLANE, Sums, exp2, left, load_chunk, right, row_sum, zero_sums},
    sizes::Sizes,
};

/// Queries in shared memory at a time.
const QUERIES: usize = 128;
/// Queries whose scores are in registers at a time.
const STEP: usize = 32;

/// How a cube works; a part of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in super::super) struct Tile {
    /// Planes of a cube.
    pub planes: usize,
    /// Times 16 keys that a plane takes at a time.
    pub strips: usize,
    /// Inline PTX: one instruction for `2^x`.
    pub ptx: bool,
}

impl Tile {
    /// Keys of a plane at a time.
    pub const fn keys(&self) -> usize {
        16 * self.strips
    }

    pub const fn units(&self) -> usize {
        PLANE * self.planes
    }

    /// Chunks from one query row to the next: 4 more than a multiple of 8, so that the four chunks that two neighbouring
    /// rows are read by lie in different banks.
    const fn stride(head_dim: usize) -> usize {
        let chunks = 4 * head_dim.div_ceil(BLOCK);
        if chunks.is_multiple_of(8) { chunks + 4 } else { chunks }
    }

    /// Queries and their log-sum-exps.
    pub const fn shared_bytes(head_dim: usize) -> usize {
        QUERIES * (Self::stride(head_dim) * 16 + 4)
    }
}

/// Writes `mass` `[rows, keys]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(in super::super) fn column_sums<E: Float, N: Size>(
    query: &Tensor<Vector<E, N>>,
    key: &Tensor<Vector<E, N>>,
    lse: &[f32],
    order: &[i32],
    mass: &mut [f32],
    sizes: Sizes,
    #[comptime] tile: Tile,
    #[comptime] dim: usize,
    #[define(E)] _dtype: ElemType,
) {
    let blocks = comptime!(dim.div_ceil(BLOCK));
    let stride = comptime!(Tile::stride(dim));
    let strips = comptime!(tile.strips);
    let def = MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize);

    // The cubes of one row run together and share its queries in the cache.
    let cube = CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X;
    let (row, split) = (cube / sizes.splits, cube % sizes.splits);
    if row >= sizes.rows {
        terminate!();
    }
    let global_row = sizes.first_row + row;
    let (joined, group) = (global_row / sizes.groups, global_row % sizes.groups);
    let (head, batch) = ((joined % sizes.heads) as usize, (joined / sizes.heads) as usize);
    let kv_head = head / sizes.heads_per_kv as usize;
    let first = group * sizes.group_size;
    let end = min(first + sizes.group_size, sizes.queries);
    let of_head = joined as usize * sizes.queries as usize;

    let (plane, lane) = (UNIT_POS / comptime!(PLANE as u32), UNIT_POS % comptime!(PLANE as u32));
    let (r, c) = (lane / 4, lane % 4);
    let mut queries = Shared::<[Vector<E, C8>]>::new_aligned_slice(comptime!(QUERIES * stride), 16usize);
    let mut norms = Shared::<[Vector<f32, C2>]>::new_slice(comptime!(QUERIES / 2));

    let query_base = batch * query.stride(0) + head * query.stride(1);
    let key_base = batch * key.stride(0) + kv_head * key.stride(1);
    // The sign of the scale goes into the queries, its size into the exponent.
    let sign = E::cast_from(select(sizes.scale < 0.0f32, -1.0f32, 1.0f32));
    let exponent = sizes.scale.abs() * comptime!(core::f32::consts::LOG2_E);
    let key_step = sizes.splits * comptime!((tile.planes * tile.keys()) as u32);

    let mut start = first;
    while start < end {
        let count = min(end - start, comptime!(QUERIES as u32));
        sync_cube();
        let mut i = UNIT_POS;
        while i < comptime!((QUERIES * 4 * blocks) as u32) {
            let (place, chunk) = (i / comptime!((4 * blocks) as u32), i % comptime!((4 * blocks) as u32));
            // Lists are clamped wherever they are read.
            let token = min(order[of_head + (start + min(place, count - 1)) as usize] as u32, sizes.queries - 1);
            let base = query_base + token as usize * query.stride(2);
            queries[place as usize * stride + chunk as usize] =
                load_chunk::<E, N>(query, base, chunk, dim) * Vector::new(sign);
            i += comptime!(tile.units() as u32);
        }
        let mut i = UNIT_POS;
        while i < comptime!((QUERIES / 2) as u32) {
            let mut norm = Vector::<f32, C2>::new(0.0f32);
            #[unroll]
            for e in 0..2usize {
                let place = 2 * i + comptime!(e as u32);
                let token = min(order[of_head + (start + min(place, count - 1)) as usize] as u32, sizes.queries - 1);
                let read = lse[of_head + token as usize] * comptime!(core::f32::consts::LOG2_E);
                // Places past the group weigh nothing.
                norm.insert(e, select(place < count, read, f32::new(3.0e38)));
            }
            norms[i as usize] = norm;
            i += comptime!(tile.units() as u32);
        }
        sync_cube();

        let steps = count.div_ceil(comptime!(STEP as u32));
        let mut at = (split * comptime!(tile.planes as u32) + plane) * comptime!(tile.keys() as u32);
        let mut next = Array::<Vector<E, C8>>::new(comptime!(2 * strips * blocks));
        load_keys::<E, N>(&mut next, key, key_base, at + r, c, sizes.keys, strips, blocks, dim);
        while at < sizes.keys {
            let mut operands = Sequence::<Array<Vector<E, C2>>>::new();
            #[unroll]
            for i in 0..comptime!(strips * blocks) {
                operands.push(left::<E>(next[comptime!(2 * i)], next[comptime!(2 * i + 1)], 0usize));
                operands.push(left::<E>(next[comptime!(2 * i)], next[comptime!(2 * i + 1)], 1usize));
            }
            load_keys::<E, N>(&mut next, key, key_base, at + key_step + r, c, sizes.keys, strips, blocks, dim);

            let mut sums = Array::<Vector<f32, C2>>::new(strips);
            #[unroll]
            for s in 0..strips {
                sums[s] = Vector::new(0.0f32);
            }
            for step in 0..steps {
                let mut scores = Sequence::<Sums>::new();
                #[unroll]
                for _ in 0..comptime!(strips * STEP / 8) {
                    scores.push(zero_sums());
                }
                let from = (step as usize * comptime!(STEP) + r as usize) * stride + c as usize;
                #[unroll]
                for b in 0..blocks {
                    #[unroll]
                    for n in 0..comptime!(STEP / 8) {
                        let chunk = queries[from + comptime!(8 * n * stride + 4 * b)];
                        #[unroll]
                        for half in 0..2usize {
                            let operand = right::<E>(chunk, half);
                            #[unroll]
                            for s in 0..strips {
                                def.execute_inplace(
                                    operands.index(comptime!(2 * (s * blocks + b) + half)),
                                    &operand,
                                    scores.index_mut(comptime!(s * STEP / 8 + n)),
                                );
                            }
                        }
                    }
                }
                #[unroll]
                for n in 0..comptime!(STEP / 8) {
                    let norm = norms[step as usize * comptime!(STEP / 2) + comptime!(4 * n) + c as usize];
                    #[unroll]
                    for s in 0..strips {
                        let tile_sums = scores.index(comptime!(s * STEP / 8 + n));
                        let mut sum = sums[s];
                        #[unroll]
                        for h in 0..2usize {
                            let score = tile_sums[h];
                            let a = exp2(fma(score.extract(0usize), exponent, -norm.extract(0usize)), tile.ptx);
                            let b = exp2(fma(score.extract(1usize), exponent, -norm.extract(1usize)), tile.ptx);
                            sum.insert(h, sum.extract(h) + (a + b));
                        }
                        sums[s] = sum;
                    }
                }
            }

            #[unroll]
            for s in 0..strips {
                #[unroll]
                for h in 0..2usize {
                    let sum = row_sum(sums[s].extract(h));
                    let j = at + r + comptime!((16 * s + 8 * h) as u32);
                    if c == 0 && j < sizes.keys {
                        let place = row as usize * sizes.keys as usize + j as usize;
                        let sink = j < sizes.sink_end || j >= sizes.sink_start;
                        let mut total = sum;
                        if start > first {
                            total += mass[place];
                        }
                        mass[place] = select(sink, sizes.always, total);
                    }
                }
            }
            at += key_step;
        }
        start += comptime!(QUERIES as u32);
    }
}

/// The chunks of this unit's key rows, upper and lower alternating, strip by strip; rows past the last key repeat it.
#[cube]
fn load_keys<E: Float, N: Size>(
    chunks: &mut Array<Vector<E, C8>>,
    key: &Tensor<Vector<E, N>>,
    base: usize,
    first: u32,
    c: u32,
    keys: u32,
    #[comptime] strips: usize,
    #[comptime] blocks: usize,
    #[comptime] dim: usize,
) {
    #[unroll]
    for s in 0..strips {
        #[unroll]
        for h in 0..2usize {
            let j = min(first + comptime!((16 * s + 8 * h) as u32), keys - 1) as usize;
            #[unroll]
            for b in 0..blocks {
                chunks[comptime!(2 * (s * blocks + b) + h)] =
                    load_chunk::<E, N>(key, base + j * key.stride(2), comptime!(4 * b as u32) + c, dim);
            }
        }
    }
}
