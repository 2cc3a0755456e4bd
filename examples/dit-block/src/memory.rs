//! What memory a run of the program will take, said before anything is made.

use denoise::Error;
use mcsparse::Placement;
use serde::Serialize;

use crate::clock::OUTPUT_BYTES;
use crate::settings::Settings;
use crate::shape::{Mlp, Shape};

/// Bytes by what takes them. An estimate from the operations of the block: an allocator's pages may exceed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Estimate {
    /// Weights of a block, tables of the rotary embedding, keys and values of the text.
    pub weights: usize,
    /// Hidden states, queries, keys and values that live at the same time.
    pub activations: usize,
    /// Outputs of calls that are timed together.
    pub outputs: usize,
    /// Caches of MC-Sparse: that of one layer and branch, or with `--full` all that stay on the device.
    pub cache: usize,
    /// Temporary memory of a stage: the limit, or one head's key lists and residual where those alone are more.
    pub workspace: usize,
}

impl Estimate {
    /// Of a run with `settings`.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if the settings of MC-Sparse do not fit the tokens.
    pub fn of(settings: &Settings, full: bool) -> Result<Self, Error> {
        let (shape, config, bytes) = (&settings.shape, &settings.config, settings.dtype.burn().size());
        let (tokens, heads) = (shape.tokens(), shape.heads);
        let [outer, inner, wide] = [shape.hidden, shape.inner(), shape.ffn].map(|size| tokens * size * bytes);
        // Before attention: hidden states, normed, projections, the normed and turned of two of them; then those three, the
        // output of attention and of the anchor's sparse pass. In the feed-forward network: hidden states, normed, what is
        // inside before and after the activation, the update.
        let attention = 2 * outer + 7 * inner;
        let inside = if shape.mlp == Mlp::Swiglu { 4 } else { 3 };
        let mlp = 4 * outer + inside * wide;
        let slot = config.slot_bytes(tokens, heads, shape.head_dim, settings.dtype.burn())?.total();
        let slots = (shape.layers - settings.dense_layers()) * shape.branches;
        let all = slot * slots;
        // Of every layer and branch at the anchor of a full run, else of one.
        let waiting = config.log_sum_exp_bytes(tokens, heads) * if full { slots } else { 1 };
        let cache = match settings.placement {
            _ if !full => slot,
            Placement::Device => all,
            Placement::Host => 2 * slot,
            Placement::Budget(allowed) => allowed.min(all),
        };
        // Key lists of one head as indices, and its residual.
        let groups = shape.video().div_ceil(config.group_size);
        let head = 4 * groups * settings.budget.keys + shape.video() * shape.head_dim * bytes;
        Ok(Self {
            weights: weights(shape) * bytes + 2 * 4 * tokens * shape.head_dim / 2,
            activations: attention.max(mlp),
            outputs: OUTPUT_BYTES.max(3 * inner),
            cache: cache + slot + waiting,
            workspace: config.workspace_bytes.max(head),
        })
    }

    /// All of it.
    pub fn total(&self) -> usize {
        self.weights + self.activations + self.outputs + self.cache + self.workspace
    }

    /// Refuses what does not fit into `limit` bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] that says what takes how much.
    pub fn check(&self, limit: Option<usize>) -> Result<(), Error> {
        match limit {
            Some(limit) if self.total() > limit => Err(Error::run(
                "memory",
                format!("about {} bytes are needed ({self}), {limit} are there", self.total()),
            )),
            _ => Ok(()),
        }
    }
}

/// Values of the weights of a block.
fn weights(shape: &Shape) -> usize {
    let (hidden, inner) = (shape.hidden, shape.inner());
    let cross = if shape.cross_text > 0 { 2 * hidden * inner + 2 * shape.cross_text * inner } else { 0 };
    let mlp = if shape.mlp == Mlp::Swiglu { 3 } else { 2 };
    4 * hidden * inner + cross + mlp * hidden * shape.ffn
}

impl std::fmt::Display for Estimate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = |bytes: usize| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        write!(
            f,
            "{}: weights {}, hidden states {}, timed outputs {}, caches {}, temporary {}",
            mib(self.total()),
            mib(self.weights),
            mib(self.activations),
            mib(self.outputs),
            mib(self.cache),
            mib(self.workspace)
        )
    }
}
