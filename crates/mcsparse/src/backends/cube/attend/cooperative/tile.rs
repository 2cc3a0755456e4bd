//! How a cube of the cooperative kernel cuts its work.

use super::super::super::cooperative::products::Form;

/// How a cube works; a part of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in super::super::super) struct Tile {
    /// Planes that multiply, each for `form.m` queries.
    pub planes: usize,
    /// Units of a plane, of the largest where the device has several.
    pub plane: usize,
    /// Whether all planes are of that size. Else a cube may have more planes than multiply.
    pub steady: bool,
    /// Keys of a tile.
    pub keys: usize,
    /// Sizes of a product.
    pub form: Form,
    /// Products are written out, for tests.
    pub emulated: bool,
    /// Inline PTX: one instruction for `2^x`.
    pub ptx: bool,
}

impl Tile {
    pub const fn queries(&self) -> usize {
        self.form.m * self.planes
    }

    pub const fn units(&self) -> usize {
        self.plane * self.planes
    }

    /// `dim` filled up with zeros to whole products.
    pub const fn padded(&self, dim: usize) -> usize {
        dim.next_multiple_of(self.form.unit())
    }

    /// Elements from one row of queries, keys or values to the next: 16 bytes beyond a multiple of 32, so that rows lie in
    /// different banks.
    pub const fn pitch(&self, dim: usize) -> usize {
        self.padded(dim) + 8
    }

    /// Elements from one row of weights to the next.
    pub const fn weight_pitch(&self) -> usize {
        self.keys + 8
    }

    /// Elements from one row of scores, or of sums that pass between matrices and units, to the next.
    pub const fn score_pitch(&self) -> usize {
        self.keys + 4
    }

    /// Rows that the memory of keys and values has: first the queries come through it.
    pub const fn stage_rows(&self) -> usize {
        if self.queries() > 2 * self.keys { self.queries() } else { 2 * self.keys }
    }

    pub const fn shared_bytes(&self, dim: usize) -> usize {
        2 * self.stage_rows() * self.pitch(dim) + self.queries() * (2 * self.weight_pitch() + 4 * self.score_pitch())
    }
}
