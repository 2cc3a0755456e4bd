//! The keys that groups do not keep: means of their blocks, how many keys each stands for, and attention over them.

use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::DType,
};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{
    alone::{launch, piece},
    attend::{Ending, Lists, attend},
    empty,
};
use crate::{ops::Finish, reference::TailOptions};

/// The tensors of [`crate::ops::McSparseOps::mc_add_tail`].
pub(super) struct Tensors {
    pub query: CubeTensor,
    pub key: CubeTensor,
    pub value: CubeTensor,
    pub order: CubeTensor,
    pub indices: CubeTensor,
    pub sparse: CubeTensor,
    pub lse: CubeTensor,
    pub other: CubeTensor,
}

/// Output and log-sum-exp of all keys.
pub(super) fn add_tail(
    tensors: Tensors,
    finish: Finish,
    factor: f32,
    options: &TailOptions,
) -> (CubeTensor, CubeTensor) {
    let Tensors { query, key, value, order, indices, sparse, lse, other } = tensors;
    let [.., tokens, _] = key.shape().dims::<4>();
    let log_counts = log_counts(indices, tokens, options);
    let (key, value) = (means(key, options), means(value, options));
    let lists = Lists::counted(order, log_counts, options.group_size);
    let mut sparse = sparse;
    // The kernel reads and writes memory that has tokens before heads.
    sparse.meta.swap(1, 2);
    let mut sparse = owned(sparse);
    sparse.meta.swap(1, 2);
    let before = Some((sparse, into_contiguous(lse)));
    attend(query, key, value, lists, Ending { finish, other, factor, before }, options.scale as f32)
}

/// A contiguous tensor that may be written over.
fn owned(tensor: CubeTensor) -> CubeTensor {
    let tensor = into_contiguous(tensor);
    // Burn's copy may have rows that are further apart than they are long.
    if tensor.can_mut() { tensor } else { into_contiguous(tensor.copy()) }
}

/// Means over blocks, `[batch, heads, blocks, dim]`.
fn means(rows: CubeTensor, options: &TailOptions) -> CubeTensor {
    let [batch, heads, tokens, dim] = rows.shape().dims();
    let blocks = options.blocks(tokens);
    let means = empty(&rows, &[batch, heads, blocks, dim], rows.dtype);
    let all = batch * heads * blocks * dim;
    assert!(u32::try_from(all).is_ok(), "means: {all} values are more than one launch counts");
    let (cube_count, cube_dim) = launch(&rows.client, all);
    let address = rows.required_address_type().max(means.required_address_type());
    // SAFETY: each of `all` units writes one value, and reads tokens of its block between the sinks, which are fewer than
    // the tensor has.
    unsafe {
        mean_of_blocks::launch_unchecked(
            &rows.client.clone(),
            cube_count,
            cube_dim,
            address,
            rows.clone().into_tensor_arg(),
            means.clone().into_buffer_arg(),
            all as u32,
            blocks as u32,
            options.block as u32,
            options.sink_prefix as u32,
            (tokens - options.sink_suffix) as u32,
            dim,
            dtype_to_storage_type(rows.dtype),
        );
    }
    means
}

/// One unit takes one column of one block.
#[cube(launch_unchecked, address_type = "dynamic")]
fn mean_of_blocks<E: Float>(
    rows: &Tensor<E>,
    means: &mut [E],
    all: u32,
    blocks: u32,
    block: u32,
    first: u32,
    end: u32,
    #[comptime] dim: usize,
    #[define(E)] _dtype: ElemType,
) {
    let at = piece();
    if at >= all {
        terminate!();
    }
    let column = (at % comptime!(dim as u32)) as usize;
    let of_block = at / comptime!(dim as u32);
    let (joined, block_in_head) = ((of_block / blocks) as usize, of_block % blocks);
    let (batch, head) = (joined / rows.shape(1), joined % rows.shape(1));
    let base = batch * rows.stride(0) + head * rows.stride(1) + column * rows.stride(3);
    let start = first + block_in_head * block;
    let stop = min(start + block, end);
    let mut sum = 0.0f32;
    for token in start..stop {
        sum += f32::cast_from(rows[base + token as usize * rows.stride(2)]);
    }
    means[at as usize] = E::cast_from(sum / f32::cast_from(stop - start));
}

/// Logarithms of how many keys of each block each group does not keep, `[batch, heads, groups, blocks]`, as
/// [`Lists::counted`] takes them.
fn log_counts(indices: CubeTensor, tokens: usize, options: &TailOptions) -> CubeTensor {
    let [batch, heads, groups, kept] = indices.shape().dims();
    assert_eq!(indices.dtype, DType::I32, "indices: expected 32-bit integers");
    let indices = into_contiguous(indices);
    let blocks = options.blocks(tokens);
    let counts = empty(&indices, &[batch, heads, groups, blocks], DType::I32);
    let all = batch * heads * groups * blocks;
    assert!(u32::try_from(all).is_ok(), "counts: {all} blocks are more than one launch counts");
    let (cube_count, cube_dim) = launch(&indices.client, all);
    let address = indices.required_address_type().max(counts.required_address_type());
    // SAFETY: each of `all` units writes one count, and searches the `kept` entries of its own list.
    unsafe {
        count_left::launch_unchecked(
            &indices.client.clone(),
            cube_count,
            cube_dim,
            address,
            indices.clone().into_buffer_arg(),
            counts.clone().into_buffer_arg(),
            all as u32,
            blocks as u32,
            kept as u32,
            options.block as u32,
            options.sink_prefix as u32,
            (tokens - options.sink_suffix) as u32,
        );
    }
    counts
}

/// One unit counts one block of one group: the lists ascend, so that the kept keys of a block lie between two places.
#[cube(launch_unchecked, address_type = "dynamic")]
fn count_left(
    indices: &[i32],
    log_counts: &mut [i32],
    all: u32,
    blocks: u32,
    kept: u32,
    block: u32,
    first: u32,
    end: u32,
) {
    let at = piece();
    if at >= all {
        terminate!();
    }
    let list = (at / blocks) as usize * kept as usize;
    let start = first + at % blocks * block;
    let stop = min(start + block, end);
    let taken = place_of(indices, list, kept, stop) as i32 - place_of(indices, list, kept, start) as i32;
    // Lists that do not ascend give wrong counts, but numbers of keys all the same.
    let left = min((stop - start) as i32 - taken, (stop - start) as i32);
    let log_count = select(left > 0, f32::cast_from(max(left, 1)).ln(), f32::new(-1.0));
    log_counts[at as usize] = u32::reinterpret(log_count) as i32;
}

/// How many entries of an ascending list are below `key`.
#[cube]
fn place_of(indices: &[i32], list: usize, kept: u32, key: u32) -> u32 {
    let mut low = 0u32;
    let mut high = kept;
    while low < high {
        let middle = (low + high) / 2;
        if (indices[list + middle as usize] as u32) < key {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}
