//! What timestep and text become before the first block.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor, TensorData, activation::silu};
use mcsparse::Error;

use super::{WanConfig, feed_forward::gelu_tanh};
use crate::check;

/// The noise level of a forward, 1000 for pure noise and 0 for none.
#[derive(Debug, Clone)]
pub enum Timestep {
    /// One value for everything.
    Shared(f64),
    /// One value for every element of the batch, `[batch]`.
    PerSample(Tensor<1>),
    /// One value for every token, `[batch, tokens]`: frames that are given stay at 0 (Wan 2.2 TI2V-5B).
    PerToken(Tensor<2>),
}

impl From<f64> for Timestep {
    fn from(value: f64) -> Self {
        Self::Shared(value)
    }
}

impl Timestep {
    /// As `[1 or batch, 1 or tokens]` in f32, which broadcasts over `[batch, tokens]`.
    pub(super) fn broadcastable(self, batch: usize, tokens: usize, device: &Device) -> Result<Tensor<2>, Error> {
        let values = match self {
            Self::Shared(value) => Tensor::from_data(TensorData::from([[value as f32]]), (device, DType::F32)),
            Self::PerSample(values) if values.dims() == [batch] => values.reshape([batch, 1]),
            Self::PerSample(values) => {
                return Err(check::tensor("timestep", format!("[{batch}], one for each of the batch"), shape(&values)));
            }
            Self::PerToken(values) if values.dims() == [batch, tokens] => values,
            Self::PerToken(values) => {
                return Err(check::tensor("timestep", format!("[{batch}, {tokens}], one a token"), shape(&values)));
            }
        };
        // Half precision has no room for 999.0 beside 999.5.
        Ok(values.to_device(device).cast(DType::F32))
    }
}

fn shape<const D: usize>(tensor: &Tensor<D>) -> String {
    format!("{:?}", tensor.dims())
}

/// Cosines, then sines, of `timesteps` at frequencies falling from 1 to nearly 1/10,000.
///
/// `[a, b]` becomes `[a, b, size]`. Frequency i is `exp(-ln(10000) * i / (size / 2))`, as in diffusers with
/// `flip_sin_to_cos` and no frequency shift.
pub(super) fn sinusoid(timesteps: Tensor<2>, size: usize) -> Tensor<3> {
    let half = size / 2;
    // In f32, as the weights were trained: at timestep 1000 a rounding of the frequency shows in the fifth digit.
    let log = -(10_000f64.ln() as f32);
    let frequencies: Vec<f32> = (0..half).map(|i| (log * i as f32 / half as f32).exp()).collect();
    let frequencies =
        Tensor::<3>::from_data(TensorData::new(frequencies, [1, 1, half]), (&timesteps.device(), DType::F32));
    let angles = timesteps.unsqueeze_dim::<3>(2) * frequencies;
    Tensor::cat(vec![angles.clone().cos(), angles.sin()], 2)
}

/// Two linear layers with an activation between them.
#[derive(Module, Debug)]
pub struct Projection {
    /// Into the hidden size.
    pub linear_1: Linear,
    /// Within the hidden size.
    pub linear_2: Linear,
}

impl Projection {
    fn new(input: usize, output: usize, device: &Device) -> Self {
        Self {
            linear_1: LinearConfig::new(input, output).init(device),
            linear_2: LinearConfig::new(output, output).init(device),
        }
    }

    fn forward(&self, input: Tensor<3>, activation: fn(Tensor<3>) -> Tensor<3>) -> Tensor<3> {
        self.linear_2.forward(activation(self.linear_1.forward(input)))
    }
}

/// Embeds the timestep and the text.
#[derive(Module, Debug)]
pub struct ConditionEmbedder {
    /// From the sinusoids to the hidden size, with SiLU; stays in f32 whatever the dtype of the model.
    pub time_embedder: Projection,
    /// From the time embedding to the six modulations of a block.
    pub time_proj: Linear,
    /// From text tokens to the hidden size, with tanh-GELU.
    pub text_embedder: Projection,
    freq_dim: usize,
}

impl ConditionEmbedder {
    pub(crate) fn new(config: &WanConfig, device: &Device) -> Self {
        let inner = config.inner_dim();
        Self {
            time_embedder: Projection::new(config.freq_dim, inner, device),
            time_proj: LinearConfig::new(inner, 6 * inner).init(device),
            text_embedder: Projection::new(config.text_dim, inner, device),
            freq_dim: config.freq_dim,
        }
    }

    /// `timesteps` `[a, b]` to the time embedding `[a, b, inner_dim]` and its projection `[a, b, 6, inner_dim]`, both in
    /// f32.
    pub(super) fn time(&self, timesteps: Tensor<2>) -> (Tensor<3>, Tensor<4>) {
        let sinusoid = sinusoid(timesteps, self.freq_dim).cast(self.time_embedder.linear_1.weight.val().dtype());
        let embedding = self.time_embedder.forward(sinusoid, silu).cast(DType::F32);
        let [a, b, inner] = embedding.dims();
        let projected = self.time_proj.forward(silu(embedding.clone()).cast(self.time_proj.weight.val().dtype()));
        (embedding, projected.cast(DType::F32).reshape([a, b, 6, inner]))
    }

    /// Text tokens `[batch, tokens, text_dim]` to `[batch, tokens, inner_dim]`.
    pub(super) fn text(&self, text: Tensor<3>) -> Tensor<3> {
        self.text_embedder.forward(text, gelu_tanh)
    }
}
