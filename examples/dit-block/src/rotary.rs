//! Rotary position embedding over frames, rows and columns.

use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::shape::Shape;

/// Base of the geometric series of frequencies.
const THETA: f64 = 10_000.0;

/// Cosines and sines of every token, `[tokens, head_dim / 2]` in f32. Joined tokens are not turned.
///
/// Frames, rows and columns share the pairs of a head as in Wan: a sixth of `head_dim` each for rows and columns, the rest for
/// frames.
#[derive(Debug, Clone)]
pub struct Rotary {
    /// Cosines.
    pub cos: Tensor<2>,
    /// Sines.
    pub sin: Tensor<2>,
}

impl Rotary {
    /// For the grid and the joined tokens of `shape`.
    pub fn new(shape: &Shape, device: &Device) -> Self {
        let table = |function: fn(f64) -> f64| {
            let values: Vec<f32> = (0..shape.tokens())
                .flat_map(|token| angles(shape, token))
                .map(|angle| function(angle) as f32)
                .collect();
            let data = TensorData::new(values, [shape.tokens(), shape.head_dim / 2]);
            Tensor::from_data(data, (device, DType::F32))
        };
        Self { cos: table(f64::cos), sin: table(f64::sin) }
    }
}

/// The angles of a token's pairs.
pub fn angles(shape: &Shape, token: usize) -> Vec<f64> {
    let half = shape.head_dim / 2;
    let side = half / 3;
    let Some(video) = token.checked_sub(shape.prefix).filter(|&video| video < shape.video()) else {
        return vec![0.0; half];
    };
    let [_, height, width] = shape.grid;
    let axes = [(video / (height * width), half - 2 * side), (video / width % height, side), (video % width, side)];
    let turn = |(position, pairs): (usize, usize)| {
        (0..pairs).map(move |pair| position as f64 * THETA.powf(-(pair as f64) / pairs as f64))
    };
    axes.into_iter().flat_map(turn).collect()
}
