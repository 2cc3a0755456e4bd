//! Gated sums and gated activations.

use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::Shape,
};
use burn_cubecl::{kernel::into_contiguous, ops::numeric::empty_device_contiguous_dtype, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{Tables, VECTOR, count, cube, like, numbers, table, units};

/// A row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Row {
    vectors: usize,
    units: usize,
    numbered: bool,
}

/// `x` and `update` `[rows, size]`, `gate` `[n, size]`, `rows` one number for each row if there are any.
pub(super) fn add(x: CubeTensor, update: CubeTensor, gate: CubeTensor, rows: Option<CubeTensor>) -> CubeTensor {
    let [count_of_rows, size] = x.shape().dims();
    let (x, update, gate) = (into_contiguous(x), into_contiguous(update), table(gate));
    let [n, columns] = gate.shape().dims();
    assert!(
        size.is_multiple_of(VECTOR) && columns == size && update.shape() == x.shape() && update.dtype == x.dtype,
        "gated sum: rows of {size} values with gates of {columns}"
    );
    let vectors = size / VECTOR;
    let row = Row { vectors, units: units(vectors), numbered: rows.is_some() };
    let (rows, output) = (numbers(rows, &gate), like(&x));
    // SAFETY: the kernel reads and writes `size` values of each row, `size` values of a row of the table that there is
    // (`Tables::row`), and one number a row where it is `numbered`.
    unsafe {
        gated_add::launch_unchecked(
            &x.client,
            count(count_of_rows),
            CubeDim::new_1d(row.units as u32),
            x.required_address_type(),
            VECTOR,
            x.clone().into_buffer_arg(),
            update.into_buffer_arg(),
            gate.into_buffer_arg(),
            rows.into_buffer_arg(),
            output.clone().into_buffer_arg(),
            Tables::launch(count_of_rows, n),
            row,
            dtype_to_storage_type(x.dtype),
        );
    }
    output
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn gated_add<E: Float, N: Size>(
    x: &[Vector<E, N>],
    update: &[Vector<E, N>],
    gate: &[Vector<f32, N>],
    numbers: &[i32],
    output: &mut [Vector<E, N>],
    tables: Tables,
    #[comptime] row: Row,
    #[define(E)] _dtype: ElemType,
) {
    let number = cube();
    if number >= tables.rows {
        terminate!();
    }
    let vectors = comptime!(row.vectors);
    let start = number as usize * vectors;
    let start_of_table = tables.row(number, numbers, row.numbered) * vectors;
    let mut at = UNIT_POS as usize;
    while at < vectors {
        let (own, update) =
            (Vector::<f32, N>::cast_from(x[start + at]), Vector::<f32, N>::cast_from(update[start + at]));
        output[start + at] = Vector::cast_from(own + update * gate[start_of_table + at]);
        at += comptime!(row.units);
    }
}

/// `x` `[rows, 2 * hidden]`.
pub(super) fn swiglu(x: CubeTensor) -> CubeTensor {
    let [rows, size] = x.shape().dims();
    assert!(size.is_multiple_of(2 * VECTOR), "swiglu: rows of {size} values");
    let (x, hidden) = (into_contiguous(x), size / 2);
    let vectors = hidden / VECTOR;
    let row = Row { vectors, units: units(vectors), numbered: false };
    let output = empty_device_contiguous_dtype(x.client.clone(), x.device.clone(), Shape::new([rows, hidden]), x.dtype);
    // SAFETY: the kernel reads `2 * hidden` values of each row and writes `hidden`.
    unsafe {
        gated_activation::launch_unchecked(
            &x.client,
            count(rows),
            CubeDim::new_1d(row.units as u32),
            x.required_address_type(),
            VECTOR,
            x.clone().into_buffer_arg(),
            output.clone().into_buffer_arg(),
            rows as u32,
            row,
            dtype_to_storage_type(x.dtype),
        );
    }
    output
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn gated_activation<E: Float, N: Size>(
    x: &[Vector<E, N>],
    output: &mut [Vector<E, N>],
    rows: u32,
    #[comptime] row: Row,
    #[define(E)] _dtype: ElemType,
) {
    let number = cube();
    if number >= rows {
        terminate!();
    }
    let vectors = comptime!(row.vectors);
    let start = number as usize * vectors;
    let mut at = UNIT_POS as usize;
    while at < vectors {
        let value = Vector::<f32, N>::cast_from(x[2 * start + at]);
        let gate = Vector::<f32, N>::cast_from(x[2 * start + vectors + at]);
        let (zero, one) = (Vector::<f32, N>::new(0.0f32), Vector::<f32, N>::new(1.0f32));
        // Far below 0 the exponential is infinite and the quotient 0, as it should be.
        output[start + at] = Vector::cast_from(value * gate / (one + (zero - gate).exp()));
        at += comptime!(row.units);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_two_with_work() {
        let of = |values: usize| units(values / VECTOR);
        assert_eq!([8, 64, 1536, 3072, 5120, 5376].map(of), [64, 64, 128, 256, 256, 256]);
    }
}
