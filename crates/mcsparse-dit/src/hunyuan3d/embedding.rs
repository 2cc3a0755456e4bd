//! The token that says the time.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};

use super::WIDER;
use super::mixture::gelu;

/// Sinusoids of the time through two linear layers.
#[derive(Module, Debug)]
pub struct TimeEmbedder {
    /// Into four times the hidden size; `mlp.0` in files.
    pub mlp_in: Linear,
    /// Out of it; `mlp.2` in files.
    pub mlp_out: Linear,
}

impl TimeEmbedder {
    pub(super) fn new(hidden: usize, device: &Device) -> Self {
        Self {
            mlp_in: LinearConfig::new(hidden, WIDER * hidden).init(device),
            mlp_out: LinearConfig::new(WIDER * hidden, hidden).init(device),
        }
    }

    /// A token `[1, 1, hidden_size]` for `time`, 0 for pure noise and 1 for none: sines, then cosines, at frequencies that
    /// fall from 1 to nearly 1/10,000.
    pub(super) fn forward(&self, time: f64, device: &Device) -> Tensor<3> {
        let weight = self.mlp_in.weight.val();
        let half = weight.dims()[0] / 2;
        let angle = |i: usize| time * (10_000f64.ln() * -(i as f64) / half as f64).exp();
        let values = (0..half).map(|i| angle(i).sin()).chain((0..half).map(|i| angle(i).cos()));
        let values = TensorData::new(values.map(|value| value as f32).collect::<Vec<_>>(), [1, 1, 2 * half]);
        let waves = Tensor::<3>::from_data(values, (device, DType::F32)).cast(weight.dtype());
        self.mlp_out.forward(gelu(self.mlp_in.forward(waves)))
    }
}
