//! Exact selection inside one cube: the k-th largest of some values, and the places of a stable partition around it.
//!
//! Radix select in three passes over eleven, eleven and ten bits. Counts are integers, so that the order in which units add theirs does
//! not matter: the same bits every run. NaN is handled by its bits, whatever a shader compiler assumes of floats.

pub(super) mod alone;

use cubecl::prelude::*;

/// The lowest bit of each pass's digit: few passes, since each reads all values once.
const SHIFTS: [u32; 3] = [21, 10, 0];
/// Values of a digit. The first one has a sign, an exponent and two bits of the fraction, so that values of the same size
/// still count in several bins.
const BINS: usize = 1 << 11;
/// Stretches of bins that are summed up first.
const BIN_RUNS: usize = 64;
/// Values that a unit loads at a time: as many loads are on their way together.
const BATCH: usize = 8;
/// Stretches of units that are summed up first.
const RUNS: usize = 16;
/// Values of a tile of the walk that [`before`] counts for.
const TILE: usize = 4096;

/// Neighbouring values of a tile that one unit has.
pub(super) const fn run(units: u32) -> u32 {
    TILE as u32 / units
}

/// Distance of the runs in shared memory: odd against bank conflicts, unless runs are so short that it would cost much.
pub(super) const fn pitch(units: u32) -> usize {
    let run = run(units) as usize;
    if run < 8 { run } else { run | 1 }
}

const fn staged_keys(units: u32, staged: bool) -> usize {
    if staged { units as usize * pitch(units) } else { 1 }
}

/// Bytes of [`Scratch`] for a cube of `units` units; `staged` if the values are in global memory.
pub(super) const fn scratch_bytes(units: u32, staged: bool) -> usize {
    4 * (BINS + BIN_RUNS + units as usize + RUNS + 1 + staged_keys(units, staged))
}

/// Shared memory of a selection.
#[derive(CubeType)]
pub(super) struct Scratch {
    histogram: Shared<[Atomic<u32>]>,
    bin_runs: Shared<[u32]>,
    counts: Shared<[u32]>,
    keys: Shared<[u32]>,
}

#[cube]
impl Scratch {
    /// For a cube of `units` units.
    pub fn new(#[comptime] units: u32, #[comptime] staged: bool) -> Scratch {
        Scratch {
            histogram: Shared::<[Atomic<u32>]>::new_slice(BINS),
            bin_runs: Shared::<[u32]>::new_slice(BIN_RUNS),
            counts: Shared::<[u32]>::new_slice(comptime!(units as usize + RUNS + 1)),
            keys: Shared::<[u32]>::new_slice(comptime!(staged_keys(units, staged))),
        }
    }

    /// The `r`-th key of this unit's run of a tile.
    pub fn key(
        &self,
        values: &[f32],
        at: usize,
        #[comptime] r: usize,
        #[comptime] units: u32,
        #[comptime] staged: bool,
    ) -> u32 {
        if comptime!(staged) {
            self.keys[UNIT_POS as usize * comptime!(pitch(units)) + r]
        } else {
            descending(values[at])
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
    for pass in 0..comptime!(SHIFTS.len()) {
        let shift = comptime!(SHIFTS[pass]);
        // The lowest bit that the passes before have looked at.
        let known = comptime!(if pass == 0 { 32 } else { SHIFTS[pass - 1] });
        let mut i = unit;
        while i < comptime!(BINS as u32) {
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
                    shares = shares && (key ^ found) >> known == 0u32;
                }
                if shares {
                    let bin = (key >> shift) & comptime!((1u32 << (known - shift)) - 1);
                    scratch.histogram[bin as usize].fetch_add(1u32);
                }
            }
            i += units * comptime!(BATCH as u32);
        }
        sync_cube();
        let mut run = unit;
        while run < comptime!(BIN_RUNS as u32) {
            let mut total = 0u32;
            for b in 0..comptime!((BINS / BIN_RUNS) as u32) {
                // Units start at different bins, in different banks.
                let bin = run * comptime!((BINS / BIN_RUNS) as u32) + (b + run) % comptime!((BINS / BIN_RUNS) as u32);
                total += scratch.histogram[bin as usize].load();
            }
            scratch.bin_runs[run as usize] = total;
            run += units;
        }
        sync_cube();
        // Largest digit first: the run of bins that the k-th falls in, then the bin.
        let mut above = 0u32;
        let mut run = 0u32;
        let mut done = false;
        for r in 0..comptime!(BIN_RUNS as u32) {
            let count = scratch.bin_runs[(comptime!((BIN_RUNS - 1) as u32) - r) as usize];
            if !done {
                if above + count >= missing {
                    run = comptime!(BIN_RUNS as u32 - 1) - r;
                    done = true;
                } else {
                    above += count;
                }
            }
        }
        let mut digit = 0u32;
        done = false;
        for b in 0..comptime!((BINS / BIN_RUNS) as u32) {
            let candidate = run * comptime!((BINS / BIN_RUNS) as u32) + comptime!((BINS / BIN_RUNS) as u32 - 1) - b;
            let count = scratch.histogram[candidate as usize].load();
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
        // The next pass empties the bins.
        sync_cube();
    }
    Threshold { key: found, ties: missing }
}

/// Values of the walk so far that lie above the threshold, and that equal it.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Before {
    pub above: u32,
    pub equal: u32,
}

#[cube]
impl Threshold {
    /// Whether a value is kept, with what came before it: of the equal ones the first are.
    pub fn keeps(&self, key: u32, before: &Before) -> bool {
        key > self.key || (key == self.key && before.equal < self.ties)
    }

    /// Kept values before this one.
    pub fn kept(&self, before: &Before) -> u32 {
        before.above + min(before.equal, self.ties)
    }
}

/// A walk through the values in tiles of [`TILE`], in order: what came before this unit's run of the tile at `tile`.
/// `walked` is what came before the tile, and then before the next one. To be called by all units of the cube.
#[cube]
pub(super) fn before(
    values: &[f32],
    start: usize,
    n: u32,
    tile: u32,
    threshold: &Threshold,
    walked: &mut Before,
    scratch: &mut Scratch,
    #[comptime] units: u32,
    #[comptime] staged: bool,
) -> Before {
    let unit = UNIT_POS as usize;
    let run = comptime!(run(units));
    sync_cube();
    if comptime!(staged) {
        // Neighbouring units read neighbouring values.
        #[unroll]
        for r in 0..run {
            let place = comptime!(r * units) + UNIT_POS;
            let key = descending(values[start + min(tile + place, n - 1) as usize]);
            scratch.keys[(place / run) as usize * comptime!(pitch(units)) + (place % run) as usize] = key;
        }
        sync_cube();
    }
    let first = tile + UNIT_POS * run;
    // Both counts in one word: a tile has 4,096 values.
    let mut counts = 0u32;
    #[unroll]
    for r in 0..run {
        let i = first + r;
        if i < n {
            let key = scratch.key(values, start + i as usize, comptime!(r as usize), units, staged);
            counts += (u32::cast_from(key > threshold.key) << 16) + u32::cast_from(key == threshold.key);
        }
    }
    scratch.counts[unit] = counts;
    sync_cube();
    // One unit for each run of units, then one for the runs.
    let runs = comptime!(units as usize);
    let length = comptime!(units as usize / RUNS);
    if unit < comptime!(RUNS) {
        let mut sum = 0u32;
        for u in 0..length {
            let count = scratch.counts[unit * length + u];
            scratch.counts[unit * length + u] = sum;
            sum += count;
        }
        scratch.counts[runs + unit] = sum;
    }
    sync_cube();
    if unit == 0 {
        let mut sum = 0u32;
        for r in 0..comptime!(RUNS) {
            let count = scratch.counts[runs + r];
            scratch.counts[runs + r] = sum;
            sum += count;
        }
        scratch.counts[runs + comptime!(RUNS)] = sum;
    }
    sync_cube();
    let sum = scratch.counts[unit] + scratch.counts[runs + unit / length];
    let result = Before { above: walked.above + (sum >> 16), equal: walked.equal + (sum & 0xffffu32) };
    let all = scratch.counts[runs + comptime!(RUNS)];
    walked.above += all >> 16;
    walked.equal += all & 0xffffu32;
    result
}

/// Bits that order as the values do; -0 equals 0, NaN is below everything.
#[cube]
pub(super) fn descending(value: f32) -> u32 {
    let bits = u32::reinterpret(value);
    let magnitude = bits & 0x7fff_ffffu32;
    let ordered = select(bits > 0x8000_0000u32, !bits, magnitude | 0x8000_0000u32);
    select(magnitude > 0x7f80_0000u32, 0u32, ordered)
}
