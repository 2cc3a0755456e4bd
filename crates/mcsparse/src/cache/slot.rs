//! What one anchor leaves behind for one layer and branch.

use std::ops::Range;

use burn::{
    module::Module,
    tensor::{Device, Int, Tensor},
};
use serde::{Deserialize, Serialize};

use super::stored::{KeyLists, Residual, int_bytes};
use crate::{
    Branch, Error, IndexFormat, ResidualFormat,
    check::Problem,
    ops::{self, Kernels, Route, Stage},
};

/// Which layer and branch a slot belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SlotKey {
    /// Layer, counted from 0.
    pub layer: usize,
    /// Guidance branch and expert.
    pub branch: Branch,
}

/// Groups, key indices and residual of one layer and branch: from one and the same anchor, or the residual from a later one
/// ([`crate::Refresh::Residual`]).
#[derive(Module, Debug)]
pub struct Slot {
    order: Tensor<3, Int>,
    lists: KeyLists,
    residual: Residual,
    /// Change of the residual a step, if it is to be extrapolated.
    slope: Option<Residual>,
    #[module(skip)]
    key: SlotKey,
    #[module(skip)]
    shape: SlotShape,
    #[module(skip)]
    step: Option<usize>,
}

/// The problem that a slot was made for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SlotShape {
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub tokens: usize,
    pub head_dim: usize,
    pub dtype: String,
    pub group_size: usize,
    pub sink_prefix: usize,
    pub sink_suffix: usize,
    pub kept_keys: usize,
    /// Printed, so that a file keeps it exactly.
    pub scale: String,
    /// Keys in a block of the tail, 0 without one: the residual is another one then.
    #[serde(default)]
    pub tail_block: usize,
}

/// What [`Slot::indices`] may take for temporary tensors where the backend has no kernel for it.
const DECODING_BYTES: usize = 512 << 20;

/// Bytes of a slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlotBytes {
    /// The groups.
    pub order: usize,
    /// The kept keys in their stored form.
    pub indices: usize,
    /// The residual in its stored form, scales included.
    pub residual: usize,
    /// Its change a step in the same form, if it is extrapolated; see [`crate::McSparseConfig::residual_forecast`].
    pub slope: usize,
}

impl SlotBytes {
    /// All parts.
    pub fn total(&self) -> usize {
        self.order + self.indices + self.residual + self.slope
    }
}

impl SlotShape {
    /// Tokens that are no sinks.
    pub fn grouped(&self) -> usize {
        self.tokens.saturating_sub(self.sink_prefix.saturating_add(self.sink_suffix))
    }

    /// Refuses a problem that is not the one that the slot of `key`, on `device` if it is on one, was made for.
    pub(crate) fn check(
        &self,
        key: &SlotKey,
        now: &SlotShape,
        device: Option<Device>,
        problem: &Problem,
    ) -> Result<(), Error> {
        let then = self;
        let pairs: [(&'static str, String, String); 12] = [
            ("batch", then.batch.to_string(), now.batch.to_string()),
            ("heads", then.heads.to_string(), now.heads.to_string()),
            ("kv_heads", then.kv_heads.to_string(), now.kv_heads.to_string()),
            ("tokens", then.tokens.to_string(), now.tokens.to_string()),
            ("head_dim", then.head_dim.to_string(), now.head_dim.to_string()),
            ("dtype", then.dtype.clone(), now.dtype.clone()),
            ("group_size", then.group_size.to_string(), now.group_size.to_string()),
            ("sink prefix", then.sink_prefix.to_string(), now.sink_prefix.to_string()),
            ("sink suffix", then.sink_suffix.to_string(), now.sink_suffix.to_string()),
            ("kept keys", then.kept_keys.to_string(), now.kept_keys.to_string()),
            ("scale", then.scale.clone(), now.scale.clone()),
            ("tail block", then.tail_block.to_string(), now.tail_block.to_string()),
        ];
        let device = device.filter(|device| *device != problem.device);
        let device = device.map(|device| ("device", format!("{device:?}"), format!("{:?}", problem.device)));
        match pairs.into_iter().filter(|(_, then, now)| then != now).chain(device).next() {
            None => Ok(()),
            Some((argument, expected, got)) => {
                Err(Error::CacheMismatch { argument, layer: key.layer, branch: key.branch.to_string(), expected, got })
            }
        }
    }
}

impl Slot {
    pub(crate) fn new(
        key: SlotKey,
        shape: SlotShape,
        step: Option<usize>,
        order: Tensor<3, Int>,
        lists: KeyLists,
        residual: Residual,
    ) -> Self {
        Self { order, lists, residual, slope: None, key, shape, step }
    }

    /// With the change of the residual a step.
    pub(crate) fn with_slope(mut self, slope: Option<Residual>) -> Self {
        self.slope = slope;
        self
    }

    /// The layer and branch.
    pub fn key(&self) -> &SlotKey {
        &self.key
    }

    /// The step of the anchor that the residual is from; `None` if the slot came from a file.
    pub fn step(&self) -> Option<usize> {
        self.step
    }

    /// Groups: `[batch, heads, grouped tokens]`; group `g` is the `g`-th run of `group_size` query positions, counted from
    /// the first token that is no prefix sink.
    pub fn order(&self) -> &Tensor<3, Int> {
        &self.order
    }

    /// Kept keys: `[batch, heads, groups, kept]`, ascending token indices, expanded from their stored form.
    pub fn indices(&self) -> Tensor<4, Int> {
        self.lists.expand(&self.route(), DECODING_BYTES)
    }

    /// Dense minus sparse output at the anchor: `[batch, heads, grouped tokens, head_dim]` in the model's order and the dtype
    /// of the inputs, decoded from its stored form.
    pub fn residual(&self) -> Tensor<4> {
        self.residual.decode(&self.route())
    }

    /// The stored form of the kept keys.
    pub fn index_format(&self) -> IndexFormat {
        self.lists.format()
    }

    /// The stored form of the residual.
    pub fn residual_format(&self) -> ResidualFormat {
        self.residual.format()
    }

    pub(crate) fn lists(&self) -> &KeyLists {
        &self.lists
    }

    pub(crate) fn stored_residual(&self) -> &Residual {
        &self.residual
    }

    pub(crate) fn slope(&self) -> Option<&Residual> {
        self.slope.as_ref()
    }

    pub(crate) fn device(&self) -> Device {
        self.residual.device()
    }

    /// The groups, lists and residual of some heads.
    pub(crate) fn heads(&self, heads: Range<usize>) -> (Tensor<3, Int>, KeyLists, Residual) {
        if heads.len() == self.shape.heads {
            return (self.order.clone(), self.lists.clone(), self.residual.clone());
        }
        (self.order.clone().slice_dim(1, heads.clone()), self.lists.heads(heads.clone()), self.residual.heads(heads))
    }

    fn route(&self) -> Route {
        let shape = &self.shape;
        let problem = Problem {
            batch: shape.batch,
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            queries: shape.grouped(),
            keys: shape.tokens,
            head_dim: shape.head_dim,
            dtype: self.residual.dtype(),
            device: self.residual.device(),
        };
        ops::route(Stage::Decode, &problem, Kernels::Auto)
    }

    /// Queries in a group.
    pub fn group_size(&self) -> usize {
        self.shape.group_size
    }

    pub(crate) fn shape(&self) -> &SlotShape {
        &self.shape
    }

    /// Bytes that are kept between steps, by part.
    pub fn bytes(&self) -> SlotBytes {
        SlotBytes {
            order: int_bytes(&self.order),
            indices: int_bytes(self.lists.words()),
            residual: self.residual.size_in_bytes(),
            slope: self.slope.as_ref().map_or(0, Residual::size_in_bytes),
        }
    }

    /// Bytes that are kept between steps.
    pub fn size_in_bytes(&self) -> usize {
        self.bytes().total()
    }
}
