//! Grouping by units that work alone, see [`super::super::alone`]: one takes a node and splits it. Its direction is found without a Gram
//! matrix: each power iteration goes through the rows once.

use cubecl::prelude::*;

use super::rows::{Sizes, place_of, read};
use crate::backends::cube::{
    alone::{piece, total},
    radix::{self, Before},
};

/// Rows that are summed up before they are added to the others, for the sake of rounding.
const RUN: usize = 256;

/// One level: the rows with the smallest projections of each node in front, both sides in the order they had. Nodes of one group
/// are copied. `projections` are `[heads of the launch, queries]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn split<E: Float, N: Size>(
    query: &Tensor<Vector<E, N>>,
    order: &[i32],
    table: &[u32],
    start: &[f32],
    projections: &mut [f32],
    next: &mut [i32],
    sizes: Sizes,
    #[comptime] dim: usize,
    #[comptime] vector: usize,
    #[define(E)] _dtype: ElemType,
) {
    let vectors = comptime!(dim / vector);
    let place = place_of(query, table, &sizes, piece(), 0u32);
    if !place.exists {
        terminate!();
    }
    let at = place.order + place.first as usize;
    if place.lower == 0 {
        let mut i = 0usize;
        while i < place.len as usize {
            next[at + i] = order[at + i];
            i += 1;
        }
        terminate!();
    }
    let rows = place.len as usize;
    let mut mean = Array::<Vector<f32, N>>::new(vectors);
    let mut direction = Array::<Vector<f32, N>>::new(vectors);
    let mut product = Array::<Vector<f32, N>>::new(vectors);
    let mut run = Array::<Vector<f32, N>>::new(vectors);
    for c in 0..vectors {
        mean[c] = Vector::new(0.0f32);
        let mut first = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for e in 0..vector {
            first.insert(e, start[c * vector + e]);
        }
        direction[c] = first;
    }
    let mut done = 0usize;
    while done < rows {
        let end = min(done + RUN, rows);
        for c in 0..vectors {
            let mut sum = Vector::<f32, N>::new(0.0f32);
            for r in done..end {
                sum += read(query, place.base, order[at + r], c * vector);
            }
            mean[c] += sum;
        }
        done = end;
    }
    for c in 0..vectors {
        mean[c] /= Vector::new(f32::cast_from(place.len));
    }

    for _ in 0..sizes.iterations {
        for c in 0..vectors {
            product[c] = Vector::new(0.0f32);
        }
        let mut done = 0usize;
        while done < rows {
            let end = min(done + RUN, rows);
            for c in 0..vectors {
                run[c] = Vector::new(0.0f32);
            }
            for r in done..end {
                let token = order[at + r];
                let along = projection(query, place.base, token, &mean, &direction, dim, vector);
                for c in 0..vectors {
                    run[c] += (read(query, place.base, token, c * vector) - mean[c]) * Vector::new(along);
                }
            }
            for c in 0..vectors {
                product[c] += run[c];
            }
            done = end;
        }
        // By the largest element first, so that squaring neither overflows nor vanishes.
        let mut largest = f32::new(1.2e-38);
        for c in 0..vectors {
            #[unroll]
            for e in 0..vector {
                largest = max(largest, product[c].extract(e).abs());
            }
        }
        let mut squares = Vector::<f32, N>::new(0.0f32);
        for c in 0..vectors {
            let scaled = product[c] / Vector::new(largest);
            direction[c] = scaled;
            squares += scaled * scaled;
        }
        let norm = max(total(squares, vector).sqrt(), f32::new(1.2e-38));
        for c in 0..vectors {
            direction[c] /= Vector::new(norm);
        }
    }

    let from = place.joined * sizes.queries as usize + place.first as usize;
    for r in 0..rows {
        // The threshold is of the largest, so the smallest projections go to the lower side.
        projections[from + r] = -projection(query, place.base, order[at + r], &mean, &direction, dim, vector);
    }
    let last = radix::alone::kth_largest(&projections[from..from + rows], 0usize, place.len, place.lower);
    let mut before = Before { above: 0u32, equal: 0u32 };
    for i in 0..place.len {
        let key = radix::descending(projections[from + i as usize]);
        let kept = last.kept(&before);
        let to = select(last.keeps(key, &before), kept, place.lower + i - kept);
        next[at + to as usize] = order[at + i as usize];
        before.above += u32::cast_from(key > last.key);
        before.equal += u32::cast_from(key == last.key);
    }
}

/// The product of a centred row and the direction.
#[cube]
fn projection<E: Float, N: Size>(
    query: &Tensor<Vector<E, N>>,
    base: usize,
    token: i32,
    mean: &Array<Vector<f32, N>>,
    direction: &Array<Vector<f32, N>>,
    #[comptime] dim: usize,
    #[comptime] vector: usize,
) -> f32 {
    let mut sum = Vector::<f32, N>::new(0.0f32);
    for c in 0..comptime!(dim / vector) {
        sum += (read(query, base, token, c * vector) - mean[c]) * direction[c];
    }
    total(sum, vector)
}
