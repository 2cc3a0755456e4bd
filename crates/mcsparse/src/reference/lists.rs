//! The stored forms of key lists, see [`IndexFormat`].

use burn::tensor::{DType, Int, Tensor, TensorData};

use super::{
    rows::{INDEX, arange, chunk_len},
    top_k::places_of,
};
use crate::index_format::{BITS, BLOCK, IndexFormat};

/// Packs ascending key lists.
///
/// # Shapes
///
/// - `indices`: `[batch, heads, groups, kept]`, ascending in each row, below `keys`
/// - returns `[batch, heads, groups, words]` of 32-bit integers, `words` as [`IndexFormat::words`] has it
pub fn pack_indices(indices: Tensor<4, Int>, format: IndexFormat, keys: usize) -> Tensor<4, Int> {
    let [batch, heads, groups, kept] = indices.dims();
    let (rows, words) = (batch * heads * groups, format.words(keys, kept));
    let indices = indices.cast(INDEX).reshape([rows, kept]);
    let packed = match format {
        IndexFormat::Plain => indices,
        IndexFormat::Bitmap => {
            let (bit, word) = (indices.clone().remainder_scalar(BITS as i64), indices.div_scalar(BITS as i64));
            let values = bits(&bit.device()).select(0, bit.reshape([rows * kept])).reshape([rows, kept]);
            // Bits of a word differ, so that their sum is their union.
            let empty = Tensor::<2, Int>::zeros([rows, words], (&word.device(), INDEX));
            empty.scatter(1, word, values, burn::tensor::IndexingUpdateOp::Add)
        }
        IndexFormat::Offsets => {
            let before = (1..=format.starts(keys)).map(|block| {
                let below = indices.clone().lower_scalar((block * BLOCK) as i64);
                below.int().cast(INDEX).sum_dim(1)
            });
            let mut parts: Vec<_> = before.collect();
            let mut offsets = indices.clone().remainder_scalar(BLOCK as i64);
            if kept % 2 == 1 {
                offsets = Tensor::cat(vec![offsets, Tensor::zeros([rows, 1], (&indices.device(), INDEX))], 1);
            }
            let pairs = offsets.reshape([rows, kept.div_ceil(2), 2]);
            let half = |i: usize| pairs.clone().slice_dim(2, i..i + 1).squeeze_dim::<2>(2);
            parts.push(half(0) + signed(half(1), BLOCK as i64).mul_scalar(BLOCK as i64));
            Tensor::cat(parts, 1)
        }
    };
    packed.reshape([batch, heads, groups, words])
}

/// Expands what [`pack_indices`] packed: `[batch, heads, groups, kept]` of 32-bit integers, in chunks under
/// `workspace_bytes`.
pub fn expand_indices(
    packed: Tensor<4, Int>,
    format: IndexFormat,
    keys: usize,
    kept: usize,
    workspace_bytes: usize,
) -> Tensor<4, Int> {
    let [batch, heads, groups, words] = packed.dims();
    let rows = batch * heads * groups;
    let packed = packed.cast(INDEX).reshape([rows, words]);
    let expanded = match format {
        IndexFormat::Plain => packed,
        IndexFormat::Bitmap => {
            // Bits, their ranks, places and columns, with temporaries.
            let chunk = chunk_len(rows, 8 * 4 * BITS * words, workspace_bytes);
            let parts = (0..rows).step_by(chunk).map(|first| {
                let part = packed.clone().slice_dim(0, first..rows.min(first + chunk));
                let count = part.dims()[0];
                let bits = bits(&part.device()).reshape([1, 1, BITS]).expand([count, words, BITS]);
                let word = part.reshape([count, words, 1]).expand([count, words, BITS]);
                let set = word.bitwise_and(bits).not_equal_scalar(0).reshape([count, BITS * words]);
                places_of(set.slice_dim(1, 0..keys), kept).slice_dim(1, 0..kept)
            });
            Tensor::cat(parts.collect(), 0)
        }
        IndexFormat::Offsets => {
            let starts = format.starts(keys);
            let pairs = packed.clone().slice_dim(1, starts..words);
            let low = pairs.clone().bitwise_and_scalar((BLOCK - 1) as i64);
            let high = (pairs - low.clone()).div_scalar(BLOCK as i64).bitwise_and_scalar((BLOCK - 1) as i64);
            let offsets = Tensor::stack::<3>(vec![low, high], 2).reshape([rows, 2 * (words - starts)]);
            let places = arange(kept, &offsets.device()).reshape([1, kept]).expand([rows, kept]);
            let mut indices = offsets.slice_dim(1, 0..kept);
            for block in 0..starts {
                let start = packed.clone().slice_dim(1, block..block + 1).expand([rows, kept]);
                indices = indices + places.clone().greater_equal(start).int().cast(INDEX).mul_scalar(BLOCK as i64);
            }
            indices
        }
    };
    expanded.reshape([batch, heads, groups, kept])
}

/// `1 << i` for the bits of a word.
fn bits(device: &burn::tensor::Device) -> Tensor<1, Int> {
    let bits: Vec<i32> = (0..BITS).map(|i| (1u32 << i) as i32).collect();
    Tensor::from_data(TensorData::new(bits, [BITS]), (device, DType::I32))
}

/// Values from 0 up to `range` with the upper half moved below 0, so that they fit the top of a signed word.
pub(super) fn signed<const D: usize>(values: Tensor<D, Int>, range: i64) -> Tensor<D, Int> {
    let upper = values.clone().greater_equal_scalar(range / 2).int().cast(INDEX);
    values - upper.mul_scalar(range)
}
