//! Exact selection of the largest values of each row, without a sort, without atomics and without reading anything back.
//!
//! One cube of [`UNITS`] units takes one row. Eight passes over four bits each find the bits of the k-th largest value
//! (radix select); then every unit counts what it keeps in its own stretch of the row, a scan over the units turns counts
//! into places, and a last pass writes indices in ascending order. Counting in integers only: the same bits every run, and
//! NaN handled by its bits, whatever a shader compiler assumes of floats.

use burn::{backend::TensorMetadata, tensor::DType};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::*;

use super::super::{CUBES_X, empty};

/// Units of a cube: the WebGPU limit.
pub(in super::super) const UNITS: u32 = 256;
/// Values of the digit that one pass looks at.
const DIGITS: usize = 16;
/// Bytes of shared memory: the counts of each digit by each unit, and their totals.
pub(in super::super) const SHARED_BYTES: usize = 4 * DIGITS * (UNITS as usize + 1);

/// The indices of the `k` largest of each row of `values` `[rows, n]` in ascending order, ties to the lowest index, NaN
/// last; then, if `with_rest`, the indices of the others in ascending order.
pub(in super::super) fn partition(values: CubeTensor, k: usize, with_rest: bool) -> CubeTensor {
    let values = into_contiguous(values);
    let [rows, n] = values.shape().dims();
    assert_eq!(values.dtype, DType::F32, "partition: expected f32 values");
    assert!((1..=n).contains(&k), "partition: expected k from 1 to {n}, got {k}");
    let width = if with_rest { n } else { k };
    let output = empty(&values, &[rows, width], DType::I32);
    let address = values.required_address_type().max(output.required_address_type());
    let client = values.client.clone();
    let x = rows.min(CUBES_X);
    // SAFETY: the kernel reads `n` values and writes `width` indices for each of `rows` rows, as both tensors have.
    unsafe {
        partition_rows::launch_unchecked(
            &client,
            CubeCount::Static(x as u32, rows.div_ceil(x) as u32, 1),
            CubeDim::new_1d(UNITS),
            address,
            values.into_buffer_arg(),
            output.clone().into_buffer_arg(),
            rows as u32,
            n as u32,
            k as u32,
            width as u32,
        );
    }
    output
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn partition_rows(values: &[f32], output: &mut [i32], rows: u32, n: u32, k: u32, width: u32) {
    let row = CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X;
    if row >= rows {
        terminate!();
    }
    let start = row as usize * n as usize;
    let unit = UNIT_POS;
    let mut counts = Shared::<[u32]>::new_slice(comptime!(UNITS as usize * DIGITS));
    let mut totals = Shared::<[u32]>::new_slice(comptime!(DIGITS));

    // Radix select from the highest digit down: `found` holds the digits so far, `missing` how many of the k lie among
    // the values that share them.
    let mut found = 0u32;
    let mut missing = k;
    #[unroll]
    for pass in 0..8u32 {
        let shift = comptime!(28 - 4 * pass);
        let mut mine = Array::<u32>::new(comptime!(DIGITS));
        #[unroll]
        for d in 0..comptime!(DIGITS) {
            mine[d] = 0u32;
        }
        let mut i = unit;
        while i < n {
            let key = descending(values[start + i as usize]);
            let mut shares = true;
            if comptime!(pass > 0) {
                shares = (key ^ found) >> comptime!((shift + 4) % 32) == 0u32;
            }
            if shares {
                let digit = (key >> shift) & 15u32;
                #[unroll]
                for d in 0..comptime!(DIGITS) {
                    mine[d] += u32::cast_from(digit == comptime!(d as u32));
                }
            }
            i += comptime!(UNITS);
        }
        #[unroll]
        for d in 0..comptime!(DIGITS) {
            counts[d * comptime!(UNITS as usize) + unit as usize] = mine[d];
        }
        sync_cube();
        if unit < comptime!(DIGITS as u32) {
            let mut total = 0u32;
            for u in 0..comptime!(UNITS as usize) {
                total += counts[unit as usize * comptime!(UNITS as usize) + u];
            }
            totals[unit as usize] = total;
        }
        sync_cube();
        // Largest digit first.
        let mut digit = 0u32;
        let mut above = 0u32;
        let mut done = false;
        #[unroll]
        for d in 0..comptime!(DIGITS) {
            let count = totals[comptime!(DIGITS - 1 - d)];
            if !done {
                if above + count >= missing {
                    digit = comptime!((DIGITS - 1 - d) as u32);
                    done = true;
                } else {
                    above += count;
                }
            }
        }
        missing -= above;
        found |= digit << shift;
        sync_cube();
    }

    // Each unit owns one stretch of the row. Counts of values above the k-th and equal to it.
    let stretch = n.div_ceil(comptime!(UNITS));
    let first = min(unit * stretch, n);
    let end = min(first + stretch, n);
    let mut above = 0u32;
    let mut equal = 0u32;
    for i in first..end {
        let key = descending(values[start + i as usize]);
        above += u32::cast_from(key > found);
        equal += u32::cast_from(key == found);
    }
    counts[unit as usize] = above;
    counts[comptime!(UNITS as usize) + unit as usize] = equal;
    sync_cube();
    let mut above_before = 0u32;
    let mut equal_before = 0u32;
    for u in 0..unit as usize {
        above_before += counts[u];
        equal_before += counts[comptime!(UNITS as usize) + u];
    }

    // Of the equal ones the first `missing` are kept.
    let mut kept = above_before + min(equal_before, missing);
    let out = row as usize * width as usize;
    for i in first..end {
        let key = descending(values[start + i as usize]);
        let keep = key > found || (key == found && equal_before < missing);
        equal_before += u32::cast_from(key == found);
        if keep {
            output[out + kept as usize] = i as i32;
            kept += 1;
        } else if width > k {
            output[out + (k + i - kept) as usize] = i as i32;
        }
    }
}

/// Bits that order as the values do; -0 equals 0, NaN is below everything.
#[cube]
fn descending(value: f32) -> u32 {
    let bits = u32::reinterpret(value);
    let magnitude = bits & 0x7fff_ffffu32;
    let ordered = select(bits > 0x8000_0000u32, !bits, magnitude | 0x8000_0000u32);
    select(magnitude > 0x7f80_0000u32, 0u32, ordered)
}
