//! The feed-forward network of a block.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor};

use super::linear;

/// GELU in its tanh form, `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`.
///
/// Written as `x / (1 + exp(-2 y))`, `y` being the argument of the tanh: on Flex one exponential takes a sixth of the
/// time of a tanh, and Burn's `gelu_approximate` has a power besides.
///
/// Worked out in f32, as PyTorch does; with fusion that is one kernel which reads and writes the dtype of `x`.
pub(crate) fn gelu_tanh<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let dtype = x.dtype();
    let x = x.cast(DType::F32);
    let factor = -2.0 * (2.0 / std::f64::consts::PI).sqrt();
    let exponent = (x.clone() * x.clone()).mul_scalar(0.044715 * factor).add_scalar(factor) * x.clone();
    // Far below 0 the exponential is infinite and the quotient 0, as it should be.
    (x / exponent.exp().add_scalar(1.0)).cast(dtype)
}

/// Linear, tanh-GELU, linear.
#[derive(Module, Debug)]
pub struct FeedForward {
    /// Into the hidden size; `net.0.proj` in files.
    pub up: Linear,
    /// Out of it; `net.2` in files.
    pub down: Linear,
}

impl FeedForward {
    pub(crate) fn new(inner: usize, hidden: usize, device: &Device) -> Self {
        Self { up: LinearConfig::new(inner, hidden).init(device), down: LinearConfig::new(hidden, inner).init(device) }
    }

    /// `[batch, tokens, inner_dim]` to the same shape.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let shape = x.dims();
        let [batch, tokens, inner] = shape;
        let hidden = self.up.weight.shape()[1];
        let rows = (CACHED_VALUES / hidden).max(1);
        if !on_cpu(&x.device()) || rows >= batch * tokens {
            return self.tokens(x);
        }
        let parts = x.reshape([batch * tokens, inner]).split(rows, 0);
        Tensor::cat(parts.into_iter().map(|part| self.tokens(part)).collect(), 0).reshape(shape)
    }

    fn tokens<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        linear(&self.down, gelu_tanh(linear(&self.up, x)))
    }
}

/// Hidden values that are worked on at a time on the CPU: 1 MiB in f32 stays in the second-level cache from the first
/// product through the activation to the second one. At 4,096 tokens and 1,024 hidden values that takes about half the
/// time of all at once.
const CACHED_VALUES: usize = 256 * 1024;

fn on_cpu(device: &Device) -> bool {
    #[cfg(feature = "flex")]
    return *device == Device::flex();
    #[cfg(not(feature = "flex"))]
    {
        let _ = device;
        false
    }
}
