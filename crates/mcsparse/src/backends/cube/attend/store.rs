//! The way of the output from registers to memory.

use cubecl::prelude::*;

use super::{
    super::fragment::{C2, CHUNK, Sums},
    shape::Keys,
};
use crate::ops::Finish;

/// Writes this unit's columns of its row `i`, times `mine`, with what is there already, times `theirs`, if keys are counted, and
/// with the other tensor as `finish` says.
#[cube]
pub(super) fn store<E: Float>(
    out: &Sequence<Sums>,
    #[comptime] i: usize,
    mine: f32,
    theirs: f32,
    at: usize,
    other: &Tensor<E>,
    other_row: usize,
    factor: f32,
    output: &mut [Vector<E, C2>],
    c: u32,
    #[comptime] dim: usize,
    #[comptime] finish: Finish,
    #[comptime] keys: Keys,
) {
    let chunks = comptime!(dim / CHUNK);
    #[unroll]
    for n in 0..chunks {
        let mut result = out.index(comptime!(i / 2 * chunks + n))[comptime!(i % 2)] * Vector::new(mine);
        let column = comptime!(CHUNK * n) + 2 * c as usize;
        let place = at * comptime!(dim / 2) + comptime!(CHUNK / 2 * n) + c as usize;
        if comptime!(keys == Keys::Counted) {
            result += Vector::<f32, C2>::cast_from(output[place]) * Vector::new(theirs);
        }
        if comptime!(finish != Finish::Output) {
            let mut read = Vector::<f32, C2>::new(f32::cast_from(other[other_row + column * other.stride(3)]));
            read.insert(1usize, f32::cast_from(other[other_row + (column + 1) * other.stride(3)]));
            if comptime!(finish == Finish::AddResidual) {
                result = read * Vector::new(factor) + result;
            } else {
                result = read - result;
            }
        }
        output[place] = Vector::cast_from(result);
    }
}
