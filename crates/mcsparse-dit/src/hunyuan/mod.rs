//! HunyuanVideo and HunyuanVideo-1.5: text joins the video tokens in one sequence.
//!
//! *Dual* blocks have weights of their own for video and text and let both attend to both; HunyuanVideo goes on with
//! *single* blocks, which run one set of weights over the joined sequence. Names of parameters and the layout of weights
//! are those of `HunyuanVideoTransformer3DModel` and `HunyuanVideo15Transformer3DModel` of the Python library diffusers.
//!
//! # Text is given without its padding
//!
//! The Python models take padded text with a mask, so that padding is in every sequence and no query attends to it. Here
//! the padding is cut off beforehand ([`trim`]), which gives the same values for all tokens that matter and leaves
//! attention without a mask. Elements of one batch have equally many text tokens therefore; others are run one by one.
//!
//! The sequence is `[video, text]`, and each forward announces it ([`mcsparse::SelfAttention::begin_sequence`]), so
//! that MC-Sparse takes the text as sinks: keys of every group, with dense query rows.

mod attention;
mod block;
mod config;
mod embedding;
mod refiner;
mod trim;
mod video;
mod video15;
mod weights;

pub use attention::{DualAttention, SingleAttention};
pub use block::{AdaptiveNorm, DualBlock, SingleBlock};
pub use config::{HunyuanVideo15Config, HunyuanVideoConfig};
pub use embedding::{ByT5Embedder, ConditionTypes, GuidedTimeEmbedder, ImageEmbedder, TimeEmbedder, TimeTextEmbedder};
pub use refiner::{Refiner, RefinerAttention, RefinerBlock, RefinerFeedForward, TokenRefiner};
pub use trim::trim;
pub use video::{HunyuanCondition, HunyuanPrepared, HunyuanVideo, PatchEmbedder};
pub use video15::{Hunyuan15Condition, Hunyuan15Prepared, HunyuanVideo15};

/// In every norm, as in diffusers.
const EPS: f64 = 1e-6;
/// Values of the sinusoids of a timestep.
const FREQUENCIES: usize = 256;
