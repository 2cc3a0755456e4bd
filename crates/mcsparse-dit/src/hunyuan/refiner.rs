//! The refiner: a small transformer over the text alone. It is dense, whatever method runs in the blocks.

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor, activation::silu};

use super::{AdaptiveNorm, EPS, TimeTextEmbedder};
use crate::layers::{dense, f32_norm, gated_add, split_heads};

/// Hidden size of its feed-forward networks as a multiple of the inner size.
const RATIO: usize = 4;

/// Text tokens to those that join the video.
#[derive(Module, Debug)]
pub struct TokenRefiner {
    /// Timestep and mean text token to the embedding that gates the blocks.
    pub time_text_embed: TimeTextEmbedder,
    /// From the size of the text encoder.
    pub proj_in: Linear,
    /// The blocks.
    pub token_refiner: Refiner,
}

/// The blocks of a [`TokenRefiner`].
#[derive(Module, Debug)]
pub struct Refiner {
    /// The blocks.
    pub refiner_blocks: Vec<RefinerBlock>,
}

/// What a [`TokenRefiner`] makes of the text once and for all steps.
#[derive(Debug, Clone)]
pub(super) struct PreparedText {
    tokens: Tensor<3>,
    /// `[batch, 1, inner_dim]`.
    pooled: Tensor<3>,
}

impl PreparedText {
    pub(super) fn tokens(&self) -> usize {
        self.tokens.dims()[1]
    }
}

impl TokenRefiner {
    pub(super) fn new(text_dim: usize, heads: usize, head_dim: usize, layers: usize, device: &Device) -> Self {
        let blocks = (0..layers).map(|_| RefinerBlock::new(heads, head_dim, device)).collect();
        Self {
            time_text_embed: TimeTextEmbedder::new(text_dim, heads * head_dim, device),
            proj_in: LinearConfig::new(text_dim, heads * head_dim).init(device),
            token_refiner: Refiner { refiner_blocks: blocks },
        }
    }

    /// `text` `[batch, tokens, text_dim]` as far as it does not depend on the timestep.
    pub(super) fn prepare(&self, text: Tensor<3>) -> PreparedText {
        let mean = text.clone().cast(DType::F32).mean_dim(1).cast(text.dtype());
        PreparedText { tokens: self.proj_in.forward(text), pooled: self.time_text_embed.text(mean) }
    }

    /// The refined text `[batch, tokens, inner_dim]` at `timesteps` `[1 or batch, 1]`.
    pub(super) fn forward(&self, text: &PreparedText, timesteps: Tensor<2>) -> Tensor<3> {
        let embedding = self.time_text_embed.time(timesteps) + text.pooled.clone();
        let blocks = self.token_refiner.refiner_blocks.iter();
        blocks.fold(text.tokens.clone(), |x, block| block.forward(x, embedding.clone()))
    }
}

/// Attention and a feed-forward network, gated by the embedding.
#[derive(Module, Debug)]
pub struct RefinerBlock {
    /// Norm before the attention.
    pub norm1: LayerNorm,
    /// Attention.
    pub attn: RefinerAttention,
    /// Norm before the feed-forward network.
    pub norm2: LayerNorm,
    /// Feed-forward network with SiLU.
    pub ff: RefinerFeedForward,
    /// The two gates.
    pub norm_out: AdaptiveNorm,
}

/// The feed-forward network of a [`RefinerBlock`].
#[derive(Module, Debug)]
pub struct RefinerFeedForward {
    /// Into the hidden size; `net.0.proj` in files.
    pub up: Linear,
    /// Out of it; `net.2` in files.
    pub down: Linear,
}

/// Plain attention of text tokens.
#[derive(Module, Debug)]
pub struct RefinerAttention {
    /// Query projection.
    pub to_q: Linear,
    /// Key projection.
    pub to_k: Linear,
    /// Value projection.
    pub to_v: Linear,
    /// Output projection; `to_out.0` in files.
    pub to_out: Linear,
    heads: usize,
}

impl RefinerBlock {
    fn new(heads: usize, head_dim: usize, device: &Device) -> Self {
        let inner = heads * head_dim;
        let linear = |input, output| LinearConfig::new(input, output).init(device);
        let norm = || LayerNormConfig::new(inner).with_epsilon(EPS).init(device);
        Self {
            norm1: norm(),
            attn: RefinerAttention {
                to_q: linear(inner, inner),
                to_k: linear(inner, inner),
                to_v: linear(inner, inner),
                to_out: linear(inner, inner),
                heads,
            },
            norm2: norm(),
            ff: RefinerFeedForward { up: linear(inner, RATIO * inner), down: linear(RATIO * inner, inner) },
            norm_out: AdaptiveNorm::new(inner, 2, device),
        }
    }

    fn forward(&self, x: Tensor<3>, embedding: Tensor<3>) -> Tensor<3> {
        let [gate, ff_gate] = self.norm_out.parts(embedding);
        let update = self.attn.forward(f32_norm(&self.norm1, x.clone()));
        let x = gated_add(x, update, gate);
        let update = self.ff.down.forward(silu(self.ff.up.forward(f32_norm(&self.norm2, x.clone()))));
        gated_add(x, update, ff_gate)
    }
}

impl RefinerAttention {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [query, key, value] =
            [&self.to_q, &self.to_k, &self.to_v].map(|linear| split_heads(linear.forward(x.clone()), self.heads));
        self.to_out.forward(dense(query, key, value))
    }
}
