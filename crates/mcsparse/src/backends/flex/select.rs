//! Column sums of the attention weights of each group, and the exact top-K of them.

use rayon::prelude::*;

use super::{
    gemm::{Matrix, product},
    math::{ColumnSums, descending},
    rows::Rows,
};
use crate::reference::SelectOptions;

/// Keys of a tile.
const KEY_TILE: usize = 256;

/// Selected keys `[heads, groups, options.keys]`, ascending in each group.
pub(super) fn select_keys(query: &Rows, key: &Rows, lse: &[f32], order: &[u32], options: &SelectOptions) -> Vec<i32> {
    let [_, heads, queries, dim] = query.dims;
    let (size, keys) = (options.group_size, key.dims[2]);
    let groups = queries.div_ceil(size);
    let mut selected = vec![0; query.heads() * groups * options.keys];
    selected.par_chunks_mut(options.keys).enumerate().for_each_init(Scratch::default, |scratch, (task, selected)| {
        let (z, group) = (task / groups, task % groups);
        let order = &order[z * queries..][..queries];
        let members = &order[group * size..][..size.min(queries - group * size)];
        scratch.queries.resize(members.len() * dim, 0.0);
        query.head(z).gather(members.iter().map(|&i| i as usize), options.scale as f32, &mut scratch.queries);
        let lse: Vec<f32> = members.iter().map(|&i| lse[z * queries + i as usize]).collect();
        scratch.mass.clear();
        scratch.mass.resize(keys, 0.0);

        let key = key.head_for(z, heads);
        for start in (0..keys).step_by(KEY_TILE) {
            let count = KEY_TILE.min(keys - start);
            scratch.scores.resize(members.len() * count, 0.0);
            let matrix = match key.in_place(start, count) {
                Some((data, row, column)) => Matrix { data, row, column },
                None => {
                    scratch.keys.resize(count * dim, 0.0);
                    key.gather(start..start + count, 1.0, &mut scratch.keys);
                    Matrix::packed(&scratch.keys, dim)
                }
            };
            let queries = Matrix::packed(&scratch.queries, dim);
            product(&mut scratch.scores, false, queries, matrix.t(), [members.len(), count, dim]);
            let mass = &mut scratch.mass[start..start + count];
            ColumnSums { scores: &scratch.scores, width: count, lse: &lse, mass }.run();
        }
        top_k(&scratch.mass, options, &mut scratch.ranks, selected);
    });
    selected
}

#[derive(Default)]
struct Scratch {
    queries: Vec<f32>,
    keys: Vec<f32>,
    scores: Vec<f32>,
    mass: Vec<f32>,
    ranks: Vec<u64>,
}

fn top_k(mass: &[f32], options: &SelectOptions, ranks: &mut Vec<u64>, selected: &mut [i32]) {
    let end = mass.len() - options.sink_suffix;
    ranks.clear();
    ranks.extend(mass.iter().enumerate().map(|(j, &mass)| {
        let sink = j < options.sink_prefix || j >= end;
        descending(if sink { f32::INFINITY } else { mass }, j as u32)
    }));
    split(ranks, options.keys, selected);
}

/// The columns of the `k` smallest ranks, then as many of the others as `places` has room for, ascending both.
fn split(ranks: &mut [u64], k: usize, places: &mut [i32]) {
    ranks.select_nth_unstable(k - 1);
    places.iter_mut().zip(ranks).for_each(|(place, rank)| *place = *rank as u32 as i32);
    let (kept, rest) = places.split_at_mut(k);
    kept.sort_unstable();
    rest.sort_unstable();
}

/// The first `width` of each row's columns: the `k` of the largest values, then the others, ascending both.
pub(super) fn partition(values: &[f32], n: usize, k: usize, width: usize) -> Vec<i32> {
    let mut places = vec![0; values.len() / n * width];
    places.par_chunks_mut(width).zip(values.par_chunks(n)).for_each(|(places, row)| {
        let mut ranks: Vec<u64> = row.iter().zip(0..).map(|(&value, j)| descending(value, j)).collect();
        split(&mut ranks, k, places);
    });
    places
}
