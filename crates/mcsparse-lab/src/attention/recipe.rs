//! What a method is made of.

use serde::{Deserialize, Serialize};

/// How queries come together that share a choice of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Grouping {
    /// Neighbours, in the order of the layout.
    Position,
    /// Likeness: principal direction divisive partitioning, as MC-Sparse.
    Content,
}

/// Which keys a group keeps. Whatever is chosen in units larger than a key, the number of keys is exact: the last unit is
/// kept in part, its first tokens, if the budget ends inside it (but for [`Select::ThresholdBlocks`], where the number of
/// whole blocks is exact over all groups of a head).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Select {
    /// Blocks of `block` neighbouring keys, by the score of the mean query with the mean key: vanilla block sparsity.
    PooledBlocks {
        /// Keys in a block.
        block: usize,
    },
    /// Blocks by the attention weight that they really hold.
    ExactBlocks {
        /// Keys in a block.
        block: usize,
    },
    /// Blocks by the largest attention weight in them (LiteAttention's test on a tile).
    LargestBlocks {
        /// Keys in a block.
        block: usize,
    },
    /// Blocks whose pooled score lies furthest above the mean of the group's scores, in standard deviations; groups compete
    /// for the head's budget (Sol-Attn's threshold, set so that the density comes out).
    ThresholdBlocks {
        /// Keys in a block.
        block: usize,
    },
    /// Single keys by their summed attention weight, as MC-Sparse.
    Keys,
    /// Single keys by their summed attention weight where groups compete for a common budget, so that one may keep more keys
    /// than another; the mean is exact.
    CompetingKeys {
        /// Whether the heads of a batch element compete too.
        heads: bool,
    },
    /// The same as [`Select::Keys`], normalised by the log-sum-exp of the dense step before (Chipmunk, which saves the second pass).
    StaleKeys,
    /// Clusters of keys for clusters of queries, by the estimated weight of a key cluster: its size times the exponential of
    /// the centroids' score (SVG2). The grouping of the recipe is not used.
    Clusters {
        /// Queries in a cluster, on average.
        queries: usize,
        /// Keys in a cluster, on average.
        keys: usize,
        /// Lloyd iterations of k-means.
        iterations: usize,
    },
}

/// What becomes of the keys that a group does not keep, at every step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rest {
    /// Nothing.
    Dropped,
    /// Blocks of this many keys stand in as their mean key and mean value.
    Means {
        /// Keys in a block.
        block: usize,
    },
    /// The same, and a term of first order in the query from the covariance of keys and values inside blocks (PISA).
    FirstOrder {
        /// Keys in a block.
        block: usize,
    },
}

/// When groups and keys are chosen anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refresh {
    /// At every sparse step.
    EveryStep,
    /// At every anchor.
    EveryAnchor,
    /// At the first anchor; later ones refresh what is added alone, and save the scores.
    FirstAnchor,
}

/// What is added at reuse steps from the anchor. `O` is the dense output, `S` the sparse one, `m` the share of the attention
/// weight that was kept, by query.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Residual {
    /// Nothing.
    Off,
    /// `O - S` of the anchor, as MC-Sparse adds it. Factors on it are settings of the library.
    Added,
    /// `m S + (O - m S)`, with `m` and the bracket of the anchor: the sparse part keeps its share of the weight.
    Renormalised,
    /// The tail as one more part of the softmax: its output and its log-sum-exp are those of the anchor, its share follows the
    /// sparse part's log-sum-exp of the step.
    Tail,
    /// A line through the residuals of the last two anchors, its slope times `damping`; that of the only one before there are
    /// two.
    Forecast {
        /// 0 is no slope.
        damping: f64,
    },
}

/// A sparse attention method.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recipe {
    /// Queries that share a choice.
    pub grouping: Grouping,
    /// How many of them.
    pub group_size: usize,
    /// Their keys.
    pub select: Select,
    /// The other keys.
    pub rest: Rest,
    /// How old the choice may be.
    pub refresh: Refresh,
    /// What the anchor adds.
    pub residual: Residual,
    /// Share of the keys that each query attends to.
    pub density: f64,
}

impl Recipe {
    /// With another residual.
    pub fn with_residual(mut self, residual: Residual) -> Self {
        self.residual = residual;
        self
    }

    /// With the residual as MC-Sparse adds it.
    pub fn plus_residual(self) -> Self {
        self.with_residual(Residual::Added)
    }

    /// Keys that each query attends to, of `tokens`.
    pub fn keys(&self, tokens: usize) -> usize {
        ((self.density * tokens as f64).round() as usize).clamp(1, tokens)
    }

    /// Whether an anchor has to score all pairs a second time.
    pub fn scores_again(&self) -> bool {
        matches!(
            self.select,
            Select::ExactBlocks { .. } | Select::LargestBlocks { .. } | Select::Keys | Select::CompetingKeys { .. }
        )
    }

    /// Work of a sparse step as a share of dense attention: the kept pairs, and one pair of each query with each block mean
    /// where these stand in for the rest.
    pub fn work(&self) -> f64 {
        self.density
            + match self.rest {
                Rest::Dropped => 0.0,
                Rest::Means { block } | Rest::FirstOrder { block } => 1.0 / block as f64,
            }
    }
}
