//! Row-wise softmax arithmetic in loops that the compiler vectorises for the widest instructions of the machine.

use pulp::{Arch, Simd, WithSimd};

/// `exp(x)` within 2 units in the last place for `x <= 88`; 0 below -87.3; NaN stays NaN.
///
/// Cody and Waite's reduction and the polynomial of Cephes' `expf`; no branch, so that a loop over it vectorises.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const LOW: f32 = -87.3;
    // Adding 1.5 * 2^23 leaves the rounded integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x < LOW { LOW } else { x };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let mut p = 1.987_569_1e-4f32;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let value = p * r * r + r + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    if x < LOW { 0.0 } else { value * power }
}

const LANES: usize = 32;

#[inline(always)]
fn max_of(row: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = row.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a })
}

/// Replaces `row` by `exp(row - shift)` and returns the sum.
#[inline(always)]
fn exp_row(row: &mut [f32], shift: f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let mut chunks = row.chunks_exact_mut(LANES);
    for chunk in &mut chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *x = exp(*x - shift);
            *lane += *x;
        }
    }
    let mut sum = 0.0;
    for x in chunks.into_remainder() {
        *x = exp(*x - shift);
        sum += *x;
    }
    sum + lanes.iter().sum::<f32>()
}

/// One step of online softmax (Milakov and Gimelshein 2018) over a tile of scores.
///
/// Turns `scores` (`rows x width`) into weights relative to the new running maximum, rescales the accumulated `output`
/// (`rows x dim`) and `sum` to it.
pub(super) struct SoftmaxStep<'a> {
    pub scores: &'a mut [f32],
    pub width: usize,
    pub output: &'a mut [f32],
    pub dim: usize,
    pub max: &'a mut [f32],
    pub sum: &'a mut [f32],
}

impl SoftmaxStep<'_> {
    pub fn run(self) {
        Arch::new().dispatch(self);
    }
}

impl WithSimd for SoftmaxStep<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (i, row) in self.scores.chunks_exact_mut(self.width).enumerate() {
            let old = self.max[i];
            let tile = max_of(row);
            let new = if tile > old { tile } else { old };
            self.sum[i] = if new > old {
                let shrink = exp(old - new);
                self.output[i * self.dim..][..self.dim].iter_mut().for_each(|o| *o *= shrink);
                self.sum[i] * shrink
            } else {
                self.sum[i]
            } + exp_row(row, new);
            self.max[i] = new;
        }
    }
}

/// Adds `exp(score - lse)` of each row of `scores` (`rows x width`) to `mass` (`width`).
pub(super) struct ColumnSums<'a> {
    pub scores: &'a [f32],
    pub width: usize,
    pub lse: &'a [f32],
    pub mass: &'a mut [f32],
}

impl ColumnSums<'_> {
    pub fn run(self) {
        Arch::new().dispatch(self);
    }
}

impl WithSimd for ColumnSums<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (row, &lse) in self.scores.chunks_exact(self.width).zip(self.lse) {
            for (mass, &score) in self.mass.iter_mut().zip(row) {
                *mass += exp(score - lse);
            }
        }
    }
}

/// A key that sorts floats from the largest down, equal ones by `index`, NaN last.
pub(super) fn descending(value: f32, index: u32) -> u64 {
    let ascending = if value.is_nan() {
        0
    } else {
        // -0 and 0 are equal.
        let bits = (value + 0.0).to_bits();
        if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
    };
    u64::from(!ascending) << 32 | u64::from(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units() {
        for i in -870..880 {
            for fraction in [0.0, 0.013, 0.5, 0.77] {
                let x = (i as f32 + fraction) * 0.1;
                let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
                assert!((got - want).abs() <= 2.4e-7 * want, "exp({x}): {got} and not {want}");
            }
        }
        assert_eq!([exp(-1e30), exp(f32::NEG_INFINITY)], [0.0, 0.0]);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn descending_orders_values_then_indices() {
        let values = [3.0, f32::INFINITY, f32::NAN, -1.0, 3.0, 0.0, -0.0, f32::NEG_INFINITY];
        let mut keys: Vec<u64> = values.iter().zip(0..).map(|(&v, i)| descending(v, i)).collect();
        keys.sort_unstable();
        let order: Vec<u32> = keys.iter().map(|&k| k as u32).collect();
        assert_eq!(order, [1, 0, 4, 5, 6, 3, 7, 2]);
    }
}
