//! Tiles of keys and values on their way into the shared memory of the matrix-unit kernel: by asynchronous copies where the
//! compiler has them, through registers where not.

use cubecl::prelude::*;

use super::{
    super::fragment::{BLOCK, C8, CHUNK, copy_chunk, load_chunk, wait_for_copies},
    mma::Tile,
};

/// Two buffers, and what is on its way.
#[derive(CubeType)]
pub(super) struct Tiles<E: Float> {
    pub keys: Shared<[Vector<E, C8>]>,
    pub values: Shared<[Vector<E, C8>]>,
    staged_keys: Array<Vector<E, C8>>,
    staged_values: Array<Vector<E, C8>>,
    /// Tokens of the chunks that this unit brings next: looked up a tile ahead, since addresses depend on them.
    tokens: Array<u32>,
}

/// Chunks of a tile that a unit brings.
const fn per_unit(tile: Tile, dim: usize) -> usize {
    (tile.keys * dim / CHUNK).div_ceil(tile.units())
}

/// Whether every unit brings as many.
const fn even(tile: Tile, dim: usize) -> bool {
    (tile.keys * dim / CHUNK).is_multiple_of(tile.units())
}

#[cube]
impl<E: Float> Tiles<E> {
    pub fn new(#[comptime] tile: Tile, #[comptime] dim: usize) -> Tiles<E> {
        let key_chunks = comptime!(2 * tile.keys * Tile::key_stride(dim));
        let value_chunks = comptime!(2 * tile.keys * Tile::value_stride(dim));
        let mut keys = Shared::<[Vector<E, C8>]>::new_aligned_slice(key_chunks, 16usize);
        let values = Shared::<[Vector<E, C8>]>::new_aligned_slice(value_chunks, 16usize);
        // Columns past head_dim meet zeros of the query; they must be numbers.
        if comptime!(!dim.is_multiple_of(BLOCK)) {
            let mut i = UNIT_POS as usize;
            while i < key_chunks {
                keys[i] = Vector::new(E::from_int(0i64));
                i += comptime!(tile.units());
            }
            sync_cube();
        }
        let staged = comptime!(if tile.async_copy { 1 } else { per_unit(tile, dim) });
        Tiles::<E> {
            keys,
            values,
            staged_keys: Array::new(staged),
            staged_values: Array::new(staged),
            tokens: Array::new(comptime!(per_unit(tile, dim))),
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
        #[unroll]
        for i in 0..comptime!(per_unit(tile, dim)) {
            let row = (comptime!((i * tile.units()) as u32) + UNIT_POS) / comptime!((dim / CHUNK) as u32);
            let place = min(start + row, count - 1);
            if comptime!(gathered) {
                self.tokens[i] = min(indices[list + place as usize] as u32, all_keys - 1);
            } else {
                self.tokens[i] = place;
            }
        }
    }

    /// Starts bringing the tile of the noted tokens to `buffer`.
    #[allow(clippy::too_many_arguments)]
    pub fn fetch<N: Size>(
        &mut self,
        key: &Tensor<Vector<E, N>>,
        key_base: usize,
        value: &Tensor<Vector<E, N>>,
        value_base: usize,
        buffer: usize,
        #[comptime] tile: Tile,
        #[comptime] dim: usize,
    ) {
        #[unroll]
        for i in 0..comptime!(per_unit(tile, dim)) {
            let (row, chunk) = place(i, tile, dim);
            let token = self.tokens[i] as usize;
            let from_key = key_base + token * key.stride(2);
            let from_value = value_base + token * value.stride(2);
            if comptime!(tile.async_copy) {
                if comptime!(even(tile, dim)) || row < comptime!(tile.keys as u32) {
                    let to_row = buffer * comptime!(tile.keys) + row as usize;
                    let to = to_row * comptime!(Tile::key_stride(dim)) + chunk as usize;
                    let at = from_key / comptime!(CHUNK) + chunk as usize;
                    copy_chunk::<Vector<E, N>, Vector<E, C8>>(key[at..at + 1].as_ptr(), self.keys[to..to + 1].as_ptr());
                    let to = to_row * comptime!(Tile::value_stride(dim)) + chunk as usize;
                    let at = from_value / comptime!(CHUNK) + chunk as usize;
                    copy_chunk::<Vector<E, N>, Vector<E, C8>>(
                        value[at..at + 1].as_ptr(),
                        self.values[to..to + 1].as_ptr(),
                    );
                }
            } else {
                self.staged_keys[i] = load_chunk::<E, N>(key, from_key, chunk, dim);
                self.staged_values[i] = load_chunk::<E, N>(value, from_value, chunk, dim);
            }
        }
    }

    /// Puts what was fetched into registers where it belongs.
    pub fn arrive(&mut self, buffer: usize, #[comptime] tile: Tile, #[comptime] dim: usize) {
        if comptime!(!tile.async_copy) {
            #[unroll]
            for i in 0..comptime!(per_unit(tile, dim)) {
                let (row, chunk) = place(i, tile, dim);
                if comptime!(even(tile, dim)) || row < comptime!(tile.keys as u32) {
                    let to_row = buffer * comptime!(tile.keys) + row as usize;
                    self.keys[to_row * comptime!(Tile::key_stride(dim)) + chunk as usize] = self.staged_keys[i];
                    self.values[to_row * comptime!(Tile::value_stride(dim)) + chunk as usize] = self.staged_values[i];
                }
            }
        }
    }

    /// Waits until the last tile is there for all units.
    pub fn wait(&self, #[comptime] tile: Tile) {
        if comptime!(tile.async_copy) {
            wait_for_copies();
        }
        sync_cube();
    }
}

/// Row and chunk of the `i`-th chunk that this unit brings.
#[cube]
fn place(#[comptime] i: usize, #[comptime] tile: Tile, #[comptime] dim: usize) -> (u32, u32) {
    let at = comptime!((i * tile.units()) as u32) + UNIT_POS;
    (at / comptime!((dim / CHUNK) as u32), at % comptime!((dim / CHUNK) as u32))
}
