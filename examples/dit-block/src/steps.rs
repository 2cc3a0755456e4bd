//! The kinds of attention that are timed, each as an endless supply of calls.

use burn::tensor::Tensor;
use denoise::Error;
use mcsparse::{Anchors, DenseAttention, McSparse, McSparseConfig, Schedule, Selection, SelfAttention};
use serde::Serialize;

use crate::settings::Settings;

/// The layer that calls pretend to be.
pub const LAYER: usize = 1;
/// More calls than anyone times.
pub const CALLS: usize = 100_000;
/// Anchors of a run in which every one selects by the one before.
const ANCHORS: usize = 1000;

/// One kind of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Burn's own dense attention.
    Burn,
    /// Our dense attention: a dense step of MC-Sparse.
    Dense,
    /// An anchor step.
    Anchor,
    /// A reuse step.
    Reuse,
}

impl Kind {
    /// All.
    pub const ALL: [Self; 4] = [Self::Burn, Self::Dense, Self::Anchor, Self::Reuse];

    /// As the table names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Burn => "Burn's dense attention",
            Self::Dense => "dense step",
            Self::Anchor => "anchor step",
            Self::Reuse => "reuse step",
        }
    }
}

/// The settings of a run whose first call of [`LAYER`] is an anchor and all others reuse it, or all are dense, or anchors that select
/// by the one before.
pub fn config(kind: Kind, settings: &Settings) -> McSparseConfig {
    let dense_layers = if kind == Kind::Dense { vec![LAYER] } else { Vec::new() };
    let anchors = if chained(kind, &settings.config) { (0..ANCHORS).collect() } else { vec![0] };
    let schedule = Schedule::warm_up(0).with_anchors(Anchors::At(anchors));
    settings.config.clone().with_schedule(schedule).with_dense_layers(dense_layers)
}

/// Whether calls are anchors that need one before.
fn chained(kind: Kind, config: &McSparseConfig) -> bool {
    kind == Kind::Anchor && config.selection == Selection::Riding
}

/// Calls of one kind.
pub enum Calls {
    /// Of Burn's attention.
    Burn(DenseAttention),
    /// Of MC-Sparse.
    Ours(Kind, Box<McSparseConfig>, Box<McSparse>, usize),
}

impl Calls {
    /// Calls of `kind`; `qkv` fills the cache that reuse steps read.
    ///
    /// # Errors
    ///
    /// What MC-Sparse refuses.
    pub fn new(kind: Kind, settings: &Settings, qkv: &[Tensor<4>; 3]) -> Result<Self, Error> {
        if kind == Kind::Burn {
            return Ok(Self::Burn(DenseAttention::default()));
        }
        let config = config(kind, settings);
        let mut calls = Self::Ours(kind, Box::new(config.clone()), Box::new(McSparse::new(&config, CALLS)?), 0);
        if kind == Kind::Reuse || chained(kind, &config) {
            let [q, k, v] = qkv.clone();
            calls.attention()?.attend(LAYER, q, k, v)?;
        }
        Ok(calls)
    }

    /// The attention, ready for one call of [`LAYER`].
    ///
    /// # Errors
    ///
    /// What MC-Sparse refuses.
    pub fn attention(&mut self) -> Result<&mut dyn SelfAttention, Error> {
        match self {
            Self::Burn(attention) => Ok(attention),
            Self::Ours(kind, config, run, step) => {
                // An anchor that needs none before is the first call of a run.
                if *kind == Kind::Anchor && (!chained(*kind, config) || *step == ANCHORS) {
                    **run = McSparse::new(config, CALLS)?;
                    *step = 0;
                }
                run.begin_step(*step)?;
                *step += 1;
                Ok(run.as_mut())
            }
        }
    }

    /// MC-Sparse, if it is that.
    pub fn run(&self) -> Option<&McSparse> {
        match self {
            Self::Burn(_) => None,
            Self::Ours(_, _, run, _) => Some(run),
        }
    }
}
