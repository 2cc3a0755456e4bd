//! From Burn tensors to a launch of the attention kernel.

mod alone;
pub(super) mod cooperative;
pub(super) mod matrix;
mod mma;
pub(super) mod riding;
pub(super) mod shape;
mod simt;
mod softmax;
mod store;
mod tiles;
pub(super) mod warpgroup;

use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::DType,
};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::*;

use self::shape::{Keys, SizesLaunch, Tile};
use super::{
    CUBES_X, alone as units, empty,
    tier::{self, Tier},
    tile::UNITS,
};
use crate::ops::Finish;

/// The kernel of `tier` as reports name it.
pub(super) fn name(tier: Tier, gathered: bool) -> &'static str {
    match (tier, gathered) {
        (Tier::Warpgroup, false) => "cube warpgroup tiles",
        (Tier::Warpgroup, true) => "cube gathered warpgroup tiles",
        (Tier::Matrix, false) => "cube matrix tiles",
        (Tier::Matrix, true) => "cube gathered matrix tiles",
        (Tier::Cooperative, false) => "cube cooperative tiles",
        (Tier::Cooperative, true) => "cube gathered cooperative tiles",
        (Tier::Emulated, false) => "cube emulated cooperative tiles",
        (Tier::Emulated, true) => "cube gathered emulated cooperative tiles",
        (Tier::Planes, false) => "cube plane tiles",
        (Tier::Planes, true) => "cube gathered plane tiles",
        (Tier::Shared, false) => "cube shared-memory tiles",
        (Tier::Shared, true) => "cube gathered shared-memory tiles",
        (Tier::Units, false) => "cube single units",
        (Tier::Units, true) => "cube gathering single units",
    }
}

/// The same for block means, which take no kernel of their own.
pub(super) fn name_of_means(tier: Tier) -> &'static str {
    match tier {
        Tier::Warpgroup | Tier::Matrix => "cube block means, matrix tiles",
        Tier::Cooperative => "cube block means, cooperative tiles",
        Tier::Emulated => "cube block means, emulated cooperative tiles",
        Tier::Planes => "cube block means, plane tiles",
        Tier::Shared => "cube block means, shared-memory tiles",
        Tier::Units => "cube block means, single units",
    }
}

/// Which keys each query attends to.
pub(super) struct Lists {
    order: CubeTensor,
    /// The keys of each group, or how many keys each one stands for, see [`Keys::Counted`].
    indices: CubeTensor,
    /// Queries in a group; `None` for dense attention.
    group_size: Option<usize>,
    keys: Keys,
}

impl Lists {
    /// All of them. The kernel has two index arguments all the same; they stay unread.
    pub fn none(like: &CubeTensor) -> Self {
        let unread = empty(like, &[1], DType::I32);
        Self { order: unread.clone(), indices: unread, group_size: None, keys: Keys::All }
    }

    /// Those of the query's group.
    pub fn gathered(order: CubeTensor, indices: CubeTensor, group_size: usize) -> Self {
        Self { order: packed(order), indices: packed(indices), group_size: Some(group_size), keys: Keys::Listed }
    }

    /// All keys, each as many times as `log_counts` says for the query's group, see [`Keys::Counted`].
    pub fn counted(order: CubeTensor, log_counts: CubeTensor, group_size: usize) -> Self {
        Self { order: packed(order), indices: packed(log_counts), group_size: Some(group_size), keys: Keys::Counted }
    }
}

fn packed(tensor: CubeTensor) -> CubeTensor {
    assert_eq!(tensor.dtype, DType::I32, "indices: expected 32-bit integers");
    into_contiguous(tensor)
}

/// What becomes of the output.
pub(super) struct Ending {
    pub finish: Finish,
    /// Unread if the output is stored alone.
    pub other: CubeTensor,
    /// On a residual that is added.
    pub factor: f32,
    /// Where keys are counted: an output, tokens before heads in memory, that is written over, and its log-sum-exp.
    pub before: Option<(CubeTensor, CubeTensor)>,
}

impl Ending {
    /// The output alone.
    pub fn output(unread: CubeTensor) -> Self {
        Self { finish: Finish::Output, other: unread, factor: 1.0, before: None }
    }
}

/// Output in the order and dtype of `query`, with another tensor as `ending` says, and log-sum-exp. The output is a view of memory
/// that has tokens before heads, but for a residual ([`shape::tokens_first`]).
pub(super) fn attend(
    query: CubeTensor,
    key: CubeTensor,
    value: CubeTensor,
    lists: Lists,
    ending: Ending,
    scale: f32,
) -> (CubeTensor, CubeTensor) {
    let [batch, heads, queries, dim] = query.shape().dims();
    let [key_batch, kv_heads, all_keys, key_dim] = key.shape().dims();
    assert!(
        (key_batch, key_dim) == (batch, dim) && heads.is_multiple_of(kv_heads) && value.shape() == key.shape(),
        "attention: key {:?} and value {:?} do not go with query {:?}",
        key.shape(),
        value.shape(),
        query.shape()
    );
    let Ending { finish, other, factor, before } = ending;
    let dtype = query.dtype;
    assert!(key.dtype == dtype && value.dtype == dtype, "attention: query, key and value must share a dtype");
    assert!(
        finish == Finish::Output || (other.shape() == query.shape() && other.dtype == dtype),
        "attention: residual or dense output {:?} {:?} does not go with query {:?} {dtype:?}",
        other.shape(),
        other.dtype,
        query.shape()
    );
    // Dense attention is one group of all queries.
    let group_size = lists.group_size.unwrap_or(queries).clamp(1, queries);
    let groups = queries.div_ceil(group_size);
    let mut keys = all_keys;
    if lists.group_size.is_some() {
        let [.., kept] = lists.indices.shape().dims::<4>();
        assert_eq!(lists.order.shape().dims(), [batch, heads, queries], "order: expected one place for each query");
        assert_eq!(
            lists.indices.shape().dims(),
            [batch, heads, groups, kept],
            "indices: expected a row for each group"
        );
        assert!(kept > 0, "indices: expected at least one key");
        keys = kept;
        assert!(lists.keys == Keys::Listed || kept == all_keys, "counts: expected one for each of {all_keys} keys");
    }
    let client = query.client.clone();
    let properties = client.properties();
    let chosen = match lists.keys {
        Keys::Counted => tier::choose_from(Tier::Matrix, properties, dtype, dim),
        _ => tier::choose(properties, dtype, dim),
    };
    let tier = chosen.unwrap_or_else(|reason| panic!("attention: {reason}")).tier;
    let simt = Tile::new(group_size, tier, properties.hardware.max_shared_memory_size);
    let matrix =
        (tier == Tier::Matrix).then(|| matrix::tile(properties, dim, group_size).expect("the tier was chosen"));
    let warpgroup =
        (tier == Tier::Warpgroup).then(|| warpgroup::tile(properties, dtype, dim, scale).expect("the tier was chosen"));
    let cooperative = match tier {
        Tier::Cooperative => Some(cooperative::tile(properties, dtype, dim, group_size).expect("the tier was chosen")),
        Tier::Emulated => {
            Some(cooperative::emulated_tile(properties, dtype, dim, group_size).expect("the tier was chosen"))
        }
        _ => None,
    };
    let rows = match (warpgroup, matrix, cooperative) {
        (Some(_), ..) => warpgroup::QUERIES,
        (_, Some(tile), _) => tile.queries(),
        (.., Some(tile)) => tile.queries(),
        _ if tier == Tier::Units => alone::QUERIES,
        _ => simt.queries(),
    };
    let tiles_per_group = group_size.div_ceil(rows);
    let cubes = batch * heads * groups * tiles_per_group;
    let cubes_x = cubes.min(CUBES_X);
    let cube_count = CubeCount::Static(cubes_x as u32, cubes.div_ceil(cubes_x) as u32, 1);
    let tokens_first = shape::tokens_first(finish, lists.keys);
    let lse = empty(&query, &[batch, heads, queries], DType::F32);
    let (output, past_lse) = before.unwrap_or_else(|| {
        let in_memory = if tokens_first { [queries, heads] } else { [heads, queries] };
        let mut output = empty(&query, &[batch, in_memory[0], in_memory[1], dim], dtype);
        if tokens_first {
            output.meta.swap(1, 2);
        }
        // Unread, and of whatever type.
        (output, lists.indices.clone())
    });
    assert!(
        output.shape() == query.shape()
            && output.dtype == dtype
            && (lists.keys != Keys::Counted || past_lse.shape().dims() == [batch, heads, queries]),
        "attention: what the output holds already, {:?}, does not go with query {:?}",
        output.shape(),
        query.shape()
    );
    let tensors = [&query, &key, &value, &lists.indices, &other, &output];
    let address = tensors.map(CubeTensor::required_address_type).into_iter().max().unwrap_or_default();
    let sizes = SizesLaunch::new(
        queries as u32,
        keys as u32,
        all_keys as u32,
        group_size as u32,
        groups as u32,
        tiles_per_group as u32,
        heads as u32,
        batch as u32,
        (heads / kv_heads) as u32,
        scale,
        factor,
    );
    if let Some(tile) = warpgroup {
        let results = (output.clone(), lse.clone());
        warpgroup::launch(tile, [query, key, value], lists, (finish, other), results, sizes, cubes, address);
        return (output, lse);
    }
    if let Some(tile) = matrix {
        let results = (past_lse, output.clone(), lse.clone());
        matrix::launch(tile, [query, key, value], lists, (finish, other), results, sizes, cube_count, address);
        return (output, lse);
    }
    if let Some(tile) = cooperative {
        let results = (past_lse, output.clone(), lse.clone());
        cooperative::launch(tile, [query, key, value], lists, (finish, other), results, sizes, cube_count, address);
        return (output, lse);
    }
    // SAFETY, of both: every access stays inside the tensors whose strides and sizes are passed: the shapes fit each other (above),
    // rows and keys are bounded by the sizes, and the kernel clamps what order and indices hold.
    if tier == Tier::Units {
        let (cube_count, cube_dim) = units::launch(&client, cubes);
        let vector = units::vector(&[&query, &key, &value]);
        unsafe {
            alone::attend::launch_unchecked(
                &client,
                cube_count,
                cube_dim,
                address,
                vector,
                query.into_tensor_arg(),
                key.into_tensor_arg(),
                value.into_tensor_arg(),
                lists.order.into_buffer_arg(),
                lists.indices.into_buffer_arg(),
                other.into_tensor_arg(),
                past_lse.into_buffer_arg(),
                output.clone().into_tensor_arg(),
                lse.clone().into_buffer_arg(),
                sizes,
                dim,
                vector,
                lists.keys,
                finish,
                dtype_to_storage_type(dtype),
            );
        }
        return (output, lse);
    }
    unsafe {
        simt::attend::launch_unchecked(
            &client,
            cube_count,
            CubeDim::new_1d(UNITS),
            address,
            query.into_tensor_arg(),
            key.into_tensor_arg(),
            value.into_tensor_arg(),
            lists.order.into_buffer_arg(),
            lists.indices.into_buffer_arg(),
            other.into_tensor_arg(),
            past_lse.into_buffer_arg(),
            output.clone().into_tensor_arg(),
            lse.clone().into_buffer_arg(),
            sizes,
            simt,
            dim,
            lists.keys,
            finish,
            dtype_to_storage_type(dtype),
        );
    }
    (output, lse)
}
