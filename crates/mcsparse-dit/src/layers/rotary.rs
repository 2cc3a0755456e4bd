//! Rotary position embedding over frames, rows and columns.

use burn::tensor::{DType, Device, Tensor, TensorData};

/// Base of Wan's geometric series of frequencies.
const THETA: f64 = 10_000.0;

/// How many of the `head_dim` values of a head turn with the frame, the row and the column.
///
/// Rows and columns get `2 * (head_dim / 6)` each and frames the rest, so 44, 42 and 42 of 128.
pub fn axis_dims(head_dim: usize) -> [usize; 3] {
    let side = 2 * (head_dim / 6);
    [head_dim - 2 * side, side, side]
}

/// Cosines and sines for every token of a grid.
///
/// They depend on the grid and the head size only, so one pair serves every block, step and guidance branch.
#[derive(Debug, Clone)]
pub struct RotaryTables {
    /// `[1, tokens, 1, head_dim]`, f32; the same value for both of a pair.
    cos: Tensor<4>,
    /// As `cos`, but negative for the first of a pair.
    sin: Tensor<4>,
}

impl RotaryTables {
    /// Wan's tables for a grid of `frames x height x width` tokens, on `device`: those of [`RotaryTables::with_axes`]
    /// for [`axis_dims`] and a base of 10,000.
    pub fn new(grid: [usize; 3], head_dim: usize, device: &Device) -> Self {
        Self::with_axes(grid, axis_dims(head_dim), THETA, device)
    }

    /// Tables for a grid of `frames x height x width` tokens, of which `dims` values of a head turn along each axis.
    ///
    /// Angles are worked out in f64. Along an axis with `n` values the pair `i` of a token at position `p` turns by
    /// `p * theta^(-2 i / n)`.
    pub fn with_axes(grid: [usize; 3], dims: [usize; 3], theta: f64, device: &Device) -> Self {
        let head_dim = dims.iter().sum::<usize>();
        let table = |function: fn(f64) -> f64, first_sign: f32| {
            // Only one row a position of an axis goes to the device; the grid is spread out there.
            let axes = (0..3).map(|axis| {
                let (length, values) = (grid[axis], dims[axis]);
                let row = |position: usize| {
                    (0..values / 2).flat_map(move |pair| {
                        let angle = position as f64 * theta.powf(-((2 * pair) as f64) / values as f64);
                        let value = function(angle) as f32;
                        [first_sign * value, value]
                    })
                };
                let mut shape = [1, 1, 1, values];
                shape[axis] = length;
                let data = TensorData::new((0..length).flat_map(row).collect::<Vec<f32>>(), shape);
                Tensor::<4>::from_data(data, (device, DType::F32)).expand([grid[0], grid[1], grid[2], values])
            });
            Tensor::cat(axes.collect(), 3).reshape([1, grid.iter().product(), 1, head_dim])
        };
        Self { cos: table(f64::cos, 1.0), sin: table(f64::sin, -1.0) }
    }

    /// The same tables with `suffix` tokens after the grid that do not turn: text in the same sequence.
    pub fn with_suffix(self, suffix: usize) -> Self {
        let [_, _, _, head_dim] = self.cos.dims();
        let append = |table: Tensor<4>, value: f64| {
            let rest = Tensor::full([1, suffix, 1, head_dim], value, (&table.device(), DType::F32));
            Tensor::cat(vec![table, rest], 1)
        };
        Self { cos: append(self.cos, 1.0), sin: append(self.sin, 0.0) }
    }

    /// Tokens that they are for.
    pub fn tokens(&self) -> usize {
        self.cos.dims()[1]
    }

    /// Turns neighbouring pairs of values, in f32; the result in the dtype of `x`.
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
        let (shape, dtype) = (x.dims(), x.dtype());
        let [batch, tokens, heads, head_dim] = shape;
        // Swapped in its own dtype: half the bytes. The rest is elementwise, one kernel with fusion.
        let swapped = x.clone().reshape([batch, tokens, heads, head_dim / 2, 2]).flip([4]).reshape(shape);
        (x.cast(DType::F32) * self.cos.clone() + swapped.cast(DType::F32) * self.sin.clone()).cast(dtype)
    }
}
