//! Residuals to 8-bit codes and back; see [`ResidualFormat`].

use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::DType,
};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::*;

use super::super::{
    alone::{launch, piece},
    empty,
};
use crate::residual_format::{CODES, ResidualFormat, SMALLEST};

/// Words of codes `[batch, heads, rows, ceil(dim / 4)]` and the largest magnitudes `[batch, heads, rows]`.
pub(in super::super) fn encode(residual: CubeTensor, format: ResidualFormat) -> (CubeTensor, CubeTensor) {
    let [batch, heads, rows, dim] = residual.shape().dims();
    let residual = into_contiguous(residual);
    let codes = empty(&residual, &[batch, heads, rows, dim.div_ceil(CODES)], DType::I32);
    let largest = empty(&residual, &[batch, heads, rows], residual.dtype);
    let rows = batch * heads * rows;
    let (cube_count, cube_dim) = launch(&residual.client, rows);
    // SAFETY: the kernel reads `dim` values and writes their words and one magnitude for each of `rows` rows.
    unsafe {
        encode_rows::launch_unchecked(
            &residual.client,
            cube_count,
            cube_dim,
            residual.required_address_type(),
            residual.clone().into_buffer_arg(),
            codes.clone().into_buffer_arg(),
            largest.clone().into_buffer_arg(),
            rows as u32,
            dim,
            format,
            dtype_to_storage_type(residual.dtype),
        );
    }
    (codes, largest)
}

/// One unit encodes one row: it is read twice, the second time from a cache.
#[cube(launch_unchecked, address_type = "dynamic")]
fn encode_rows<E: Float>(
    residual: &[E],
    codes: &mut [u32],
    largest: &mut [E],
    rows: u32,
    #[comptime] dim: usize,
    #[comptime] format: ResidualFormat,
    #[define(E)] _dtype: ElemType,
) {
    let row = piece();
    if row >= rows {
        terminate!();
    }
    let start = row as usize * dim;
    // Magnitudes order as their bits do, with infinity and NaN above all numbers, whatever a compiler assumes of floats.
    let mut bits = 0u32;
    for i in 0..dim {
        bits = max(bits, u32::reinterpret(f32::cast_from(residual[start + i])) & 0x7fff_ffffu32);
    }
    let broken = bits >= 0x7f80_0000u32;
    largest[row as usize] = E::cast_from(f32::reinterpret(select(broken, bits | 0x7fc0_0000u32, bits)));
    let most = f32::reinterpret(bits);
    let mut scale = 0.0f32;
    if !broken && most >= comptime!(SMALLEST) {
        scale = comptime!(format.largest_code()) / most;
    }
    let words = comptime!(dim.div_ceil(CODES));
    for word in 0..words {
        let mut result = 0u32;
        #[unroll]
        for e in 0..comptime!(CODES) {
            let i = word * comptime!(CODES) + e;
            if i < dim {
                let x = f32::cast_from(residual[start + i]) * scale;
                result |= code(x, format) << comptime!(8 * e as u32);
            }
        }
        codes[row as usize * words + word] = result;
    }
}

/// The nearest code, ties to the even one.
#[cube]
fn code(x: f32, #[comptime] format: ResidualFormat) -> u32 {
    // Adding a number whose last bit is one rounds to whole numbers and leaves them in the low bits.
    if comptime!(format == ResidualFormat::Fp8) {
        let bits = u32::reinterpret(x);
        let sign = (bits >> 24u32) & 0x80u32;
        let magnitude = min(bits & 0x7fff_ffffu32, 0x43e0_0000u32); // 448
        let small = u32::reinterpret(f32::reinterpret(magnitude) * 512.0f32 + 8_388_608.0f32) & 0xffu32;
        // Half of what is cut off, less one where the last bit that stays is even.
        let large = ((magnitude + 0x7_ffffu32 + ((magnitude >> 20u32) & 1u32)) >> 20u32) - comptime!(120u32 << 3);
        sign | select(magnitude < 0x3c80_0000u32, small, large) // 2^-6
    } else {
        u32::reinterpret(x + 12_582_912.0f32) & 0xffu32
    }
}

/// Values `[batch, heads, rows, dim]` in the dtype of `largest`.
pub(in super::super) fn decode(
    codes: CubeTensor,
    largest: CubeTensor,
    format: ResidualFormat,
    dim: usize,
) -> CubeTensor {
    let [batch, heads, rows, words] = codes.shape().dims();
    assert_eq!((words, codes.dtype), (dim.div_ceil(CODES), DType::I32), "codes: expected words for rows of {dim}");
    assert_eq!(largest.shape().dims(), [batch, heads, rows], "largest: expected one magnitude a row");
    let (codes, largest) = (into_contiguous(codes), into_contiguous(largest));
    let values = empty(&largest, &[batch, heads, rows, dim], largest.dtype);
    let all = batch * heads * rows * words;
    assert!(u32::try_from(all).is_ok(), "codes: {all} words are more than one launch counts");
    let vector = if dim.is_multiple_of(CODES) { CODES } else { 1 };
    let (cube_count, cube_dim) = launch(&codes.client, all);
    // SAFETY: each of `all` units reads one word and its row's magnitude and writes the values of the word inside its row.
    unsafe {
        decode_words::launch_unchecked(
            &codes.client,
            cube_count,
            cube_dim,
            values.required_address_type(),
            vector,
            codes.clone().into_buffer_arg(),
            largest.clone().into_buffer_arg(),
            values.clone().into_buffer_arg(),
            all as u32,
            dim,
            vector,
            format,
            dtype_to_storage_type(largest.dtype),
        );
    }
    values
}

/// One unit decodes one word.
#[cube(launch_unchecked, address_type = "dynamic")]
fn decode_words<E: Float, N: Size>(
    codes: &[u32],
    largest: &[E],
    values: &mut [Vector<E, N>],
    all: u32,
    #[comptime] dim: usize,
    #[comptime] vector: usize,
    #[comptime] format: ResidualFormat,
    #[define(E)] _dtype: ElemType,
) {
    let at = piece();
    if at >= all {
        terminate!();
    }
    let words = comptime!(dim.div_ceil(CODES) as u32);
    let (row, word) = ((at / words) as usize, (at % words) as usize);
    let codes = codes[at as usize];
    let scale = f32::cast_from(largest[row]) * comptime!(1.0 / format.largest_code());
    if comptime!(vector == CODES) {
        let mut result = Vector::<E, N>::empty();
        #[unroll]
        for e in 0..comptime!(CODES) {
            result.insert(e, E::cast_from(value((codes >> comptime!(8 * e as u32)) & 0xffu32, format) * scale));
        }
        values[at as usize] = result;
    } else {
        #[unroll]
        for e in 0..comptime!(CODES) {
            let i = word * comptime!(CODES) + e;
            if i < dim {
                let x = value((codes >> comptime!(8 * e as u32)) & 0xffu32, format) * scale;
                values[row * dim + i] = Vector::cast_from(E::cast_from(x));
            }
        }
    }
}

/// What a code stands for.
#[cube]
fn value(code: u32, #[comptime] format: ResidualFormat) -> f32 {
    if comptime!(format == ResidualFormat::Fp8) {
        let (exponent, mantissa) = ((code >> 3u32) & 15u32, code & 7u32);
        let normal = f32::reinterpret(((exponent + 120) << 23u32) | (mantissa << 20u32));
        let small = f32::cast_from(mantissa) * 0.001953125f32; // 2^-9
        let magnitude = select(exponent == 0, small, normal);
        select(code >= 128, -magnitude, magnitude)
    } else {
        f32::cast_from(code) - select(code >= 128, 256.0f32, 0.0f32)
    }
}
