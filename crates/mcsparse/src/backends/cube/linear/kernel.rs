//! The kernel, and both of its roles.

use cubecl::prelude::*;

use super::{
    super::hopper::{
        WARPGROUP,
        barrier::{arrive_if_zero, wait},
        copy::gather,
        operand::{from_lane, global_address, shared_address},
        turn::Turn,
        wgmma::{descriptor, further},
    },
    step::{clear, declare, multiply, write},
    tile::{BYTES, Buffers, CONSUMERS, DEPTH, ROWS, STAGES, Tile, Work, total},
};

/// The numbers that change from launch to launch without a new compilation.
#[derive(CubeLaunch, CubeType)]
pub(super) struct Sizes {
    pub rows: u32,
    pub inputs: u32,
    pub outputs: u32,
}

#[cube(launch_unchecked, create_dummy_kernel, address_type = "dynamic")]
pub(super) fn linear<E: Float>(
    input: &[E],
    weight: &[E],
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
    sync_cube();
    // The same in all units of a plane, which the compiler cannot tell from a unit's number.
    let warpgroup = from_lane(UNIT_POS / comptime!(WARPGROUP as u32), 0u32);
    if warpgroup == comptime!(CONSUMERS as u32) {
        produce::<E>(input, weight, &sizes, &buffers);
    } else {
        consume::<E>(warpgroup, bias, output, &sizes, &buffers, tile);
    }
}

/// Brings all steps of all tiles of this cube.
#[cube]
fn produce<E: Float>(input: &[E], weight: &[E], sizes: &Sizes, buffers: &Buffers) {
    let unit = UNIT_POS % comptime!(WARPGROUP as u32);
    let (plane, lane) = (unit / 32, unit % 32);
    let (rows, weights) = (global_address::<E>(input[0..1].as_ptr()), global_address::<E>(weight[0..1].as_ptr()));
    let (row_bytes, weight_bytes) = (2 * sizes.inputs, 2 * sizes.outputs);
    // Parity 1: everything is empty.
    let mut turn = Turn::new(1u32.runtime());
    let mut index = CUBE_POS_X;
    while index < total(sizes) {
        let work = Work::at(index, sizes);
        let row = min(work.first_row + unit, sizes.rows - 1);
        let columns = weights + u64::cast_from(2 * work.first_column);
        for step in 0..sizes.inputs / comptime!(DEPTH as u32) {
            let first = step * comptime!(DEPTH as u32);
            let (to, full) = (buffers.steps + turn.stage * comptime!(3 * BYTES as u32), buffers.full + turn.stage * 8);
            wait(buffers.empty + turn.stage * 8, turn.parity);
            gather(rows + u64::cast_from(2 * first), row_bytes, 2u32, row, to, full, plane, lane, DEPTH, true);
            #[unroll]
            for half in 0..2u32 {
                let from = columns + comptime!(2 * DEPTH as u64 * half as u64);
                let to = to + comptime!((1 + half) * BYTES as u32);
                gather(from, weight_bytes, 2u32, first + unit, to, full, plane, lane, DEPTH, true);
            }
            turn.advance(STAGES);
        }
        index += CUBE_COUNT_X;
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
    let lane = UNIT_POS % 32;
    let (row, c) = (UNIT_POS / 32 * 16 + lane / 4, lane % 4);
    // 64 rows of 128 bytes on.
    let rows = descriptor(buffers.steps + warpgroup * comptime!(64u32 * 128));
    let weights = descriptor(buffers.steps + comptime!(BYTES as u32));
    let (start, biases) = (global_address::<E>(output[0..1].as_ptr()), global_address::<E>(bias[0..1].as_ptr()));
    let mut turn = Turn::new(0u32.runtime());
    let mut index = CUBE_POS_X;
    while index < total(sizes) {
        let work = Work::at(index, sizes);
        clear();
        for _step in 0..sizes.inputs / comptime!(DEPTH as u32) {
            let at = turn.stage * comptime!(3 * BYTES as u32);
            let full = buffers.full + turn.stage * 8;
            multiply(further(rows, at), further(weights, at), full, turn.parity, tile.element);
            arrive_if_zero(buffers.empty + turn.stage * 8, lane);
            turn.advance(STAGES);
        }
        let column = u64::cast_from(2 * (work.first_column + 2 * c));
        let first = work.first_row + row;
        let to = start + u64::cast_from(first) * u64::cast_from(2 * sizes.outputs) + column;
        let apart = u64::cast_from(16 * sizes.outputs);
        let exist = u32::cast_from(first < sizes.rows) + 2 * u32::cast_from(first + 8 < sizes.rows);
        write(to, to + apart, exist, biases + column, tile.element, tile.bias);
        index += CUBE_COUNT_X;
    }
}

/// Rows of a tile are brought as those of attention are.
const _: () = assert!(ROWS == WARPGROUP && DEPTH == 128);
