//! What a block of each model is, and what a run of the model does.

use clap::ValueEnum;
use serde::Serialize;

/// A model whose blocks are timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
pub enum Model {
    /// A small block that runs on a CPU in seconds
    #[value(name = "tiny")]
    #[serde(rename = "tiny")]
    Tiny,
    /// Wan 2.1, 1.3 billion weights, 81 frames of 480 x 832
    #[value(name = "wan2.1-1.3b-480p")]
    #[serde(rename = "wan2.1-1.3b-480p")]
    Wan1_3b,
    /// Wan 2.1, 14 billion weights, 81 frames of 720 x 1280
    #[value(name = "wan2.1-14b-720p")]
    #[serde(rename = "wan2.1-14b-720p")]
    Wan14b,
    /// HunyuanVideo, 13 billion weights, 129 frames of 720 x 1280
    #[value(name = "hunyuanvideo-720p")]
    #[serde(rename = "hunyuanvideo-720p")]
    HunyuanVideo,
    /// MiniMax-H3, 33 billion weights, 345 frames of 768 x 1344
    #[value(name = "minimax-h3-768p")]
    #[serde(rename = "minimax-h3-768p")]
    MiniMaxH3,
}

/// The feed-forward network of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mlp {
    /// Linear, tanh-GELU, linear
    Gelu,
    /// Two linear, SiLU of one times the other, linear
    Swiglu,
}

/// Sizes of a block, and of a run over all of them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Shape {
    /// Frames, rows and columns of video tokens.
    pub grid: [usize; 3],
    /// Joined tokens (text, audio) before the video tokens; sinks of MC-Sparse.
    pub prefix: usize,
    /// Joined tokens behind them.
    pub suffix: usize,
    /// Text tokens that a cross-attention of each block reads; 0 for none.
    pub cross_text: usize,
    /// Attention heads.
    pub heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Size of the hidden state.
    pub hidden: usize,
    /// Size inside the feed-forward network.
    pub ffn: usize,
    /// The feed-forward network.
    pub mlp: Mlp,
    /// Whether the norm of queries and keys runs over all heads at once.
    pub norm_all_heads: bool,
    /// Blocks.
    pub layers: usize,
    /// Evaluations of a run.
    pub steps: usize,
    /// Forwards of an evaluation: 2 with classifier-free guidance.
    pub branches: usize,
}

impl Model {
    /// The published sizes. HunyuanVideo's 20 dual and 40 single blocks are timed as 60 blocks of one stream, which have the
    /// same attention and the same products but for the text tokens.
    pub fn shape(self) -> Shape {
        let wan = Shape {
            grid: [21, 30, 52],
            prefix: 0,
            suffix: 0,
            cross_text: 512,
            heads: 12,
            head_dim: 128,
            hidden: 1536,
            ffn: 8960,
            mlp: Mlp::Gelu,
            norm_all_heads: true,
            layers: 30,
            steps: 50,
            branches: 2,
        };
        match self {
            Self::Tiny => Shape {
                grid: [4, 16, 16],
                cross_text: 16,
                heads: 2,
                head_dim: 64,
                hidden: 128,
                ffn: 512,
                layers: 4,
                steps: 20,
                ..wan
            },
            Self::Wan1_3b => wan,
            Self::Wan14b => Shape { grid: [21, 45, 80], heads: 40, hidden: 5120, ffn: 13824, layers: 40, ..wan },
            Self::HunyuanVideo => Shape {
                grid: [33, 45, 80],
                suffix: 256,
                cross_text: 0,
                heads: 24,
                hidden: 3072,
                ffn: 12288,
                norm_all_heads: false,
                layers: 60,
                branches: 1,
                ..wan
            },
            Self::MiniMaxH3 => Shape {
                grid: [102, 24, 42],
                // 1,150 tokens of audio and 213 of text.
                prefix: 1363,
                cross_text: 0,
                heads: 56,
                hidden: 5376,
                ffn: 14336,
                mlp: Mlp::Swiglu,
                norm_all_heads: false,
                layers: 50,
                steps: 49,
                branches: 1,
                ..wan
            },
        }
    }
}

impl Shape {
    /// Video tokens.
    pub fn video(&self) -> usize {
        self.grid.iter().product()
    }

    /// All tokens of self-attention.
    pub fn tokens(&self) -> usize {
        self.prefix + self.video() + self.suffix
    }

    /// Size of all heads.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Operations of the block's matrix products, attention left out.
    pub fn product_flops(&self) -> f64 {
        let (n, hidden, inner) = (self.tokens() as f64, self.hidden as f64, self.inner() as f64);
        let cross = if self.cross_text > 0 { 2.0 } else { 0.0 };
        let mlp = if self.mlp == Mlp::Swiglu { 3.0 } else { 2.0 };
        2.0 * n * hidden * ((4.0 + cross) * inner + mlp * self.ffn as f64)
    }

    /// Operations of the two products of dense self-attention.
    pub fn attention_flops(&self) -> f64 {
        4.0 * (self.tokens() as f64).powi(2) * self.inner() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_the_published_ones() {
        let tokens = |model: Model| (model.shape().video(), model.shape().tokens());
        assert_eq!(tokens(Model::Wan1_3b), (32_760, 32_760));
        assert_eq!(tokens(Model::Wan14b), (75_600, 75_600));
        assert_eq!(tokens(Model::HunyuanVideo), (118_800, 119_056));
        assert_eq!(tokens(Model::MiniMaxH3), (102_816, 104_179));
        assert_eq!(Model::MiniMaxH3.shape().inner(), 7168);
    }
}
