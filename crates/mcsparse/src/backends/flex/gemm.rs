//! The two matrix products of attention, single-threaded: the parallelism is over groups.

use ::gemm::{Parallelism, gemm};

/// A matrix in a slice: element `(i, j)` at `i * row + j * column`.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub data: &'a [f32],
    pub row: isize,
    pub column: isize,
}

impl<'a> Matrix<'a> {
    /// `rows x columns`, row after row.
    pub fn packed(data: &'a [f32], columns: usize) -> Self {
        Self { data, row: columns as isize, column: 1 }
    }

    /// The transpose.
    pub fn t(self) -> Self {
        Self { row: self.column, column: self.row, ..self }
    }

    fn holds(&self, rows: usize, columns: usize) -> bool {
        let last = (rows - 1) as isize * self.row + (columns - 1) as isize * self.column;
        self.row >= 0 && self.column >= 0 && (last as usize) < self.data.len()
    }
}

/// `out = a b`, or `out += a b`; `a` is `m x k`, `b` is `k x n`, `out` is `m x n` row after row.
pub(super) fn product(out: &mut [f32], add: bool, a: Matrix, b: Matrix, [m, n, k]: [usize; 3]) {
    if m == 0 || n == 0 || k == 0 {
        return;
    }
    assert!(out.len() >= m * n && a.holds(m, k) && b.holds(k, n), "product: a matrix is smaller than {m} x {n} x {k}");
    // SAFETY: the assertion above bounds every element that the three matrices address; `out` is borrowed mutably, so it
    // overlaps neither input.
    unsafe {
        gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            add,
            a.data.as_ptr(),
            a.column,
            a.row,
            b.data.as_ptr(),
            b.column,
            b.row,
            1.0f32,
            1.0f32,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}
