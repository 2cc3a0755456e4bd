//! The trained models of this repository, two of video and one of shapes: loading them, and what they are told to denoise.
//!
//! All are [`WanTransformer`](crate::wan::WanTransformer)s that see three channels of coordinates beside what they denoise,
//! which [`ClipModel`] appends. The video models work on RGB pixels and read thumbnails of the first and the last frame in
//! place of text: [`ConditionFile`] has some ready-made, [`condition_tokens`] makes them from any two images. The shape
//! model (`shape`) makes a cube of 64 x 64 x 64 voxels, positive inside a solid, whose layers count as frames; it reads two
//! [`DepthViews`], of which [`SolidFile`] has some.
//!
//! ```no_run
//! use burn::tensor::{DType, Device, Distribution, Tensor};
//! use mcsparse::DenseAttention;
//! use mcsparse_dit::pretrained::{self, ClipModel, ConditionFile};
//! use mcsparse_dit::{Conditions, denoise, sampler::FlowEuler};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::default();
//! let model = ClipModel::load(pretrained::folder().join("nano"), DType::F32, &device)?;
//! let tokens = ConditionFile::open(pretrained::folder())?.tokens("bunny", "nano", &device)?;
//! let noise = Tensor::random(model.shape(), Distribution::Normal(0.0, 1.0), &device);
//! let clip = denoise(
//!     &model,
//!     &mut FlowEuler::uniform(20, model.flow_shift())?,
//!     noise,
//!     Conditions::unguided(tokens),
//!     &mut DenseAttention::default(),
//!     |info| println!("step {} of {}", info.step + 1, info.steps),
//! )?;
//! assert_eq!(clip.dims(), [1, 3, 8, 32, 32]); // RGB from -1 to 1
//! # Ok(())
//! # }
//! ```

mod condition;
mod config;
mod file;
mod images;
mod model;
mod solid;
#[cfg(all(test, feature = "flex"))]
mod tests;

use std::path::Path;

pub use condition::{ConditionFile, RgbClip};
pub use config::{ClipConfig, Sampling};
pub use images::{Origin, condition_tokens};
pub use model::ClipModel;
pub use solid::{DepthViews, Occupancy, SolidFile};

/// The folder with the weights: one folder for each model (`small`, `nano`, `shape`), and `conditions.safetensors`.
///
/// It is part of the checkout in which this crate was compiled. A copy of the crate from a registry is without weights,
/// and a program that is moved to another machine needs to be told where they are.
pub fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/weights"))
}
