//! How the kept keys of a group are stored between steps: three forms of one ascending list, all exact.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Keys that 16-bit offsets count within.
pub(crate) const BLOCK: usize = 1 << 16;
/// Bits of a word.
pub(crate) const BITS: usize = 32;

/// A stored form of the key lists. Attention reads plain indices; the other forms are expanded just before it, into memory
/// that is dropped after.
///
/// Every form is rows of 32-bit words, one row for each group of each head; the row lengths are those of
/// [`IndexFormat::words`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum IndexFormat {
    /// The indices themselves, one a word.
    Plain,
    /// The low 16 bits of each index, two a word, the first in the low half; in front of them, for each block of 65,536 keys
    /// but the first, how many indices lie in the blocks before it.
    Offsets,
    /// One bit for each key of the sequence, key `j` the bit `j % 32` of word `j / 32`.
    Bitmap,
}

impl IndexFormat {
    /// All, the cheapest to expand first.
    pub const ALL: [Self; 3] = [Self::Plain, Self::Offsets, Self::Bitmap];

    /// Words of a row that holds `kept` of `keys` keys.
    pub fn words(self, keys: usize, kept: usize) -> usize {
        match self {
            Self::Plain => kept,
            Self::Offsets => self.starts(keys) + kept.div_ceil(2),
            Self::Bitmap => keys.div_ceil(BITS),
        }
    }

    /// The form of fewest words; of equal ones the cheapest to expand.
    pub fn smallest(keys: usize, kept: usize) -> Self {
        let forms = Self::ALL.into_iter();
        forms.min_by_key(|form| form.words(keys, kept)).expect("there are forms")
    }

    /// Words in front of the offsets.
    pub(crate) fn starts(self, keys: usize) -> usize {
        match self {
            Self::Offsets => keys.div_ceil(BLOCK).saturating_sub(1),
            Self::Plain | Self::Bitmap => 0,
        }
    }

    /// The indices that a row of words stands for, in plain loops. A row that no list was packed to gives other indices or
    /// another number of them, nothing worse.
    pub(crate) fn expand(self, words: &[u32], keys: usize, kept: usize) -> Vec<u32> {
        match self {
            Self::Plain => words.to_vec(),
            Self::Offsets => {
                let (starts, offsets) = words.split_at(self.starts(keys));
                let index = |place: usize| {
                    let block = starts.iter().filter(|&&start| start as usize <= place).count();
                    let offset = offsets[place / 2] >> (16 * (place % 2)) & 0xffff;
                    (block * BLOCK) as u32 + offset
                };
                (0..kept).map(index).collect()
            }
            Self::Bitmap => {
                let mut indices = Vec::with_capacity(kept);
                for (&word, first) in words.iter().zip((0u32..).step_by(BITS)) {
                    let mut rest = word;
                    while rest != 0 {
                        indices.push(first + rest.trailing_zeros());
                        rest &= rest - 1;
                    }
                }
                indices
            }
        }
    }
}

impl fmt::Display for IndexFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Offsets => "16-bit offsets",
            Self::Bitmap => "bitmap",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_a_layer_of_wan_14b_at_720p() {
        let tokens = 75_600;
        let words = |form: IndexFormat, density: f64| form.words(tokens, (density * tokens as f64) as usize);
        assert_eq!(words(IndexFormat::Plain, 0.25), 18_900);
        assert_eq!(words(IndexFormat::Offsets, 0.25), 9_451);
        assert_eq!(words(IndexFormat::Bitmap, 0.25), 2_363);
    }

    #[test]
    fn the_smallest_form_follows_the_density() {
        let smallest = |share: f64| IndexFormat::smallest(64_000, (share * 64_000.0) as usize);
        assert_eq!(smallest(0.25), IndexFormat::Bitmap);
        assert_eq!(smallest(0.07), IndexFormat::Bitmap);
        assert_eq!(smallest(0.06), IndexFormat::Offsets);
        // One key beside many blocks, and one of few: nothing to gain.
        assert_eq!(IndexFormat::smallest(1 << 20, 1), IndexFormat::Plain);
        assert_eq!(IndexFormat::smallest(5, 1), IndexFormat::Plain);
    }
}
