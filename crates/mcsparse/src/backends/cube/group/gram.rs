//! Gram matrices of centred rows, in f32 registers.

use cubecl::prelude::*;

use super::{
    UNITS,
    plan::{GRID, Tiling},
    power::{power_iteration, power_scratch},
    rows::{Place, Sizes, mean, mean_scratch, place, read},
};

/// Rows in shared memory at a time.
const ROWS: usize = 16;

/// Values of shared memory that all phases work in, one after the other.
pub(super) const fn scratch(tiling: &Tiling) -> usize {
    let tiles = ROWS * tiling.edge() * if tiling.blocks > 1 { 2 } else { 1 };
    let (mean, power) = (mean_scratch(tiling), power_scratch(tiling, GRID));
    let most = if tiles > mean { tiles } else { mean };
    if most > power { most } else { power }
}

/// The Gram matrix of the rows of a node, or of a chunk of them, centred before anything is squared, so that a mean far
/// larger than the spread does no harm. Rows are read through the order, as they lie.
///
/// With `whole`, one cube has the whole node and goes on to its principal direction: `result` `[nodes, padded]`. Otherwise
/// `result` `[nodes, chunks, padded, padded]` takes the Gram matrix about the mean of the chunk. `centres` takes the mean, padded.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn gram<E: Float, N: Size>(
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
    let (edge, micro) = (comptime!(tiling.edge()), comptime!(tiling.micro));
    let blocks = comptime!((tiling.blocks * tiling.blocks) as u32);
    let place = place(query, table, &sizes, sizes.chunks * blocks);
    // Nodes of one group are not split.
    if !place.exists || place.lower == 0 {
        terminate!();
    }
    let (chunk, block) = (place.part / blocks, place.part % blocks);
    let length = place.len.div_ceil(sizes.chunks);
    let begin = min(chunk * length, place.len);
    let count = min(length, place.len - begin);
    let from = place.order + (place.first + begin) as usize;

    let unit = UNIT_POS as usize;
    let (y, x) = (unit / GRID, unit % GRID);
    let mut centre = Shared::<[f32]>::new_slice(comptime!(tiling.padded()));
    let mut shared = Shared::<[f32]>::new_slice(comptime!(scratch(&tiling)));
    mean(query, place.base, order, from, count, &mut shared, &mut centre, tiling);

    let (row_block, column_block) =
        (block as usize / comptime!(tiling.blocks), block as usize % comptime!(tiling.blocks));
    let columns = comptime!(if tiling.blocks > 1 { ROWS * tiling.edge() } else { 0 });
    let mut gram = Array::<f32>::new(micro * micro);
    #[unroll]
    for i in 0..micro * micro {
        gram[i] = 0.0f32;
    }
    let mut done = 0u32;
    while done < count {
        let at = from + done as usize;
        let left = count - done;
        stage(query, &place, order, at, left, row_block * edge, &centre, &mut shared, 0usize, tiling);
        if comptime!(tiling.blocks > 1) {
            stage(query, &place, order, at, left, column_block * edge, &centre, &mut shared, columns, tiling);
        }
        sync_cube();
        for r in 0..ROWS {
            let mut right = Array::<f32>::new(micro);
            #[unroll]
            for j in 0..micro {
                right[j] = shared[columns + r * edge + x + GRID * j];
            }
            #[unroll]
            for i in 0..micro {
                let left = shared[r * edge + y + GRID * i];
                #[unroll]
                for j in 0..micro {
                    gram[i * micro + j] += left * right[j];
                }
            }
        }
        sync_cube();
        done += comptime!(ROWS as u32);
    }

    let at = place.node * sizes.chunks as usize + chunk as usize;
    let padded = comptime!(tiling.padded());
    if unit < padded && block == 0 {
        centres[at * padded + unit] = centre[unit];
    }
    if comptime!(whole) {
        let mut direction = Shared::<[f32]>::new_slice(comptime!(tiling.padded()));
        power_iteration(&gram, start, sizes.iterations, &mut shared, &mut direction, tiling);
        if unit < padded {
            result[place.node * padded + unit] = direction[unit];
        }
    } else {
        #[unroll]
        for i in 0..micro {
            let row = row_block * edge + y + GRID * i;
            #[unroll]
            for j in 0..micro {
                result[(at * padded + row) * padded + column_block * edge + x + GRID * j] = gram[i * micro + j];
            }
        }
    }
}

/// Brings the columns of one block of up to [`ROWS`] rows into shared memory, centred; zero past the last row and column.
#[cube]
fn stage<E: Float, N: Size>(
    query: &Tensor<Vector<E, N>>,
    place: &Place,
    order: &[i32],
    from: usize,
    count: u32,
    first_column: usize,
    centre: &Shared<[f32]>,
    shared: &mut Shared<[f32]>,
    at: usize,
    #[comptime] tiling: Tiling,
) {
    let vector = comptime!(tiling.vector);
    let vectors = comptime!(tiling.edge() / tiling.vector);
    let mut i = UNIT_POS as usize;
    while i < ROWS * vectors {
        let r = i / vectors;
        let column = first_column + i % vectors * vector;
        let mut row = Vector::<f32, N>::new(0.0f32);
        if (r as u32) < count && column < comptime!(tiling.dim) {
            row = read(query, place.base, order[from + r], column);
            #[unroll]
            for e in 0..vector {
                row.insert(e, row.extract(e) - centre[column + e]);
            }
        }
        #[unroll]
        for e in 0..vector {
            shared[at + i * vector + e] = row.extract(e);
        }
        i += comptime!(UNITS as usize);
    }
}
