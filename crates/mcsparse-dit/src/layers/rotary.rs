//! Rotary position embedding over frames, rows and columns.

use burn::tensor::{DType, Device, Tensor, TensorData};
use mcsparse_layers::{Pairs, reference};

/// Base of Wan's geometric series of frequencies.
const THETA: f64 = 10_000.0;

/// How many of the `head_dim` values of a head turn with the frame, the row and the column.
///
/// Rows and columns get `2 * (head_dim / 6)` each and frames the rest, so 44, 42 and 42 of 128.
pub fn axis_dims(head_dim: usize) -> [usize; 3] {
    let side = 2 * (head_dim / 6);
    [head_dim - 2 * side, side, side]
}

/// Cosines and sines for every token of a sequence.
///
/// They depend on where the tokens lie and the head size only, so one pair serves every block, step and guidance branch.
#[derive(Debug, Clone)]
pub struct RotaryTables {
    /// `[tokens, pairs]`, f32.
    cos: Tensor<2>,
    sin: Tensor<2>,
    pairs: Pairs,
}

impl RotaryTables {
    /// Wan's tables for a grid of `frames x height x width` tokens, on `device`: those of [`RotaryTables::with_axes`]
    /// for [`axis_dims`] and a base of 10,000.
    pub fn new(grid: [usize; 3], head_dim: usize, device: &Device) -> Self {
        Self::with_axes(grid, axis_dims(head_dim), THETA, device)
    }

    /// Tables for a grid of `frames x height x width` tokens, of which `dims` values of a head turn along each axis,
    /// neighbours together.
    ///
    /// Angles are worked out in f64. Along an axis with `n` values the pair `i` of a token at position `p` turns by
    /// `p * theta^(-2 i / n)`.
    pub fn with_axes(grid: [usize; 3], dims: [usize; 3], theta: f64, device: &Device) -> Self {
        let table = |function: fn(f64) -> f64| {
            // Only one row a position of an axis goes to the device; the grid is spread out there.
            let axes = (0..3).filter(|&axis| dims[axis] > 1).map(|axis| {
                let (length, values) = (grid[axis], dims[axis]);
                let row = |position: usize| {
                    (0..values / 2).map(move |pair| {
                        function(position as f64 * theta.powf(-((2 * pair) as f64) / values as f64)) as f32
                    })
                };
                let mut shape = [1, 1, 1, values / 2];
                shape[axis] = length;
                let data = TensorData::new((0..length).flat_map(row).collect::<Vec<f32>>(), shape);
                Tensor::<4>::from_data(data, (device, DType::F32)).expand([grid[0], grid[1], grid[2], values / 2])
            });
            Tensor::cat(axes.collect(), 3).reshape([grid.iter().product(), dims.iter().sum::<usize>() / 2])
        };
        Self { cos: table(f64::cos), sin: table(f64::sin), pairs: Pairs::Neighbours }
    }

    /// Tables of given angles, equally many for every token; the values of a head that turn, twice as many, turn as halves.
    pub(crate) fn of_halves(angles: impl Iterator<Item = f64> + Clone, tokens: usize, device: &Device) -> Self {
        let table = |function: fn(f64) -> f64| {
            let values: Vec<f32> = angles.clone().map(|angle| function(angle) as f32).collect();
            let shape = [tokens, values.len() / tokens];
            Tensor::from_data(TensorData::new(values, shape), (device, DType::F32))
        };
        Self { cos: table(f64::cos), sin: table(f64::sin), pairs: Pairs::Halves }
    }

    /// The same tables with `suffix` tokens after the others that do not turn: text in the same sequence.
    pub fn with_suffix(self, suffix: usize) -> Self {
        let append = |table: Tensor<2>, value: f64| {
            let rest = Tensor::full([suffix, table.dims()[1]], value, (&table.device(), DType::F32));
            Tensor::cat(vec![table, rest], 0)
        };
        Self { cos: append(self.cos, 1.0), sin: append(self.sin, 0.0), ..self }
    }

    /// Tokens that they are for.
    pub fn tokens(&self) -> usize {
        self.cos.dims()[0]
    }

    /// Cosines and sines of the first `tokens` tokens.
    pub(crate) fn first(&self, tokens: usize) -> ([Tensor<2>; 2], Pairs) {
        let of = |table: &Tensor<2>| match table.dims()[0] {
            all if all > tokens => table.clone().slice_dim(0, 0..tokens),
            _ => table.clone(),
        };
        ([of(&self.cos), of(&self.sin)], self.pairs)
    }

    /// Turns pairs of values, in f32; the result in the dtype of `x`. What is behind the values that turn stays.
    ///
    /// # Shapes
    ///
    /// - `x`: `[batch, tokens, heads, head_dim]`
    /// - returns the same shape
    ///
    /// # Panics
    ///
    /// If tokens or head size differ from those of the tables.
    pub fn rotate(&self, x: Tensor<4>) -> Tensor<4> {
        reference::rotate(x, [self.cos.clone(), self.sin.clone()], self.pairs)
    }
}
