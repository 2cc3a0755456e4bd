//! The two ways to fail, told apart by the exit code.

/// Why the program stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option that cannot be used; found before anything is loaded or run.
    #[error("{option}: expected {expected}, got {got}")]
    Option {
        /// The option, with its dashes.
        option: &'static str,
        /// What it may be.
        expected: String,
        /// What it was.
        got: String,
    },
    /// Anything that goes wrong with files, the device or the run.
    #[error("{0}")]
    Run(String),
}

impl Error {
    /// A bad option.
    pub fn option(option: &'static str, expected: impl Into<String>, got: impl ToString) -> Self {
        Self::Option { option, expected: expected.into(), got: got.to_string() }
    }

    /// A failure of `what`, a file or a part of the run.
    pub fn run(what: impl std::fmt::Display, why: impl std::fmt::Display) -> Self {
        Self::Run(format!("{what}: {why}"))
    }

    /// What the process ends with: 2 for bad options, as clap does, 1 for the rest.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Option { .. } => 2,
            Self::Run(_) => 1,
        }
    }
}

impl From<mcsparse::Error> for Error {
    fn from(error: mcsparse::Error) -> Self {
        Self::Run(error.to_string())
    }
}

impl From<mcsparse_dit::LoadError> for Error {
    fn from(error: mcsparse_dit::LoadError) -> Self {
        Self::Run(error.to_string())
    }
}
