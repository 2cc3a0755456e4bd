//! Exact selection of the largest values of each row, without a sort and without reading anything back.
//!
//! One cube of [`UNITS`] units takes one row: [`radix`] finds the k-th largest and the places, and a last pass writes indices
//! in ascending order.

use burn::{backend::TensorMetadata, tensor::DType};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::*;

use super::super::{CUBES_X, empty, radix};

/// Units of a cube: the WebGPU limit.
pub(in super::super) const UNITS: u32 = 256;
/// Bytes of shared memory.
pub(in super::super) const SHARED_BYTES: usize = radix::scratch_bytes(UNITS as usize);

/// The indices of the `k` largest of each row of `values` `[rows, n]` in ascending order, ties to the lowest index, NaN
/// last; then, if `with_rest`, the indices of the others in ascending order.
pub(in super::super) fn partition(values: CubeTensor, k: usize, with_rest: bool) -> CubeTensor {
    let values = into_contiguous(values);
    let [rows, n] = values.shape().dims();
    assert_eq!(values.dtype, DType::F32, "partition: expected f32 values");
    assert!((1..=n).contains(&k), "partition: expected k from 1 to {n}, got {k}");
    let width = if with_rest { n } else { k };
    let output = empty(&values, &[rows, width], DType::I32);
    let address = values.required_address_type().max(output.required_address_type());
    let client = values.client.clone();
    let x = rows.min(CUBES_X);
    // SAFETY: the kernel reads `n` values and writes `width` indices for each of `rows` rows, as both tensors have.
    unsafe {
        partition_rows::launch_unchecked(
            &client,
            CubeCount::Static(x as u32, rows.div_ceil(x) as u32, 1),
            CubeDim::new_1d(UNITS),
            address,
            values.into_buffer_arg(),
            output.clone().into_buffer_arg(),
            rows as u32,
            n as u32,
            k as u32,
            width as u32,
        );
    }
    output
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn partition_rows(values: &[f32], output: &mut [i32], rows: u32, n: u32, k: u32, width: u32) {
    let row = CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X;
    if row >= rows {
        terminate!();
    }
    let start = row as usize * n as usize;
    let mut scratch = radix::Scratch::new(UNITS);
    let last = radix::kth_largest(values, start, n, k, &mut scratch, UNITS);
    let mine = radix::stretch(values, start, n, &last, &mut scratch, UNITS);
    let mut kept = mine.kept;
    let mut equal = mine.equal;
    let out = row as usize * width as usize;
    for i in mine.first..mine.end {
        let key = radix::descending(values[start + i as usize]);
        let keep = key > last.key || (key == last.key && equal < last.ties);
        equal += u32::cast_from(key == last.key);
        if keep {
            output[out + kept as usize] = i as i32;
            kept += 1;
        } else if width > k {
            output[out + (k + i - kept) as usize] = i as i32;
        }
    }
}
