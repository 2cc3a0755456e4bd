//! Splits of nodes at the median rank of their projections.

use cubecl::prelude::*;

use super::{
    plan::Tiling,
    project::project,
    rows::{Sizes, place},
};
use crate::backends::cube::{
    alone::piece,
    radix::{self, Before},
};

/// One cube splits one node: the rows with the smallest projections in front, both sides in the order they had. Nodes of
/// one group are copied.
///
/// With `room` for the whole node, projections are computed here and stay in shared memory; with none they are read from
/// `projections` `[heads of the launch, queries]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn split<E: Float, N: Size>(
    query: &Tensor<Vector<E, N>>,
    order: &[i32],
    table: &[u32],
    directions: &[f32],
    centres: &[f32],
    projections: &[f32],
    next: &mut [i32],
    sizes: Sizes,
    #[comptime] tiling: Tiling,
    #[comptime] room: usize,
    #[comptime] units: u32,
    #[define(E)] _dtype: ElemType,
) {
    let place = place(query, table, &sizes, 1u32);
    if !place.exists {
        terminate!();
    }
    let at = place.order + place.first as usize;
    if place.lower == 0 {
        let mut i = UNIT_POS;
        while i < place.len {
            next[at + i as usize] = order[at + i as usize];
            i += units;
        }
        terminate!();
    }
    let mut scratch = radix::Scratch::new(units, comptime!(room == 0));
    if comptime!(room > 0) {
        let mut values = Shared::<[f32]>::new_slice(room);
        project(query, order, directions, centres, &place, 0u32, place.len, values.inner_mut(), 0usize, tiling);
        partition(values.inner_ref(), 0usize, order, next, at, place.len, place.lower, &mut scratch, units, false);
    } else {
        let from = place.joined * sizes.queries as usize + place.first as usize;
        partition(projections, from, order, next, at, place.len, place.lower, &mut scratch, units, true);
    }
}

/// Puts the tokens of the `k` largest of `values[from..from + len]` in front.
#[cube]
fn partition(
    values: &[f32],
    from: usize,
    order: &[i32],
    next: &mut [i32],
    at: usize,
    len: u32,
    k: u32,
    scratch: &mut radix::Scratch,
    #[comptime] units: u32,
    #[comptime] staged: bool,
) {
    let last = radix::kth_largest(values, from, len, k, scratch, units);
    let run = comptime!(radix::run(units));
    let mut walked = Before { above: 0u32, equal: 0u32 };
    let mut tile = 0u32;
    while tile < len {
        let mut before = radix::before(values, from, len, tile, &last, &mut walked, scratch, units, staged);
        #[unroll]
        for r in 0..run {
            let i = tile + UNIT_POS * run + r;
            if i < len {
                let key = scratch.key(values, from + i as usize, comptime!(r as usize), units, staged);
                let kept = last.kept(&before);
                let to = select(last.keeps(key, &before), kept, k + i - kept);
                next[at + to as usize] = order[at + i as usize];
                before.above += u32::cast_from(key > last.key);
                before.equal += u32::cast_from(key == last.key);
            }
        }
        tile += comptime!(radix::run(units) * units);
    }
}

/// The order before the first split.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn identity(order: &mut [i32], queries: u32, len: u32) {
    let i = piece();
    if i < len {
        order[i as usize] = (i % queries) as i32;
    }
}
