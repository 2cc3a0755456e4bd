//! Attention of a tile of queries over all keys, over gathered ones or over counted ones, by cooperative matrices.
//!
//! One cube of [`Tile::planes`] planes takes as many times `form.m` queries of one group. Keys and values come through shared
//! memory ([`super::bring`]). Which unit has which element of a matrix is the device's business, so scores go through shared
//! memory to the units of their plane, which make weights of them ([`super::weigh`]), and weights go back the same way;
//! queries and the sums of the output stay in matrices, in registers.

use cubecl::prelude::*;

use super::{
    super::{
        super::{
            cooperative::{
                emulated::Emulated,
                products::{C4, Cooperative, Products},
            },
            tile::query_of,
        },
        shape::{Keys, Sizes, output_row},
    },
    bring::{Bring, load},
    step::{Row, step},
    store::{Ending, end_rows},
    tile::Tile,
};
use crate::ops::Finish;

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attend<E: Float, N: Size, W: Size>(
    query: &Tensor<Vector<E, N>>,
    key: &Tensor<Vector<E, N>>,
    value: &Tensor<Vector<E, N>>,
    order: &[i32],
    indices: &[i32],
    other: &Tensor<E>,
    past_lse: &[f32],
    output: &mut [Vector<E, W>],
    lse: &mut [f32],
    sizes: Sizes,
    #[comptime] tile: Tile,
    #[comptime] dim: usize,
    #[comptime] keys: Keys,
    #[comptime] finish: Finish,
    #[define(E)] _dtype: ElemType,
) {
    if comptime!(tile.emulated) {
        attend_by::<E, N, W, Emulated>(
            query, key, value, order, indices, other, past_lse, output, lse, &sizes, tile, dim, keys, finish,
        );
    } else {
        attend_by::<E, N, W, Cooperative>(
            query, key, value, order, indices, other, past_lse, output, lse, &sizes, tile, dim, keys, finish,
        );
    }
}

#[cube]
#[allow(clippy::too_many_arguments)]
#[allow(clippy::if_same_then_else)] // the first at compile time, the second at run time
#[allow(clippy::collapsible_if)]
fn attend_by<E: Float, N: Size, W: Size, P: Products<E>>(
    query: &Tensor<Vector<E, N>>,
    key: &Tensor<Vector<E, N>>,
    value: &Tensor<Vector<E, N>>,
    order: &[i32],
    indices: &[i32],
    other: &Tensor<E>,
    past_lse: &[f32],
    output: &mut [Vector<E, W>],
    lse: &mut [f32],
    sizes: &Sizes,
    #[comptime] tile: Tile,
    #[comptime] dim: usize,
    #[comptime] keys: Keys,
    #[comptime] finish: Finish,
) {
    let width = N::value().comptime();
    let form = comptime!(tile.form);
    let padded = comptime!(tile.padded(dim));
    let pitch = comptime!(tile.pitch(dim));
    let gathered = comptime!(keys == Keys::Listed);
    // Single elements on their way would take the registers that matrices need.
    let ahead = comptime!(width > 1);

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
    let (head, batch) = (joined % sizes.heads, (joined / sizes.heads) as usize);
    let kv_head = (head / sizes.heads_per_kv) as usize;
    let places = joined as usize * sizes.queries as usize;
    let list = (joined as usize * sizes.groups as usize + group as usize) * sizes.keys as usize;
    let query_base = batch * query.stride(0) + head as usize * query.stride(1);
    let key_base = batch * key.stride(0) + kv_head * key.stride(1);
    let value_base = batch * value.stride(0) + kv_head * value.stride(1);

    let mut stage = Shared::<[Vector<E, N>]>::new_aligned_slice(comptime!(tile.stage_rows() * pitch / width), 32usize);
    let mut scores =
        Shared::<[Vector<f32, C4>]>::new_aligned_slice(comptime!(tile.queries() * tile.score_pitch() / 4), 32usize);
    let mut weights =
        Shared::<[Vector<E, C4>]>::new_aligned_slice(comptime!(tile.queries() * tile.weight_pitch() / 4), 32usize);

    // Queries, by way of the memory of keys and values. The sign of the scale goes into them, its size into the exponent: the
    // larger score is then the heavier.
    let sign = Vector::<E, N>::new(E::cast_from(select(sizes.scale < 0.0f32, -1.0f32, 1.0f32)));
    let mut i = UNIT_POS as usize;
    while i < comptime!(tile.queries() * padded / width) {
        let (row, column) = (i / comptime!(padded / width), i % comptime!(padded / width));
        let token = token_of(order, places, first + row as u32, end, sizes.queries, keys);
        stage[row * comptime!(pitch / width) + column] =
            load::<E, N>(query, query_base + token * query.stride(2), column, tile, dim) * sign;
        i += comptime!(tile.units());
    }
    sync_cube();
    // Where planes come smaller than they might, those past the last that multiplies have nothing to do but bring.
    let plane = min(P::plane(), comptime!((tile.planes - 1) as u32));
    let working = P::plane() == plane;
    let first_row = plane * comptime!(form.m as u32);
    let query_at = first_row as usize * comptime!(pitch / width);
    let mut queries = Sequence::<P::Left>::new();
    #[unroll]
    for b in 0..comptime!(padded / form.k) {
        let at = query_at + comptime!(b * form.k / width);
        queries.push(P::left::<N>(&stage[at..comptime!(tile.stage_rows() * pitch / width)], pitch, form));
    }
    sync_cube();

    let mut bring = Bring::<E, N>::new(tile, dim);
    bring.look_up(indices, list, 0u32, sizes.keys, sizes.all_keys, tile, dim, gathered);
    bring.fetch(key, key_base, value, value_base, tile, dim);
    bring.arrive(&mut stage, tile, dim);
    if comptime!(ahead) {
        bring.look_up(indices, list, comptime!(tile.keys as u32), sizes.keys, sizes.all_keys, tile, dim, gathered);
    }

    let mut row = Row::new(first_row, P::lane(), P::lanes() / comptime!(form.m as u32));
    let mut out = Sequence::<P::Sums>::new();
    #[unroll]
    for _ in 0..comptime!(padded / form.n) {
        out.push(P::zero(form));
    }

    let mut start = 0u32;
    while start < sizes.keys {
        sync_cube();
        let next = start + comptime!(tile.keys as u32);
        if comptime!(ahead) {
            if next < sizes.keys {
                bring.fetch(key, key_base, value, value_base, tile, dim);
                let after = next + comptime!(tile.keys as u32);
                bring.look_up(indices, list, after, sizes.keys, sizes.all_keys, tile, dim, gathered);
            }
        }
        if comptime!(tile.steady) {
            step::<E, N, P>(
                &queries,
                &stage,
                &mut scores,
                &mut weights,
                &mut row,
                &mut out,
                indices,
                list,
                start,
                sizes,
                tile,
                dim,
                keys,
            );
        } else if working {
            step::<E, N, P>(
                &queries,
                &stage,
                &mut scores,
                &mut weights,
                &mut row,
                &mut out,
                indices,
                list,
                start,
                sizes,
                tile,
                dim,
                keys,
            );
        }
        sync_cube();
        if next < sizes.keys {
            if comptime!(!ahead) {
                bring.look_up(indices, list, next, sizes.keys, sizes.all_keys, tile, dim, gathered);
                bring.fetch(key, key_base, value, value_base, tile, dim);
            }
            bring.arrive(&mut stage, tile, dim);
        }
        start = next;
    }

    let place = first + row.row;
    let token = token_of(order, places, place, end, sizes.queries, keys);
    let mut before = 0.0f32.runtime();
    if comptime!(keys == Keys::Counted) {
        before = past_lse[places + token];
    }
    let ending = Ending {
        here: place < end && working,
        before,
        at: output_row(batch, head as usize, token, sizes, finish, keys),
        lse_at: places + token,
        other_at: batch * other.stride(0) + head as usize * other.stride(1) + token * other.stride(2),
        factor: sizes.factor,
    };
    if comptime!(tile.steady) {
        end_rows::<E, W, P>(&out, &row, &ending, &mut scores, other, output, lse, tile, dim, finish, keys);
    } else if working {
        end_rows::<E, W, P>(&out, &row, &ending, &mut scores, other, output, lse, tile, dim, finish, keys);
    }
}

/// The query at `place`, or the last one before `end` for places past it.
#[cube]
fn token_of(order: &[i32], places: usize, place: u32, end: u32, queries: u32, #[comptime] keys: Keys) -> usize {
    let mut token = min(place, end - 1) as usize;
    if comptime!(keys.grouped()) {
        token = query_of(order, places, place, end, queries);
    }
    token
}
