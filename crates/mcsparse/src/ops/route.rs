//! Which implementation of a stage runs, decided before it runs and kept for the report.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::check::Problem;

/// A stage of the method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Dense attention with log-sum-exp.
    Dense,
    /// Grouping of queries.
    Group,
    /// Selection of keys.
    Select,
    /// Dense attention with log-sum-exp, and selection of keys by column sums that ride in it.
    DenseSelect,
    /// Token-gather attention.
    Sparse,
    /// What the keys weigh that are not kept, by the means of their blocks.
    Tail,
    /// Key lists and residual to their stored forms.
    Encode,
    /// Key lists and residual from their stored forms.
    Decode,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Dense => "dense attention",
            Stage::Group => "grouping",
            Stage::Select => "selection",
            Stage::DenseSelect => "dense attention with selection",
            Stage::Sparse => "sparse attention",
            Stage::Tail => "tail by block means",
            Stage::Encode => "cache encoding",
            Stage::Decode => "cache decoding",
        })
    }
}

/// Whether kernels may be used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kernels {
    /// The fastest that the backend has for the problem.
    #[default]
    Auto,
    /// The tensor-operation reference only.
    Reference,
}

/// The implementation that runs a stage.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Route {
    /// A kernel. The route is chosen by sizes and dtype; views whose rows do not start at 16 bytes are read by the same kernel
    /// in smaller steps, and grouping's Gram matrices are then computed without matrix units.
    Kernel {
        /// What it is called.
        name: &'static str,
        /// Why faster kernels of the backend did not take the problem, fastest first.
        declined: Vec<String>,
    },
    /// The reference in tensor operations, and why no kernel took the problem.
    Reference {
        /// The refusal.
        reason: String,
    },
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Route::Kernel { name, .. } => f.write_str(name),
            Route::Reference { reason } => write!(f, "tensor operations ({reason})"),
        }
    }
}

impl Route {
    /// The fastest kernel that there is.
    pub fn kernel(name: &'static str) -> Self {
        Self::Kernel { name, declined: Vec::new() }
    }
}

/// Picks the implementation of `stage` for `problem`.
pub fn route(stage: Stage, problem: &Problem, kernels: Kernels) -> Route {
    let refusal = match kernels {
        Kernels::Reference => Err("the configuration asks for the reference".to_string()),
        Kernels::Auto => crate::backends::supports(stage, problem),
    };
    refusal.unwrap_or_else(|reason| Route::Reference { reason })
}
