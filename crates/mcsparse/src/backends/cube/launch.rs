//! From Burn tensors to a launch of the attention kernel.

use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::DType,
};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{
    attend::{self, SizesLaunch, Tile, UNITS},
    empty,
};

/// Which keys each query attends to.
pub(super) struct Lists {
    order: CubeTensor,
    indices: CubeTensor,
    /// Queries in a group; `None` for dense attention.
    group_size: Option<usize>,
}

impl Lists {
    /// All of them. The kernel has two index arguments all the same; they stay unread.
    pub fn none(like: &CubeTensor) -> Self {
        let unread = empty(like, &[1], DType::I32);
        Self { order: unread.clone(), indices: unread, group_size: None }
    }

    /// Those of the query's group.
    pub fn gathered(order: CubeTensor, indices: CubeTensor, group_size: usize) -> Self {
        let packed = |tensor: CubeTensor| {
            assert_eq!(tensor.dtype, DType::I32, "indices: expected 32-bit integers");
            into_contiguous(tensor)
        };
        Self { order: packed(order), indices: packed(indices), group_size: Some(group_size) }
    }
}

/// Output in the order and dtype of `query`, and log-sum-exp.
pub(super) fn attend(
    query: CubeTensor,
    key: CubeTensor,
    value: CubeTensor,
    lists: Lists,
    scale: f32,
) -> (CubeTensor, CubeTensor) {
    let [batch, heads, queries, dim] = query.shape().dims();
    let [_, kv_heads, all_keys, _] = key.shape().dims();
    let keys = if lists.group_size.is_some() { lists.indices.shape()[3] } else { all_keys };
    let tile = Tile::of(dim);
    // Dense attention is one group of all queries.
    let group_size = lists.group_size.unwrap_or(queries);
    let tiles_per_group = group_size.min(queries).div_ceil(tile.queries);
    let tiles = queries.div_ceil(group_size) * tiles_per_group;
    let dtype = query.dtype;
    let output = empty(&query, &[batch, heads, queries, dim], dtype);
    let lse = empty(&query, &[batch, heads, queries], DType::F32);
    let address = [&query, &key, &value, &lists.indices, &output].map(CubeTensor::required_address_type);
    let sizes = SizesLaunch::new(
        queries as u32,
        keys as u32,
        group_size as u32,
        tiles_per_group as u32,
        heads as u32,
        (heads / kv_heads) as u32,
        scale,
    );
    let client = query.client.clone();
    // SAFETY: every read stays inside the tensors whose strides and sizes are passed: rows and keys are bounded by the
    // sizes, and order and indices hold tokens of the same tensors, as their producers promise.
    unsafe {
        attend::attend::launch_unchecked(
            &client,
            CubeCount::Static(tiles as u32, heads as u32, batch as u32),
            CubeDim::new_1d(UNITS),
            address.into_iter().max().unwrap_or_default(),
            query.into_tensor_arg(),
            key.into_tensor_arg(),
            value.into_tensor_arg(),
            lists.order.into_buffer_arg(),
            lists.indices.into_buffer_arg(),
            output.clone().into_tensor_arg(),
            lse.clone().into_buffer_arg(),
            sizes,
            tile,
            dim,
            lists.group_size.is_some(),
            dtype_to_storage_type(dtype),
        );
    }
    (output, lse)
}
