//! Tiles of keys and values on their way to shared memory: through registers, so that the next is fetched while this one is
//! computed, where they are read by vectors.

use cubecl::prelude::*;

use super::tile::Tile;

/// What is on its way.
#[derive(CubeType)]
pub(super) struct Bring<E: Float, N: Size> {
    keys: Array<Vector<E, N>>,
    values: Array<Vector<E, N>>,
    /// Tokens of what this unit brings next: looked up a tile ahead, since addresses depend on them.
    tokens: Array<u32>,
}

/// Vectors of `width` of a tile that a unit brings.
const fn per_unit(tile: Tile, dim: usize, width: usize) -> usize {
    (tile.keys * tile.padded(dim) / width).div_ceil(tile.units())
}

#[cube]
impl<E: Float, N: Size> Bring<E, N> {
    pub fn new(#[comptime] tile: Tile, #[comptime] dim: usize) -> Bring<E, N> {
        let width = N::value().comptime();
        Bring::<E, N> {
            keys: Array::new(comptime!(per_unit(tile, dim, width))),
            values: Array::new(comptime!(per_unit(tile, dim, width))),
            tokens: Array::new(comptime!(per_unit(tile, dim, width))),
        }
    }

    /// Notes the tokens of the tile at `start`; those past the last key repeat it.
    #[allow(clippy::too_many_arguments)]
    pub fn look_up(
        &mut self,
        indices: &[i32],
        list: usize,
        start: u32,
        count: u32,
        all_keys: u32,
        #[comptime] tile: Tile,
        #[comptime] dim: usize,
        #[comptime] gathered: bool,
    ) {
        let width = N::value().comptime();
        #[unroll]
        for i in 0..comptime!(per_unit(tile, dim, width)) {
            let row = place(i, tile) / comptime!(tile.padded(dim) / width);
            let at = min(start + row as u32, count - 1);
            if comptime!(gathered) {
                // Lists are clamped wherever they are read: a wrong one gives wrong values, never foreign memory.
                self.tokens[i] = min(indices[list + at as usize] as u32, all_keys - 1);
            } else {
                self.tokens[i] = at;
            }
        }
    }

    /// Starts bringing the tile of the noted tokens.
    pub fn fetch(
        &mut self,
        key: &Tensor<Vector<E, N>>,
        key_base: usize,
        value: &Tensor<Vector<E, N>>,
        value_base: usize,
        #[comptime] tile: Tile,
        #[comptime] dim: usize,
    ) {
        let width = N::value().comptime();
        #[unroll]
        for i in 0..comptime!(per_unit(tile, dim, width)) {
            let column = place(i, tile) % comptime!(tile.padded(dim) / width);
            let token = self.tokens[i] as usize;
            self.keys[i] = load::<E, N>(key, key_base + token * key.stride(2), column, tile, dim);
            self.values[i] = load::<E, N>(value, value_base + token * value.stride(2), column, tile, dim);
        }
    }

    /// Puts what was fetched into its place: keys, then values.
    pub fn arrive(&self, stage: &mut Shared<[Vector<E, N>]>, #[comptime] tile: Tile, #[comptime] dim: usize) {
        let width = N::value().comptime();
        let vectors = comptime!(tile.padded(dim) / width);
        let pitch = comptime!(tile.pitch(dim) / width);
        #[unroll]
        for i in 0..comptime!(per_unit(tile, dim, width)) {
            let (row, column) = (place(i, tile) / vectors, place(i, tile) % vectors);
            if comptime!((tile.keys * vectors).is_multiple_of(tile.units())) || row < comptime!(tile.keys) {
                stage[row * pitch + column] = self.keys[i];
                stage[(row + comptime!(tile.keys)) * pitch + column] = self.values[i];
            }
        }
    }
}

/// The number in the tile of the `i`-th vector that this unit brings.
#[cube]
fn place(#[comptime] i: usize, #[comptime] tile: Tile) -> usize {
    UNIT_POS as usize + comptime!(i * tile.units())
}

/// Vector `column` of the row that starts at element `base`, strided as it is; zeros past `dim`.
#[cube]
pub(super) fn load<E: Float, N: Size>(
    tensor: &Tensor<Vector<E, N>>,
    base: usize,
    column: usize,
    #[comptime] tile: Tile,
    #[comptime] dim: usize,
) -> Vector<E, N> {
    let width = N::value().comptime();
    let mut result = Vector::<E, N>::new(E::from_int(0i64));
    if comptime!(tile.padded(dim) == dim) || column < comptime!(dim / width) {
        if comptime!(width == 1) {
            result = tensor[base + column * tensor.stride(3)];
        } else {
            result = tensor[base / width + column];
        }
    }
    result
}
