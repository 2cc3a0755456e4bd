//! Feed-forward networks: one for all tokens, or a mixture of experts.

use burn::module::{Initializer, Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, IndexingUpdateOp, Int, Tensor, TensorData, activation};
use mcsparse::Error;

use super::{Hunyuan3dConfig, WIDER};
use crate::layers::linear;

/// GELU with the error function, in f32 as PyTorch computes it.
pub(super) fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let dtype = x.dtype();
    activation::gelu(x.cast(DType::F32)).cast(dtype)
}

/// The network of the blocks without experts.
#[derive(Module, Debug)]
pub struct Mlp {
    /// Into four times the hidden size.
    pub fc1: Linear,
    /// Out of it.
    pub fc2: Linear,
}

impl Mlp {
    pub(super) fn new(hidden: usize, device: &Device) -> Self {
        let [fc1, fc2] = two(hidden, device);
        Self { fc1, fc2 }
    }

    pub(super) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        linear(&self.fc2, gelu(linear(&self.fc1, x)))
    }
}

/// One expert.
#[derive(Module, Debug)]
pub struct GeluFeedForward {
    /// Into four times the hidden size; `net.0.proj` in files.
    pub up: Linear,
    /// Out of it; `net.2` in files.
    pub down: Linear,
}

impl GeluFeedForward {
    fn new(hidden: usize, device: &Device) -> Self {
        let [up, down] = two(hidden, device);
        Self { up, down }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        linear(&self.down, gelu(linear(&self.up, x)))
    }
}

/// Says how well each expert suits a token.
#[derive(Module, Debug)]
pub struct Gate {
    /// `[experts, hidden_size]`.
    pub weight: Param<Tensor<2>>,
}

/// Experts, of which each token goes to a few, and one for all tokens.
///
/// A token's output is that of the experts with the largest weights, times these, plus that of the expert for all. Weights
/// are those of a softmax over all experts, not brought to a sum of 1 after the choice.
#[derive(Module, Debug)]
pub struct Mixture {
    /// The experts.
    pub experts: Vec<GeluFeedForward>,
    /// Chooses.
    pub gate: Gate,
    /// The expert for all.
    pub shared_experts: GeluFeedForward,
    top: usize,
}

impl Mixture {
    pub(super) fn new(config: &Hunyuan3dConfig, device: &Device) -> Self {
        let hidden = config.hidden_size;
        let initializer = Initializer::KaimingUniform { gain: 1.0 / 3f64.sqrt(), fan_out_only: false };
        let weight = initializer.init_with([config.num_experts, hidden], Some(hidden), None, device);
        Self {
            experts: (0..config.num_experts).map(|_| GeluFeedForward::new(hidden, device)).collect(),
            gate: Gate { weight },
            shared_experts: GeluFeedForward::new(hidden, device),
            top: config.moe_top_k,
        }
    }

    /// `[batch, tokens, hidden_size]` to the same shape. How many tokens an expert gets decides the shapes of its
    /// products, so the weights are read by the host first.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTensor`] if a weight is not a number: there is no choice then.
    pub(super) fn forward(&self, x: Tensor<3>) -> Result<Tensor<3>, Error> {
        let (shape, dtype, device) = (x.dims(), x.dtype(), x.device());
        let x: Tensor<2> = x.reshape([shape[0] * shape[1], shape[2]]);
        let scores = x.clone().matmul(self.gate.weight.val().transpose()).cast(DType::F32);
        let weights: Vec<f32> = activation::softmax(scores, 1).into_data().try_to_vec().expect("cast to f32");
        let mut output = self.shared_experts.forward(x.clone()).cast(DType::F32);
        for (expert, chosen) in self.experts.iter().zip(choose(&weights, self.experts.len(), self.top)?) {
            if chosen.is_empty() {
                continue;
            }
            let (tokens, weights): (Vec<i32>, Vec<f32>) = chosen.into_iter().unzip();
            let count = tokens.len();
            let tokens = Tensor::<1, Int>::from_data(TensorData::new(tokens, [count]), &device);
            let weights = Tensor::<2>::from_data(TensorData::new(weights, [count, 1]), (&device, DType::F32));
            let part = expert.forward(x.clone().select(0, tokens.clone())).cast(DType::F32) * weights;
            // No token is there twice, so the sum does not depend on an order.
            output = output.select_assign(0, tokens, part, IndexingUpdateOp::Add);
        }
        Ok(output.cast(dtype).reshape(shape))
    }
}

fn two(hidden: usize, device: &Device) -> [Linear; 2] {
    [LinearConfig::new(hidden, WIDER * hidden).init(device), LinearConfig::new(WIDER * hidden, hidden).init(device)]
}

/// For each expert its tokens and their weights; `weights` are `[tokens, experts]`. Of equal ones the first counts.
fn choose(weights: &[f32], experts: usize, top: usize) -> Result<Vec<Vec<(i32, f32)>>, Error> {
    let mut chosen = vec![Vec::new(); experts];
    for (token, weights) in (0..).zip(weights.chunks_exact(experts)) {
        if let Some(expert) = weights.iter().position(|weight| weight.is_nan()) {
            let got = format!("NaN for token {token} and expert {expert}");
            return Err(crate::check::tensor("weights of the experts", "numbers", got));
        }
        let mut order: Vec<usize> = (0..experts).collect();
        order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]));
        for &expert in &order[..top] {
            chosen[expert].push((token, weights[expert]));
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_go_to_the_experts_with_the_largest_weights() {
        let weights = [0.1, 0.4, 0.2, 0.3, 0.25, 0.25, 0.25, 0.25, 0.7, 0.1, 0.15, 0.05];
        let chosen = choose(&weights, 4, 2).unwrap();
        assert_eq!(chosen, [vec![(1, 0.25), (2, 0.7)], vec![(0, 0.4), (1, 0.25)], vec![(2, 0.15)], vec![(0, 0.3)]]);
        let error = choose(&[0.5, f32::NAN], 2, 1).unwrap_err().to_string();
        assert_eq!(error, "weights of the experts: expected numbers, got NaN for token 0 and expert 1");
    }
}
