//! The way of the output from matrices to where it belongs.

use cubecl::prelude::*;

use super::{
    super::{
        super::cooperative::products::{C4, Products},
        shape::Keys,
        softmax::join,
    },
    step::Row,
    tile::Tile,
};
use crate::ops::Finish;

/// Where the row of a unit ends.
#[derive(CubeType)]
pub(super) struct Ending {
    /// Whether there is such a row.
    pub here: bool,
    /// Log-sum-exp of what the output holds already.
    pub before: f32,
    /// The row of the output, the place of its log-sum-exp, and the element at which the row of the other tensor starts.
    pub at: usize,
    pub lse_at: usize,
    pub other_at: usize,
    pub factor: f32,
}

/// Writes the rows of a plane and their log-sum-exp.
#[cube]
#[allow(clippy::too_many_arguments)]
pub(super) fn end_rows<E: Float, W: Size, P: Products<E>>(
    out: &Sequence<P::Sums>,
    row: &Row,
    ending: &Ending,
    scratch: &mut Shared<[Vector<f32, C4>]>,
    other: &Tensor<E>,
    output: &mut [Vector<E, W>],
    lse: &mut [f32],
    #[comptime] tile: Tile,
    #[comptime] dim: usize,
    #[comptime] finish: Finish,
    #[comptime] keys: Keys,
) {
    let form = comptime!(tile.form);
    let count = comptime!(tile.padded(dim) / form.n);
    let together = comptime!(tile.keys / form.n);
    let plane_at = row.first as usize * comptime!(tile.score_pitch() / 4);
    let row_at = row.row as usize * comptime!(tile.score_pitch() / 4);
    let len = comptime!(tile.queries() * tile.score_pitch() / 4);

    // A unit's part of the sum goes where its first scores were; always added in the same order.
    scratch[row_at + row.part as usize] = Vector::new(row.sum);
    P::sync();
    let mut sum = 0.0f32.runtime();
    let mut part = 0u32;
    while part < row.parts {
        sum += scratch[row_at + part as usize].extract(0usize);
        part += 1;
    }
    P::sync();
    let (mine, theirs, log_sum) = join(row.top * comptime!(core::f32::consts::LN_2), sum, ending.before, keys);
    if ending.here && row.part == 0 {
        lse[ending.lse_at] = log_sum;
    }
    #[unroll]
    for batch in 0..comptime!(count.div_ceil(together)) {
        let here = comptime!(together.min(count - batch * together));
        #[unroll]
        for n in 0..here {
            let at = plane_at + comptime!(n * form.n / 4);
            let sums = out.index(comptime!(batch * together + n));
            P::store(sums, &mut scratch[at..len], comptime!(tile.score_pitch()), form);
        }
        P::sync();
        if ending.here {
            let mut quad = row.part;
            while quad < comptime!((here * form.n / 4) as u32) {
                store::<E, W>(
                    scratch[row_at + quad as usize],
                    comptime!(batch * together * form.n) + 4 * quad as usize,
                    mine,
                    theirs,
                    ending.at,
                    other,
                    ending.other_at,
                    ending.factor,
                    output,
                    dim,
                    finish,
                    keys,
                );
                quad += row.parts;
            }
        }
        P::sync();
    }
}

/// Writes columns `column..column + 4` of a row, `sums` times `mine`, with what is there already, times `theirs`, if keys are
/// counted, and with the other tensor as `finish` says.
#[cube]
#[allow(clippy::too_many_arguments)]
fn store<E: Float, W: Size>(
    sums: Vector<f32, C4>,
    column: usize,
    mine: f32,
    theirs: f32,
    at: usize,
    other: &Tensor<E>,
    other_row: usize,
    factor: f32,
    output: &mut [Vector<E, W>],
    #[comptime] dim: usize,
    #[comptime] finish: Finish,
    #[comptime] keys: Keys,
) {
    let width = W::value().comptime();
    #[unroll]
    for v in 0..comptime!(4 / width) {
        let first = column + comptime!(v * width);
        if first < comptime!(dim) {
            let place = (at * dim + first) / width;
            let mut result = Vector::<f32, W>::new(0.0f32);
            #[unroll]
            for e in 0..width {
                result.insert(e, sums.extract(comptime!(v * width + e)) * mine);
            }
            if comptime!(keys == Keys::Counted) {
                result += Vector::<f32, W>::cast_from(output[place]) * Vector::new(theirs);
            }
            if comptime!(finish != Finish::Output) {
                #[unroll]
                for e in 0..width {
                    let read = f32::cast_from(other[other_row + (first + e) * other.stride(3)]);
                    let this = result.extract(e);
                    if comptime!(finish == Finish::AddResidual) {
                        result.insert(e, read * factor + this);
                    } else {
                        result.insert(e, read - this);
                    }
                }
            }
            output[place] = Vector::cast_from(result);
        }
    }
}
