//! Queries in groups of one size, the last one possibly smaller.

use burn::tensor::{Int, Tensor};

use super::rows::{INDEX, arange, padded, take};

/// Groups of every joined head.
#[derive(Debug, Clone)]
pub struct Groups {
    /// `[z, tokens]`: group `g` holds `order[z, g * size..(g + 1) * size]`.
    pub(super) order: Tensor<2, Int>,
    /// Queries in a group.
    pub(super) size: usize,
}

impl Groups {
    pub(super) fn tokens(&self) -> usize {
        self.order.dims()[1]
    }

    /// Number of groups.
    pub fn count(&self) -> usize {
        self.tokens().div_ceil(self.size)
    }

    /// Rows `[z, tokens, d]` by group, `[z, groups, size, d]`; what is missing from the last group is zero.
    pub(super) fn split(&self, rows: Tensor<3>) -> Tensor<4> {
        let [z, _, d] = rows.dims();
        let sorted = take(rows, self.order.clone());
        padded(sorted, self.count() * self.size, 0.0).reshape([z, self.count(), self.size, d])
    }

    /// The inverse of [`Groups::split`].
    pub(super) fn join(&self, rows: Tensor<4>) -> Tensor<3> {
        let [z, groups, size, d] = rows.dims();
        let sorted = rows.reshape([z, groups * size, d]).slice_dim(1, 0..self.tokens());
        take(sorted, self.places())
    }

    /// Means of the rows of each group, `[z, groups, d]`.
    pub(super) fn means(&self, rows: Tensor<3>) -> Tensor<3> {
        let (sums, device) = (self.split(rows).sum_dim(2).squeeze_dim::<3>(2), self.order.device());
        let [_, groups, _] = sums.dims();
        sums / sizes(self.tokens(), self.size, &device).reshape([1, groups, 1])
    }

    /// For each query its place in the order.
    fn places(&self) -> Tensor<2, Int> {
        let ([z, n], device) = (self.order.dims(), self.order.device());
        let positions = arange(n, &device).reshape([1, n]).expand([z, n]);
        let zeros = Tensor::<2, Int>::zeros([z, n], (&device, INDEX));
        zeros.scatter(1, self.order.clone(), positions, burn::tensor::IndexingUpdateOp::Add)
    }
}

/// How many of `tokens` are in each run of `size`, as floats.
pub(super) fn sizes(tokens: usize, size: usize, device: &burn::tensor::Device) -> Tensor<1> {
    let counts = (0..tokens.div_ceil(size)).map(|run| size.min(tokens - run * size) as f32).collect::<Vec<_>>();
    Tensor::from_data(counts.as_slice(), (device, burn::tensor::DType::F32))
}
