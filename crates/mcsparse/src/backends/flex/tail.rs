//! The keys that groups do not keep, by the means of their blocks.

use rayon::prelude::*;

use super::{
    attend::{Groups, KEY_TILE, by_group},
    rows::Rows,
};
use crate::reference::TailOptions;

/// What a block counts of which every key is kept: no weight comes of it.
const NONE: f32 = -1.0e30;

/// Sparse attention, as output rows and log-sum-exp `[heads, queries]`, with the blocks of the keys that it leaves out;
/// `epilogue` as in [`by_group`].
pub(super) fn add(
    query: &Rows,
    [key, value]: [&Rows; 2],
    groups: Groups,
    (sparse, sparse_lse): (&Rows, &[f32]),
    epilogue: Option<(&Rows, f32, f32)>,
    options: &TailOptions,
) -> (Vec<f32>, Vec<f32>) {
    let [_, heads, queries, dim] = query.dims;
    let [_, kv_heads, tokens, _] = key.dims;
    let Groups { order, indices, group_size } = groups;
    let count = query.heads() * queries.div_ceil(group_size);
    assert!(!indices.is_empty() && indices.len().is_multiple_of(count), "indices: expected one row for each group");
    let kept = indices.len() / count;
    let (blocks, scale) = (options.blocks(tokens), options.scale as f32);
    let means = [key, value].map(|rows| means(rows, options));
    let log_counts = log_counts(indices, kept, tokens, options);
    by_group(query, (order, group_size), epilogue, |scratch, task, output, lse| {
        scratch.start(query.head(task.head), task.rows(), scale, dim);
        // Where the sparse part left off.
        sparse.head(task.head).gather(task.rows(), 1.0, output);
        let before = &sparse_lse[task.head * queries..][..queries];
        scratch.state.max.iter_mut().zip(task.rows()).for_each(|(max, row)| *max = before[row]);
        scratch.state.sum.fill(1.0);
        let kv = task.head / heads * kv_heads + task.head % heads / (heads / kv_heads);
        let [keys, values] = means.each_ref().map(|means| &means[kv * blocks * dim..][..blocks * dim]);
        let group = task.head * queries.div_ceil(group_size) + task.group;
        let bias = &log_counts[group * blocks..][..blocks];
        let tiles = keys.chunks(KEY_TILE * dim).zip(values.chunks(KEY_TILE * dim)).zip(bias.chunks(KEY_TILE));
        for ((keys, values), bias) in tiles {
            scratch.biased_step(keys, values, bias, output, dim);
        }
        scratch.state.finish(output, lse, dim);
    })
}

/// Means of each block, `[heads, blocks, dim]`.
fn means(rows: &Rows, options: &TailOptions) -> Vec<f32> {
    let [_, _, tokens, dim] = rows.dims;
    let sizes = options.sizes(tokens);
    let mut means = vec![0.0; rows.heads() * sizes.len() * dim];
    means.par_chunks_mut(dim).enumerate().for_each_init(
        || vec![0.0; dim],
        |row, (at, mean)| {
            let (head, block) = (at / sizes.len(), at % sizes.len());
            let first = options.sink_prefix + block * options.block;
            for token in first..first + sizes[block] {
                rows.head(head).copy_row(token, 1.0, row);
                mean.iter_mut().zip(&*row).for_each(|(sum, x)| *sum += x);
            }
            let share = 1.0 / sizes[block] as f32;
            mean.iter_mut().for_each(|sum| *sum *= share);
        },
    );
    means
}

/// Logarithms of how many keys of each block each group leaves out, `[groups, blocks]`.
fn log_counts(indices: &[u32], kept: usize, tokens: usize, options: &TailOptions) -> Vec<f32> {
    let sizes = options.sizes(tokens);
    let last = tokens - options.sink_suffix;
    let mut counts = vec![0.0; indices.len() / kept * sizes.len()];
    counts.par_chunks_mut(sizes.len()).zip(indices.par_chunks(kept)).for_each(|(counts, list)| {
        counts.iter_mut().zip(&sizes).for_each(|(count, &size)| *count = size as f32);
        for &j in list {
            let j = j as usize;
            if (options.sink_prefix..last).contains(&j) {
                counts[(j - options.sink_prefix) / options.block] -= 1.0;
            }
        }
        counts.iter_mut().for_each(|count| *count = if *count < 0.5 { NONE } else { count.ln() });
    });
    counts
}
