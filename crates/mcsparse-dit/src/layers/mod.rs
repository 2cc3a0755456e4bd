//! Layers that the transformers of this crate share.

mod attend;
mod embedding;
mod feed_forward;
mod linear;
mod modulation;
mod patch;
mod rotary;

pub(crate) use attend::{dense, self_attend, split_heads};
pub use embedding::{Projection, Timestep};
pub(crate) use embedding::{embedding_of, timestep_embedding};
pub use feed_forward::FeedForward;
pub(crate) use feed_forward::gelu_tanh;
pub(crate) use linear::{linear, linear_of};
pub(crate) use modulation::{
    f32_norm, gated_add, gated_add_by_row, head_norm, layer_norm, modulated_norm, modulated_rms_norm, parts, swiglu,
};
pub use patch::{PatchEmbedding, patchify, unpatchify, unpatchify_channels_first};
pub use rotary::{RotaryTables, axis_dims};

use burn::tensor::Tensor;
use mcsparse::Error;

use crate::check;

/// Tokens along frames, rows and columns for latents of `size` cut into patches of `patch`.
///
/// # Errors
///
/// [`Error::InvalidTensor`] on argument `latents` if a size is no multiple of the patch.
pub(crate) fn grid(size: [usize; 3], patch: [usize; 3]) -> Result<[usize; 3], Error> {
    for axis in 0..3 {
        if size[axis] == 0 || !size[axis].is_multiple_of(patch[axis]) {
            let expected = format!("{} a multiple of the patch size {}", AXES[axis], patch[axis]);
            return Err(check::tensor("latents", expected, size[axis]));
        }
    }
    Ok(std::array::from_fn(|axis| size[axis] / patch[axis]))
}

/// Latents with the channels of a condition behind their own, where there are any.
pub(crate) fn with_rest(latents: Tensor<5>, rest: &Option<Tensor<5>>) -> Tensor<5> {
    match rest {
        Some(rest) => Tensor::cat(vec![latents.clone(), rest.clone().cast(latents.dtype())], 1),
        None => latents,
    }
}

/// Names of the axes of a grid.
pub(crate) const AXES: [&str; 3] = ["frames", "height", "width"];
