//! The blocks of the packed sequence and of the text refiner.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::{Device, Int, Tensor, activation::silu};
use mcsparse::{Error, SelfAttention};

use super::layout::MODALITIES;
use super::{H3Attention, MiniMaxH3Config};
use crate::layers::{RotaryTables, gated_add_by_row, linear, modulated_rms_norm, swiglu};

/// Shift, scale and gate of attention and of feed-forward network.
const PARTS: usize = 6;

/// `down(value * silu(gate))`, without bias.
#[derive(Module, Debug)]
pub struct SwiGlu {
    /// To values, then gates; `net.0.proj` in files.
    pub up: Linear,
    /// Back; `net.2` in files.
    pub down: Linear,
}

impl SwiGlu {
    fn new(config: &MiniMaxH3Config, device: &Device) -> Self {
        let linear = |input, output| LinearConfig::new(input, output).with_bias(false).init(device);
        Self { up: linear(config.hidden_size, 2 * config.ffn_dim), down: linear(config.ffn_dim, config.hidden_size) }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        linear(&self.down, swiglu(linear(&self.up, x)))
    }
}

/// From the timestep embedding to the modulations of one block, for every modality.
#[derive(Module, Debug)]
pub struct Modulation {
    /// The projection.
    pub linear: Linear,
}

impl Modulation {
    /// `time` `[times, time_embed_dim]` to a table of each part, `[times * modalities, hidden_size]`, in the dtype of the
    /// weights.
    fn tables(&self, time: Tensor<2>) -> [Tensor<2>; PARTS] {
        let times = time.dims()[0];
        let all = self.linear.forward(silu(time).cast(self.linear.weight.val().dtype()));
        let hidden = all.dims()[1] / (PARTS * MODALITIES);
        let table = all.reshape([times * MODALITIES, PARTS * hidden]);
        std::array::from_fn(|part| table.clone().slice_dim(1, part * hidden..(part + 1) * hidden))
    }
}

/// Attention within the packed sequence and a feed-forward network, each modulated by time and modality of a token.
#[derive(Module, Debug)]
pub struct H3Block {
    /// Norm before the attention.
    pub norm1: RmsNorm,
    /// Attention.
    pub attn: H3Attention,
    /// Norm before the feed-forward network.
    pub norm2: RmsNorm,
    /// Feed-forward network.
    pub ff: SwiGlu,
    /// Modulation.
    pub adaln_proj: Modulation,
}

impl H3Block {
    pub(super) fn new(config: &MiniMaxH3Config, device: &Device) -> Self {
        let norm = || RmsNormConfig::new(config.hidden_size).with_epsilon(config.norm_eps).init(device);
        let modulations = PARTS * MODALITIES * config.hidden_size;
        Self {
            norm1: norm(),
            attn: H3Attention::new(config, device),
            norm2: norm(),
            ff: SwiGlu::new(config, device),
            adaln_proj: Modulation { linear: LinearConfig::new(config.time_embed_dim, modulations).init(device) },
        }
    }

    /// `x` `[batch, tokens, hidden_size]` through the block; `rows` has the row of every token of the batch in the tables of
    /// modulations.
    pub(super) fn forward(
        &self,
        layer: usize,
        x: Tensor<3>,
        time: Tensor<2>,
        rows: Tensor<1, Int>,
        rotary: &RotaryTables,
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<3>, Error> {
        let [shift, scale, gate, ff_shift, ff_scale, ff_gate] = self.adaln_proj.tables(time);
        let normed = modulated_rms_norm(&self.norm1, x.clone(), scale, shift, Some(rows.clone()));
        let update = self.attn.forward(layer, normed, rotary, attention)?;
        let x = gated_add_by_row(x, update, gate, rows.clone());
        let normed = modulated_rms_norm(&self.norm2, x.clone(), ff_scale, ff_shift, Some(rows.clone()));
        Ok(gated_add_by_row(x, self.ff.forward(normed), ff_gate, rows))
    }
}

/// A block of the text refiner, which knows neither time nor position. It is dense, whatever method runs in the others.
#[derive(Module, Debug)]
pub struct RefinerBlock {
    /// Norm before the attention.
    pub norm1: RmsNorm,
    /// Attention.
    pub attn: H3Attention,
    /// Norm before the feed-forward network.
    pub norm2: RmsNorm,
    /// Feed-forward network.
    pub ff: SwiGlu,
}

/// A small transformer over the text alone.
#[derive(Module, Debug)]
pub struct TokenRefiner {
    /// The blocks.
    pub refiner_blocks: Vec<RefinerBlock>,
    /// Norm of the result.
    pub final_norm: RmsNorm,
}

impl TokenRefiner {
    pub(super) fn new(config: &MiniMaxH3Config, device: &Device) -> Self {
        let norm = |eps| RmsNormConfig::new(config.hidden_size).with_epsilon(eps).init(device);
        let block = || RefinerBlock {
            norm1: norm(config.norm_eps),
            attn: H3Attention::new(config, device),
            norm2: norm(config.norm_eps),
            ff: SwiGlu::new(config, device),
        };
        Self {
            refiner_blocks: (0..config.num_refiner_layers).map(|_| block()).collect(),
            final_norm: norm(config.final_norm_eps),
        }
    }

    /// `[batch, text tokens, hidden_size]` to the same shape.
    pub(super) fn forward(&self, text: Tensor<3>) -> Tensor<3> {
        let refined = self.refiner_blocks.iter().fold(text, |x, block| {
            let x = x.clone() + block.attn.refine(block.norm1.forward(x));
            x.clone() + block.ff.forward(block.norm2.forward(x))
        });
        self.final_norm.forward(refined)
    }
}
