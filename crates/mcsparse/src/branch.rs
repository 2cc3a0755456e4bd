//! Which of several forwards of one step a layer belongs to.

use serde::{Deserialize, Serialize};

/// A guidance branch, and where a model has several experts the expert: each keeps its own cache slots.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Branch {
    guidance: String,
    expert: Option<String>,
}

impl Branch {
    /// A branch of any name.
    pub fn new(guidance: impl Into<String>) -> Self {
        Self { guidance: guidance.into(), expert: None }
    }

    /// The conditional branch, also the only one of a run without classifier-free guidance.
    pub fn conditional() -> Self {
        Self::new("conditional")
    }

    /// The unconditional branch of classifier-free guidance.
    pub fn unconditional() -> Self {
        Self::new("unconditional")
    }

    /// The same branch inside expert `name` (for example `high_noise` and `low_noise`).
    pub fn with_expert(mut self, name: impl Into<String>) -> Self {
        self.expert = Some(name.into());
        self
    }
}

impl Default for Branch {
    fn default() -> Self {
        Self::conditional()
    }
}

impl std::fmt::Display for Branch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.expert {
            Some(expert) => write!(f, "branch {}/{expert}", self.guidance),
            None => write!(f, "branch {}", self.guidance),
        }
    }
}
