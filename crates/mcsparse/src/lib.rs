//! MC-Sparse: training-free, meta-cached sparse attention for diffusion transformers, on Burn.
//!
//! Inside a denoising loop the self-attention of a trained video or 3D diffusion transformer is swapped for a cached
//! sparse one: on *anchor* steps similar queries are grouped, each group's keys are selected by their exact summed
//! attention weight, and the difference between dense and sparse output is kept; on the steps between, each group attends
//! to its own keys, gathered one by one, and the difference is added. The weights stay as they are.
//!
//! - [`McSparseConfig`]: the settings; [`Schedule`]: which steps are dense, anchors or reuse.
//! - [`McSparseAttention`]: the module for the place of self-attention; [`MetaCache`]: what lives between steps.
//! - [`Placement`]: where the cache waits; [`IndexFormat`], [`ResidualFormat`]: how large it is.
//! - [`HeadParallel`]: heads shared out over several devices.
//! - [`SelfAttention`]: the interface between models and attention methods; [`McSparse`] and [`DenseAttention`] fill it.
//! - [`mod@reference`]: every stage in plain tensor operations; [`ops`]: the same stages by
//!   the fastest kernel of the backend.
//!
//! ```
//! # #[cfg(feature = "flex")] {
//! use burn::tensor::{Device, Distribution, Tensor};
//! use mcsparse::{McSparseConfig, MetaCache, Schedule};
//!
//! # fn main() -> Result<(), mcsparse::Error> {
//! let device = Device::flex();
//! let config = McSparseConfig::density(0.25).with_group_size(16).with_schedule(Schedule::warm_up(2));
//! let attention = config.init(1)?;
//! let mut cache = MetaCache::new(&config, 4)?;
//! for step in 0..4 {
//!     cache.begin_step(step)?;
//!     let [q, k, v] = [0; 3].map(|_| Tensor::<4>::random([1, 2, 64, 16], Distribution::Default, &device));
//!     let output = attention.forward(q, k, v, &mut cache)?;
//!     assert_eq!(output.dims(), [1, 2, 64, 16]);
//! }
//! println!("{}", cache.report());
//! # Ok(()) }
//! # main().unwrap();
//! # }
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs)]

mod attention;
mod backends;
mod branch;
mod budget;
mod cache;
pub mod check;
mod config;
mod error;
mod head_parallel;
mod index_format;
pub mod ops;
pub mod reference;
mod report;
mod residual_format;
mod residual_gain;
mod schedule;
mod selection;
mod self_attention;
mod session;
mod stages;
mod tail;

pub use attention::McSparseAttention;
#[cfg(feature = "cuda-source")]
#[doc(hidden)]
pub use backends::cuda_source;
pub use branch::Branch;
pub use budget::{Budget, KeyBudget, SinkTokens};
pub use cache::{MetaCache, Placement, Slot, SlotBytes, SlotKey, Transfers};
pub use config::McSparseConfig;
pub use error::Error;
pub use head_parallel::HeadParallel;
pub use index_format::IndexFormat;
pub use report::{CallRecord, DriftRecord, RunReport, SlotRecord, StageRecord};
pub use residual_format::ResidualFormat;
pub use residual_gain::ResidualGain;
pub use schedule::{Anchors, Plan, Refresh, Schedule, StepKind, WarmUp};
pub use selection::Selection;
pub use self_attention::{DenseAttention, SelfAttention, TokenLayout};
pub use session::McSparse;
pub use tail::Tail;
