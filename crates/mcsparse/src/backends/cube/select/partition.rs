//! Exact selection of the largest values of each row, without a sort, without atomics and without reading anything back.
//!
//! One cube of [`UNITS`] units takes one row. [`kth_largest`] finds the bits of the k-th largest value, six at a time
//! (radix select); [`write_partition`] then goes through the row once more in tiles, counts what each unit keeps, turns the
//! counts into places with a scan over the units and writes indices in ascending order. Counting in integers only: the same
//! bits every run, and NaN handled by its bits, whatever a shader compiler assumes of floats.

use burn::{backend::TensorMetadata, tensor::DType};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{
    super::{CUBES_X, empty, tile::UNITS},
    radix::{COUNTERS, DIGITS, Kth, PARTS, SUMS, descending, kth_largest},
};

/// Neighbouring values that a unit writes out of one tile, and their distance in shared memory: odd, against bank conflicts.
const RUN: usize = 16;
const PITCH: usize = RUN + 1;
/// Words that hold the counters of the digits or a tile of values.
const WORDS: usize = UNITS as usize * PITCH;
const _: () = assert!(WORDS >= COUNTERS && SUMS > UNITS as usize + PARTS);
/// Bytes of shared memory.
pub(in super::super) const SHARED_BYTES: usize = 4 * (WORDS + SUMS + DIGITS);

/// The indices of the `k` largest of each row of `values` `[rows, n]` in ascending order, ties to the lowest index, NaN
/// last; then, if `with_rest`, the indices of the others in ascending order.
pub(in super::super) fn partition(values: CubeTensor, k: usize, with_rest: bool) -> CubeTensor {
    let values = into_contiguous(values);
    let [rows, n] = values.shape().dims();
    let output = empty(&values, &[rows, if with_rest { n } else { k }], DType::I32);
    partition_into(&values, rows, k, &output, 0);
    output
}

/// As [`partition`], of the first `rows` rows of `values` into the rows of `output` from `first_row` on; both contiguous.
/// The last axis of `output` says whether the others follow.
pub(super) fn partition_into(values: &CubeTensor, rows: usize, k: usize, output: &CubeTensor, first_row: usize) {
    let [all_rows, n] = values.shape().dims();
    let width = output.shape().as_slice().last().copied().unwrap_or_default();
    assert_eq!((values.dtype, output.dtype), (DType::F32, DType::I32), "partition: dtypes of values and output");
    assert!((1..=n).contains(&k) && (width == k || width == n), "partition: {k} to {width} of {n}");
    assert!(
        rows <= all_rows && (first_row + rows) * width <= output.shape().num_elements(),
        "partition: {rows} rows from {first_row} on, {:?} to {:?}",
        values.shape(),
        output.shape()
    );
    let address = values.required_address_type().max(output.required_address_type());
    let x = rows.clamp(1, CUBES_X);
    // SAFETY: the kernel reads `n` values and writes `width` indices for each of `rows` rows, as both tensors have (above).
    unsafe {
        partition_rows::launch_unchecked(
            &values.client,
            CubeCount::Static(x as u32, rows.div_ceil(x) as u32, 1),
            CubeDim::new_1d(UNITS),
            address,
            values.clone().into_buffer_arg(),
            output.clone().into_buffer_arg(),
            rows as u32,
            first_row as u32,
            n as u32,
            k as u32,
            width as u32,
        );
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn partition_rows(values: &[f32], output: &mut [i32], rows: u32, first_row: u32, n: u32, k: u32, width: u32) {
    let row = CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X;
    if row >= rows {
        terminate!();
    }
    let mut words = Shared::<[u32]>::new_slice(comptime!(WORDS));
    let mut sums = Shared::<[u32]>::new_slice(comptime!(SUMS));
    let mut totals = Shared::<[u32]>::new_slice(comptime!(DIGITS));
    let start = row as usize * n as usize;
    let out = (first_row + row) as usize * width as usize;
    let kth = kth_largest(values, start, n, k, &mut words, &mut sums, &mut totals);
    write_partition(values, start, n, k, kth, output, out, width > k, &mut words, &mut sums);
}

/// Writes the indices of the `k` largest of `values[start..start + n]` to `output` from `out` on, ascending, and if
/// `with_rest` those of the others behind them.
#[cube]
fn write_partition(
    values: &[f32],
    start: usize,
    n: u32,
    k: u32,
    kth: Kth,
    output: &mut [i32],
    out: usize,
    with_rest: bool,
    words: &mut Shared<[u32]>,
    sums: &mut Shared<[u32]>,
) {
    let unit = UNIT_POS as usize;
    // Values before this tile that lie above the k-th, and that equal it.
    let mut above_before = 0u32;
    let mut equal_before = 0u32;
    let mut tile = 0u32;
    while tile < n {
        sync_cube();
        #[unroll]
        for r in 0..comptime!(RUN) {
            let place = comptime!(r * UNITS as usize) + unit;
            let i = tile + place as u32;
            let mut key = 0u32;
            if i < n {
                key = descending(values[start + i as usize]);
            }
            words[place / comptime!(RUN) * comptime!(PITCH) + place % comptime!(RUN)] = key;
        }
        sync_cube();
        let first = tile + UNIT_POS * comptime!(RUN as u32);
        // Both counts in one word: a tile has 4,096 values.
        let mut counts = 0u32;
        #[unroll]
        for r in 0..comptime!(RUN) {
            let key = words[unit * comptime!(PITCH) + r];
            if first + comptime!(r as u32) < n {
                counts += (u32::cast_from(key > kth.bits) << 16) + u32::cast_from(key == kth.bits);
            }
        }
        let before = scan(counts, sums);
        let mut above = above_before + (before >> 16);
        let mut equal = equal_before + (before & 0xffffu32);
        #[unroll]
        for r in 0..comptime!(RUN) {
            let key = words[unit * comptime!(PITCH) + r];
            let i = first + comptime!(r as u32);
            if i < n {
                // Of the equal ones the first are kept.
                let kept = above + min(equal, kth.equal);
                if key > kth.bits || (key == kth.bits && equal < kth.equal) {
                    output[out + kept as usize] = i as i32;
                } else if with_rest {
                    output[out + (k + i - kept) as usize] = i as i32;
                }
                above += u32::cast_from(key > kth.bits);
                equal += u32::cast_from(key == kth.bits);
            }
        }
        let all = sums[comptime!(UNITS as usize + PARTS)];
        above_before += all >> 16;
        equal_before += all & 0xffffu32;
        tile += comptime!(UNITS * RUN as u32);
    }
}

/// The sum of the counts of the units before this one; that of all units is left behind the runs' in `sums`.
#[cube]
fn scan(counts: u32, sums: &mut Shared<[u32]>) -> u32 {
    let unit = UNIT_POS as usize;
    let runs = comptime!(UNITS as usize);
    sums[unit] = counts;
    sync_cube();
    // One unit for each run of units, then one for the runs.
    if unit < comptime!(PARTS) {
        let mut sum = 0u32;
        for u in 0..comptime!(PARTS) {
            let at = unit * comptime!(PARTS) + u;
            let count = sums[at];
            sums[at] = sum;
            sum += count;
        }
        sums[runs + unit] = sum;
    }
    sync_cube();
    if unit == 0 {
        let mut sum = 0u32;
        for p in 0..comptime!(PARTS) {
            let count = sums[runs + p];
            sums[runs + p] = sum;
            sum += count;
        }
        sums[runs + comptime!(PARTS)] = sum;
    }
    sync_cube();
    sums[unit] + sums[runs + unit / comptime!(PARTS)]
}
