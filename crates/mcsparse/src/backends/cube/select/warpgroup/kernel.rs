//! Attention mass of every key for every group: the tier with warpgroup products (`wgmma`).
//!
//! Scores are computed transposed, keys by queries, so that the sum over a group's queries runs along a row. Three groups of
//! a head share the keys that one cube brings. All sums are f32 and in a fixed order.

use cubecl::prelude::*;

use super::{
    super::{
        super::hopper::{
            WARPGROUP,
            layout::Layout,
            operand::{from_lane, shared_address},
        },
        sizes::Sizes,
    },
    consume::consume,
    produce::produce,
    step::declare,
    tile::{Buffers, CONSUMERS, Tile},
};

/// Layouts of the tensors of a launch.
#[derive(CubeLaunch, CubeType)]
pub(super) struct Layouts {
    pub query: Layout,
    pub key: Layout,
}

/// Writes `mass` `[rows, keys]`, in `pieces` pieces of work.
#[cube(launch_unchecked, create_dummy_kernel, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
pub(super) fn column_sums<E: Float>(
    query: &[E],
    key: &[E],
    lse: &[f32],
    order: &[i32],
    mass: &mut [f32],
    pieces: u32,
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
        buffers.set_up();
    }
    sync_cube();
    // The same in all units of a plane, which the compiler cannot tell from a unit's number.
    let warpgroup = from_lane(UNIT_POS / comptime!(WARPGROUP as u32), 0u32);
    if warpgroup == comptime!(CONSUMERS as u32) {
        produce::<E>(query, key, lse, order, pieces, &sizes, &layouts, &buffers, tile);
    } else {
        consume(warpgroup, mass, pieces, &sizes, &buffers, tile);
    }
}
