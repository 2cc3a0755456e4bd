//! Between latents and tokens.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Tensor, module::linear};

/// Cuts latents into patches, one row of values for every token.
///
/// # Shapes
///
/// - `latents`: `[batch, channels, frames, height, width]`, the last three multiples of `patch`
/// - returns `[batch, tokens, channels * patch]`; tokens run over frames, then rows, then columns, and the values of a
///   token over channels, then the frames, rows and columns of the patch
///
/// # Panics
///
/// If a size is no multiple of the patch.
pub fn patchify(latents: Tensor<5>, patch: [usize; 3]) -> Tensor<3> {
    let [batch, channels, frames, height, width] = latents.dims();
    let ([t, h, w], [pt, ph, pw]) = ([frames / patch[0], height / patch[1], width / patch[2]], patch);
    latents.reshape([batch, channels, t, pt, h, ph, w, pw]).permute([0, 2, 4, 6, 1, 3, 5, 7]).reshape([
        batch,
        t * h * w,
        channels * pt * ph * pw,
    ])
}

/// Puts the output tokens together again.
///
/// The inverse of [`patchify`] but for the order of the values of a token, which here run over the frames, rows and
/// columns of the patch and then over channels: that is what Wan's last projection gives.
///
/// # Shapes
///
/// - `tokens`: `[batch, tokens, patch * channels]`, `tokens` the product of `grid`
/// - returns `[batch, channels, frames, height, width]`
///
/// # Panics
///
/// If `tokens` does not have the sizes that `grid` and `patch` ask for.
pub fn unpatchify(tokens: Tensor<3>, grid: [usize; 3], patch: [usize; 3]) -> Tensor<5> {
    let [batch, _, values] = tokens.dims();
    let ([t, h, w], [pt, ph, pw]) = (grid, patch);
    let channels = values / (pt * ph * pw);
    tokens.reshape([batch, t, h, w, pt, ph, pw, channels]).permute([0, 7, 1, 4, 2, 5, 3, 6]).reshape([
        batch,
        channels,
        t * pt,
        h * ph,
        w * pw,
    ])
}

/// Puts tokens together whose values run over channels first, as [`patchify`] cuts them: its inverse.
///
/// # Shapes
///
/// - `tokens`: `[batch, tokens, channels * patch]`, `tokens` the product of `grid`
/// - returns `[batch, channels, frames, height, width]`
///
/// # Panics
///
/// If `tokens` does not have the sizes that `grid` and `patch` ask for.
pub fn unpatchify_channels_first(tokens: Tensor<3>, grid: [usize; 3], patch: [usize; 3]) -> Tensor<5> {
    let [batch, _, values] = tokens.dims();
    let ([t, h, w], [pt, ph, pw]) = (grid, patch);
    let channels = values / (pt * ph * pw);
    tokens.reshape([batch, t, h, w, channels, pt, ph, pw]).permute([0, 4, 1, 5, 2, 6, 3, 7]).reshape([
        batch,
        channels,
        t * pt,
        h * ph,
        w * pw,
    ])
}

/// The first layer: a convolution whose kernel is its stride, so one matrix product over patches.
///
/// The weight keeps the shape that files have, `[inner_dim, in_channels, patch]`.
#[derive(Module, Debug)]
pub struct PatchEmbedding {
    /// `[inner_dim, in_channels, patch frames, patch rows, patch columns]`.
    pub weight: Param<Tensor<5>>,
    /// `[inner_dim]`.
    pub bias: Param<Tensor<1>>,
}

impl PatchEmbedding {
    /// From `channels` channels to tokens of `out` values.
    pub(crate) fn new(channels: usize, out: usize, [frames, height, width]: [usize; 3], device: &Device) -> Self {
        let fan_in = channels * frames * height * width;
        // The initialisation of a convolution.
        let initializer = Initializer::KaimingUniform { gain: 1.0 / 3f64.sqrt(), fan_out_only: false };
        Self {
            weight: initializer.init_with([out, channels, frames, height, width], Some(fan_in), Some(out), device),
            bias: initializer.init_with([out], Some(fan_in), Some(out), device),
        }
    }

    /// Cuts latents `[batch, channels, frames, height, width]` into tokens `[batch, tokens, inner_dim]`.
    ///
    /// # Panics
    ///
    /// If the channels differ from those of the weight or a size is no multiple of the patch.
    pub fn forward(&self, latents: Tensor<5>) -> Tensor<3> {
        let weight = self.weight.val();
        let [out, channels, frames, height, width] = weight.dims();
        let weight = weight.reshape([out, channels * frames * height * width]).transpose();
        linear(patchify(latents, [frames, height, width]), weight, Some(self.bias.val()))
    }
}
