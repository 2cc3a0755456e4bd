//! The Wan video transformer (Wan 2.1, Wan 2.2 and anything else of that architecture), text and image to video.
//!
//! One block is self-attention over all video tokens, cross-attention to the text tokens (and in Wan 2.1 image-to-video
//! to those of the image) and a feed-forward network; the timestep shifts, scales and gates the first and the last of
//! these. Names of parameters and the layout of weights are those of the `WanTransformer3DModel` of the Python library
//! diffusers, so its files load unchanged; the names of Wan's own repositories are understood too.

mod attention;
mod block;
mod config;
mod embedding;
mod experts;
mod prepared;
mod transformer;
mod weights;

pub use attention::WanAttention;
pub use block::WanBlock;
pub use config::WanConfig;
pub use embedding::{ConditionEmbedder, ImageEmbedder, ImageFeedForward};
pub use experts::WanExperts;
pub use prepared::{WanCondition, WanPrepared};
pub use transformer::WanTransformer;

pub use crate::layers::{
    FeedForward, PatchEmbedding, Projection, RotaryTables, Timestep, axis_dims, patchify, unpatchify,
};
