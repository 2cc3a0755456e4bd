//! Heads in parts whose temporary memory stays within the workspace limit.

use std::ops::Range;

use burn::tensor::{DType, Tensor};

use super::Run;
use crate::{IndexFormat, ResidualFormat, check::Problem};

/// Some of the heads.
pub(super) struct Part {
    pub heads: Range<usize>,
    pub kv_heads: Range<usize>,
    /// The problem that they are.
    pub problem: Problem,
}

/// How many of `all` heads a part has that may have `most`: parts are about equal, and of an even number where that can be, since
/// views of a device's memory begin at multiples of so many bytes.
fn even_share(all: usize, most: usize) -> usize {
    if most >= all {
        return all;
    }
    let most = if most > 1 { most / 2 * 2 } else { 1 };
    all.div_ceil(all.div_ceil(most)).next_multiple_of(2).min(most)
}

/// Some heads of a tensor, a view.
pub(super) fn of_heads<const D: usize>(tensor: &Tensor<D>, heads: &Range<usize>) -> Tensor<D> {
    if heads.len() == tensor.dims()[1] {
        return tensor.clone();
    }
    tensor.clone().slice_dim(1, heads.clone())
}

/// Parts of an output put together along heads (1) or tokens (2), as a view of memory that has tokens before heads: the model
/// then goes on with it without another copy.
pub(crate) fn cat_tokens_first(parts: Vec<Tensor<4>>, axis: usize) -> Tensor<4> {
    Tensor::cat(parts.into_iter().map(|part| part.swap_dims(1, 2)).collect(), 3 - axis).swap_dims(1, 2)
}

/// The parts in one, without a copy if there is only one.
pub(super) fn joined<T>(mut parts: Vec<T>, join: impl FnOnce(Vec<T>) -> T) -> T {
    if parts.len() == 1 { parts.remove(0) } else { join(parts) }
}

impl Run<'_> {
    /// Bytes that a slot's key lists and residual take beside their stored forms when they are whole, of all heads.
    pub(super) fn scratch_bytes(&self) -> usize {
        let ((lists, values), Problem { batch, heads, head_dim, dtype, .. }) = (self.formats(), self.problem);
        let rows = self.problem.queries - self.config.sink.len();
        let groups = rows.div_ceil(self.group_size());
        let lists = if lists == IndexFormat::Plain { 0 } else { groups * self.budget.keys * DType::I32.size() };
        let values = if values == ResidualFormat::Input { 0 } else { rows * head_dim * dtype.size() };
        batch * heads * (lists + values)
    }

    /// All heads in parts that keep `bytes` of memory for all of them to the workspace limit, as far as whole key and value
    /// heads go.
    pub(super) fn parts(&self, bytes: usize) -> Vec<Part> {
        let Problem { heads, kv_heads, .. } = *self.problem;
        let shared = heads / kv_heads;
        // A launch counts what it makes in 32 bits.
        let limit = self.config.workspace_bytes.min(u32::MAX as usize);
        let most = (limit / (bytes / kv_heads).max(1)).clamp(1, kv_heads);
        let each = even_share(kv_heads, most);
        let part = |first: usize| {
            let kv_heads = first..(first + each).min(kv_heads);
            let heads = kv_heads.start * shared..kv_heads.end * shared;
            let problem = Problem { heads: heads.len(), kv_heads: kv_heads.len(), ..self.problem.clone() };
            Part { heads, kv_heads, problem }
        };
        (0..kv_heads).step_by(each).map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_even_and_keep_the_limit() {
        let cases = [
            (40, 11, 10),
            (40, 8, 8),
            (40, 40, 40),
            (40, 39, 20),
            (56, 9, 8),
            (12, 7, 6),
            (2, 1, 1),
            (3, 2, 2),
            (1, 1, 1),
        ];
        for (all, most, expected) in cases {
            assert_eq!(even_share(all, most), expected, "{all} heads, at most {most}");
        }
        for all in 1..60 {
            for most in 1..=all {
                let each = even_share(all, most);
                assert!(
                    (1..=most).contains(&each) && (each == all || each == 1 || each.is_multiple_of(2)),
                    "{all} {most}: {each}"
                );
            }
        }
    }
}
