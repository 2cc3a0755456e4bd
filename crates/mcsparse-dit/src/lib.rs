//! Diffusion transformers for video and shapes in [Burn](burn) whose self-attention is pluggable.
//!
//! [`wan`] holds Wan 2.1 and 2.2, [`hunyuan`] HunyuanVideo and HunyuanVideo-1.5, [`minimax_h3`] MiniMax-H3, and
//! [`hunyuan3d`] the shape transformer of Hunyuan3D-2.1. Every self-attention call of theirs goes through
//! [`mcsparse::SelfAttention`], so dense attention and MC-Sparse are a matter of
//! what the caller passes in. Cross-attention and the refiners of text stay dense.
//! [`sampler`] has the flow-matching samplers, and [`denoise`] the loop that ties model, sampler and attention together.
//! [`pretrained`] loads the small models of this repository.
//!
//! ```no_run
//! use burn::tensor::{DType, Device, Distribution, Tensor};
//! use mcsparse::DenseAttention;
//! use mcsparse_dit::{Conditions, denoise, sampler::UniPc, wan::WanTransformer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::default();
//! let model = WanTransformer::from_folder("weights/transformer", DType::F32, &device)?;
//! let text = Tensor::zeros([1, 512, 4096], &device); // what the text encoder made of the prompt
//! let empty = Tensor::zeros([1, 512, 4096], &device); // and of the negative prompt
//! let noise = Tensor::random([1, 16, 21, 60, 104], Distribution::Normal(0.0, 1.0), &device);
//! let latents = denoise(
//!     &model,
//!     &mut UniPc::wan(50, 5.0)?,
//!     noise,
//!     Conditions::guided(text, empty, 5.0),
//!     &mut DenseAttention::default(),
//!     |info| println!("step {} of {}", info.step + 1, info.steps),
//! )?;
//! # let _ = latents;
//! # Ok(())
//! # }
//! ```

mod check;
mod denoise;
pub mod hunyuan;
pub mod hunyuan3d;
pub mod layers;
mod load;
pub mod minimax_h3;
pub mod pretrained;
pub mod sampler;
pub mod wan;

pub use denoise::{Conditions, StepInfo, VelocityModel, denoise, resume};
pub use load::{CheckpointOptions, LoadError, LoadProgress, Mismatch, Misshaped};
