//! Cooperative matrices written out for devices that have none: what tests run the kernels with there. A plane is 32
//! neighbouring units, of which several share a row of the sums; each keeps that row of the left operand and the columns of the
//! right one that meet there.

use cubecl::prelude::*;

use super::products::{C4, Form, Products};

/// Units of a plane.
pub(in super::super) const PLANE: usize = 32;

/// Columns of the sums that a unit has.
const fn columns(form: Form) -> usize {
    form.n * form.m / PLANE
}

/// Loops over registers.
pub(in super::super) struct Emulated;

#[cube]
impl<E: Float> Products<E> for Emulated {
    type Left = Array<f32>;
    type Right = Array<f32>;
    type Sums = Array<f32>;

    fn plane() -> u32 {
        UNIT_POS / comptime!(PLANE as u32)
    }

    fn lane() -> u32 {
        UNIT_POS % comptime!(PLANE as u32)
    }

    fn lanes() -> u32 {
        comptime!(PLANE as u32).runtime()
    }

    fn sync() {
        sync_cube();
    }

    /// Barriers are of the whole cube here, so all planes must go the same way.
    fn any(_flag: bool) -> bool {
        true.runtime()
    }

    fn zero(#[comptime] form: Form) -> Array<f32> {
        let mut sums = Array::<f32>::new(comptime!(columns(form)));
        #[unroll]
        for i in 0..comptime!(columns(form)) {
            sums[i] = 0.0f32;
        }
        sums
    }

    fn left<N: Size>(from: &[Vector<E, N>], #[comptime] stride: usize, #[comptime] form: Form) -> Array<f32> {
        let width = N::value().comptime();
        let row = row(form) * comptime!(stride / width);
        let mut operand = Array::<f32>::new(comptime!(form.k));
        for v in 0..comptime!(form.k / width) {
            let vector = from[row + v];
            #[unroll]
            for e in 0..width {
                operand[v * width + e] = f32::cast_from(vector.extract(e));
            }
        }
        operand
    }

    fn right<N: Size>(
        from: &[Vector<E, N>],
        #[comptime] stride: usize,
        #[comptime] form: Form,
        #[comptime] transposed: bool,
    ) -> Array<f32> {
        let width = N::value().comptime();
        let first = first_column(form);
        let mut operand = Array::<f32>::new(comptime!(form.k * columns(form)));
        if comptime!(transposed) {
            for v in 0..comptime!(columns(form) * form.k / width) {
                let (column, step) = (v / comptime!(form.k / width), v % comptime!(form.k / width) * width);
                let vector = from[((first + column) * stride + step) / width];
                #[unroll]
                for e in 0..width {
                    operand[column * comptime!(form.k) + step + e] = f32::cast_from(vector.extract(e));
                }
            }
        } else {
            for v in 0..comptime!(columns(form) * form.k / width) {
                let (step, column) =
                    (v / comptime!(columns(form) / width), v % comptime!(columns(form) / width) * width);
                let vector = from[(step * stride + first + column) / width];
                #[unroll]
                for e in 0..width {
                    operand[(column + e) * comptime!(form.k) + step] = f32::cast_from(vector.extract(e));
                }
            }
        }
        operand
    }

    fn add(left: &Array<f32>, right: &Array<f32>, sums: &mut Array<f32>, #[comptime] form: Form) {
        for step in 0..comptime!(form.k) {
            #[unroll]
            for column in 0..comptime!(columns(form)) {
                sums[column] += left[step] * right[comptime!(column * form.k) + step];
            }
        }
    }

    fn store(sums: &Array<f32>, to: &mut [Vector<f32, C4>], #[comptime] stride: usize, #[comptime] form: Form) {
        let at = row(form) * comptime!(stride / 4) + first_column(form) / 4;
        #[unroll]
        for c in 0..comptime!(columns(form) / 4) {
            let mut vector = Vector::<f32, C4>::new(0.0f32);
            #[unroll]
            for e in 0..4usize {
                vector.insert(e, sums[comptime!(4 * c + e)]);
            }
            to[at + c] = vector;
        }
    }

    fn load(sums: &mut Array<f32>, from: &[Vector<f32, C4>], #[comptime] stride: usize, #[comptime] form: Form) {
        let at = row(form) * comptime!(stride / 4) + first_column(form) / 4;
        #[unroll]
        for c in 0..comptime!(columns(form) / 4) {
            let vector = from[at + c];
            #[unroll]
            for e in 0..4usize {
                sums[comptime!(4 * c + e)] = vector.extract(e);
            }
        }
    }
}

/// The row of this unit.
#[cube]
fn row(#[comptime] form: Form) -> usize {
    (UNIT_POS % comptime!(PLANE as u32)) as usize / comptime!(PLANE / form.m)
}

/// The first column of this unit.
#[cube]
fn first_column(#[comptime] form: Form) -> usize {
    (UNIT_POS % comptime!(PLANE as u32)) as usize % comptime!(PLANE / form.m) * comptime!(columns(form))
}
