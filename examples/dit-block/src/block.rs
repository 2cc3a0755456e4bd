//! A transformer block with random weights: modulated norms, self-attention with QK norm and rotary embedding,
//! cross-attention where the model has it, a feed-forward network.

use burn::tensor::activation::silu;
use burn::tensor::{DType, Device, Distribution, Tensor};
use mcsparse::check::Problem;
use mcsparse::ops::{self, Kernels, Stage};
use mcsparse::{Error, SelfAttention};
use mcsparse_layers::{HeadNorm, Pairs, gated_add, layer_norm, modulated_norm, norm_and_rotate, rms_norm};

use crate::rotary::Rotary;
use crate::shape::{Mlp, Shape};

/// Added to variances and mean squares.
pub const EPS: f64 = 1e-6;
/// What the reference of attention may take for temporaries where a device has no kernel.
const WORKSPACE: usize = 512 << 20;

/// A linear layer with bias.
#[derive(Debug, Clone)]
pub struct Linear {
    /// `[inputs, outputs]`.
    pub weight: Tensor<2>,
    /// `[outputs]`.
    pub bias: Tensor<1>,
}

impl Linear {
    fn new(inputs: usize, outputs: usize, dtype: DType, device: &Device) -> Self {
        let spread = (inputs as f64).powf(-0.5);
        Self {
            weight: normal([inputs, outputs], spread, device).cast(dtype),
            bias: normal([outputs], 0.02, device).cast(dtype),
        }
    }

    /// `[rows, inputs]` to `[rows, outputs]`.
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let route = ops::linear_route(&x, &self.weight, Kernels::Auto);
        ops::linear(&route, x, self.weight.clone(), Some(self.bias.clone()))
    }
}

/// Attention to text tokens, whose keys and values every step shares.
#[derive(Debug, Clone)]
pub struct Cross {
    /// Query projection.
    pub query: Linear,
    /// Output projection.
    pub output: Linear,
    /// Weight and bias of the layer norm before it, f32.
    pub norm: [Tensor<1>; 2],
    /// Weights of the norm of queries, f32.
    pub weight: Tensor<1>,
    /// Keys of the text, `[1, heads, text tokens, head_dim]`.
    pub keys: Tensor<4>,
    /// Values of the text.
    pub values: Tensor<4>,
}

/// What a cross-attention works out on its way.
#[derive(Debug)]
pub struct CrossSteps {
    /// Hidden states after the norm.
    pub normed: Tensor<2>,
    /// Queries before their norm, `[tokens, inner]`.
    pub projected: Tensor<2>,
    /// Queries, `[1, heads, tokens, head_dim]`.
    pub query: Tensor<4>,
    /// What attention returns, `[tokens, inner]`.
    pub attended: Tensor<2>,
}

/// One block.
#[derive(Debug, Clone)]
pub struct Block {
    shape: Shape,
    /// Shift, scale and gate of self-attention, then of the feed-forward network; f32 `[hidden]`.
    pub modulation: [Tensor<1>; 6],
    /// Query projection.
    pub query: Linear,
    /// Key projection.
    pub key: Linear,
    /// Value projection.
    pub value: Linear,
    /// Output projection.
    pub output: Linear,
    /// Weights of the norms of queries and keys, f32.
    pub norms: [Tensor<1>; 2],
    /// Rotary embedding.
    pub rotary: Rotary,
    /// Cross-attention.
    pub cross: Option<Cross>,
    /// The layers of the feed-forward network in the order in which they run; the last leads back.
    pub mlp: Vec<Linear>,
}

impl Block {
    /// Fresh weights. With `attracted` the keys are projected as the queries are, so that tokens attend to tokens like
    /// them; with independent projections attention is nearly uniform.
    pub fn new(shape: &Shape, dtype: DType, attracted: bool, device: &Device) -> Self {
        let (hidden, inner) = (shape.hidden, shape.inner());
        let layer = |inputs, outputs| Linear::new(inputs, outputs, dtype, device);
        let query = layer(hidden, inner);
        let norm_size = if shape.norm_all_heads { inner } else { shape.head_dim };
        let weight = |size| normal::<1>([size], 0.1, device).add_scalar(1.0);
        let cross = (shape.cross_text > 0).then(|| {
            let text = || {
                let values = normal([1, shape.cross_text, shape.heads, shape.head_dim], 1.0, device);
                values.cast(dtype).swap_dims(1, 2)
            };
            Cross {
                query: layer(hidden, inner),
                output: layer(inner, hidden),
                norm: [weight(hidden), normal([hidden], 0.1, device)],
                weight: weight(norm_size),
                keys: text(),
                values: text(),
            }
        });
        let mlp = match shape.mlp {
            Mlp::Gelu => vec![layer(hidden, shape.ffn), layer(shape.ffn, hidden)],
            Mlp::Swiglu => vec![layer(hidden, shape.ffn), layer(hidden, shape.ffn), layer(shape.ffn, hidden)],
        };
        Self {
            modulation: std::array::from_fn(|_| normal([hidden], 0.2, device)),
            key: if attracted { query.clone() } else { layer(hidden, inner) },
            query,
            value: layer(hidden, inner),
            output: layer(inner, hidden),
            norms: [weight(norm_size), weight(norm_size)],
            rotary: Rotary::new(shape, device),
            cross,
            mlp,
            shape: shape.clone(),
        }
    }

    /// A layer norm whose scale and shift the timestep decides: part 0 before attention, 1 before the feed-forward network.
    pub fn norm(&self, x: Tensor<2>, part: usize) -> Tensor<2> {
        let [shift, scale] = [0, 1].map(|i| self.modulation[3 * part + i].clone());
        modulated_norm(x, scale, shift, EPS)
    }

    /// Queries, keys and values `[tokens, inner]` of normed hidden states.
    pub fn project(&self, x: Tensor<2>) -> [Tensor<2>; 3] {
        [&self.query, &self.key, &self.value].map(|layer| layer.forward(x.clone()))
    }

    /// Root-mean-square norm of queries (0) or keys (1) and their rotation: `[tokens, heads, head_dim]`.
    pub fn norm_and_rotate(&self, x: Tensor<2>, which: usize) -> Tensor<3> {
        let Rotary { cos, sin } = self.rotary.clone();
        // As in Wan and HunyuanVideo.
        norm_and_rotate(x, self.norms[which].clone(), [cos, sin], self.head_norm(), Pairs::Neighbours)
    }

    fn head_norm(&self) -> HeadNorm {
        let Shape { heads, norm_all_heads: all_heads, .. } = self.shape;
        HeadNorm { heads, all_heads, eps: EPS }
    }

    /// `[1, heads, tokens, head_dim]` as attention takes it, a view.
    pub fn heads(&self, x: Tensor<3>) -> Tensor<4> {
        x.unsqueeze_dim::<4>(0).swap_dims(1, 2)
    }

    /// Queries, keys and values of hidden states, ready for attention.
    pub fn qkv(&self, x: Tensor<2>) -> [Tensor<4>; 3] {
        let [query, key, value] = self.project(self.norm(x, 0));
        let (tokens, heads, dim) = (value.dims()[0], self.shape.heads, self.shape.head_dim);
        let value = value.reshape([tokens, heads, dim]);
        [self.norm_and_rotate(query, 0), self.norm_and_rotate(key, 1), value].map(|x| self.heads(x))
    }

    /// The output of attention `[1, heads, tokens, head_dim]` as `[tokens, inner]`, copied.
    pub fn tokens(&self, output: Tensor<4>) -> Tensor<2> {
        let [_, heads, tokens, dim] = output.dims();
        output.swap_dims(1, 2).reshape([tokens, heads * dim])
    }

    /// `x` plus the projected output of attention times its gate.
    pub fn add_attention(&self, x: Tensor<2>, output: Tensor<2>) -> Tensor<2> {
        self.gated_add(x, self.output.forward(output), 2)
    }

    fn gated_add(&self, x: Tensor<2>, update: Tensor<2>, gate: usize) -> Tensor<2> {
        gated_add(x, update, self.modulation[gate].clone().unsqueeze(), None)
    }

    /// `x` plus its attention to the text, where there is a cross-attention.
    pub fn add_cross(&self, x: Tensor<2>) -> Tensor<2> {
        match &self.cross {
            Some(cross) => x.clone() + cross.output.forward(self.attend_to_text(cross, x).attended),
            None => x,
        }
    }

    /// The attention of `x` to the text and what leads to it.
    pub fn attend_to_text(&self, cross: &Cross, x: Tensor<2>) -> CrossSteps {
        let [weight, bias] = cross.norm.clone();
        let normed = layer_norm(x, weight, bias, EPS);
        let projected = cross.query.forward(normed.clone());
        let query = self.heads(rms_norm(projected.clone(), cross.weight.clone(), self.head_norm()));
        let (key, value) = (cross.keys.clone(), cross.values.clone());
        let problem = Problem::of(&query, &key, &value).expect("sizes of one block");
        let route = ops::route(Stage::Dense, &problem, Kernels::Auto);
        let scale = (self.shape.head_dim as f64).powf(-0.5);
        let output = ops::dense_attention(&route, query.clone(), key, value, scale, WORKSPACE).0;
        CrossSteps { normed, projected, query, attended: self.tokens(output) }
    }

    /// What is inside the feed-forward network, before the last layer.
    pub fn activate(&self, x: Tensor<2>) -> Tensor<2> {
        match self.shape.mlp {
            Mlp::Gelu => gelu_tanh(self.mlp[0].forward(x)),
            Mlp::Swiglu => silu(self.mlp[0].forward(x.clone())) * self.mlp[1].forward(x),
        }
    }

    /// `x` plus the feed-forward network of `normed` times its gate.
    pub fn add_mlp(&self, x: Tensor<2>, normed: Tensor<2>) -> Tensor<2> {
        let down = self.mlp.last().expect("there are layers");
        self.gated_add(x, down.forward(self.activate(normed)), 5)
    }

    /// Hidden states `[tokens, hidden]` through the block.
    ///
    /// # Errors
    ///
    /// Those of `attention`.
    pub fn forward(&self, layer: usize, x: Tensor<2>, attention: &mut dyn SelfAttention) -> Result<Tensor<2>, Error> {
        let [query, key, value] = self.qkv(x.clone());
        let output = attention.attend(layer, query, key, value)?;
        let x = self.add_attention(x, self.tokens(output));
        let x = self.add_cross(x);
        let normed = self.norm(x.clone(), 1);
        Ok(self.add_mlp(x, normed))
    }
}

/// GELU in its tanh form, in f32.
fn gelu_tanh(x: Tensor<2>) -> Tensor<2> {
    let dtype = x.dtype();
    let x = x.cast(DType::F32);
    // x / 2 * (1 + tanh y) is x / (1 + exp(-2 y)); far below 0 the exponential is infinite and the quotient 0.
    let factor = -2.0 * (2.0 / std::f64::consts::PI).sqrt();
    let exponent = (x.clone() * x.clone()).mul_scalar(0.044715 * factor).add_scalar(factor) * x.clone();
    (x / exponent.exp().add_scalar(1.0)).cast(dtype)
}

/// Normal values in f32.
pub fn normal<const D: usize>(shape: [usize; D], spread: f64, device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, spread), (device, DType::F32))
}
