//! Online softmax (Milakov and Gimelshein 2018) of scores that lie in registers as matrix units leave them.

use cubecl::prelude::*;

use super::{
    super::fragment::{C2, Operand, Sums, exp2, row_max},
    mma::Tile,
    shape::Keys,
};

/// Running maximum and sum of this unit's rows: `r` and `r + 8` of each strip. The maximum is that of the four units of a
/// row, the sum this unit's own share.
#[derive(CubeType)]
pub(super) struct Rows {
    pub top: Array<f32>,
    pub sum: Array<f32>,
}

#[cube]
impl Rows {
    /// Before the first key.
    pub fn new(#[comptime] count: usize) -> Rows {
        let mut top = Array::<f32>::new(count);
        let mut sum = Array::<f32>::new(count);
        #[unroll]
        for i in 0..count {
            top[i] = f32::new(-3.0e38);
            sum[i] = 0.0f32;
        }
        Rows { top, sum }
    }

    /// Raises the maximum of row `i` to that of the new scores; returns the factor on everything summed so far.
    pub fn rise(
        &mut self,
        scores: &Sequence<Sums>,
        #[comptime] i: usize,
        exponent: f32,
        #[comptime] tile: Tile,
    ) -> f32 {
        let old = self.top[i];
        let mut top = old;
        #[unroll]
        for n in 0..comptime!(tile.keys / 8) {
            let pair = scores.index(comptime!(i / 2 * tile.keys / 8 + n))[comptime!(i % 2)];
            top = max(top, max(pair.extract(0usize), pair.extract(1usize)));
        }
        top = row_max(top);
        self.top[i] = top;
        let shrink = exp2((old - top) * exponent, tile.ptx);
        self.sum[i] *= shrink;
        shrink
    }
}

/// Where two parts of the keys meet: what the sums of this one are to be multiplied by, what the output of the other, and
/// the log-sum-exp of both. This part's exponentials are relative to `top` and add up to `sum`; the log-sum-exp of the other
/// is `before`, where there is one.
#[cube]
pub(super) fn join(top: f32, sum: f32, before: f32, #[comptime] keys: Keys) -> (f32, f32, f32) {
    let mut mine = 1.0f32 / sum;
    let mut theirs = 0.0f32;
    let mut log_sum = top + sum.ln();
    if comptime!(keys == Keys::Counted) {
        // The larger sets the scale, so that nothing overflows (Milakov and Gimelshein 2018).
        let common = max(top, before);
        let here = (top - common).exp();
        let there = (before - common).exp();
        let total = sum * here + there;
        mine = here / total;
        theirs = there / total;
        log_sum = common + total.ln();
    }
    (mine, theirs, log_sum)
}

/// Scores become those of as many keys as the list says from `at` on (see [`Keys::Counted`]): the logarithm is added, in units
/// of the scores. Those of no key, and of keys from `count` on, become as small as can be.
#[cube]
pub(super) fn weigh(
    scores: &mut Sequence<Sums>,
    list: &[i32],
    at: usize,
    count: u32,
    c: u32,
    exponent: f32,
    #[comptime] tile: Tile,
) {
    let unit = comptime!(core::f32::consts::LOG2_E) / exponent;
    #[unroll]
    for n in 0..comptime!(tile.keys / 8) {
        #[unroll]
        for e in 0..2usize {
            let key = comptime!((8 * n + e) as u32) + 2 * c;
            let log_count = f32::reinterpret(list[at + min(key, count - 1) as usize] as u32);
            let none = key >= count || log_count < 0.0f32;
            #[unroll]
            for s in 0..comptime!(tile.strips) {
                let sums = scores.index_mut(comptime!(s * tile.keys / 8 + n));
                #[unroll]
                for h in 0..2usize {
                    let mut kept = sums[h];
                    kept.insert(e, select(none, f32::new(-3.0e38), fma(log_count, unit, kept.extract(e))));
                    sums[h] = kept;
                }
            }
        }
    }
}

/// Scores of keys from `count` on become as small as can be.
#[cube]
pub(super) fn forget_past(scores: &mut Sequence<Sums>, count: u32, c: u32, #[comptime] tile: Tile) {
    if count < comptime!(tile.keys as u32) {
        #[unroll]
        for n in 0..comptime!(tile.strips * tile.keys / 8) {
            let sums = scores.index_mut(n);
            #[unroll]
            for e in 0..2usize {
                let past = comptime!((8 * (n % (tile.keys / 8)) + e) as u32) + 2 * c >= count;
                #[unroll]
                for h in 0..2usize {
                    let mut kept = sums[h];
                    kept.insert(e, select(past, f32::new(-3.0e38), kept.extract(e)));
                    sums[h] = kept;
                }
            }
        }
    }
}

/// Weights of the `k`-th 16 keys for strip `s`, as a left operand: two tiles of sums are one. They are added to the rows'
/// sums unrounded.
#[cube]
pub(super) fn weights<E: Float>(
    scores: &Sequence<Sums>,
    rows: &mut Rows,
    #[comptime] s: usize,
    #[comptime] k: usize,
    exponent: f32,
    #[comptime] tile: Tile,
) -> Operand<E> {
    let mut operand = Array::<Vector<E, C2>>::new(4usize);
    #[unroll]
    for n in 0..2usize {
        #[unroll]
        for h in 0..2usize {
            let score = scores.index(comptime!(s * tile.keys / 8 + 2 * k + n))[h];
            let offset = rows.top[comptime!(2 * s + h)] * exponent;
            let mut weight = Vector::<f32, C2>::new(exp2(fma(score.extract(0usize), exponent, -offset), tile.ptx));
            weight.insert(1usize, exp2(fma(score.extract(1usize), exponent, -offset), tile.ptx));
            rows.sum[comptime!(2 * s + h)] += weight.extract(0usize) + weight.extract(1usize);
            operand[comptime!(2 * n + h)] = Vector::cast_from(weight);
        }
    }
    operand
}
