//! The shape transformer of Hunyuan3D-2.1: latents of a surface, without any order or place, denoised towards an image.
//!
//! A shape is a set of 4,096 vectors that its autoencoder spreads over the surface ("vector set"), so there is no grid and
//! no rotary embedding. One token that says the time stands before them and takes part in self-attention. Each block is
//! self-attention, cross-attention to the tokens of an image encoder (DINOv2) and a feed-forward network, in the last
//! blocks a mixture of experts; blocks of the second half get the output of their mirror image in the first half
//! beside their input. Names of parameters and the layout of weights are those of `HunYuanDiTPlain` of the authors'
//! repository, Tencent-Hunyuan/Hunyuan3D-2.1.
//!
//! Each forward announces the time token as a prefix ([`mcsparse::SelfAttention::begin_sequence`]), so that MC-Sparse
//! takes it as a sink and groups the latents by content.
//!
//! As a [`VelocityModel`](crate::VelocityModel) it takes latents `[batch, channels, 1, 1, tokens]`, of which
//! [`from_tokens`] and [`to_tokens`] make and unmake rows of tokens. Its own clock runs from 0 for pure noise to 1 for none
//! and its velocity points to the data; here both are turned round, so the samplers and the loop of this crate take it as
//! they take the video models. The authors' pipeline spaces `n` times evenly from 0 to 1 inclusive, the last of which
//! makes no step: [`FlowEuler::uniform`](crate::sampler::FlowEuler::uniform) with `n - 1` steps and shift 1 goes through the
//! others. It runs 50 of them, with guidance 5 against an all-zero image.
//!
//! ```no_run
//! use burn::tensor::{DType, Device, Distribution, Tensor};
//! use mcsparse::DenseAttention;
//! use mcsparse_dit::hunyuan3d::{Hunyuan3d, Hunyuan3dConfig, to_tokens};
//! use mcsparse_dit::{Conditions, denoise, sampler::FlowEuler};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::default();
//! let config = Hunyuan3dConfig::v2_1();
//! let model = Hunyuan3d::load("hunyuan3d-dit-v2-1/model.fp16.safetensors", &config, DType::F16, &device)?;
//! let image = Tensor::<3>::zeros([1, 1370, 1024], &device); // what DINOv2-large made of the image
//! let noise = Tensor::random([1, 64, 1, 1, 4096], Distribution::Normal(0.0, 1.0), &device);
//! let latents = denoise(
//!     &model,
//!     &mut FlowEuler::uniform(49, 1.0)?,
//!     noise,
//!     Conditions::guided(image.clone(), image.zeros_like(), 5.0),
//!     &mut DenseAttention::default(),
//!     |info| println!("step {} of {}", info.step + 1, info.steps),
//! )?;
//! assert_eq!(to_tokens(latents).dims(), [1, 4096, 64]); // for the authors' shape decoder
//! # Ok(())
//! # }
//! ```

mod attention;
mod block;
mod config;
mod embedding;
mod mixture;
mod transformer;
mod weights;

pub use attention::{LatentAttention, LatentCrossAttention};
pub use block::LatentBlock;
pub use config::Hunyuan3dConfig;
pub use embedding::TimeEmbedder;
pub use mixture::{Gate, GeluFeedForward, Mixture, Mlp};
pub use transformer::{FinalLayer, Hunyuan3d, Hunyuan3dPrepared, from_tokens, to_tokens};

/// Added to the variance in every norm.
const EPS: f64 = 1e-6;
/// How much wider than the hidden state the inside of a feed-forward network is.
const WIDER: usize = 4;
