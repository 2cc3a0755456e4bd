//! Gram matrices of f16 and bf16 rows by matrix units: `mma.sync` on tiles of 16 by 8 by 16, accumulated in f32.
//!
//! Products of such rows are exact in f32, so the matrix is centred afterwards.

use cubecl::{cmma, cmma::MatrixIdent, prelude::*};

use super::{
    plan::Tiling,
    power,
    rows::{Sizes, place},
};

/// Units of a plane.
pub(super) const PLANE: usize = 32;
/// The longest rows: their Gram matrix takes half of the registers of a full cube.
pub(super) const MAX_DIM: usize = 128;
/// Elements of the 16 bytes that a unit loads and `ldmatrix` takes a line by.
pub(super) const VECTOR: usize = 8;
/// Loads in flight for each unit. One more, and two full cubes would no longer fit the registers of a multiprocessor.
const LOADS: usize = 3;
/// Rows in shared memory at a time.
const ROWS: usize = LOADS * TILE;
/// Rows and columns of the tiles that the Gram matrix is computed in.
const TILE: usize = 16;
/// Neighbouring units that hold one row of an accumulator between them.
const QUAD: usize = 4;

/// Units of a cube: as many planes as a row has tiles.
pub(super) const fn units(dim: usize) -> u32 {
    (PLANE * dim / TILE) as u32
}

/// Rows of tiles that a plane takes, and planes that share them: two by two, fewer lines of shared memory are read for the
/// same products than one by one.
const fn rows_of_tiles(dim: usize) -> usize {
    if (dim / TILE).is_multiple_of(2) { 2 } else { 1 }
}

/// As [`super::gram::gram`], with the same arguments and results.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn gram_mma<E: Float, N: Size>(
    query: &Tensor<Vector<E, N>>,
    order: &[i32],
    table: &[u32],
    start: &[f32],
    result: &mut [f32],
    centres: &mut [f32],
    sizes: Sizes,
    #[comptime] tiling: Tiling,
    #[comptime] whole: bool,
    #[define(E)] _dtype: ElemType,
) {
    let dim = comptime!(tiling.dim);
    let tiles = comptime!(tiling.dim / TILE);
    let high = comptime!(rows_of_tiles(tiling.dim));
    let wide = comptime!(tiling.dim / TILE / rows_of_tiles(tiling.dim));
    let lines = comptime!(tiling.dim / VECTOR);
    // An odd number of lines from row to row, so that `ldmatrix` finds eight rows in different banks.
    let pitch = comptime!(tiling.dim / VECTOR + 1);
    let place = place(query, table, &sizes, sizes.chunks);
    if !place.exists || place.lower == 0 {
        terminate!();
    }
    let length = place.len.div_ceil(sizes.chunks);
    let begin = min(place.part * length, place.len);
    let count = min(length, place.len - begin);
    let from = place.order + (place.first + begin) as usize;

    let def = cmma::MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize);
    let size_in = def.vector_size(MatrixIdent::A);
    let size!(NI) = size_in;
    let size_out = def.vector_size(MatrixIdent::Accumulator);
    let size!(NO) = size_out;
    let mut gram = Sequence::<Array<Vector<f32, NO>>>::new();
    #[unroll]
    for _ in 0..2 * tiles {
        let mut tile = Array::<Vector<f32, NO>>::new(2usize);
        tile[0] = Vector::new(0.0f32);
        tile[1] = Vector::new(0.0f32);
        gram.push(tile);
    }
    // The columns of one tile times ones: sums of the rows. Planes that share tiles take one each.
    let mut sums = Array::<Vector<f32, NO>>::new(2usize);
    sums[0] = Vector::new(0.0f32);
    sums[1] = Vector::new(0.0f32);
    let mut ones = Array::<Vector<E, NI>>::new(2usize);
    ones[0] = Vector::new(E::from_int(1));
    ones[1] = Vector::new(E::from_int(1));

    let unit = UNIT_POS as usize;
    let (plane, lane) = (unit / PLANE, unit % PLANE);
    let (first_row, first_column) = (plane / high * high, plane % high * wide);
    // What this unit loads, and where `ldmatrix` looks for this lane's line: of four matrices, the first two are the first
    // eight rows of a tile of columns.
    let (slot, line) = (unit / lines, unit % lines);
    let at_lane = (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2;

    let mut shared = Shared::<[Vector<E, N>]>::new_slice(comptime!(2 * ROWS * (tiling.dim / VECTOR + 1)));
    let mut tokens = Array::<i32>::new(LOADS);
    let mut ahead = Array::<Vector<E, N>>::new(LOADS);
    // Two loads depend on each other, so tokens are fetched two steps ahead and rows one.
    fetch_tokens(order, from, slot as u32, count, &mut tokens);
    fetch_rows(query, place.base, slot as u32, count, &tokens, line * VECTOR, &mut ahead);
    fetch_tokens(order, from, (ROWS + slot) as u32, count, &mut tokens);
    let mut done = 0u32;
    let mut half = 0usize;
    while done < count {
        #[unroll]
        for s in 0..LOADS {
            shared[half + (slot + TILE * s) * pitch + line] = ahead[s];
        }
        // One barrier a step is enough: what is written next was last read before it.
        sync_cube();
        let next = done + comptime!(ROWS as u32) + slot as u32;
        fetch_rows(query, place.base, next, count, &tokens, line * VECTOR, &mut ahead);
        fetch_tokens(order, from, next + comptime!(ROWS as u32), count, &mut tokens);
        #[unroll]
        for k in 0..LOADS {
            let at = half + k * TILE * pitch + at_lane;
            let mut own = Sequence::<Array<Vector<E, NI>>>::new();
            #[unroll]
            for i in 0..high {
                let own_at = at + 2 * (first_row + i);
                let tile =
                    def.load_matrix::<Vector<E, N>, NI>(&shared[own_at..own_at + 1], MatrixIdent::A, 4usize, true);
                if plane % high == i {
                    def.execute_inplace(&tile, &ones, &mut sums);
                }
                own.push(tile);
            }
            #[unroll]
            for t in 0..wide {
                // As a right operand the same registers are two tiles of eight columns.
                let other_at = at + 2 * (first_column + t);
                let other =
                    def.load_matrix::<Vector<E, N>, NI>(&shared[other_at..other_at + 1], MatrixIdent::A, 4usize, true);
                let mut left = Array::<Vector<E, NI>>::new(2usize);
                left[0] = other[0];
                left[1] = other[2];
                let mut right = Array::<Vector<E, NI>>::new(2usize);
                right[0] = other[1];
                right[1] = other[3];
                #[unroll]
                for i in 0..high {
                    def.execute_inplace(own.index(i), &left, gram.index_mut(2 * (i * wide + t)));
                    def.execute_inplace(own.index(i), &right, gram.index_mut(2 * (i * wide + t) + 1));
                }
            }
        }
        half = comptime!(ROWS * (tiling.dim / VECTOR + 1)) - half;
        done += comptime!(ROWS as u32);
    }

    // Lane (g, q) holds columns 2 q and 2 q + 1 of rows g and g + 8 of each tile of eight columns.
    let (g, q) = (lane / QUAD, lane % QUAD);
    let row = first_row * TILE + g;
    let column = first_column * TILE + 2 * q;
    let mut centre = Shared::<[f32]>::new_slice(comptime!(tiling.dim));
    let weight = 1.0f32 / f32::cast_from(max(count, 1u32));
    if q == 0 {
        #[unroll]
        for h in 0..2usize {
            centre[plane * TILE + g + 8 * h] = sums[h].extract(0usize) * weight;
        }
    }
    sync_cube();
    #[unroll]
    for j in 0..2 * wide {
        #[unroll]
        for i in 0..high {
            #[unroll]
            for h in 0..2usize {
                let sum = centre[row + TILE * i + 8 * h] * f32::cast_from(count);
                let mut value = gram.index(2 * i * wide + j)[h];
                #[unroll]
                for e in 0..2usize {
                    value.insert(e, value.extract(e) - sum * centre[column + 8 * j + e]);
                }
                gram.index_mut(2 * i * wide + j)[h] = value;
            }
        }
    }

    let at = place.node * sizes.chunks as usize + place.part as usize;
    if unit < dim {
        centres[at * dim + unit] = centre[unit];
    }
    if comptime!(whole) {
        let partials = comptime!(QUAD * rows_of_tiles(tiling.dim));
        let mut products = Shared::<[f32]>::new_slice(comptime!(power::power_scratch(&tiling, partials)));
        let mut direction = Shared::<[f32]>::new_slice(comptime!(tiling.dim));
        power::begin(start, &mut direction, tiling);
        for _ in 0..sizes.iterations {
            #[unroll]
            for i in 0..high {
                #[unroll]
                for h in 0..2usize {
                    let mut sum = 0.0f32;
                    #[unroll]
                    for j in 0..2 * wide {
                        #[unroll]
                        for e in 0..2usize {
                            sum += gram.index(2 * i * wide + j)[h].extract(e) * direction[column + 8 * j + e];
                        }
                    }
                    let to = (row + TILE * i + 8 * h) * comptime!(partials + 1);
                    products[to + plane % high * QUAD + q] = sum;
                }
            }
            power::finish(&mut products, &mut direction, partials, tiling);
        }
        if unit < dim {
            result[place.node * dim + unit] = direction[unit];
        }
    } else {
        // What follows the first element lies at constant distances.
        let first = (at * dim + row) * dim + column;
        let lane_result = &mut result[first..first + dim * dim];
        #[unroll]
        for j in 0..2 * wide {
            #[unroll]
            for i in 0..high {
                #[unroll]
                for h in 0..2usize {
                    #[unroll]
                    for e in 0..2usize {
                        lane_result[(TILE * i + 8 * h) * dim + 8 * j + e] = gram.index(2 * i * wide + j)[h].extract(e);
                    }
                }
            }
        }
    }
}

/// The tokens of every sixteenth row from `row` on; any past the last.
#[cube]
fn fetch_tokens(order: &[i32], from: usize, row: u32, count: u32, tokens: &mut Array<i32>) {
    #[unroll]
    for s in 0..LOADS {
        let r = row + comptime!((TILE * s) as u32);
        if r < count {
            tokens[s] = order[from + r as usize];
        }
    }
}

/// Sixteen bytes of each of those rows; zero past the last.
#[cube]
fn fetch_rows<E: Float, N: Size>(
    query: &Tensor<Vector<E, N>>,
    base: usize,
    row: u32,
    count: u32,
    tokens: &Array<i32>,
    column: usize,
    ahead: &mut Array<Vector<E, N>>,
) {
    #[unroll]
    for s in 0..LOADS {
        let mut line = Vector::<E, N>::new(E::from_int(0));
        if row + comptime!((TILE * s) as u32) < count {
            let at = base + tokens[s] as usize * query.stride(2) + column * query.stride(3);
            line = query[at / query.vector_size()];
        }
        ahead[s] = line;
    }
}

/// Whether the kernel takes rows of `dim` elements, or why not.
pub(super) fn takes(dim: usize) -> Result<(), String> {
    if dim.is_multiple_of(TILE) && dim <= MAX_DIM {
        return Ok(());
    }
    Err(format!("Gram matrices by matrix units take multiples of {TILE} up to {MAX_DIM}, not head_dim {dim}"))
}
