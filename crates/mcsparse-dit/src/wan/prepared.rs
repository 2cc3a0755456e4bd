//! What a Wan transformer is told, and what follows from it for every step.

use burn::tensor::Tensor;

use super::attention::ConditionKeysValues;
use crate::layers::RotaryTables;

/// What a video is to show.
#[derive(Debug, Clone)]
pub struct WanCondition {
    /// Text tokens `[batch, text tokens, text_dim]`, padding included: Wan was trained with zeros up to 512 tokens and
    /// attends to them.
    pub text: Tensor<3>,
    /// Tokens of an image encoder `[batch, image tokens, image_dim]`, for Wan 2.1 image-to-video alone.
    pub image: Option<Tensor<3>>,
    /// Channels that follow those of the noisy latents, `[batch, in_channels - out_channels, frames, height, width]`:
    /// in image-to-video four of mask and sixteen of the encoded frames that are given.
    pub latents: Option<Tensor<5>>,
}

impl WanCondition {
    /// Text alone.
    pub fn text(text: Tensor<3>) -> Self {
        Self { text, image: None, latents: None }
    }
}

impl From<Tensor<3>> for WanCondition {
    fn from(text: Tensor<3>) -> Self {
        Self::text(text)
    }
}

/// Keys and values of a condition for every block, and the rotary tables of a grid.
///
/// Made by [`WanTransformer::prepare`](super::WanTransformer::prepare) once for a whole denoising run. In memory it is
/// `2 * num_layers * condition tokens * inner_dim` values and `tokens * head_dim` more.
#[derive(Debug, Clone)]
pub struct WanPrepared {
    pub(super) conditions: Vec<ConditionKeysValues>,
    pub(super) latents: Option<Tensor<5>>,
    pub(super) rotary: RotaryTables,
    pub(super) grid: [usize; 3],
}

impl WanPrepared {
    /// Tokens along frames, height and width.
    pub fn grid(&self) -> [usize; 3] {
        self.grid
    }
}
