//! What a plane does with a tile of keys.

use cubecl::prelude::*;

use super::{
    super::{
        super::cooperative::products::{C4, Products},
        shape::{Keys, Sizes},
    },
    tile::Tile,
    weigh::weigh,
};

/// The row of scores that this unit works on, one of `parts` units.
#[derive(CubeType)]
pub(super) struct Row {
    /// The first row of its plane.
    pub first: u32,
    pub row: u32,
    pub part: u32,
    pub parts: u32,
    /// What weights are relative to: a power of two.
    pub top: f32,
    /// This unit's part of the sum of weights.
    pub sum: f32,
}

#[cube]
impl Row {
    /// Before the first key. `lane` is the unit in its plane.
    pub fn new(first: u32, lane: u32, parts: u32) -> Row {
        Row {
            first,
            row: first + lane / parts,
            part: lane % parts,
            parts,
            top: f32::new(-3.0e38),
            sum: 0.0f32.runtime(),
        }
    }
}

/// Scores of a tile of keys, their weights, and what these add to the output.
#[cube]
#[allow(clippy::too_many_arguments)]
#[allow(clippy::if_same_then_else)] // the first at compile time, the second at run time
pub(super) fn step<E: Float, N: Size, P: Products<E>>(
    queries: &Sequence<P::Left>,
    stage: &Shared<[Vector<E, N>]>,
    scores: &mut Shared<[Vector<f32, C4>]>,
    weights: &mut Shared<[Vector<E, C4>]>,
    row: &mut Row,
    out: &mut Sequence<P::Sums>,
    list: &[i32],
    list_at: usize,
    start: u32,
    sizes: &Sizes,
    #[comptime] tile: Tile,
    #[comptime] dim: usize,
    #[comptime] keys: Keys,
) {
    let width = N::value().comptime();
    let form = comptime!(tile.form);
    let padded = comptime!(tile.padded(dim));
    let pitch = comptime!(tile.pitch(dim));
    let stage_len = comptime!(tile.stage_rows() * pitch / width);
    let scores_at = row.first as usize * comptime!(tile.score_pitch() / 4);
    let scores_len = comptime!(tile.queries() * tile.score_pitch() / 4);

    let mut sums = Sequence::<P::Sums>::new();
    #[unroll]
    for _ in 0..comptime!(tile.keys / form.n) {
        sums.push(P::zero(form));
    }
    #[unroll]
    for b in 0..comptime!(padded / form.k) {
        #[unroll]
        for n in 0..comptime!(tile.keys / form.n) {
            let at = comptime!((n * form.n * pitch + b * form.k) / width);
            let right = P::right::<N>(&stage[at..stage_len], pitch, form, true);
            P::add(queries.index(b), &right, sums.index_mut(n), form);
        }
    }
    #[unroll]
    for n in 0..comptime!(tile.keys / form.n) {
        let at = scores_at + comptime!(n * form.n / 4);
        P::store(sums.index(n), &mut scores[at..scores_len], comptime!(tile.score_pitch()), form);
    }
    P::sync();

    let (top, sum, shrink) = weigh::<E>(
        &*scores,
        weights,
        row.row,
        row.part,
        row.parts,
        list,
        list_at + start as usize,
        sizes.keys - start,
        sizes.scale.abs() * comptime!(core::f32::consts::LOG2_E),
        row.top,
        row.sum,
        tile,
        keys,
    );
    row.top = top;
    row.sum = sum;
    P::sync();

    if comptime!(tile.emulated) {
        rescale::<E, P>(out, shrink, scores, &*row, tile, dim);
    } else if P::any(shrink != 1.0f32) && start > 0 {
        rescale::<E, P>(out, shrink, scores, &*row, tile, dim);
    }
    let weights_at = row.first as usize * comptime!(tile.weight_pitch() / 4);
    let weights_len = comptime!(tile.queries() * tile.weight_pitch() / 4);
    #[unroll]
    for k in 0..comptime!(tile.keys / form.k) {
        let at = weights_at + comptime!(k * form.k / 4);
        let left = P::left::<C4>(&weights[at..weights_len], comptime!(tile.weight_pitch()), form);
        #[unroll]
        for c in 0..comptime!(padded / form.n) {
            let at = comptime!(((tile.keys + k * form.k) * pitch + c * form.n) / width);
            let right = P::right::<N>(&stage[at..stage_len], pitch, form, false);
            P::add(&left, &right, out.index_mut(c), form);
        }
    }
}

/// Multiplies the sums of the output by `shrink`, each row by that of its units.
#[cube]
fn rescale<E: Float, P: Products<E>>(
    out: &mut Sequence<P::Sums>,
    shrink: f32,
    scratch: &mut Shared<[Vector<f32, C4>]>,
    row: &Row,
    #[comptime] tile: Tile,
    #[comptime] dim: usize,
) {
    let form = comptime!(tile.form);
    let count = comptime!(tile.padded(dim) / form.n);
    let together = comptime!(tile.keys / form.n);
    let plane_at = row.first as usize * comptime!(tile.score_pitch() / 4);
    let row_at = row.row as usize * comptime!(tile.score_pitch() / 4);
    let len = comptime!(tile.queries() * tile.score_pitch() / 4);
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
        let mut quad = row.part;
        while quad < comptime!((here * form.n / 4) as u32) {
            scratch[row_at + quad as usize] *= Vector::new(shrink);
            quad += row.parts;
        }
        P::sync();
        #[unroll]
        for n in 0..here {
            let at = plane_at + comptime!(n * form.n / 4);
            let sums = out.index_mut(comptime!(batch * together + n));
            P::load(sums, &scratch[at..len], comptime!(tile.score_pitch()), form);
        }
        P::sync();
    }
}
