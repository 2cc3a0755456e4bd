//! By what an anchor weighs the keys that it selects among.

use serde::{Deserialize, Serialize};

/// By which log-sum-exps an anchor turns scores into the attention weights that it adds up over a group's queries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Selection {
    /// Those of the anchor itself: the weights are exact. Dense attention has to be over before, so that all scores are computed a
    /// second time. The published method.
    #[default]
    Exact,
    /// Those of the layer's last dense pass, of the step before or of the anchor before, where there was one: then column sums can ride
    /// in the dense pass of the anchor, and no second pass over the scores is made. Each query counts `exp(lse now - lse then)` times as
    /// much as it should; output and residual stay exact. docs/performance.md has what it saves, docs/findings.md what it costs.
    ///
    /// They ride where there is a kernel for it (warpgroup products, groups of at most 128); elsewhere the second pass is made
    /// all the same, with the same log-sum-exps, so that backends agree. The report says which. Log-sum-exps wait on the device beside the
    /// cache, 4 bytes for each query and head: counted by [`crate::MetaCache::size_in_bytes`], not by a placement's budget, and not saved
    /// in files. An anchor without an earlier dense pass selects exactly.
    Riding,
}
