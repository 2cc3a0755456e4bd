//! The few things that are done with cooperative matrices.

use cubecl::{
    cmma::{self, MatrixIdent, MatrixLayout},
    prelude::*,
};

pub(in super::super) type C4 = Const<4>;

/// Sizes of a product: rows of the left operand, columns of the right one, and the inner dimension.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in super::super) struct Form {
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

impl Form {
    /// Whether the kernels can work with it on planes of at least `units`.
    pub fn suits(&self, units: usize) -> bool {
        // Rows are shared out to units evenly, and sums are read by vectors of four.
        self.m.is_power_of_two()
            && units.is_multiple_of(self.m)
            && [16, 8].contains(&self.n)
            && [16, 8].contains(&self.k)
    }

    /// What the sizes of keys and columns are multiples of.
    pub const fn unit(&self) -> usize {
        if self.n > self.k { self.n } else { self.k }
    }
}

/// Matrices of one plane. Operands are loaded from shared memory, row after row `stride` elements apart; every unit of the
/// plane takes part in everything.
#[cube]
pub(in super::super) trait Products<E: Float>: 'static + Send + Sync {
    /// `m x k`, of type `E`.
    type Left: CubeType;
    /// `k x n`, of type `E`.
    type Right: CubeType;
    /// `m x n`, in f32.
    type Sums: CubeType;

    /// The plane in the cube.
    fn plane() -> u32;
    /// The unit in the plane.
    fn lane() -> u32;
    /// Units of a plane.
    fn lanes() -> u32;
    /// What the plane's units wrote to shared memory before is there for all of them after.
    fn sync();
    /// Whether it is so for any unit of the plane.
    fn any(flag: bool) -> bool;

    fn zero(#[comptime] form: Form) -> Self::Sums;
    fn left<N: Size>(from: &[Vector<E, N>], #[comptime] stride: usize, #[comptime] form: Form) -> Self::Left;
    /// The memory has rows of the operand, or columns if it is `transposed`.
    fn right<N: Size>(
        from: &[Vector<E, N>],
        #[comptime] stride: usize,
        #[comptime] form: Form,
        #[comptime] transposed: bool,
    ) -> Self::Right;
    /// Adds `left * right` to `sums`.
    fn add(left: &Self::Left, right: &Self::Right, sums: &mut Self::Sums, #[comptime] form: Form);
    fn store(sums: &Self::Sums, to: &mut [Vector<f32, C4>], #[comptime] stride: usize, #[comptime] form: Form);
    fn load(sums: &mut Self::Sums, from: &[Vector<f32, C4>], #[comptime] stride: usize, #[comptime] form: Form);
}

/// The device's own.
pub(in super::super) struct Cooperative;

#[cube]
impl<E: Float> Products<E> for Cooperative {
    type Left = cmma::Matrix<E>;
    type Right = cmma::Matrix<E>;
    type Sums = cmma::Matrix<f32>;

    fn plane() -> u32 {
        PLANE_POS
    }

    fn lane() -> u32 {
        UNIT_POS_PLANE
    }

    fn lanes() -> u32 {
        PLANE_DIM
    }

    fn sync() {
        sync_plane();
    }

    fn any(flag: bool) -> bool {
        plane_any(flag)
    }

    fn zero(#[comptime] form: Form) -> cmma::Matrix<f32> {
        cmma::Matrix::<f32>::from_value(
            MatrixIdent::Accumulator,
            form.m,
            form.n,
            form.k,
            MatrixLayout::Undefined,
            0.0f32,
        )
    }

    fn left<N: Size>(from: &[Vector<E, N>], #[comptime] stride: usize, #[comptime] form: Form) -> cmma::Matrix<E> {
        // SAFETY: loaded right below.
        let mut operand =
            unsafe { cmma::Matrix::<E>::uninitialized(MatrixIdent::A, form.m, form.n, form.k, MatrixLayout::RowMajor) };
        cmma::load(&mut operand, from, comptime!(stride as u32));
        operand
    }

    fn right<N: Size>(
        from: &[Vector<E, N>],
        #[comptime] stride: usize,
        #[comptime] form: Form,
        #[comptime] transposed: bool,
    ) -> cmma::Matrix<E> {
        let layout = comptime!(if transposed { MatrixLayout::ColMajor } else { MatrixLayout::RowMajor });
        // SAFETY: loaded right below.
        let mut operand = unsafe { cmma::Matrix::<E>::uninitialized(MatrixIdent::B, form.m, form.n, form.k, layout) };
        cmma::load(&mut operand, from, comptime!(stride as u32));
        operand
    }

    fn add(left: &cmma::Matrix<E>, right: &cmma::Matrix<E>, sums: &mut cmma::Matrix<f32>, #[comptime] _form: Form) {
        cmma::execute(left, right, &*sums, &*sums);
    }

    fn store(sums: &cmma::Matrix<f32>, to: &mut [Vector<f32, C4>], #[comptime] stride: usize, #[comptime] _form: Form) {
        cmma::store(to, sums, comptime!(stride as u32), MatrixLayout::RowMajor);
    }

    fn load(
        sums: &mut cmma::Matrix<f32>,
        from: &[Vector<f32, C4>],
        #[comptime] stride: usize,
        #[comptime] _form: Form,
    ) {
        cmma::load_with_layout(sums, from, comptime!(stride as u32), MatrixLayout::RowMajor);
    }
}
