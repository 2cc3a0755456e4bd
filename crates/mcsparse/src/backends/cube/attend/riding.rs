//! Dense attention and selection in one pass over the keys: column sums ride in it, see [`super::warpgroup`].

use burn::{backend::TensorMetadata, tensor::DType};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::ir::DeviceProperties;

use super::{
    super::{
        empty,
        select::{chunk_rows, partition},
    },
    shape::SizesLaunch,
    warpgroup::{self, Riding},
};
use crate::reference::SelectOptions;

/// Its name in reports.
pub(in super::super) const NAME: &str = "cube warpgroup tiles with column sums";

/// Whether there is a kernel for groups of `group_size`, or why not.
pub(in super::super) fn supports(
    properties: &DeviceProperties,
    dtype: DType,
    head_dim: usize,
    group_size: usize,
) -> Result<(), String> {
    warpgroup::riding_tile(properties, dtype, head_dim, 1.0, group_size).map(|_| ())
}

/// Groups whose column sums exist at a time: all multiprocessors should end a chunk together.
fn chunk(properties: &DeviceProperties, rows: usize, keys: usize, workspace_bytes: usize) -> usize {
    let processors = properties.hardware.num_streaming_multiprocessors.unwrap_or(1) as usize;
    match chunk_rows(properties, rows, keys, workspace_bytes) {
        few if few < processors || few == rows => few,
        many => many / processors * processors,
    }
}

/// Bytes of column sums that exist at a time when `rows` groups of all heads select among `keys` keys.
pub(in super::super) fn workspace(
    properties: &DeviceProperties,
    rows: usize,
    keys: usize,
    workspace_bytes: usize,
) -> usize {
    4 * keys * chunk(properties, rows, keys, workspace_bytes)
}

/// Output and log-sum-exp of dense attention, both in the order of `query`, and the keys of each group of `order` by the
/// log-sum-exps `before` of an earlier step: indices `[batch, heads, groups, options.keys]`.
pub(in super::super) fn attend_and_select(
    [query, key, value]: [CubeTensor; 3],
    order: CubeTensor,
    before: CubeTensor,
    options: &SelectOptions,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let [batch, heads, queries, dim] = query.shape().dims();
    let [_, kv_heads, keys, _] = key.shape().dims();
    let (dtype, of_rows) = (query.dtype, [batch, heads, queries]);
    assert!(
        key.shape().dims() == [batch, kv_heads, keys, dim]
            && key.shape() == value.shape()
            && (key.dtype, value.dtype) == (dtype, dtype)
            && heads.is_multiple_of(kv_heads),
        "attention: key {:?} and value {:?} do not go with query {:?}",
        key.shape(),
        value.shape(),
        query.shape()
    );
    assert_eq!((before.shape().dims(), before.dtype), (of_rows, DType::F32), "selection: log-sum-exp");
    assert_eq!((order.shape().dims(), order.dtype), (of_rows, DType::I32), "selection: order");
    let group_size = options.group_size.clamp(1, queries);
    let groups = queries.div_ceil(group_size);
    let (rows, scale) = (batch * heads * groups, options.scale as f32);
    let properties = query.client.properties().clone();
    let tile = warpgroup::riding_tile(&properties, dtype, dim, scale, group_size)
        .unwrap_or_else(|reason| panic!("attention: {reason}"));
    let chunk = chunk(&properties, rows, keys, options.workspace_bytes);
    let mut output = empty(&query, &[batch, queries, heads, dim], dtype);
    output.meta.swap(1, 2);
    let lse = empty(&query, &of_rows, DType::F32);
    let indices = empty(&query, &[batch, heads, groups, options.keys], DType::I32);
    let mass = empty(&query, &[chunk, keys], DType::F32);
    let riding = Riding {
        query,
        key,
        value,
        order: into_contiguous(order),
        before: into_contiguous(before),
        output,
        lse,
        mass,
        between_sinks: (options.sink_prefix, keys - options.sink_suffix),
    };
    for first in (0..rows).step_by(chunk) {
        let end = (first + chunk).min(rows);
        let sizes = SizesLaunch::new(
            queries as u32,
            keys as u32,
            keys as u32,
            group_size as u32,
            groups as u32,
            1,
            heads as u32,
            batch as u32,
            (heads / kv_heads) as u32,
            scale,
            1.0,
        );
        warpgroup::launch_riding(tile, &riding, sizes, first, end);
        partition::partition_into(&riding.mass, end - first, options.keys, &indices, first);
    }
    (riding.output, riding.lse, indices)
}
