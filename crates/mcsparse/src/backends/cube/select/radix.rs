//! Radix select: the bits of the k-th largest value of a segment, found by one cube in passes of six bits.

use cubecl::prelude::*;

use super::super::tile::UNITS;

/// Runs of units, and units of a run, that sums over the cube are taken by.
pub(super) const PARTS: usize = 16;
const _: () = assert!(PARTS * PARTS == UNITS as usize);
/// Bits that one pass finds.
const BITS: usize = 6;
pub(super) const DIGITS: usize = 1 << BITS;
/// Counters in a word. A unit counts up to 255 values between two sums.
const PACKED: usize = 4;
const BATCH: u32 = 255 * UNITS;
/// Words for a counter of each digit and unit.
pub(super) const COUNTERS: usize = UNITS as usize * DIGITS / PACKED;
/// Words for the sums of a run of units.
pub(super) const SUMS: usize = DIGITS * PARTS;

/// The k-th largest value of a segment.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Kth {
    /// Its bits, as [`descending`] orders them.
    pub bits: u32,
    /// How many of the values equal to it are among the k largest.
    pub equal: u32,
}

/// Finds the `k`-th largest of `values[start..start + n]`, from the highest bits down. Needs [`COUNTERS`] words, [`SUMS`]
/// sums and [`DIGITS`] totals of shared memory.
#[cube]
pub(super) fn kth_largest(
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

/// Bits that order as the values do; -0 equals 0, NaN is below everything.
#[cube]
pub(super) fn descending(value: f32) -> u32 {
    let bits = u32::reinterpret(value);
    let magnitude = bits & 0x7fff_ffffu32;
    let ordered = select(bits > 0x8000_0000u32, !bits, magnitude | 0x8000_0000u32);
    select(magnitude > 0x7f80_0000u32, 0u32, ordered)
}
