//! Online softmax (Milakov and Gimelshein 2018) of a unit's two rows. The scores themselves are in [`super::step`]'s
//! registers.

use cubecl::prelude::*;

use super::{
    super::super::{
        fragment::{C2, exp2},
        hopper::operand::any,
    },
    step::{finish, greatest, rescale},
};

/// Powers of two that a row's maximum may rise before what is summed so far is rescaled (as in FlashAttention-4):
/// weights of up to 256 are as exact in 16 bits as those of up to 1.
const SLACK: f32 = 8.0;

/// Ends the step before, and raises the maxima to those of the new scores where some unit of the plane has one that rose by
/// more than [`SLACK`].
#[cube]
pub(super) fn rise(
    top: Vector<f32, C2>,
    exponent: f32,
    full_values: u32,
    parity: u32,
    #[comptime] dim: usize,
) -> Vector<f32, C2> {
    let risen = greatest(top);
    // The products of the step before ran beside that.
    finish(risen, full_values, parity);
    let by = (risen - top) * Vector::new(exponent);
    let mut result = top;
    if any(max(by.extract(0usize), by.extract(1usize)) > comptime!(SLACK).runtime()) {
        let mut factors = Vector::<f32, C2>::new(exp2(-by.extract(0usize), true));
        factors.insert(1usize, exp2(-by.extract(1usize), true));
        rescale(factors, dim);
        result = risen;
    }
    result
}
