//! MiniMax-H3: video and sound from one sequence.
//!
//! Text, keyframes, audio and video are packed into one sequence, `[text | keyframes | audio | video]`, and every block
//! is full self-attention over it and a feed-forward network. What a token is decides only how it comes in and goes out,
//! and which modulation it gets: there is one for every noise level and modality. Names of parameters and the layout of
//! weights are those of the `MiniMaxH3Transformer3DModel` of the Python library diffusers.
//!
//! Each forward announces the layout ([`mcsparse::SelfAttention::begin_sequence`]), so that MC-Sparse takes text, keyframes
//! and audio as sinks and works on the video alone. The model was trained with its guidance inside: there is one forward
//! a step. Its clock runs from 0 for pure noise to 1 for none, and its velocity points to the data; [`H3Euler`] steps so.

mod attention;
mod block;
mod config;
mod denoise;
mod layout;
mod rotary;
mod transformer;
mod weights;

pub use attention::H3Attention;
pub use block::{H3Block, Modulation, RefinerBlock, SwiGlu, TokenRefiner};
pub use config::MiniMaxH3Config;
pub use denoise::{H3Conditions, H3Euler, H3Latents, denoise, resume};
pub use layout::{Keyframe, PackedLayout, Position, Times};
pub use transformer::{H3Prepared, H3Velocity, MiniMaxH3, OutputNorm};
