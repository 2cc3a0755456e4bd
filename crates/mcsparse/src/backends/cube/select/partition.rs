//! Exact selection of the largest values of each row, without a sort, without atomics and without reading anything back.
//!
//! One cube of [`UNITS`] units takes one row. [`kth_largest`] finds the bits of the k-th largest value, six at a time
//! (radix select); [`write_partition`] then goes through the row once more in tiles, counts what each unit keeps, turns the
//! counts into places with a scan over the units and writes indices in ascending order. Counting in integers only: the same
//! bits every run, and NaN handled by its bits, whatever a shader compiler assumes of floats.

use burn::{backend::TensorMetadata, tensor::DType};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::*;

use super::super::{CUBES_X, empty};

/// Units of a cube: the WebGPU limit.
pub(in super::super) const UNITS: u32 = (PARTS * PARTS) as u32;
/// Runs of units, and units of a run, that sums over the cube are taken by.
const PARTS: usize = 16;
/// Bits that one pass finds.
const BITS: usize = 6;
const DIGITS: usize = 1 << BITS;
/// Counters in a word. A unit counts up to 255 values between two sums.
const PACKED: usize = 4;
const BATCH: u32 = 255 * UNITS;
/// Neighbouring values that a unit writes out of one tile, and their distance in shared memory: odd, against bank conflicts.
const RUN: usize = 16;
const PITCH: usize = RUN + 1;
/// Words that hold the counters or a tile of values.
const WORDS: usize = UNITS as usize * PITCH;
/// Words for the sums of a run of units.
const SUMS: usize = DIGITS * PARTS;
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

/// The k-th largest value of a segment.
#[derive(CubeType, Clone, Copy)]
struct Kth {
    /// Its bits, as [`descending`] orders them.
    bits: u32,
    /// How many of the values equal to it are among the k largest.
    equal: u32,
}

/// Finds the `k`-th largest of `values[start..start + n]`, from the highest bits down.
#[cube]
fn kth_largest(
    values: &[f32],
    start: usize,
    n: u32,
    k: u32,
    words: &mut Shared<[u32]>,
    sums: &mut Shared<[u32]>,
    totals: &mut Shared<[u32]>,
) -> Kth {
    let unit = UNIT_POS as usize;
    // The bits found so far, which bits these are, and how many of the k lie among the values that share them.
    let mut found = 0u32;
    let mut known = 0u32;
    let mut missing = k;
    for pass in 0..comptime!(32usize.div_ceil(BITS)) {
        // The last digit overlaps the one before: bits known already do no harm.
        let shift = 32u32 - min(32u32, (pass as u32 + 1) * comptime!(BITS as u32));
        let mut batch = 0u32;
        while batch < n {
            // Every unit has counters of its own, so that nothing is counted in turns.
            #[unroll]
            for w in 0..comptime!(DIGITS / PACKED) {
                words[comptime!(w * UNITS as usize) + unit] = 0u32;
            }
            let end = min(batch + comptime!(BATCH), n);
            let mut i = batch + UNIT_POS;
            while i < end {
                let key = descending(values[start + i as usize]);
                if (key ^ found) & known == 0u32 {
                    let digit = (key >> shift) & comptime!(DIGITS as u32 - 1);
                    let word = (digit / comptime!(PACKED as u32)) as usize * comptime!(UNITS as usize) + unit;
                    words[word] += 1u32 << (digit % comptime!(PACKED as u32) * 8);
                }
                i += comptime!(UNITS);
            }
            sync_cube();
            add_counters(words, sums, totals, batch == 0);
            batch = end;
        }
        sync_cube();
        // Largest digit first.
        let mut digit = 0u32;
        let mut above = 0u32;
        let mut done = false;
        for d in 0..comptime!(DIGITS) {
            let this = comptime!(DIGITS - 1) - d;
            let count = totals[this];
            if !done {
                if above + count >= missing {
                    digit = this as u32;
                    done = true;
                } else {
                    above += count;
                }
            }
        }
        missing -= above;
        found |= digit << shift;
        known |= comptime!(DIGITS as u32 - 1) << shift;
    }
    Kth { bits: found, equal: missing }
}

/// Adds the counters of all units to `totals`, or begins with them: 16 units at a time, then the 16 sums. Other units see
/// the totals after the next barrier.
#[cube]
fn add_counters(words: &mut Shared<[u32]>, sums: &mut Shared<[u32]>, totals: &mut Shared<[u32]>, begin: bool) {
    let unit = UNIT_POS as usize;
    let (word, part) = (unit / comptime!(PARTS), unit % comptime!(PARTS));
    // 16 counters of 8 bits fit 16, so that two go through one addition.
    let mut even = 0u32;
    let mut odd = 0u32;
    for u in 0..comptime!(PARTS) {
        // Each part begins elsewhere, against bank conflicts.
        let counters =
            words[word * comptime!(UNITS as usize) + part * comptime!(PARTS) + (u + part) % comptime!(PARTS)];
        even += counters & 0x00ff_00ffu32;
        odd += (counters >> 8) & 0x00ff_00ffu32;
    }
    let at = word * comptime!(PACKED * PARTS) + part;
    sums[at] = even & 0xffffu32;
    sums[at + comptime!(PARTS)] = odd & 0xffffu32;
    sums[at + comptime!(2 * PARTS)] = even >> 16;
    sums[at + comptime!(3 * PARTS)] = odd >> 16;
    sync_cube();
    if unit < comptime!(DIGITS) {
        let mut total = select(begin, 0u32, totals[unit]);
        for p in 0..comptime!(PARTS) {
            total += sums[unit * comptime!(PARTS) + (p + unit) % comptime!(PARTS)];
        }
        totals[unit] = total;
    }
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

/// Bits that order as the values do; -0 equals 0, NaN is below everything.
#[cube]
fn descending(value: f32) -> u32 {
    let bits = u32::reinterpret(value);
    let magnitude = bits & 0x7fff_ffffu32;
    let ordered = select(bits > 0x8000_0000u32, !bits, magnitude | 0x8000_0000u32);
    select(magnitude > 0x7f80_0000u32, 0u32, ordered)
}
