//! Embeddings of timesteps and conditions.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor, TensorData, activation::silu};
use mcsparse::Error;

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
    pub(crate) fn broadcastable(self, batch: usize, tokens: usize, device: &Device) -> Result<Tensor<2>, Error> {
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
fn sinusoid(timesteps: Tensor<2>, size: usize) -> Tensor<3> {
    let frequencies = frequencies(size / 2).collect::<Vec<f32>>();
    let shape = [1, 1, frequencies.len()];
    let frequencies = Tensor::<3>::from_data(TensorData::new(frequencies, shape), (&timesteps.device(), DType::F32));
    let angles = timesteps.unsqueeze_dim::<3>(2) * frequencies;
    Tensor::cat(vec![angles.clone().cos(), angles.sin()], 2)
}

/// In f32, as the weights were trained: at timestep 1000 a rounding of the frequency shows in the fifth digit.
fn frequencies(half: usize) -> impl Iterator<Item = f32> {
    let log = -(10_000f64.ln() as f32);
    (0..half).map(move |i| (log * i as f32 / half as f32).exp())
}

/// As [`timestep_embedding`], of values that the host knows: `[1, values, output]`. The sinusoids are worked out there,
/// since GPUs differ in the sines of angles as large as guidance makes them.
pub(crate) fn embedding_of(embedder: &Projection, values: &[f64], device: &Device) -> Tensor<3> {
    let weight = embedder.linear_1.weight.val();
    let half = weight.dims()[0] / 2;
    let angles = |value: f64| frequencies(half).map(move |frequency| f64::from(value as f32 * frequency));
    let rows = values.iter().flat_map(|&value| angles(value).map(f64::cos).chain(angles(value).map(f64::sin)));
    let rows: Vec<f32> = rows.map(|value| value as f32).collect();
    let rows = Tensor::<3>::from_data(TensorData::new(rows, [1, values.len(), 2 * half]), (device, DType::F32));
    embedder.forward(rows.cast(weight.dtype()), silu)
}

/// Sinusoids of `timesteps` `[a, b]` through `embedder`, in the dtype of its weights: `[a, b, output]`.
pub(crate) fn timestep_embedding(embedder: &Projection, timesteps: Tensor<2>) -> Tensor<3> {
    let weight = embedder.linear_1.weight.val();
    embedder.forward(sinusoid(timesteps, weight.dims()[0]).cast(weight.dtype()), silu)
}

/// Two linear layers with an activation between them.
#[derive(Module, Debug)]
pub struct Projection {
    /// Into the hidden size.
    pub linear_1: Linear,
    /// From the hidden size to the output.
    pub linear_2: Linear,
}

impl Projection {
    /// From `input` values to `output`, `output` hidden ones between them.
    pub(crate) fn new(input: usize, output: usize, device: &Device) -> Self {
        Self::with_hidden(input, output, output, device)
    }

    pub(crate) fn with_hidden(input: usize, hidden: usize, output: usize, device: &Device) -> Self {
        Self {
            linear_1: LinearConfig::new(input, hidden).init(device),
            linear_2: LinearConfig::new(hidden, output).init(device),
        }
    }

    pub(crate) fn forward(&self, input: Tensor<3>, activation: fn(Tensor<3>) -> Tensor<3>) -> Tensor<3> {
        self.linear_2.forward(activation(self.linear_1.forward(input)))
    }
}
