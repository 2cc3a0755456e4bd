//! Why weights were not loaded.

use std::fmt::{Display, Formatter, Result as FormatResult};
use std::path::{Path, PathBuf};

/// Why a configuration or weights could not be loaded (or weights not saved).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file or folder that cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A `config.json` or `sampling.json` that is none, or one of a model that is not supported.
    #[error("{}: {reason}", path.display())]
    Config {
        /// The file, or the folder of two that do not fit each other.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file of weights (or an index of shards) that cannot be read or written as such.
    #[error("{}: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A folder in which it is not clear what the weights are.
    #[error("{}: {reason}", path.display())]
    NoWeights {
        /// The folder.
        path: PathBuf,
        /// What was looked for and found.
        reason: String,
    },
    /// Weights of another model.
    #[error("{}: the weights do not fit the configuration; {mismatch}", path.display())]
    Mismatch {
        /// The file or folder.
        path: PathBuf,
        /// Every tensor at fault.
        mismatch: Mismatch,
    },
    /// A name that a file of conditions does not have.
    #[error("{}: no condition {name} for size {size}; there are {}", path.display(), listed(names))]
    UnknownCondition {
        /// The file.
        path: PathBuf,
        /// The name that was asked for.
        name: String,
        /// The size of the model that it was asked for.
        size: String,
        /// All names that the file has for that size.
        names: Vec<String>,
    },
    /// A setting out of range.
    #[error(transparent)]
    Setting(#[from] mcsparse::Error),
}

impl LoadError {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }

    pub(crate) fn config(path: &Path, reason: impl Display) -> Self {
        Self::Config { path: path.into(), reason: reason.to_string() }
    }

    pub(crate) fn format(path: &Path, reason: impl Display) -> Self {
        Self::Format { path: path.into(), reason: reason.to_string() }
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// The tensors that do not fit a model, by their names in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mismatch {
    /// The model has them, the file does not.
    pub missing: Vec<String>,
    /// The file has them, the model does not.
    pub unexpected: Vec<String>,
    /// Both have them, in different shapes.
    pub misshaped: Vec<Misshaped>,
    /// Found but not read, each with the reason: no floats, or several tensors whose names mean the same one.
    pub unreadable: Vec<String>,
}

/// A tensor of another shape than the model's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misshaped {
    /// Its name in the file.
    pub name: String,
    /// The shape that the model needs, as files hold it.
    pub expected: Vec<usize>,
    /// The shape in the file.
    pub got: Vec<usize>,
}

impl Mismatch {
    /// Whether everything fits.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Display for Mismatch {
    fn fmt(&self, f: &mut Formatter<'_>) -> FormatResult {
        let misshaped: Vec<_> = self.misshaped.iter().map(Misshaped::to_string).collect();
        let lists = [
            ("missing", &self.missing),
            ("unexpected", &self.unexpected),
            ("misshaped", &misshaped),
            ("unreadable", &self.unreadable),
        ];
        let mut separator = "";
        for (kind, names) in lists {
            if !names.is_empty() {
                write!(f, "{separator}{} {kind}: {}", names.len(), names.join(", "))?;
                separator = "; ";
            }
        }
        Ok(())
    }
}

impl Display for Misshaped {
    fn fmt(&self, f: &mut Formatter<'_>) -> FormatResult {
        write!(f, "{} (expected {:?}, got {:?})", self.name, self.expected, self.got)
    }
}
