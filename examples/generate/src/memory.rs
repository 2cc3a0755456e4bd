//! What memory a run will take, said before it starts.

use mcsparse::{McSparseConfig, SinkTokens};

use crate::error::Error;
use crate::options::Method;
use crate::shape::Form;
use mcsparse_lab::device::DType;

/// Temporary memory of one stage of MC-Sparse.
const WORKSPACE: u64 = 512 << 20;
/// Hidden states of one block that live at the same time, in values of the dtype and of f32: counted from the block's
/// operations, without a fusing backend. An estimate, which the pages of an allocator exceed.
const ACTIVATIONS: u64 = 10;
const ACTIVATIONS_F32: u64 = 4;

/// Bytes by what takes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Estimate {
    /// Weights.
    pub weights: u64,
    /// Hidden states of one block.
    pub activations: u64,
    /// Keys and values of the text for every block, of all branches.
    pub conditions: u64,
    /// The cache of MC-Sparse, of all branches.
    pub cache: u64,
    /// Temporary memory of MC-Sparse.
    pub workspace: u64,
}

/// The sequence that attention runs over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequence {
    /// Tokens that are denoised.
    pub video: usize,
    /// Tokens that join them.
    pub others: usize,
    /// Text tokens of cross-attention.
    pub cross: usize,
    /// Forwards of one step, each with a cache of its own.
    pub branches: usize,
}

impl Estimate {
    /// Of one run.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if the settings of MC-Sparse do not fit the sequence.
    pub fn of(
        form: &Form,
        parameters: usize,
        sequence: Sequence,
        dtype: DType,
        method: Method,
        config: &McSparseConfig,
    ) -> Result<Self, Error> {
        let ([heads, head_dim, layers], [inner, hidden]) = (form.attention(), form.widths());
        let bytes = dtype.burn().size() as u64;
        let tokens = sequence.video + sequence.others;
        let wide = (tokens * (inner.max(heads * head_dim))) as u64;
        let activations = wide * (ACTIVATIONS * bytes + ACTIVATIONS_F32 * 4) + 2 * (tokens * hidden) as u64 * bytes;
        let conditions = (2 * layers * sequence.cross * inner * sequence.branches) as u64 * bytes;
        let mut cache = 0;
        if method != Method::Dense {
            let sink = SinkTokens { prefix: 0, suffix: sequence.others, within_budget: false };
            let config = McSparseConfig { sink, ..config.clone() };
            let slot = config.slot_bytes(tokens, heads, head_dim, dtype.burn())?.total()
                + config.log_sum_exp_bytes(tokens, heads);
            let experts = if matches!(form, Form::Wan { boundary: Some(_), .. }) { 2 } else { 1 };
            let sparse = layers - config.dense_layers.iter().filter(|&&layer| layer < layers).count();
            cache = (slot * sparse * sequence.branches * experts) as u64;
        }
        let workspace = if method == Method::Dense { 0 } else { WORKSPACE };
        Ok(Self { weights: parameters as u64 * bytes, activations, conditions, cache, workspace })
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.activations + self.conditions + self.cache + self.workspace
    }

    /// Refuses a run that does not fit into `limit` bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] that says what takes how much.
    pub fn check(&self, limit: Option<u64>) -> Result<(), Error> {
        match limit {
            Some(limit) if self.total() > limit => {
                let why = format!("the run takes about {self}; there are {}", gib(limit));
                Err(Error::run("memory", why))
            }
            _ => Ok(()),
        }
    }
}

impl std::fmt::Display for Estimate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} (weights {}, hidden states {}, text {}, cache of MC-Sparse {}, temporary {})",
            gib(self.total()),
            gib(self.weights),
            gib(self.activations),
            gib(self.conditions),
            gib(self.cache),
            gib(self.workspace)
        )
    }
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

/// Bytes that the run may take: what was said, or on a CPU what the system has free.
pub fn limit(said: Option<f64>, on_cpu: bool) -> Option<u64> {
    let said = said.map(|gib| (gib * f64::from(1 << 30)) as u64);
    said.or_else(|| on_cpu.then(free).flatten())
}

/// What Linux calls available.
fn free() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
