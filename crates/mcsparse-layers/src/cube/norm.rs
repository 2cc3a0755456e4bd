//! Norms of whole rows, scaled and shifted.

use burn::backend::{TensorMetadata, cubecl::dtype_to_storage_type};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{
    Tables, VECTOR, count, cube, like, numbers,
    sums::{cube_sum, lanes, scratch},
    table, units,
};
use crate::Norm;

/// What a row is, and what is done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Row {
    vectors: usize,
    units: usize,
    centred: bool,
    numbered: bool,
}

/// `x` `[rows, size]`, `scale` and `shift` `[n, size]`, `rows` one number for each row if there are any.
pub(super) fn launch(
    x: CubeTensor,
    scale: CubeTensor,
    shift: CubeTensor,
    rows: Option<CubeTensor>,
    norm: Norm,
) -> CubeTensor {
    let [count_of_rows, size] = x.shape().dims();
    let (x, scale, shift) = (into_contiguous(x), table(scale), table(shift));
    let [n, columns] = scale.shape().dims();
    assert!(
        size.is_multiple_of(VECTOR) && columns == size && shift.shape() == scale.shape(),
        "norm: rows of {size} values with tables of {columns}"
    );
    let vectors = size / VECTOR;
    let row = Row { vectors, units: units(vectors), centred: norm.centred, numbered: rows.is_some() };
    let (rows, output) = (numbers(rows, &shift), like(&x));
    // SAFETY: the kernel reads and writes `size` values of each row, `size` values of a row of both tables that there is
    // (`Tables::row`), and one number a row where it is `numbered`.
    unsafe {
        norm_rows::launch_unchecked(
            &x.client,
            count(count_of_rows),
            CubeDim::new_1d(row.units as u32),
            x.required_address_type(),
            VECTOR,
            x.clone().into_buffer_arg(),
            scale.into_buffer_arg(),
            shift.into_buffer_arg(),
            rows.into_buffer_arg(),
            output.clone().into_buffer_arg(),
            Tables::launch(count_of_rows, n),
            norm.eps as f32,
            norm.offset as f32,
            row,
            dtype_to_storage_type(x.dtype),
        );
    }
    output
}

/// Mean, then the variance around it, from values in registers.
#[cube(launch_unchecked, address_type = "dynamic")]
fn norm_rows<E: Float, N: Size>(
    x: &[Vector<E, N>],
    scale: &[Vector<f32, N>],
    shift: &[Vector<f32, N>],
    numbers: &[i32],
    output: &mut [Vector<E, N>],
    tables: Tables,
    eps: f32,
    offset: f32,
    #[comptime] row: Row,
    #[define(E)] _dtype: ElemType,
) {
    let number = cube();
    if number >= tables.rows {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let vectors = comptime!(row.vectors);
    let units = comptime!(row.units);
    let start = number as usize * vectors;
    let start_of_table = tables.row(number, numbers, row.numbered) * vectors;
    let each = comptime!(row.vectors.div_ceil(row.units));
    let size = comptime!((row.vectors * VECTOR) as f32);
    let mut memory = Shared::<[f32]>::new_slice(comptime!(scratch(row.units)));
    let mut held = Array::<Vector<f32, N>>::new(each);
    let mut sum = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for j in 0..each {
        let at = comptime!(j * row.units) + unit;
        held[j] = Vector::<f32, N>::new(0.0f32);
        if at < vectors {
            held[j] = Vector::cast_from(x[start + at]);
            sum += held[j];
        }
    }
    let mut mean = Vector::<f32, N>::new(0.0f32);
    if comptime!(row.centred) {
        mean = Vector::<f32, N>::new(cube_sum(lanes(sum, VECTOR), &mut memory, units) / size);
    }
    let mut squares = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for j in 0..each {
        if comptime!(j * row.units) + unit < vectors {
            held[j] -= mean;
            squares += held[j] * held[j];
        }
    }
    let variance = cube_sum(lanes(squares, VECTOR), &mut memory, units) / size;
    let factor = Vector::<f32, N>::new(1.0f32 / (variance + eps).sqrt());
    #[unroll]
    for j in 0..each {
        let at = comptime!(j * row.units) + unit;
        if at < vectors {
            let scaled = held[j] * factor * (scale[start_of_table + at] + Vector::<f32, N>::new(offset));
            output[start + at] = Vector::cast_from(scaled + shift[start_of_table + at]);
        }
    }
}
