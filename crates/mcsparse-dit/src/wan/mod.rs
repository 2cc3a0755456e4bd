//! The Wan video transformer (Wan 2.1, Wan 2.2 and anything else of that architecture), text to video.
//!
//! One block is self-attention over all video tokens, cross-attention to the text tokens and a feed-forward network;
//! the timestep shifts, scales and gates the first and the last of these. Names of parameters and the layout of
//! weights are those of the `WanTransformer3DModel` of the Python library diffusers, so its files load unchanged.

mod attention;
mod block;
mod config;
mod embedding;
mod feed_forward;
mod modulation;
mod patch;
mod prepared;
mod rotary;
mod transformer;

pub use attention::WanAttention;
pub use block::WanBlock;
pub use config::WanConfig;
pub use embedding::{ConditionEmbedder, Projection, Timestep};
pub use feed_forward::FeedForward;
pub use patch::{PatchEmbedding, patchify, unpatchify};
pub use prepared::WanPrepared;
pub use rotary::{RotaryTables, axis_dims};
pub use transformer::WanTransformer;
