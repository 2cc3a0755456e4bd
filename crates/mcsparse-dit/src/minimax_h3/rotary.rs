//! Rotary embedding of packed positions: halves of a head turn against each other, and the rest of it stays.

use burn::tensor::{DType, Device, Tensor, TensorData};

use super::{MiniMaxH3Config, Position};

/// Cosines and sines of every token.
#[derive(Debug, Clone)]
pub(super) struct PackedRotary {
    /// `[1, tokens, 1, head_dim]`, f32; 1 where nothing turns.
    cos: Tensor<4>,
    /// As `cos`, negative in the first half and 0 where nothing turns.
    sin: Tensor<4>,
    /// Values of a head that turn.
    turned: usize,
}

impl PackedRotary {
    /// Angles are products in f32 of position and frequency, as the model was trained.
    pub(super) fn new(positions: &[Position], config: &MiniMaxH3Config, device: &Device) -> Self {
        let (frequencies, head_dim) = (config.rope_freq_dim, config.attention_head_dim);
        let inverse: Vec<f32> = (0..frequencies)
            .map(|i| 1.0 / (config.rope_theta as f32).powf((2 * i) as f32 / (2 * frequencies) as f32))
            .collect();
        let (half, turned) = (3 * frequencies, 6 * frequencies);
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for position in positions {
            let angles: Vec<f64> = position
                .iter()
                .flat_map(|&at| inverse.iter().map(move |&frequency| f64::from(at as f32 * frequency)))
                .collect();
            for value in 0..head_dim {
                let angle = angles.get(value % half).filter(|_| value < turned);
                let sign = if value < half { -1.0 } else { 1.0 };
                cos.push(angle.map_or(1.0, |angle| angle.cos()) as f32);
                sin.push(angle.map_or(0.0, |angle| sign * angle.sin()) as f32);
            }
        }
        let table = |values: Vec<f32>| {
            Tensor::from_data(TensorData::new(values, [1, positions.len(), 1, head_dim]), (device, DType::F32))
        };
        Self { cos: table(cos), sin: table(sin), turned }
    }

    /// Turns `x` `[batch, tokens, heads, head_dim]` in f32; the result in the dtype of `x`.
    pub(super) fn rotate(&self, x: Tensor<4>) -> Tensor<4> {
        let (dtype, [_, _, _, head_dim], half) = (x.dtype(), x.dims(), self.turned / 2);
        let part = |values: std::ops::Range<usize>| x.clone().slice_dim(3, values);
        let mut swapped = vec![part(half..self.turned), part(0..half)];
        if self.turned < head_dim {
            swapped.push(part(self.turned..head_dim));
        }
        let swapped = Tensor::cat(swapped, 3).cast(DType::F32);
        (x.cast(DType::F32) * self.cos.clone() + swapped * self.sin.clone()).cast(dtype)
    }
}
