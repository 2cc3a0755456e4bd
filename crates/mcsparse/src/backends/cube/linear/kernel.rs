//! The kernel, and both of its roles.

use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::tensor_map_address;

use super::{
    super::hopper::{
        WARPGROUP,
        barrier::wait,
        bulk::{arrive_in, bring, bring_to, expect, rank, sync_cluster},
        operand::{from_lane, global_address, shared_address},
        turn::Turn,
        wgmma::{further, tall_descriptor},
    },
    step::{clear, declare, drain, multiply, write},
    tile::{
        BLOCK, BLOCK_BYTES, Buffers, CLUSTER, COLUMNS, CONSUMERS, DEPTH, ROWS_BYTES, STAGES, STEP_BYTES, Tile, Work,
        total,
    },
};

/// The numbers that change from launch to launch without a new compilation.
#[derive(CubeLaunch, CubeType)]
pub(super) struct Sizes {
    pub rows: u32,
    pub inputs: u32,
    pub outputs: u32,
}

#[cube(
    launch_unchecked,
    create_dummy_kernel,
    address_type = "dynamic",
    cluster_dim = CubeDim::new_1d(CLUSTER as u32)
)]
#[allow(clippy::too_many_arguments)]
pub(super) fn linear<E: Float>(
    input: &TensorMap<E, Tiled>,
    weight: &TensorMap<E, Tiled>,
    bias: &[E],
    output: &mut [E],
    sizes: Sizes,
    #[comptime] tile: Tile,
    #[define(E)] _dtype: ElemType,
) {
    // One allocation, used by address: what runs behind CubeCL's back must not share memory with what it knows of.
    let memory = Shared::<[u32]>::new_aligned_slice(comptime!(Tile::SHARED_BYTES / 4), 1024usize);
    let buffers = Buffers::new(shared_address::<u32>(memory.as_ptr()));
    declare();
    if UNIT_POS == 0 {
        buffers.set_up();
    }
    // No cube writes into another's memory before its barriers are set up, nor after it has ended.
    sync_cluster();
    // The same in all units of a plane, which the compiler cannot tell from a unit's number.
    let warpgroup = from_lane(UNIT_POS / comptime!(WARPGROUP as u32), 0u32);
    if warpgroup == comptime!(CONSUMERS as u32) {
        if UNIT_POS == comptime!((CONSUMERS * WARPGROUP) as u32) {
            produce(tensor_map_address::<E, Tiled>(input), tensor_map_address::<E, Tiled>(weight), &sizes, &buffers);
        }
    } else {
        consume::<E>(warpgroup, bias, output, &sizes, &buffers, tile);
    }
    sync_cluster();
}

/// Asks for all steps of all tiles of this cube: its own rows, and its share of the weights for all cubes of the cluster.
#[cube]
fn produce(input: u64, weight: u64, sizes: &Sizes, buffers: &Buffers) {
    let rank = rank();
    let blocks = comptime!(COLUMNS / BLOCK / CLUSTER) as u32;
    // Parity 1: everything is empty.
    let mut turn = Turn::new(1u32.runtime());
    let mut index = CUBE_POS_X / comptime!(CLUSTER as u32);
    while index < total(sizes) {
        let work = Work::at(index, rank, sizes);
        for step in 0..sizes.inputs / comptime!(DEPTH as u32) {
            let first = step * comptime!(DEPTH as u32);
            let (to, full) = (buffers.steps + turn.stage * comptime!(STEP_BYTES as u32), buffers.full + turn.stage * 8);
            wait(buffers.empty + turn.stage * 8, turn.parity);
            expect(full, comptime!(STEP_BYTES as u32));
            bring(input, first, work.first_row, to, full);
            #[unroll]
            for i in 0..comptime!((COLUMNS / BLOCK / CLUSTER) as u32) {
                let block = rank * blocks + i;
                let column = work.first_column + block * comptime!(BLOCK as u32);
                let to = to + comptime!(ROWS_BYTES as u32) + block * comptime!(BLOCK_BYTES as u32);
                bring_to(weight, column, first, to, full, comptime!((1u32 << CLUSTER) - 1));
            }
            turn.advance(STAGES);
        }
        index += CUBE_COUNT_X / comptime!(CLUSTER as u32);
    }
}

/// Multiplies 64 rows of each tile of this cube.
#[cube]
fn consume<E: Float>(
    warpgroup: u32,
    bias: &[E],
    output: &mut [E],
    sizes: &Sizes,
    buffers: &Buffers,
    #[comptime] tile: Tile,
) {
    let rank = rank();
    let lane = UNIT_POS % 32;
    let (row, c) = (UNIT_POS / 32 * 16 + lane / 4, lane % 4);
    // 64 rows of 128 bytes on.
    let rows = tall_descriptor(buffers.steps + warpgroup * comptime!(64u32 * 128), BLOCK_BYTES);
    let weights = tall_descriptor(buffers.steps + comptime!(ROWS_BYTES as u32), BLOCK_BYTES);
    let (start, biases) = (global_address::<E>(output[0..1].as_ptr()), global_address::<E>(bias[0..1].as_ptr()));
    let mut turn = Turn::new(0u32.runtime());
    let mut index = CUBE_POS_X / comptime!(CLUSTER as u32);
    while index < total(sizes) {
        let work = Work::at(index, rank, sizes);
        clear();
        // The products of a step are through when those of the next have begun.
        let mut before = buffers.empty;
        let mut arrives = 32u32.runtime();
        for _step in 0..sizes.inputs / comptime!(DEPTH as u32) {
            let at = turn.stage * comptime!(STEP_BYTES as u32);
            let full = buffers.full + turn.stage * 8;
            multiply(further(rows, at), further(weights, at), full, turn.parity, tile.element);
            arrive_in(before, arrives, comptime!(CLUSTER as u32));
            before = buffers.empty + turn.stage * 8;
            arrives = lane;
            turn.advance(STAGES);
        }
        drain();
        arrive_in(before, lane, comptime!(CLUSTER as u32));
        let first = work.first_row + row;
        let line = start + u64::cast_from(first) * u64::cast_from(2 * sizes.outputs);
        let to = line + u64::cast_from(2 * (work.first_column + 8 * c));
        let apart = u64::cast_from(16 * sizes.outputs);
        let exist = u32::cast_from(first < sizes.rows) + 2 * u32::cast_from(first + 8 < sizes.rows);
        let biases = biases + u64::cast_from(2 * (work.first_column + 2 * c));
        write(to, to + apart, exist, biases, c, tile.element, tile.bias);
        index += CUBE_COUNT_X / comptime!(CLUSTER as u32);
    }
}
