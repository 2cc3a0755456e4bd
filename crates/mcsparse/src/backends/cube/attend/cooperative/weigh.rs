//! Online softmax (Milakov and Gimelshein 2018) of scores that lie in shared memory, a few units a row.
//!
//! Sums in matrices can be multiplied by nothing on their way, so they are relative to a maximum that lags: it is raised, and the
//! sums taken out and put back, only where a score exceeds it by more than [`SLACK`]. Weights are then up to `2^SLACK` instead
//! of 1, which costs no precision in floating point. The idea is FlashAttention-4's.

use cubecl::prelude::*;

use super::{
    super::{super::cooperative::products::C4, super::fragment::exp2, shape::Keys},
    tile::Tile,
};

/// In powers of two: well inside of f16 with its largest 2^16.
const SLACK: f32 = 8.0;

/// Turns the row's scores into weights; returns its maximum, this unit's part of its sum, and the factor on everything summed so
/// far. Unit `part` of `parts` does its share, and finds the maximum over the whole row by itself.
#[cube]
#[allow(clippy::too_many_arguments)]
pub(super) fn weigh<E: Float>(
    scores: &Shared<[Vector<f32, C4>]>,
    weights: &mut Shared<[Vector<E, C4>]>,
    row: u32,
    part: u32,
    parts: u32,
    list: &[i32],
    at: usize,
    count: u32,
    exponent: f32,
    top: f32,
    sum: f32,
    #[comptime] tile: Tile,
    #[comptime] keys: Keys,
) -> (f32, f32, f32) {
    let from = row as usize * comptime!(tile.score_pitch() / 4);
    let mut largest = f32::new(-3.0e38);
    #[unroll]
    for quad in 0..comptime!(tile.keys / 4) {
        let powers = powers(scores[from + quad], list, at, comptime!(4 * quad as u32).runtime(), count, exponent, keys);
        #[unroll]
        for e in 0..4usize {
            largest = max(largest, powers.extract(e));
        }
    }
    let rises = largest > top + f32::new(SLACK);
    let new_top = select(rises, largest, top);
    let shrink = select(rises, power(top - new_top, tile.ptx), f32::new(1.0));
    let mut new_sum = sum * shrink;
    let to = row as usize * comptime!(tile.weight_pitch() / 4);
    let mut quad = part;
    while quad < comptime!((tile.keys / 4) as u32) {
        let powers = powers(scores[from + quad as usize], list, at, 4 * quad, count, exponent, keys);
        let mut weight = Vector::<f32, C4>::new(0.0f32);
        #[unroll]
        for e in 0..4usize {
            let this = power(powers.extract(e) - new_top, tile.ptx);
            weight.insert(e, this);
            new_sum += this;
        }
        weights[to + quad as usize] = Vector::cast_from(weight);
        quad += parts;
    }
    (new_top, new_sum, shrink)
}

/// The powers of two that four scores from the `first`-th key on stand for. Those of no key become as small as can be.
#[cube]
fn powers(
    scores: Vector<f32, C4>,
    list: &[i32],
    at: usize,
    first: u32,
    count: u32,
    exponent: f32,
    #[comptime] keys: Keys,
) -> Vector<f32, C4> {
    let mut powers = Vector::<f32, C4>::new(0.0f32);
    #[unroll]
    for e in 0..4usize {
        let key = first + comptime!(e as u32);
        let mut none = key >= count;
        let mut power = scores.extract(e) * exponent;
        if comptime!(keys == Keys::Counted) {
            let log_count = f32::reinterpret(list[at + min(key, count - 1) as usize] as u32);
            none = none || log_count < 0.0f32;
            power = fma(log_count, comptime!(core::f32::consts::LOG2_E).runtime(), power);
        }
        powers.insert(e, select(none, f32::new(-3.0e38), power));
    }
    powers
}

/// `2^x`. Not by [`super::super::super::fragment`]'s polynomial: its way to the nearest integer is rounding that shader compilers
/// take away (seen with Mesa's).
#[cube]
fn power(x: f32, #[comptime] ptx: bool) -> f32 {
    if comptime!(ptx) { exp2(x, true) } else { (x * comptime!(core::f32::consts::LN_2)).exp() }
}
