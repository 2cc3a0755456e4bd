//! Principal direction divisive partitioning, node by node.

use rayon::prelude::*;

use super::{
    gemm::{Matrix, product},
    math::descending,
    rows::Rows,
};
use crate::reference::{GroupOptions, start_vector};

/// The order `[heads, queries]`, group after group.
pub(super) fn group_queries(query: &Rows, options: &GroupOptions) -> Vec<i32> {
    let [_, _, queries, dim] = query.dims;
    let start = start_vector(dim, options.seed);
    let mut order = vec![0; query.heads() * queries];
    order.par_chunks_mut(queries).enumerate().for_each(|(z, order)| {
        let mut rows = vec![0.0; queries * dim];
        query.head(z).gather(0..queries, 1.0, &mut rows);
        order.iter_mut().zip(0..).for_each(|(place, i)| *place = i);
        split(&rows, dim, order, options, &start);
    });
    order
}

/// Splits a node until every part is one group.
fn split(rows: &[f32], dim: usize, node: &mut [i32], options: &GroupOptions, start: &[f32]) {
    let lower = node.len().div_ceil(options.group_size) / 2 * options.group_size;
    if lower == 0 {
        return;
    }
    let centred = centred(rows, dim, node);
    let direction = principal_direction(&centred, dim, options.power_iterations, start);
    // Largest first in `descending`, so the negated projection puts the smallest on the lower side.
    let ranks: Vec<u64> = centred
        .chunks_exact(dim)
        .zip(0..)
        .map(|(row, place)| descending(-row.iter().zip(&direction).map(|(a, b)| a * b).sum::<f32>(), place))
        .collect();
    let last = *ranks.clone().select_nth_unstable(lower - 1).1;
    // A stable partition: both sides keep their order.
    let mut upper = Vec::with_capacity(node.len() - lower);
    let mut filled = 0;
    for place in 0..node.len() {
        if ranks[place] <= last {
            node[filled] = node[place];
            filled += 1;
        } else {
            upper.push(node[place]);
        }
    }
    node[lower..].copy_from_slice(&upper);
    let (left, right) = node.split_at_mut(lower);
    rayon::join(|| split(rows, dim, left, options, start), || split(rows, dim, right, options, start));
}

/// The node's rows less their mean.
fn centred(rows: &[f32], dim: usize, node: &[i32]) -> Vec<f32> {
    let members = || node.iter().map(|&i| &rows[i as usize * dim..][..dim]);
    let mut sum = vec![0.0f64; dim];
    members().for_each(|row| sum.iter_mut().zip(row).for_each(|(s, &x)| *s += f64::from(x)));
    let mean: Vec<f32> = sum.iter().map(|s| (s / node.len() as f64) as f32).collect();
    members().flat_map(|row| row.iter().zip(&mean).map(|(x, m)| x - m)).collect()
}

/// Power iteration on the Gram matrix.
fn principal_direction(centred: &[f32], dim: usize, iterations: usize, start: &[f32]) -> Vec<f32> {
    let count = centred.len() / dim;
    let rows = Matrix::packed(centred, dim);
    let mut gram = vec![0.0; dim * dim];
    product(&mut gram, false, rows.t(), rows, [dim, dim, count]);
    let mut direction = start.to_vec();
    for _ in 0..iterations {
        direction = gram.chunks_exact(dim).map(|g| g.iter().zip(&direction).map(|(a, b)| a * b).sum()).collect();
        // By the largest element first, so that squaring neither overflows nor vanishes; identical rows stay at zero.
        let largest = direction.iter().fold(f32::MIN_POSITIVE, |m, d: &f32| m.max(d.abs()));
        direction.iter_mut().for_each(|d| *d /= largest);
        let norm = direction.iter().map(|d| d * d).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
        direction.iter_mut().for_each(|d| *d /= norm);
    }
    direction
}
