//! Attention of tiles of queries over all keys or over gathered ones: the tier with warpgroup products (`wgmma`).
//!
//! Cubes stay: one for each multiprocessor, each with a share of all tiles (FlashAttention-3, Shah et al. 2024, does the same
//! for dense attention). Four planes bring rows, two warpgroups compute; barriers in shared memory are all that they say to
//! each other.

use cubecl::prelude::*;

use super::{
    super::{
        super::hopper::{
            WARPGROUP,
            operand::{from_lane, global_address, shared_address},
        },
        shape::Sizes,
    },
    consume::consume,
    layouts::Layouts,
    produce::produce,
    ride::{Ride, Span},
    step::declare,
    tile::{Buffers, CONSUMERS, Tile},
};

#[cube(launch_unchecked, create_dummy_kernel, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
pub(super) fn attend<E: Float>(
    query: &[E],
    key: &[E],
    value: &[E],
    order: &[i32],
    indices: &[i32],
    other: &[E],
    output: &mut [E],
    lse: &mut [f32],
    sizes: Sizes,
    layouts: Layouts,
    #[comptime] tile: Tile,
    #[define(E)] _dtype: ElemType,
) {
    let ride = Ride::none();
    work::<E>(query, key, value, order, indices, other, output, lse, &sizes, &layouts, &ride, tile);
}

/// Dense attention of groups, a tile each, and the column sums of the tiles of `span`: `mass` `[tiles of the span, keys]`, by the
/// log-sum-exps `before` of an earlier step.
#[cube(launch_unchecked, create_dummy_kernel, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
pub(super) fn attend_and_sum<E: Float>(
    query: &[E],
    key: &[E],
    value: &[E],
    order: &[i32],
    before: &[f32],
    output: &mut [E],
    lse: &mut [f32],
    mass: &mut [f32],
    sizes: Sizes,
    layouts: Layouts,
    span: Span,
    #[comptime] tile: Tile,
    #[define(E)] _dtype: ElemType,
) {
    let ride = Ride {
        span,
        lse: global_address::<f32>(before[0..1].as_ptr()),
        mass: global_address::<f32>(mass[0..1].as_ptr()),
    };
    // No lists, and nothing is added to the output.
    work::<E>(query, key, value, order, order, query, output, lse, &sizes, &layouts, &ride, tile);
}

#[cube]
#[allow(clippy::too_many_arguments)]
fn work<E: Float>(
    query: &[E],
    key: &[E],
    value: &[E],
    order: &[i32],
    indices: &[i32],
    other: &[E],
    output: &mut [E],
    lse: &mut [f32],
    sizes: &Sizes,
    layouts: &Layouts,
    ride: &Ride,
    #[comptime] tile: Tile,
) {
    // One allocation, used by address: what runs behind CubeCL's back must not share memory with what it knows of.
    let memory = Shared::<[u32]>::new_aligned_slice(comptime!(tile.shared_bytes() / 4), 1024usize);
    let buffers = Buffers::new(shared_address::<u32>(memory.as_ptr()), tile);
    declare();
    if UNIT_POS == 0 {
        buffers.set_up(tile);
    }
    sync_cube();
    // The same in all units of a plane, which the compiler cannot tell from a unit's number: what depends on it alone is
    // computed once a plane.
    let warpgroup = from_lane(UNIT_POS / comptime!(WARPGROUP as u32), 0u32);
    if warpgroup == comptime!(CONSUMERS as u32) {
        produce::<E>(query, key, value, order, indices, other, sizes, layouts, &buffers, ride, tile);
    } else {
        consume::<E>(warpgroup, other, output, lse, sizes, layouts, &buffers, ride, tile);
    }
}
