//! The 8-bit forms of residuals, see [`ResidualFormat`].

use burn::tensor::{DType, Int, Tensor, TensorData};

use super::{lists::signed, rows::INDEX};
use crate::residual_format::{CODES, ResidualFormat, SMALLEST};

/// Encodes each row of a residual: values are divided by the row's largest magnitude and rounded to the nearest code, ties
/// to the even one.
///
/// # Shapes
///
/// - `residual`: `[batch, heads, rows, head_dim]`
/// - returns codes `[batch, heads, rows, ceil(head_dim / 4)]`, four to a 32-bit integer, the first in the lowest byte, and the
///   largest magnitudes `[batch, heads, rows]` in the dtype of `residual`
///
/// # Panics
///
/// For [`ResidualFormat::Input`], which has no codes.
pub fn encode_residual(residual: Tensor<4>, format: ResidualFormat) -> (Tensor<4, Int>, Tensor<3>) {
    assert_ne!(format, ResidualFormat::Input, "encode_residual: the input dtype has no codes");
    let ([batch, heads, rows, dim], dtype, device) = (residual.dims(), residual.dtype(), residual.device());
    let values = residual.cast(DType::F32);
    let broken = values.clone().is_finite().bool_not().int().cast(INDEX).sum_dim(3).greater_scalar(0);
    let values = values.clone().mask_fill(values.is_finite().bool_not(), 0.0);
    let largest = values.clone().abs().max_dim(3);
    let tiny = largest.clone().lower_scalar(SMALLEST);
    let scale = largest.full_like(format.largest_code()) / largest.clone().mask_fill(tiny.clone(), 1.0);
    let scaled = values * scale.mask_fill(tiny, 0.0);
    let codes = match format {
        ResidualFormat::Int8 => scaled.round().int().cast(INDEX).bitwise_and_scalar(255),
        _ => e4m3(scaled),
    };
    let words = dim.div_ceil(CODES);
    let padding = Tensor::zeros([batch, heads, rows, CODES * words - dim], (&device, INDEX));
    let codes = if dim.is_multiple_of(CODES) { codes } else { Tensor::cat(vec![codes, padding], 3) };
    let codes = codes.reshape([batch, heads, rows * words, CODES]);
    let byte = |i: usize| codes.clone().slice_dim(3, i..i + 1).reshape([batch, heads, rows, words]);
    let low = byte(0) + byte(1).mul_scalar(1 << 8) + byte(2).mul_scalar(1 << 16);
    let words = low + signed(byte(3), 256).mul_scalar(1 << 24);
    (words, largest.mask_fill(broken, f32::NAN).cast(dtype).squeeze_dim::<3>(3))
}

/// Codes of values up to 448 in magnitude.
fn e4m3(values: Tensor<4>) -> Tensor<4, Int> {
    let (shape, device) = (values.dims(), values.device());
    let magnitude = values.clone().abs().clamp_max(448.0);
    // Binades above that of the subnormal numbers and the first normal ones, which have equal steps.
    let binade = (-5..=8).map(|e| magnitude.clone().greater_equal_scalar(2f32.powi(e)).int().cast(INDEX));
    let binade = binade.reduce(|a, b| a + b).expect("there are binades");
    let steps: Vec<f32> = (0..15).map(|binade| 2f32.powi(9 - binade)).collect();
    let steps = Tensor::<1>::from_data(TensorData::new(steps, [15]), (&device, DType::F32));
    let per_step = steps.select(0, binade.clone().reshape([shape.iter().product::<usize>()])).reshape(shape);
    let code = (magnitude * per_step).round().int().cast(INDEX) + binade.mul_scalar(8);
    code + values.lower_scalar(0.0).int().cast(INDEX).mul_scalar(128)
}

/// Decodes what [`encode_residual`] encoded: `[batch, heads, rows, head_dim]` in the dtype of `largest`.
///
/// # Panics
///
/// For [`ResidualFormat::Input`], which has no codes.
pub fn decode_residual(
    codes: Tensor<4, Int>,
    largest: Tensor<3>,
    format: ResidualFormat,
    head_dim: usize,
) -> Tensor<4> {
    assert_ne!(format, ResidualFormat::Input, "decode_residual: the input dtype has no codes");
    let ([batch, heads, rows, words], device, dtype) = (codes.dims(), codes.device(), largest.dtype());
    let mut rest = codes.cast(INDEX);
    let mut bytes = Vec::new();
    for _ in 0..CODES {
        let byte = rest.clone().bitwise_and_scalar(255);
        rest = (rest - byte.clone()).div_scalar(256);
        bytes.push(byte);
    }
    let codes = Tensor::stack::<5>(bytes, 4).reshape([batch * heads * rows * words * CODES]);
    let table = Tensor::<1>::from_data(TensorData::new(format.table().to_vec(), [256]), (&device, DType::F32));
    let values = table.select(0, codes).reshape([batch, heads, rows, words * CODES]).slice_dim(3, 0..head_dim);
    let scale = largest.cast(DType::F32).mul_scalar(1.0 / format.largest_code());
    (values * scale.unsqueeze_dim::<4>(3)).cast(dtype)
}
