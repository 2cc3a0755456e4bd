//! The recipes of published methods. What is settled here is what each keeps and approximates; block and cluster sizes are
//! the papers' where `block` and `group` of 64 and 128 tokens are passed, and smaller for smaller sequences.

use super::recipe::{Grouping, Recipe, Refresh, Residual, Rest, Select};

fn recipe(density: f64, group_size: usize, select: Select) -> Recipe {
    Recipe {
        grouping: Grouping::Position,
        group_size,
        select,
        rest: Rest::Dropped,
        refresh: Refresh::EveryStep,
        residual: Residual::Off,
        density,
    }
}

/// Vanilla block sparsity: blocks of keys for blocks of queries by mean-pooled scores, chosen anew at every step.
pub fn vanilla(density: f64, group: usize, block: usize) -> Recipe {
    recipe(density, group, Select::PooledBlocks { block })
}

/// The same with the blocks that hold the most weight at the anchor, reused.
pub fn reused_blocks(density: f64, group: usize, block: usize) -> Recipe {
    Recipe { refresh: Refresh::EveryAnchor, ..recipe(density, group, Select::ExactBlocks { block }) }
}

/// Single keys for neighbouring queries, chosen exactly at the anchor.
pub fn token_keys(density: f64, group: usize) -> Recipe {
    Recipe { refresh: Refresh::EveryAnchor, ..recipe(density, group, Select::Keys) }
}

/// Single keys for similar queries: MC-Sparse without its residual.
pub fn content_keys(density: f64, group: usize) -> Recipe {
    Recipe { grouping: Grouping::Content, ..token_keys(density, group) }
}

/// MC-Sparse (arXiv 2610.06801).
pub fn mc_sparse(density: f64, group: usize) -> Recipe {
    content_keys(density, group).plus_residual()
}

/// PISA (arXiv 2602.01077): pooled blocks exactly, the others by their means and a term of first order that all blocks
/// share.
pub fn pisa(density: f64, block: usize) -> Recipe {
    Recipe { rest: Rest::FirstOrder { block }, ..recipe(density, block, Select::PooledBlocks { block }) }
}

/// Sol-Attn (arXiv 2607.24027): blocks whose pooled score passes a threshold in standard deviations above the mean exactly,
/// the others by their means.
pub fn sol(density: f64, block: usize) -> Recipe {
    Recipe { rest: Rest::Means { block }, ..recipe(density, block, Select::ThresholdBlocks { block }) }
}

/// SVG2 (arXiv 2505.18875): k-means of queries and of keys, whole key clusters for query clusters, at every step.
pub fn svg2(density: f64, queries: usize, keys: usize) -> Recipe {
    recipe(density, queries, Select::Clusters { queries, keys, iterations: 10 })
}

/// Chipmunk (arXiv 2506.03275): single keys for neighbouring queries by column sums, and the cached difference. `stale`
/// normalises the sums by the step before, as its kernel does.
pub fn chipmunk(density: f64, group: usize, stale: bool) -> Recipe {
    let select = if stale { Select::StaleKeys } else { Select::Keys };
    Recipe { select, ..token_keys(density, group) }.plus_residual()
}

/// LiteAttention (arXiv 2511.11062): tiles are judged by the largest weight in them, and what is skipped once stays skipped.
/// The share of the tiles is set in place of the threshold.
pub fn lite(density: f64, group: usize, block: usize) -> Recipe {
    Recipe { refresh: Refresh::FirstAnchor, ..recipe(density, group, Select::LargestBlocks { block }) }
}
