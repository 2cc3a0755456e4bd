//! Exact selection inside one cube: the k-th largest of a run of values, and the places of a stable partition around it.
//!
//! Radix select in four passes over eight bits each. Counts are integers, so that the order in which units add theirs does
//! not matter: the same bits every run. NaN is handled by its bits, whatever a shader compiler assumes of floats.

use cubecl::prelude::*;

/// Values of the digit that one pass looks at.
const BINS: usize = 256;
/// Histograms that neighbouring units share out, since many values have the same leading digit.
const COPIES: usize = 8;
/// Values that a unit loads at a time.
const BATCH: usize = 4;
/// Stretches of units or bins that are summed up first wherever something is summed over all of them.
const RUNS: usize = 16;

/// Bytes of [`Scratch`] for a cube of `units` units.
pub(super) const fn scratch_bytes(units: usize) -> usize {
    4 * (BINS * COPIES + BINS + RUNS + 2 * (units + RUNS))
}

/// Shared memory of a selection.
#[derive(CubeType)]
pub(super) struct Scratch {
    histogram: Shared<[Atomic<u32>]>,
    bins: Shared<[u32]>,
    counts: Shared<[u32]>,
}

#[cube]
impl Scratch {
    /// For a cube of `units` units.
    pub fn new(#[comptime] units: u32) -> Scratch {
        Scratch {
            histogram: Shared::<[Atomic<u32>]>::new_slice(comptime!(BINS * COPIES)),
            bins: Shared::<[u32]>::new_slice(comptime!(BINS + RUNS)),
            counts: Shared::<[u32]>::new_slice(comptime!(2 * (units as usize + RUNS))),
        }
    }
}

/// Where a selection ends.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Threshold {
    /// Key of the last value that is kept, in the order of [`descending`].
    pub key: u32,
    /// How many of the values with that very key are kept: the first ones.
    pub ties: u32,
}

/// Where the `k` largest of `values[start..start + n]` end. To be called by all units of the cube.
#[cube]
pub(super) fn kth_largest(
    values: &[f32],
    start: usize,
    n: u32,
    k: u32,
    scratch: &mut Scratch,
    #[comptime] units: u32,
) -> Threshold {
    let unit = UNIT_POS;
    // `found` holds the digits so far, `missing` how many of the k lie among the values that share them.
    let mut found = 0u32;
    let mut missing = k;
    #[unroll]
    for pass in 0..4u32 {
        let shift = comptime!(24 - 8 * pass);
        let mut i = unit;
        while i < comptime!((BINS * COPIES) as u32) {
            scratch.histogram[i as usize].store(0u32);
            i += units;
        }
        sync_cube();
        let mut i = unit;
        while i < n {
            // All loads first: none would pass an atomic addition.
            let mut batch = Array::<u32>::new(BATCH);
            #[unroll]
            for b in 0..BATCH {
                batch[b] = descending(values[start + min(i + units * comptime!(b as u32), n - 1) as usize]);
            }
            #[unroll]
            for b in 0..BATCH {
                let key = batch[b];
                let mut shares = i + units * comptime!(b as u32) < n;
                if comptime!(pass > 0) {
                    shares = shares && (key ^ found) >> comptime!((shift + 8) % 32) == 0u32;
                }
                if shares {
                    let bin = ((key >> shift) & 255u32) * comptime!(COPIES as u32) + unit % comptime!(COPIES as u32);
                    scratch.histogram[bin as usize].fetch_add(1u32);
                }
            }
            i += units * comptime!(BATCH as u32);
        }
        sync_cube();
        let mut bin = unit;
        while bin < comptime!(BINS as u32) {
            let mut total = 0u32;
            #[unroll]
            for copy in 0..COPIES {
                total += scratch.histogram[bin as usize * COPIES + copy].load();
            }
            scratch.bins[bin as usize] = total;
            bin += units;
        }
        sync_cube();
        if unit < comptime!(RUNS as u32) {
            let mut total = 0u32;
            for b in 0..comptime!(BINS / RUNS) {
                total += scratch.bins[unit as usize * comptime!(BINS / RUNS) + b];
            }
            scratch.bins[BINS + unit as usize] = total;
        }
        sync_cube();
        // Largest digit first: the run of bins that the k-th falls in, then the bin.
        let mut above = 0u32;
        let mut run = 0u32;
        let mut done = false;
        for r in 0..comptime!(RUNS as u32) {
            let count = scratch.bins[(comptime!((BINS + RUNS - 1) as u32) - r) as usize];
            if !done {
                if above + count >= missing {
                    run = comptime!(RUNS as u32 - 1) - r;
                    done = true;
                } else {
                    above += count;
                }
            }
        }
        let mut digit = 0u32;
        done = false;
        for b in 0..comptime!((BINS / RUNS) as u32) {
            let candidate = run * comptime!((BINS / RUNS) as u32) + comptime!((BINS / RUNS) as u32 - 1) - b;
            let count = scratch.bins[candidate as usize];
            if !done {
                if above + count >= missing {
                    digit = candidate;
                    done = true;
                } else {
                    above += count;
                }
            }
        }
        missing -= above;
        found |= digit << shift;
    }
    Threshold { key: found, ties: missing }
}

/// What a unit needs to partition its own stretch of the values.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Stretch {
    /// First value of the stretch.
    pub first: u32,
    /// The value after its last.
    pub end: u32,
    /// Kept values in front of the stretch.
    pub kept: u32,
    /// Values in front of the stretch that have the threshold's key.
    pub equal: u32,
}

/// The stretch of `values[start..start + n]` that this unit partitions.
#[cube]
pub(super) fn stretch(
    values: &[f32],
    start: usize,
    n: u32,
    threshold: &Threshold,
    scratch: &mut Scratch,
    #[comptime] units: u32,
) -> Stretch {
    let unit = UNIT_POS;
    let length = n.div_ceil(units);
    let first = min(unit * length, n);
    let end = min(first + length, n);
    let mut above = 0u32;
    let mut equal = 0u32;
    for i in first..end {
        let key = descending(values[start + i as usize]);
        above += u32::cast_from(key > threshold.key);
        equal += u32::cast_from(key == threshold.key);
    }
    let per_run = comptime!(units as usize / RUNS);
    let second = comptime!(units as usize + RUNS);
    scratch.counts[unit as usize] = above;
    scratch.counts[second + unit as usize] = equal;
    sync_cube();
    if unit < comptime!(RUNS as u32) {
        let mut above_total = 0u32;
        let mut equal_total = 0u32;
        for u in 0..per_run {
            above_total += scratch.counts[unit as usize * per_run + u];
            equal_total += scratch.counts[second + unit as usize * per_run + u];
        }
        scratch.counts[comptime!(units as usize) + unit as usize] = above_total;
        scratch.counts[second + comptime!(units as usize) + unit as usize] = equal_total;
    }
    sync_cube();
    let run = unit as usize / per_run;
    let mut above_before = 0u32;
    let mut equal_before = 0u32;
    for r in 0..run {
        above_before += scratch.counts[comptime!(units as usize) + r];
        equal_before += scratch.counts[second + comptime!(units as usize) + r];
    }
    for u in run * per_run..unit as usize {
        above_before += scratch.counts[u];
        equal_before += scratch.counts[second + u];
    }
    Stretch { first, end, kept: above_before + min(equal_before, threshold.ties), equal: equal_before }
}

/// Bits that order as the values do; -0 equals 0, NaN is below everything.
#[cube]
pub(super) fn descending(value: f32) -> u32 {
    let bits = u32::reinterpret(value);
    let magnitude = bits & 0x7fff_ffffu32;
    let ordered = select(bits > 0x8000_0000u32, !bits, magnitude | 0x8000_0000u32);
    select(magnitude > 0x7f80_0000u32, 0u32, ordered)
}
