//! Every refusal of the library, each naming the argument, the expectation and what came.

/// Why a call was refused. Nothing has run and no cached state has changed when one of these comes back; but see
/// [`crate::HeadParallel`], of whose devices one may refuse what the others took.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting outside its range.
    #[error("{argument}: expected {expected}, got {got}")]
    InvalidConfig {
        /// The setting at fault.
        argument: &'static str,
        /// What it may be.
        expected: String,
        /// What it was.
        got: String,
    },
    /// A tensor whose shape, dtype or device does not fit the others.
    #[error("{argument}: expected {expected}, got {got}")]
    InvalidTensor {
        /// The tensor at fault.
        argument: &'static str,
        /// What was needed.
        expected: String,
        /// What came.
        got: String,
    },
    /// NaN or infinity in an input, found because checking was asked for.
    #[error("{argument}: expected finite values, got {count} that are NaN or infinite (layer {layer}, step {step})")]
    NotFinite {
        /// `query`, `key` or `value`.
        argument: &'static str,
        /// How many values are not finite.
        count: usize,
        /// The layer that was called.
        layer: usize,
        /// The denoising step.
        step: usize,
    },
    /// The step clock was used out of order.
    #[error("step clock: {0}")]
    Clock(String),
    /// A guidance branch or expert that was not announced, or none where several exist.
    #[error("branch: {0}")]
    Branch(String),
    /// A reuse step met a slot that no anchor of this run has filled.
    #[error("reuse before an anchor: layer {layer}, {branch}, step {step} has nothing cached; {reason}")]
    NoAnchor {
        /// The layer that was called.
        layer: usize,
        /// The branch that was active.
        branch: String,
        /// The denoising step.
        step: usize,
        /// What went before.
        reason: String,
    },
    /// The inputs are not those that the cached slot was made for.
    #[error(
        "{argument} of layer {layer}, {branch}: the cached slot was made for {expected}, got {got}; clear the cache or run an anchor first"
    )]
    CacheMismatch {
        /// What changed: batch, heads, tokens, head_dim, dtype or device.
        argument: &'static str,
        /// The layer that was called.
        layer: usize,
        /// The branch that was active.
        branch: String,
        /// The cached value.
        expected: String,
        /// The value that came.
        got: String,
    },
    /// A slot that has no room where the placement puts it, or that did not come from host memory.
    #[error("cache placement: {reason}; {bytes} bytes needed")]
    Placement {
        /// How many bytes are needed.
        bytes: usize,
        /// What has no room for them, or what went wrong.
        reason: String,
    },
    /// A device of [`crate::HeadParallel`] that is gone.
    #[error("device {device} of the head split: {reason}")]
    Shard {
        /// The device.
        device: String,
        /// What happened.
        reason: String,
    },
    /// A cache file that cannot be written, read or trusted.
    #[error("cache file {path}: {reason}")]
    CacheFile {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl Error {
    pub(crate) fn config(argument: &'static str, expected: impl Into<String>, got: impl ToString) -> Self {
        Self::InvalidConfig { argument, expected: expected.into(), got: got.to_string() }
    }

    pub(crate) fn tensor(argument: &'static str, expected: impl Into<String>, got: impl Into<String>) -> Self {
        Self::InvalidTensor { argument, expected: expected.into(), got: got.into() }
    }
}
