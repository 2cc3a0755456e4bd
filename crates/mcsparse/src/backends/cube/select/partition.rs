//! Exact selection of the largest values of each row, without a sort and without reading anything back.
//!
//! One cube of [`UNITS`] units takes one row: [`radix`] finds the k-th largest, then the row is walked through once more and
//! indices are written in ascending order.

use burn::{backend::TensorMetadata, tensor::DType};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::*;

use super::super::{
    CUBES_X,
    alone::{self, piece},
    empty,
    radix::{self, Before},
    tile::UNITS,
};

/// Bytes of shared memory.
pub(in super::super) const SHARED_BYTES: usize = radix::scratch_bytes(UNITS, true);

/// The indices of the `k` largest of each row of `values` `[rows, n]` in ascending order, ties to the lowest index, NaN
/// last; then, if `with_rest`, the indices of the others in ascending order.
pub(in super::super) fn partition(values: CubeTensor, k: usize, with_rest: bool) -> CubeTensor {
    let values = into_contiguous(values);
    let [rows, n] = values.shape().dims();
    let output = empty(&values, &[rows, if with_rest { n } else { k }], DType::I32);
    partition_into(&values, rows, k, &output, 0);
    output
}

/// As [`partition`], of the first `rows` rows of `values` into the rows of `output` from `first_row` on; both contiguous.
/// The last axis of `output` says whether the others follow.
pub(in super::super) fn partition_into(
    values: &CubeTensor,
    rows: usize,
    k: usize,
    output: &CubeTensor,
    first_row: usize,
) {
    let [all_rows, n] = values.shape().dims();
    let width = output.shape().as_slice().last().copied().unwrap_or_default();
    assert_eq!((values.dtype, output.dtype), (DType::F32, DType::I32), "partition: dtypes of values and output");
    assert!((1..=n).contains(&k) && (width == k || width == n), "partition: {k} to {width} of {n}");
    assert!(
        rows <= all_rows && (first_row + rows) * width <= output.shape().num_elements(),
        "partition: {rows} rows from {first_row} on, {:?} to {:?}",
        values.shape(),
        output.shape()
    );
    let address = values.required_address_type().max(output.required_address_type());
    let (from, to) = (values.clone().into_buffer_arg(), output.clone().into_buffer_arg());
    let sizes = (rows as u32, first_row as u32, n as u32, k as u32, width as u32);
    let client = &values.client;
    if alone::applies(&client.properties().hardware) {
        let (cube_count, cube_dim) = alone::launch(client, rows);
        // SAFETY: as below.
        unsafe {
            partition_alone::launch_unchecked(
                client, cube_count, cube_dim, address, from, to, sizes.0, sizes.1, sizes.2, sizes.3, sizes.4,
            );
        }
        return;
    }
    let x = rows.clamp(1, CUBES_X);
    // SAFETY: the kernel reads `n` values and writes `width` indices for each of `rows` rows, as both tensors have (above).
    unsafe {
        partition_rows::launch_unchecked(
            client,
            CubeCount::Static(x as u32, rows.div_ceil(x) as u32, 1),
            CubeDim::new_1d(UNITS),
            address,
            from,
            to,
            sizes.0,
            sizes.1,
            sizes.2,
            sizes.3,
            sizes.4,
        );
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn partition_rows(values: &[f32], output: &mut [i32], rows: u32, first_row: u32, n: u32, k: u32, width: u32) {
    let row = CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X;
    if row >= rows {
        terminate!();
    }
    let start = row as usize * n as usize;
    let out = (first_row + row) as usize * width as usize;
    let mut scratch = radix::Scratch::new(UNITS, true);
    let last = radix::kth_largest(values, start, n, k, &mut scratch, UNITS);
    let run = comptime!(radix::run(UNITS));
    let mut walked = Before { above: 0u32, equal: 0u32 };
    let mut tile = 0u32;
    while tile < n {
        let mut before = radix::before(values, start, n, tile, &last, &mut walked, &mut scratch, UNITS, true);
        #[unroll]
        for r in 0..run {
            let i = tile + UNIT_POS * run + r;
            if i < n {
                let key = scratch.key(values, start + i as usize, comptime!(r as usize), UNITS, true);
                let kept = last.kept(&before);
                if last.keeps(key, &before) {
                    output[out + kept as usize] = i as i32;
                } else if width > k {
                    output[out + (k + i - kept) as usize] = i as i32;
                }
                before.above += u32::cast_from(key > last.key);
                before.equal += u32::cast_from(key == last.key);
            }
        }
        tile += comptime!(radix::run(UNITS) * UNITS);
    }
}

/// The same by units that work alone, a row each.
#[cube(launch_unchecked, address_type = "dynamic")]
fn partition_alone(values: &[f32], output: &mut [i32], rows: u32, first_row: u32, n: u32, k: u32, width: u32) {
    let row = piece();
    if row >= rows {
        terminate!();
    }
    let start = row as usize * n as usize;
    let out = (first_row + row) as usize * width as usize;
    let last = radix::alone::kth_largest(values, start, n, k);
    let mut before = Before { above: 0u32, equal: 0u32 };
    for i in 0..n {
        let key = radix::descending(values[start + i as usize]);
        let kept = last.kept(&before);
        if last.keeps(key, &before) {
            output[out + kept as usize] = i as i32;
        } else if width > k {
            output[out + (k + i - kept) as usize] = i as i32;
        }
        before.above += u32::cast_from(key > last.key);
        before.equal += u32::cast_from(key == last.key);
    }
}
