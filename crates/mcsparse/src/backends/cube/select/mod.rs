//! Selection of each group's keys: column sums of a chunk of groups, then the exact largest of each.

mod alone;
pub(super) mod column_sums;
pub(super) mod matrix;
mod mma;
pub(super) mod partition;
mod sizes;
pub(super) mod warpgroup;

use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::DType,
};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::{ir::DeviceProperties, prelude::*};

use self::sizes::SizesLaunch;
use super::{
    CUBES_X, alone as units, empty,
    tier::{self, Tier},
    tile::{TILE_KEYS, UNITS, rows_for},
};
use crate::reference::SelectOptions;

/// The kernel of `tier` as reports name it.
pub(super) fn name(tier: Tier) -> &'static str {
    match tier {
        Tier::Warpgroup => "cube warpgroup column sums",
        Tier::Matrix => "cube matrix column sums",
        Tier::Cooperative | Tier::Emulated | Tier::Planes | Tier::Shared => "cube column sums",
        Tier::Units => "cube column sums of single units",
    }
}

/// What the column sums of all chunks are taken from.
struct Inputs {
    query: CubeTensor,
    key: CubeTensor,
    lse: CubeTensor,
    order: CubeTensor,
    options: SelectOptions,
}

impl Inputs {
    /// What a kernel is told of the `rows` rows from `first_row` on, each in `splits` parts.
    fn sizes(&self, first_row: usize, rows: usize, splits: usize) -> SizesLaunch {
        let [_, heads, queries, _] = self.query.shape().dims();
        let [_, kv_heads, keys, _] = self.key.shape().dims();
        let options = &self.options;
        SizesLaunch::new(
            queries as u32,
            keys as u32,
            options.group_size as u32,
            queries.div_ceil(options.group_size) as u32,
            heads as u32,
            (heads / kv_heads) as u32,
            first_row as u32,
            rows as u32,
            splits as u32,
            options.sink_prefix as u32,
            (keys - options.sink_suffix) as u32,
            f32::INFINITY,
            options.scale as f32,
        )
    }
}

/// Indices `[batch, heads, groups, options.keys]`, ascending in each row.
pub(super) fn select_keys(
    query: CubeTensor,
    key: CubeTensor,
    lse: CubeTensor,
    order: CubeTensor,
    options: SelectOptions,
) -> CubeTensor {
    let [batch, heads, queries, dim] = query.shape().dims();
    let [key_batch, kv_heads, keys, key_dim] = key.shape().dims();
    assert!(
        (key_batch, key_dim, key.dtype) == (batch, dim, query.dtype) && heads.is_multiple_of(kv_heads),
        "selection: key {:?} {:?} does not go with query {:?} {:?}",
        key.shape(),
        key.dtype,
        query.shape(),
        query.dtype
    );
    assert_eq!((lse.shape().dims(), lse.dtype), ([batch, heads, queries], DType::F32), "selection: log-sum-exp");
    assert_eq!((order.shape().dims(), order.dtype), ([batch, heads, queries], DType::I32), "selection: order");
    let options = SelectOptions { group_size: options.group_size.clamp(1, queries), ..options };
    let groups = queries.div_ceil(options.group_size);
    let rows = batch * heads * groups;
    let chunk = chunk_rows(query.client.properties(), rows, keys, options.workspace_bytes);
    let output = empty(&query, &[batch, heads, groups, options.keys], DType::I32);
    let mass = empty(&query, &[chunk, keys], DType::F32);
    let inputs = Inputs { query, key, lse: into_contiguous(lse), order: into_contiguous(order), options };
    let tier = tier::choose(inputs.query.client.properties(), inputs.query.dtype, dim)
        .unwrap_or_else(|reason| panic!("selection: {reason}"))
        .tier;
    for first in (0..rows).step_by(chunk) {
        let count = chunk.min(rows - first);
        // Where every key is kept, any values do.
        if options.keys < keys {
            column_sums(tier, &inputs, &mass, first, count);
        }
        partition::partition_into(&mass, count, options.keys, &output, first);
    }
    output
}

/// Rows (a group of a head each) whose column sums fit one buffer of the device (128 MiB on WebGPU) and `workspace_bytes`,
/// less a sixteenth for what the allocator still holds of grouping; at least one.
pub(super) fn chunk_rows(properties: &DeviceProperties, rows: usize, keys: usize, workspace_bytes: usize) -> usize {
    let limit = workspace_bytes - workspace_bytes / 16;
    let bytes = limit.min(properties.memory.max_page_size.try_into().unwrap_or(usize::MAX));
    (bytes / (4 * keys)).clamp(1, rows)
}

/// Bytes of column sums that exist at a time when `rows` groups of all heads select among `keys` keys.
pub(super) fn workspace(properties: &DeviceProperties, rows: usize, keys: usize, workspace_bytes: usize) -> usize {
    4 * keys * chunk_rows(properties, rows, keys, workspace_bytes)
}

/// Fills the first `rows` rows of `mass` with the column sums of the rows from `first_row` on.
fn column_sums(tier: Tier, inputs: &Inputs, mass: &CubeTensor, first_row: usize, rows: usize) {
    match tier {
        Tier::Warpgroup => warpgroup::launch(inputs, mass, first_row, rows),
        Tier::Matrix => matrix::launch(inputs, mass, first_row, rows),
        Tier::Cooperative | Tier::Emulated | Tier::Planes | Tier::Shared => {
            column_sums_of_tiles(inputs, mass, first_row, rows)
        }
        Tier::Units => column_sums_alone(inputs, mass, first_row, rows),
    }
}

/// The kernel that needs shared memory and nothing else.
fn column_sums_of_tiles(inputs: &Inputs, mass: &CubeTensor, first_row: usize, rows: usize) {
    let Inputs { query, key, lse, order, options } = inputs;
    let ([_, _, keys, dim], sizes) = (key.shape().dims(), inputs.sizes(first_row, rows, 1));
    let cubes = rows * keys.div_ceil(TILE_KEYS);
    let x = cubes.min(CUBES_X);
    let address = [query, key, lse, order, mass].map(CubeTensor::required_address_type);
    // SAFETY: every access stays inside the tensors whose strides and sizes are passed: `select_keys` has checked that they
    // fit each other, rows and keys are bounded by the sizes, and the kernel clamps what the order holds.
    unsafe {
        column_sums::column_sums::launch_unchecked(
            &query.client,
            CubeCount::Static(x as u32, cubes.div_ceil(x) as u32, 1),
            CubeDim::new_1d(UNITS),
            address.into_iter().max().unwrap_or_default(),
            query.clone().into_tensor_arg(),
            key.clone().into_tensor_arg(),
            lse.clone().into_buffer_arg(),
            order.clone().into_buffer_arg(),
            mass.clone().into_buffer_arg(),
            sizes,
            rows_for(options.group_size),
            dim,
            dtype_to_storage_type(query.dtype),
        );
    }
}

/// The kernel of units that work alone.
fn column_sums_alone(inputs: &Inputs, mass: &CubeTensor, first_row: usize, rows: usize) {
    let Inputs { query, key, lse, order, .. } = inputs;
    let ([_, _, keys, dim], sizes) = (key.shape().dims(), inputs.sizes(first_row, rows, 1));
    let (cube_count, cube_dim) = units::launch(&query.client, rows * keys.div_ceil(alone::KEYS));
    let address = [query, key, lse, order, mass].map(CubeTensor::required_address_type);
    let vector = units::vector(&[query, key]);
    // SAFETY: as for `column_sums_of_tiles`.
    unsafe {
        alone::column_sums::launch_unchecked(
            &query.client,
            cube_count,
            cube_dim,
            address.into_iter().max().unwrap_or_default(),
            vector,
            query.clone().into_tensor_arg(),
            key.clone().into_tensor_arg(),
            lse.clone().into_buffer_arg(),
            order.clone().into_buffer_arg(),
            mass.clone().into_buffer_arg(),
            sizes,
            dim,
            vector,
            dtype_to_storage_type(query.dtype),
        );
    }
}
