//! What timestep, text and image become before the first block.

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{
    DType, Device, Tensor,
    activation::{gelu, silu},
};

use super::WanConfig;
use crate::layers::{Projection, f32_norm, gelu_tanh, timestep_embedding};

/// Embeds the timestep, the text and, in Wan 2.1 image-to-video, the image.
#[derive(Module, Debug)]
pub struct ConditionEmbedder {
    /// From the sinusoids to the hidden size, with SiLU; stays in f32 whatever the dtype of the model.
    pub time_embedder: Projection,
    /// From the time embedding to the six modulations of a block.
    pub time_proj: Linear,
    /// From text tokens to the hidden size, with tanh-GELU.
    pub text_embedder: Projection,
    /// From image tokens to the hidden size.
    pub image_embedder: Option<ImageEmbedder>,
}

impl ConditionEmbedder {
    pub(crate) fn new(config: &WanConfig, device: &Device) -> Self {
        let inner = config.inner_dim();
        Self {
            time_embedder: Projection::new(config.freq_dim, inner, device),
            time_proj: LinearConfig::new(inner, 6 * inner).init(device),
            text_embedder: Projection::new(config.text_dim, inner, device),
            image_embedder: config.image_dim.map(|image_dim| ImageEmbedder::new(image_dim, inner, device)),
        }
    }

    /// `timesteps` `[a, b]` to the time embedding `[a, b, inner_dim]` and its projection `[a, b, 6, inner_dim]`, both in
    /// f32.
    pub(super) fn time(&self, timesteps: Tensor<2>) -> (Tensor<3>, Tensor<4>) {
        let embedding = timestep_embedding(&self.time_embedder, timesteps).cast(DType::F32);
        let [a, b, inner] = embedding.dims();
        let projected = self.time_proj.forward(silu(embedding.clone()).cast(self.time_proj.weight.val().dtype()));
        (embedding, projected.cast(DType::F32).reshape([a, b, 6, inner]))
    }

    /// Text tokens `[batch, tokens, text_dim]` to `[batch, tokens, inner_dim]`.
    pub(super) fn text(&self, text: Tensor<3>) -> Tensor<3> {
        self.text_embedder.forward(text, gelu_tanh)
    }
}

/// A norm, a feed-forward network and a norm, from the tokens of an image encoder to those of the transformer.
#[derive(Module, Debug)]
pub struct ImageEmbedder {
    /// Norm of the input; stays in f32.
    pub norm1: LayerNorm,
    /// Two linear layers with GELU between them.
    pub ff: ImageFeedForward,
    /// Norm of the output; stays in f32.
    pub norm2: LayerNorm,
}

/// The layers of an [`ImageEmbedder`].
#[derive(Module, Debug)]
pub struct ImageFeedForward {
    /// Within the image encoder's size; `net.0.proj` in files.
    pub up: Linear,
    /// Into the hidden size; `net.2` in files.
    pub down: Linear,
}

impl ImageEmbedder {
    fn new(image_dim: usize, inner: usize, device: &Device) -> Self {
        Self {
            norm1: LayerNormConfig::new(image_dim).init(device),
            ff: ImageFeedForward {
                up: LinearConfig::new(image_dim, image_dim).init(device),
                down: LinearConfig::new(image_dim, inner).init(device),
            },
            norm2: LayerNormConfig::new(inner).init(device),
        }
    }

    /// `[batch, image tokens, image_dim]` to `[batch, image tokens, inner_dim]`.
    pub(super) fn forward(&self, image: Tensor<3>) -> Tensor<3> {
        let hidden = self.ff.up.forward(f32_norm(&self.norm1, image));
        f32_norm(&self.norm2, self.ff.down.forward(gelu(hidden)))
    }
}
