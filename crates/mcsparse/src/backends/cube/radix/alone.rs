//! The same selection by one unit, see [`super::super::alone`].

use cubecl::prelude::*;

use super::{Threshold, descending};

/// Bits of a digit: few, as every unit has counts of its own.
const BITS: u32 = 8;
const BINS: usize = 1 << BITS;

/// Where the `k` largest of `values[start..start + n]` end.
#[cube]
pub(in super::super) fn kth_largest(values: &[f32], start: usize, n: u32, k: u32) -> Threshold {
    let mut counts = Array::<u32>::new(BINS);
    let mut found = 0u32;
    let mut missing = k;
    #[unroll]
    for pass in 0..comptime!(32 / BITS) {
        let shift = comptime!(32 - BITS - pass * BITS);
        for bin in 0..BINS {
            counts[bin] = 0u32;
        }
        for i in 0..n {
            let key = descending(values[start + i as usize]);
            let mut shares = true;
            if comptime!(pass > 0) {
                shares = (key ^ found) >> comptime!(shift + BITS) == 0u32;
            }
            if shares {
                counts[((key >> shift) & comptime!(BINS as u32 - 1)) as usize] += 1u32;
            }
        }
        // Largest digit first.
        let mut above = 0u32;
        let mut digit = comptime!(BINS as u32).runtime();
        let mut done = false;
        while !done && digit > 0 {
            digit -= 1;
            let count = counts[digit as usize];
            if above + count >= missing {
                done = true;
            } else {
                above += count;
            }
        }
        missing -= above;
        found |= digit << shift;
    }
    Threshold { key: found, ties: missing }
}
