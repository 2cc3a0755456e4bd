//! Layer norm with modulation.

use burn::backend::{TensorMetadata, cubecl::dtype_to_storage_type};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{
    UNITS, VECTOR, count, cube, like,
    sums::{SCRATCH, cube_sum, lanes},
    table,
};

/// `x` `[rows, size]`, `scale` and `shift` `[size]`.
pub(super) fn launch(x: CubeTensor, scale: CubeTensor, shift: CubeTensor, eps: f32) -> CubeTensor {
    let [rows, size] = x.shape().dims();
    let (x, scale, shift) = (into_contiguous(x), table(scale), table(shift));
    assert!(
        size.is_multiple_of(VECTOR) && scale.shape().num_elements() == size && shift.shape().num_elements() == size,
        "modulated norm: rows of {size} values"
    );
    let output = like(&x);
    // SAFETY: the kernel reads and writes `size` values of each of `rows` rows, and `size` values of both tables.
    unsafe {
        modulated_norm::launch_unchecked(
            &x.client,
            count(rows),
            CubeDim::new_1d(UNITS),
            x.required_address_type(),
            VECTOR,
            x.clone().into_buffer_arg(),
            scale.into_buffer_arg(),
            shift.into_buffer_arg(),
            output.clone().into_buffer_arg(),
            rows as u32,
            eps,
            size / VECTOR,
            dtype_to_storage_type(x.dtype),
        );
    }
    output
}

/// Mean, then the variance around it, from values in registers.
#[cube(launch_unchecked, address_type = "dynamic")]
fn modulated_norm<E: Float, N: Size>(
    x: &[Vector<E, N>],
    scale: &[Vector<f32, N>],
    shift: &[Vector<f32, N>],
    output: &mut [Vector<E, N>],
    rows: u32,
    eps: f32,
    #[comptime] vectors: usize,
    #[define(E)] _dtype: ElemType,
) {
    let row = cube();
    if row >= rows {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let start = row as usize * vectors;
    let each = comptime!(vectors.div_ceil(UNITS as usize));
    let size = comptime!((vectors * VECTOR) as f32);
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(SCRATCH));
    let mut held = Array::<Vector<f32, N>>::new(each);
    let mut sum = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for j in 0..each {
        let at = comptime!(j * UNITS as usize) + unit;
        held[j] = Vector::<f32, N>::new(0.0f32);
        if at < vectors {
            held[j] = Vector::cast_from(x[start + at]);
            sum += held[j];
        }
    }
    let mean = cube_sum(lanes(sum, VECTOR), &mut scratch) / size;
    let mut squares = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for j in 0..each {
        if comptime!(j * UNITS as usize) + unit < vectors {
            let centred = held[j] - Vector::<f32, N>::new(mean);
            held[j] = centred;
            squares += held[j] * held[j];
        }
    }
    let variance = cube_sum(lanes(squares, VECTOR), &mut scratch) / size;
    let factor = Vector::<f32, N>::new(1.0f32 / (variance + eps).sqrt());
    #[unroll]
    for j in 0..each {
        let at = comptime!(j * UNITS as usize) + unit;
        if at < vectors {
            let scaled = held[j] * factor * (scale[at] + Vector::<f32, N>::new(1.0f32));
            output[start + at] = Vector::cast_from(scaled + shift[at]);
        }
    }
}
