//! Keys in blocks of neighbours, the last one possibly smaller.

use burn::tensor::{Device, Int, Tensor};

use super::{
    groups::sizes,
    layout::Layout,
    rows::{arange, padded},
};

/// Runs of `size` keys in the order of a layout.
#[derive(Debug, Clone)]
pub(super) struct Blocks {
    pub size: usize,
    tokens: usize,
    /// Tokens in order, and for each token its place.
    order: Tensor<1, Int>,
    places: Tensor<1, Int>,
}

impl Blocks {
    pub fn new(layout: &Layout, size: usize, device: &Device) -> Self {
        Self { size, tokens: layout.tokens(), order: layout.order(device), places: layout.places(device) }
    }

    pub fn count(&self) -> usize {
        self.tokens.div_ceil(self.size)
    }

    /// Keys of each block, `[blocks]`.
    pub fn sizes(&self) -> Tensor<1> {
        sizes(self.tokens, self.size, &self.order.device())
    }

    /// Rows `[z, tokens, d]` by block, `[z, blocks, size, d]`; what is missing from the last block is zero.
    pub fn split(&self, rows: Tensor<3>) -> Tensor<4> {
        self.split_with(rows, 0.0)
    }

    fn split_with(&self, rows: Tensor<3>, fill: f32) -> Tensor<4> {
        let [z, _, d] = rows.dims();
        let sorted = rows.select(1, self.order.clone());
        padded(sorted, self.count() * self.size, fill).reshape([z, self.count(), self.size, d])
    }

    /// Means of the rows of each block, `[z, blocks, d]`.
    pub fn means(&self, rows: Tensor<3>) -> Tensor<3> {
        self.split(rows).sum_dim(2).squeeze_dim::<3>(2) / self.sizes().reshape([1, self.count(), 1])
    }

    /// Sums over the keys of each block of `values` `[z, groups, tokens]`: `[z, groups, blocks]`.
    pub fn sums(&self, values: Tensor<3>) -> Tensor<3> {
        self.of_keys(values, 0.0).sum_dim(3).squeeze_dim::<3>(3)
    }

    /// The largest in place of the sum.
    pub fn largest(&self, values: Tensor<3>) -> Tensor<3> {
        self.of_keys(values, f32::MIN).max_dim(3).squeeze_dim::<3>(3)
    }

    fn of_keys(&self, values: Tensor<3>, fill: f32) -> Tensor<4> {
        let [z, groups, tokens] = values.dims();
        let rows = self.split_with(values.reshape([z * groups, tokens, 1]), fill);
        rows.reshape([z, groups, self.count(), self.size])
    }

    /// Gives every key the value of its block: `[z, groups, blocks]` to `[z, groups, tokens]`.
    pub fn spread(&self, values: Tensor<3>) -> Tensor<3> {
        let block = arange(self.count(), &self.order.device());
        let of_place = block.reshape([self.count(), 1]).expand([self.count(), self.size]);
        let of_place = of_place.reshape([self.count() * self.size]);
        values.select(2, of_place.select(0, self.places.clone()))
    }
}
