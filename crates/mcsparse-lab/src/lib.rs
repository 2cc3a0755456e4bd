//! The lab of mcsparse: what settles how good a sparse attention method is, and against which rivals.
//!
//! - [`metrics`]: PSNR, SSIM, MS-SSIM, LPIPS, temporal consistency; Chamfer distance, IoU and F-score.
//! - [`attention`]: MC-Sparse in parts that can be switched off, its rivals at an exactly set density, and oracles, all
//!   behind [`mcsparse::SelfAttention`].
//! - [`experiment`]: comparisons on the shipped models, seeded, continued where they stopped, as JSON, tables and plots.
//! - [`probe`]: the same questions for query, key and value captured from any model.
//! - [`findings`]: docs/findings.md from the records.
//! - [`volume`], [`mesh`]: shapes on the host, their surfaces by marching cubes, how near they are.
//! - [`statistics`]: means with intervals, paired.

pub mod attention;
pub mod cli;
pub mod clip;
pub mod device;
pub mod error;
pub mod experiment;
pub mod files;
pub mod findings;
pub mod mesh;
pub mod method_options;
pub mod metrics;
pub mod noise;
pub mod presets;
pub mod probe;
pub mod program;
pub mod statistics;
pub mod volume;

pub use error::Error;
