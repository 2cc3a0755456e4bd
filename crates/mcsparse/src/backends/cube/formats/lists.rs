//! Key lists to their stored forms and back; see [`IndexFormat`].

use burn::{backend::TensorMetadata, tensor::DType};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::*;

use super::super::{
    alone::{self, count, cube, piece},
    empty,
};
use crate::index_format::{BITS, BLOCK, IndexFormat};

/// Units of a cube that expands bitmaps: the WebGPU limit.
pub(in super::super) const UNITS: u32 = 256;
/// Words of a tile that one cube expands at a time, half a word a unit.
const TILE: usize = UNITS as usize / 2;
/// Units whose counts one unit adds up.
const RUN: usize = 16;
const RUNS: usize = UNITS as usize / RUN;

/// Bytes of shared memory.
pub(in super::super) const SHARED_BYTES: usize = 4 * (TILE * BITS + UNITS as usize + RUNS);

/// Rows of words from ascending lists `[batch, heads, groups, kept]` of indices below `keys`.
pub(in super::super) fn pack(indices: CubeTensor, format: IndexFormat, keys: usize) -> CubeTensor {
    let [batch, heads, groups, kept] = indices.shape().dims();
    assert_eq!(indices.dtype, DType::I32, "indices: expected 32-bit integers");
    let indices = into_contiguous(indices);
    let words = format.words(keys, kept);
    let packed = empty(&indices, &[batch, heads, groups, words], DType::I32);
    let (rows, units) = (batch * heads * groups, alone::units(&indices.client));
    let cubes = words.div_ceil(units as usize);
    // SAFETY: the kernel reads places below `kept` and writes places below `words` of each of `rows` rows.
    unsafe {
        pack_words::launch_unchecked(
            &indices.client,
            count(rows * cubes),
            CubeDim::new_1d(units),
            indices.required_address_type().max(packed.required_address_type()),
            indices.clone().into_buffer_arg(),
            packed.clone().into_buffer_arg(),
            rows as u32,
            kept as u32,
            words as u32,
            format.starts(keys) as u32,
            cubes as u32,
            format == IndexFormat::Bitmap,
        );
    }
    packed
}

/// One unit makes one word.
#[cube(launch_unchecked, address_type = "dynamic")]
fn pack_words(
    indices: &[u32],
    packed: &mut [u32],
    rows: u32,
    kept: u32,
    words: u32,
    starts: u32,
    cubes: u32,
    #[comptime] bitmap: bool,
) {
    let row = cube() / cubes;
    let word = cube() % cubes * CUBE_DIM_X + UNIT_POS;
    if row >= rows || word >= words {
        terminate!();
    }
    let list = row as usize * kept as usize;
    let mut result = 0u32;
    if comptime!(bitmap) {
        let first = word * comptime!(BITS as u32);
        let mut place = below(indices, list, kept, first);
        let mut more = true;
        while more {
            more = false;
            if place < kept {
                let bit = indices[list + place as usize] - first;
                if bit < comptime!(BITS as u32) {
                    result |= 1u32 << bit;
                    place += 1;
                    more = true;
                }
            }
        }
    } else if word < starts {
        result = below(indices, list, kept, (word + 1) * comptime!(BLOCK as u32));
    } else {
        let place = 2 * (word - starts);
        result = indices[list + place as usize] & comptime!(BLOCK as u32 - 1);
        if place + 1 < kept {
            result |= (indices[list + place as usize + 1] & comptime!(BLOCK as u32 - 1)) << 16u32;
        }
    }
    packed[row as usize * words as usize + word as usize] = result;
}

/// How many of the list's indices lie below `limit`.
#[cube]
fn below(indices: &[u32], list: usize, kept: u32, limit: u32) -> u32 {
    let mut low = 0u32;
    let mut high = kept;
    while low < high {
        let middle = (low + high) / 2;
        if indices[list + middle as usize] < limit {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Lists of `kept` ascending indices from rows of words.
pub(in super::super) fn expand(packed: CubeTensor, format: IndexFormat, keys: usize, kept: usize) -> CubeTensor {
    let [batch, heads, groups, words] = packed.shape().dims();
    assert_eq!(packed.dtype, DType::I32, "packed: expected 32-bit integers");
    assert_eq!(words, format.words(keys, kept), "packed: expected {format} words for {kept} of {keys} keys");
    let packed = into_contiguous(packed);
    let indices = empty(&packed, &[batch, heads, groups, kept], DType::I32);
    let rows = batch * heads * groups;
    let address = indices.required_address_type().max(packed.required_address_type());
    let client = &packed.client;
    let (from, to) = (packed.clone().into_buffer_arg(), indices.clone().into_buffer_arg());
    let (rows_arg, kept_arg, words_arg) = (rows as u32, kept as u32, words as u32);
    // SAFETY: the kernels read `words` words and write places below `kept` of each of `rows` rows.
    unsafe {
        if format == IndexFormat::Bitmap && alone::applies(&client.properties().hardware) {
            let (cubes, units) = alone::launch(client, rows);
            expand_alone::launch_unchecked(client, cubes, units, address, from, to, rows_arg, kept_arg, words_arg);
        } else if format == IndexFormat::Bitmap {
            let units = CubeDim::new_1d(UNITS);
            expand_bits::launch_unchecked(client, count(rows), units, address, from, to, rows_arg, kept_arg, words_arg);
        } else {
            let units = alone::units(client);
            let cubes = kept.div_ceil(units as usize);
            expand_offsets::launch_unchecked(
                client,
                count(rows * cubes),
                CubeDim::new_1d(units),
                address,
                from,
                to,
                rows_arg,
                kept_arg,
                words_arg,
                format.starts(keys) as u32,
                cubes as u32,
            );
        }
    }
    indices
}

/// One unit makes one index.
#[cube(launch_unchecked, address_type = "dynamic")]
fn expand_offsets(packed: &[u32], indices: &mut [u32], rows: u32, kept: u32, words: u32, starts: u32, cubes: u32) {
    let row = cube() / cubes;
    let place = cube() % cubes * CUBE_DIM_X + UNIT_POS;
    if row >= rows || place >= kept {
        terminate!();
    }
    let from = row as usize * words as usize;
    let mut block = 0u32;
    for start in 0..starts {
        block += u32::cast_from(packed[from + start as usize] <= place);
    }
    let pair = packed[from + (starts + place / 2) as usize];
    let offset = (pair >> (16 * (place % 2))) & comptime!(BLOCK as u32 - 1);
    indices[row as usize * kept as usize + place as usize] = block * comptime!(BLOCK as u32) + offset;
}

/// One cube expands one row, tile after tile: each unit counts the bits of its half of a word, the counts are summed up, the
/// indices meet in shared memory and are written from there, neighbours by neighbours.
#[cube(launch_unchecked, address_type = "dynamic")]
fn expand_bits(packed: &[u32], indices: &mut [u32], rows: u32, kept: u32, words: u32) {
    let row = cube();
    if row >= rows {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let (from, to) = (row as usize * words as usize, row as usize * kept as usize);
    let mut counts = Shared::<[u32]>::new_slice(comptime!(UNITS as usize + RUNS));
    let mut stage = Shared::<[u32]>::new_slice(comptime!(TILE * BITS));
    let half = UNIT_POS % 2;
    let mut written = 0u32;
    let mut tile = 0u32;
    while tile < words {
        let word = tile + UNIT_POS / 2;
        let mut bits = 0u32;
        if word < words {
            bits = (packed[from + word as usize] >> (16 * half)) & 0xffffu32;
        }
        counts[unit] = u32::count_ones(bits);
        sync_cube();
        if unit < comptime!(RUNS) {
            let mut sum = 0u32;
            for i in 0..comptime!(RUN) {
                let count = counts[unit * comptime!(RUN) + i];
                counts[unit * comptime!(RUN) + i] = sum;
                sum += count;
            }
            counts[comptime!(UNITS as usize) + unit] = sum;
        }
        sync_cube();
        let mut at = counts[unit];
        let mut total = 0u32;
        for run in 0..comptime!(RUNS) {
            let sum = counts[comptime!(UNITS as usize) + run];
            if run < unit / comptime!(RUN) {
                at += sum;
            }
            total += sum;
        }
        let first = word * comptime!(BITS as u32) + 16 * half;
        #[unroll]
        for bit in 0..16u32 {
            if (bits >> bit) & 1u32 == 1u32 {
                stage[at as usize] = first + bit;
                at += 1;
            }
        }
        sync_cube();
        let mut i = UNIT_POS;
        while i < total {
            if written + i < kept {
                indices[to + (written + i) as usize] = stage[i as usize];
            }
            i += UNITS;
        }
        written += total;
        tile += comptime!(TILE as u32);
    }
}

/// The same by units that work alone, a row each.
#[cube(launch_unchecked, address_type = "dynamic")]
fn expand_alone(packed: &[u32], indices: &mut [u32], rows: u32, kept: u32, words: u32) {
    let row = piece();
    if row >= rows {
        terminate!();
    }
    let (from, to) = (row as usize * words as usize, row as usize * kept as usize);
    let mut written = 0u32;
    for word in 0..words {
        let bits = packed[from + word as usize];
        for bit in 0..comptime!(BITS as u32) {
            if (bits >> bit) & 1u32 == 1u32 && written < kept {
                indices[to + written as usize] = word * comptime!(BITS as u32) + bit;
                written += 1u32;
            }
        }
    }
}
