//! What stands in for the keys that a group does not keep.

use serde::{Deserialize, Serialize};

use crate::Error;

/// What becomes of the keys that a group does not keep, at every sparse step, before the residual is added.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tail {
    /// Nothing: the published method.
    #[default]
    Dropped,
    /// Every run of `block` neighbouring keys stands in once, as its mean key and mean value, with the weight of as many keys
    /// as the group does not keep of it. The means are those of the present step, so that this part of the output does not
    /// age as the residual does; the residual is then that of both parts together. It costs one pass over keys and values and
    /// `1 / block` of a dense attention a step, and nothing in the cache.
    BlockMeans {
        /// Keys in a block; 64 is a good choice for thousands of tokens.
        block: usize,
    },
}

impl Tail {
    /// Mean keys for `keys` keys that are no sinks.
    pub(crate) fn means(&self, keys: usize) -> usize {
        match self {
            Self::Dropped => 0,
            Self::BlockMeans { block } => keys.div_ceil((*block).max(1)),
        }
    }

    /// Keys in a block; 0 if there are none.
    pub(crate) fn block(&self) -> usize {
        match self {
            Self::Dropped => 0,
            Self::BlockMeans { block } => *block,
        }
    }

    pub(crate) fn validate(&self) -> Result<(), Error> {
        match self {
            Self::BlockMeans { block: 0 } => Err(Error::config("tail.block", "at least 1 key a block", 0)),
            _ => Ok(()),
        }
    }
}
