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
            operand::{from_lane, shared_address},
        },
        shape::Sizes,
    },
    consume::consume,
    layouts::Layouts,
    produce::produce,
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
        produce::<E>(query, key, value, order, indices, other, &sizes, &layouts, &buffers, tile);
    } else {
        consume::<E>(warpgroup, other, output, lse, &sizes, &layouts, &buffers, tile);
    }
}
