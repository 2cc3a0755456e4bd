//! Attention of a tile of queries over tiles of keys, all keys or gathered ones, with online softmax.

use rayon::prelude::*;

use super::{
    gemm::{Matrix, product},
    math::SoftmaxStep,
    rows::{Head, Rows},
};

/// Queries of a dense tile; the scores of one tile pair take 128 KiB of a 1 MiB second-level cache.
const QUERY_TILE: usize = 128;
/// Keys of a tile.
pub(super) const KEY_TILE: usize = 256;

/// Dense attention: output `[heads, queries, dim]` and log-sum-exp `[heads, queries]`.
pub(super) fn dense(query: &Rows, key: &Rows, value: &Rows, scale: f32) -> (Vec<f32>, Vec<f32>) {
    let [_, heads, queries, dim] = query.dims;
    let mut output = vec![0.0; query.heads() * queries * dim];
    let mut lse = vec![0.0; query.heads() * queries];
    let per_head = output.par_chunks_mut(queries * dim).zip(lse.par_chunks_mut(queries)).enumerate();
    per_head.for_each(|(z, (output, lse))| {
        let (query, key, value) = (query.head(z), key.head_for(z, heads), value.head_for(z, heads));
        let tiles = output.par_chunks_mut(QUERY_TILE * dim).zip(lse.par_chunks_mut(QUERY_TILE)).enumerate();
        tiles.for_each_init(Scratch::default, |scratch, (tile, (output, lse))| {
            let first = tile * QUERY_TILE;
            scratch.start(query, first..first + lse.len(), scale, dim);
            for start in (0..key.rows()).step_by(KEY_TILE) {
                let count = KEY_TILE.min(key.rows() - start);
                let (k, v) = (key.in_place(start, count), value.in_place(start, count));
                match (k, v) {
                    (Some(k), Some(v)) => {
                        let matrix = |(data, row, column)| Matrix { data, row, column };
                        step(&mut scratch.state, &mut scratch.scores, output, matrix(k), matrix(v), &[], count, dim);
                    }
                    _ => scratch.gathered_step(key, value, start..start + count, output, dim),
                }
            }
            scratch.state.finish(output, lse, dim);
        });
    });
    (output, lse)
}

/// The groups and their keys, flat: `[heads, queries]` and `[heads, groups, kept]`.
#[derive(Clone, Copy)]
pub(super) struct Groups<'a> {
    pub order: &'a [u32],
    pub indices: &'a [u32],
    pub group_size: usize,
}

/// Token-gather attention: output `[heads, queries, dim]` in the order of the queries, and log-sum-exp. With an `epilogue`
/// of rows, a factor and a sign, the output becomes `factor * rows + sign * output`.
pub(super) fn sparse(
    query: &Rows,
    key: &Rows,
    value: &Rows,
    groups: Groups,
    epilogue: Option<(&Rows, f32, f32)>,
    scale: f32,
) -> (Vec<f32>, Vec<f32>) {
    let Groups { order, indices, group_size } = groups;
    let [_, heads, queries, dim] = query.dims;
    let (z, groups) = (query.heads(), queries.div_ceil(group_size));
    assert!(
        !indices.is_empty() && indices.len().is_multiple_of(z * groups),
        "indices: expected one row for each group"
    );
    let kept = indices.len() / (z * groups);
    by_group(query, (order, group_size), epilogue, |scratch, task, output, lse| {
        let (key, value) = (key.head_for(task.head, heads), value.head_for(task.head, heads));
        scratch.start(query.head(task.head), task.rows(), scale, dim);
        let keys = &indices[(task.head * groups + task.group) * kept..][..kept];
        for tile in keys.chunks(KEY_TILE) {
            scratch.gathered_step(key, value, tile.iter().map(|&j| j as usize), output, dim);
        }
        scratch.state.finish(output, lse, dim);
    })
}

/// One group of a head.
pub(super) struct Task<'a> {
    /// Batch and head, joined.
    pub head: usize,
    pub group: usize,
    /// The group's queries.
    pub order: &'a [u32],
}

impl Task<'_> {
    pub fn rows(&self) -> impl ExactSizeIterator<Item = usize> + Clone {
        self.order.iter().map(|&i| i as usize)
    }
}

/// Output `[heads, queries, dim]` in the order of the queries, and log-sum-exp, from those of each group, which `attend`
/// writes. With an `epilogue` of rows, a factor and a sign, the output becomes `factor * rows + sign * output`.
pub(super) fn by_group(
    query: &Rows,
    (order, group_size): (&[u32], usize),
    epilogue: Option<(&Rows, f32, f32)>,
    attend: impl Fn(&mut Scratch, Task, &mut [f32], &mut [f32]) + Sync,
) -> (Vec<f32>, Vec<f32>) {
    let [_, _, queries, dim] = query.dims;
    let z = query.heads();
    assert_eq!(order.len(), z * queries, "order: expected one position for each query");

    // Group after group first: each task then owns one run of memory.
    let mut sorted = vec![0.0; z * queries * dim];
    let mut sorted_lse = vec![0.0; z * queries];
    let per_head = sorted.par_chunks_mut(queries * dim).zip(sorted_lse.par_chunks_mut(queries)).enumerate();
    per_head.for_each(|(head, (sorted, lse))| {
        let order = &order[head * queries..][..queries];
        let tiles = sorted.par_chunks_mut(group_size * dim).zip(lse.par_chunks_mut(group_size)).enumerate();
        tiles.for_each_init(Scratch::default, |scratch, (group, (output, lse))| {
            let order = &order[group * group_size..][..lse.len()];
            attend(scratch, Task { head, group, order }, output, lse);
        });
    });

    let mut output = vec![0.0; z * queries * dim];
    let mut lse = vec![0.0; z * queries];
    let per_head = output.par_chunks_mut(queries * dim).zip(lse.par_chunks_mut(queries)).enumerate();
    per_head.for_each(|(z, (output, lse))| {
        let from = z * queries..(z + 1) * queries;
        for (place, &row) in order[from.clone()].iter().enumerate() {
            let (row, place) = (row as usize, from.start + place);
            let (to, from) = (&mut output[row * dim..][..dim], &sorted[place * dim..][..dim]);
            match epilogue {
                None => to.copy_from_slice(from),
                Some((rows, factor, sign)) => {
                    rows.head(z).copy_row(row, factor, to);
                    to.iter_mut().zip(from).for_each(|(to, from)| *to += sign * from);
                }
            }
            lse[row] = sorted_lse[place];
        }
    });
    (output, lse)
}

/// The buffers of one task.
#[derive(Default)]
pub(super) struct Scratch {
    pub state: State,
    scores: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// The scaled queries of a tile with their running maxima and sums.
#[derive(Default)]
pub(super) struct State {
    queries: Vec<f32>,
    pub max: Vec<f32>,
    pub sum: Vec<f32>,
}

impl Scratch {
    pub fn start(&mut self, query: Head, rows: impl ExactSizeIterator<Item = usize>, scale: f32, dim: usize) {
        let count = rows.len();
        self.state.queries.resize(count * dim, 0.0);
        query.gather(rows, scale, &mut self.state.queries);
        self.state.max.clear();
        self.state.max.resize(count, f32::NEG_INFINITY);
        self.state.sum.clear();
        self.state.sum.resize(count, 0.0);
    }

    /// Attends the tile's queries to `count` keys more, `bias` added to their scores.
    pub fn biased_step(&mut self, keys: &[f32], values: &[f32], bias: &[f32], output: &mut [f32], dim: usize) {
        let (keys, values) = (Matrix::packed(keys, dim), Matrix::packed(values, dim));
        step(&mut self.state, &mut self.scores, output, keys, values, bias, bias.len(), dim);
    }

    fn gathered_step(
        &mut self,
        key: Head,
        value: Head,
        index: impl ExactSizeIterator<Item = usize> + Clone,
        output: &mut [f32],
        dim: usize,
    ) {
        let count = index.len();
        self.keys.resize(count * dim, 0.0);
        self.values.resize(count * dim, 0.0);
        key.gather(index.clone(), 1.0, &mut self.keys);
        value.gather(index, 1.0, &mut self.values);
        let (keys, values) = (Matrix::packed(&self.keys, dim), Matrix::packed(&self.values, dim));
        step(&mut self.state, &mut self.scores, output, keys, values, &[], count, dim);
    }
}

/// Attends the tile's queries to `count` keys more, `bias` added to their scores unless it is empty.
#[allow(clippy::too_many_arguments)]
fn step(
    state: &mut State,
    scores: &mut Vec<f32>,
    output: &mut [f32],
    keys: Matrix,
    values: Matrix,
    bias: &[f32],
    count: usize,
    dim: usize,
) {
    let rows = state.max.len();
    scores.resize(rows * count, 0.0);
    product(scores, false, Matrix::packed(&state.queries, dim), keys.t(), [rows, count, dim]);
    if !bias.is_empty() {
        scores.chunks_exact_mut(count).for_each(|row| row.iter_mut().zip(bias).for_each(|(s, b)| *s += b));
    }
    SoftmaxStep { scores, width: count, output, dim, max: &mut state.max, sum: &mut state.sum }.run();
    product(output, true, Matrix::packed(scores, count), values, [rows, dim, count]);
}

impl State {
    pub fn finish(&self, output: &mut [f32], lse: &mut [f32], dim: usize) {
        for (i, row) in output.chunks_exact_mut(dim).enumerate() {
            let inverse = 1.0 / self.sum[i];
            row.iter_mut().for_each(|o| *o *= inverse);
            lse[i] = self.max[i] + self.sum[i].ln();
        }
    }
}
