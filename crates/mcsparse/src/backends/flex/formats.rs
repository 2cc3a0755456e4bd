//! Stored forms of the cache: key lists as words, residuals as 8-bit codes.

use rayon::prelude::*;

use super::rows::Rows;
use crate::{
    index_format::{BITS, BLOCK, IndexFormat},
    residual_format::{CODES, ResidualFormat, SMALLEST},
};

/// Packs lists of `kept` ascending indices below `keys`.
pub(super) fn pack(indices: &[u32], format: IndexFormat, keys: usize, kept: usize) -> Vec<i32> {
    let width = format.words(keys, kept);
    let mut packed = vec![0; indices.len() / kept * width];
    packed.par_chunks_mut(width).zip(indices.par_chunks(kept)).for_each(|(words, list)| match format {
        IndexFormat::Plain => words.iter_mut().zip(list).for_each(|(word, &index)| *word = index as i32),
        IndexFormat::Bitmap => list.iter().for_each(|&j| words[j as usize / BITS] |= 1 << (j as usize % BITS)),
        IndexFormat::Offsets => {
            let (starts, offsets) = words.split_at_mut(format.starts(keys));
            for (start, end) in starts.iter_mut().zip((BLOCK..).step_by(BLOCK)) {
                *start = list.partition_point(|&j| (j as usize) < end) as i32;
            }
            for (place, &j) in list.iter().enumerate() {
                offsets[place / 2] |= ((j & 0xffff) << (16 * (place % 2))) as i32;
            }
        }
    });
    packed
}

/// Lists of `kept` indices from rows of words.
pub(super) fn expand(packed: &[u32], format: IndexFormat, keys: usize, kept: usize) -> Vec<i32> {
    let width = format.words(keys, kept);
    let mut indices = vec![0; packed.len() / width * kept];
    indices.par_chunks_mut(kept).zip(packed.par_chunks(width)).for_each(|(list, words)| {
        let expanded = format.expand(words, keys, kept);
        list.iter_mut().zip(expanded).for_each(|(place, index)| *place = index as i32);
    });
    indices
}

/// Words of codes, and the largest magnitude of each row.
pub(super) fn encode(residual: &Rows, format: ResidualFormat) -> (Vec<i32>, Vec<f32>) {
    let [_, _, rows, dim] = residual.dims;
    let width = dim.div_ceil(CODES);
    let mut codes = vec![0; residual.heads() * rows * width];
    let mut largest = vec![0.0; residual.heads() * rows];
    let tasks = codes.par_chunks_mut(width).zip(largest.par_iter_mut()).enumerate();
    tasks.for_each_init(
        || vec![0.0f32; dim],
        |row, (i, (words, largest))| {
            residual.head(i / rows).copy_row(i % rows, 1.0, row);
            if row.iter().any(|x| !x.is_finite()) {
                *largest = f32::NAN;
                return;
            }
            *largest = row.iter().fold(0.0, |most, x| most.max(x.abs()));
            let scale = if *largest < SMALLEST { 0.0 } else { format.largest_code() / *largest };
            for (word, values) in words.iter_mut().zip(row.chunks(CODES)) {
                for (place, &x) in values.iter().enumerate() {
                    *word |= (u32::from(code(x * scale, format)) << (8 * place)) as i32;
                }
            }
        },
    );
    (codes, largest)
}

/// The nearest code, ties to the even one.
fn code(x: f32, format: ResidualFormat) -> u8 {
    match format {
        ResidualFormat::Input | ResidualFormat::Int8 => x.round_ties_even() as i8 as u8,
        ResidualFormat::Fp8 => {
            let sign = if x < 0.0 { 0x80 } else { 0 };
            let magnitude = x.abs().min(448.0);
            let rounded = if magnitude < 2f32.powi(-6) {
                (magnitude * 512.0).round_ties_even() as u32
            } else {
                let bits = magnitude.to_bits();
                // Half of what is cut off, less one where the last bit that stays is even.
                let bits = bits + 0x7_ffff + (bits >> 20 & 1);
                (bits >> 20) - (120 << 3)
            };
            sign | rounded as u8
        }
    }
}

/// Values `[rows, dim]` from words of codes.
pub(super) fn decode(codes: &[u32], largest: &[f32], format: ResidualFormat, dim: usize) -> Vec<f32> {
    let (width, table) = (dim.div_ceil(CODES), format.table());
    let mut values = vec![0.0; largest.len() * dim];
    values.par_chunks_mut(dim).zip(codes.par_chunks(width)).zip(largest.par_iter()).for_each(
        |((row, words), largest)| {
            let scale = largest * (1.0 / format.largest_code());
            for (values, word) in row.chunks_mut(CODES).zip(words) {
                values.iter_mut().zip(word.to_le_bytes()).for_each(|(x, code)| *x = table[code as usize] * scale);
            }
        },
    );
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a search of the nearest of all codes.
    #[test]
    fn codes_are_the_nearest_with_ties_to_even() {
        for format in [ResidualFormat::Fp8, ResidualFormat::Int8] {
            let table = format.table();
            // 0x7f and 0xff are NaN in e4m3, -128 lies outside the symmetric range.
            let unused = |code: &usize| match format {
                ResidualFormat::Fp8 => code & 0x7f == 0x7f,
                _ => *code == 0x80,
            };
            let used: Vec<usize> = (0..256).filter(|code| !unused(code)).collect();
            for &c in &used {
                let back = code(table[c], format);
                assert!(back == c as u8 || table[c] == 0.0, "{format}: {} to {back}", table[c]);
            }
            let mut sorted: Vec<f32> = used.iter().map(|&c| table[c]).collect();
            sorted.sort_by(f32::total_cmp);
            for pair in sorted.windows(2) {
                let (low, high) = (pair[0], pair[1]);
                for part in [0.0, 0.25, 0.499, 0.5, 0.501, 0.75] {
                    let x = low + part * (high - low);
                    let got = code(x, format);
                    let value = table[got as usize];
                    let (to_low, to_high) = ((x - low).abs(), (high - x).abs());
                    if to_low != to_high {
                        assert_eq!(value, if to_low < to_high { low } else { high }, "{format}: {x}");
                    } else {
                        assert!(
                            got.is_multiple_of(2) && (value == low || value == high),
                            "{format}: {x} is a tie, got {got:#x}"
                        );
                    }
                }
            }
        }
    }
}
