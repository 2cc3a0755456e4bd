//! Where tokens lie: the order in which neighbours come together.

use burn::tensor::{Device, Int, Tensor};

use super::rows::{INDEX, arange};
use crate::error::Error;

/// The tokens of a sequence in the order that methods which go by position take them in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    order: Vec<i32>,
}

impl Layout {
    /// As they come.
    pub fn raster(tokens: usize) -> Self {
        Self { order: (0..tokens as i32).collect() }
    }

    /// Tile after tile of a grid of frames, rows and columns, so that a run of tokens is a box and not half a frame.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] if the tile does not divide the grid.
    pub fn tiled(grid: [usize; 3], tile: [usize; 3]) -> Result<Self, Error> {
        if (0..3).any(|axis| tile[axis] == 0 || !grid[axis].is_multiple_of(tile[axis])) {
            return Err(Error::option("--tile", format!("divisors of the grid {grid:?}"), format!("{tile:?}")));
        }
        Ok(Self { order: tiles(grid, tile) })
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.order.len()
    }

    /// The tokens in order, on `device`.
    pub(super) fn order(&self, device: &Device) -> Tensor<1, Int> {
        Tensor::from_data(self.order.as_slice(), (device, INDEX))
    }

    /// For each token, its place in the order.
    pub(super) fn places(&self, device: &Device) -> Tensor<1, Int> {
        let mut places = vec![0; self.order.len()];
        for (place, &token) in self.order.iter().enumerate() {
            places[token as usize] = place as i32;
        }
        Tensor::from_data(places.as_slice(), (device, INDEX))
    }

    /// The order of every joined head: `[batch, heads, tokens]`.
    pub(super) fn order_of_heads(&self, batch: usize, heads: usize, device: &Device) -> Tensor<3, Int> {
        let zeros = arange(1, device).mul_scalar(0).reshape([1, 1, 1]).expand([batch, heads, self.tokens()]);
        zeros + self.order(device).reshape([1, 1, self.tokens()])
    }
}

/// All tokens of a `grid`, tile after tile; tokens run over frames, then rows, then columns.
pub fn tiles(grid: [usize; 3], tile: [usize; 3]) -> Vec<i32> {
    let cells = |size: [usize; 3]| {
        let [frames, rows, columns] = size;
        (0..frames * rows * columns).map(move |i| [i / (rows * columns), i / columns % rows, i % columns])
    };
    let counts = [0, 1, 2].map(|axis| grid[axis] / tile[axis]);
    let token = |at: [usize; 3], within: [usize; 3]| {
        let [frame, row, column] = [0, 1, 2].map(|axis| at[axis] * tile[axis] + within[axis]);
        ((frame * grid[1] + row) * grid[2] + column) as i32
    };
    cells(counts).flat_map(|at| cells(tile).map(move |within| token(at, within))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_boxes() {
        // 2 x 2 x 4 in tiles of 1 x 2 x 2.
        let expected = [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15];
        assert_eq!(tiles([2, 2, 4], [1, 2, 2]), expected);
        let error = Layout::tiled([2, 2, 4], [1, 2, 3]).unwrap_err().to_string();
        assert_eq!(error, "--tile: expected divisors of the grid [2, 2, 4], got [1, 2, 3]");
    }
}
