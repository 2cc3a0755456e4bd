//! What can be known of an attention problem before anything runs.

use burn::tensor::{DType, Device, Tensor};

use crate::Error;

/// The smallest and largest head dimension that every stage supports.
pub const HEAD_DIM: std::ops::RangeInclusive<usize> = 1..=256;

/// The sizes of one self-attention call, checked for consistency.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// Batch size.
    pub batch: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; `heads` is a multiple.
    pub kv_heads: usize,
    /// Query tokens.
    pub queries: usize,
    /// Key tokens; equal to `queries` in self-attention.
    pub keys: usize,
    /// Size of one head.
    pub head_dim: usize,
    /// Element type of query, key, value and output.
    pub dtype: DType,
    /// Where the tensors live.
    pub device: Device,
}

impl Problem {
    /// Reads and checks the sizes of `query` `[batch, heads, queries, head_dim]` and of `key` and `value`
    /// `[batch, kv_heads, keys, head_dim]`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTensor`] naming the tensor that does not fit.
    pub fn of(query: &Tensor<4>, key: &Tensor<4>, value: &Tensor<4>) -> Result<Self, Error> {
        let [batch, heads, queries, head_dim] = query.dims();
        let [key_batch, kv_heads, keys, key_dim] = key.dims();
        if batch == 0 || heads == 0 || queries == 0 {
            return Err(Error::tensor("query", "at least one batch element, head and token", shape(query)));
        }
        if !HEAD_DIM.contains(&head_dim) {
            return Err(Error::tensor(
                "query",
                format!("head_dim (last axis) from {} to {}", HEAD_DIM.start(), HEAD_DIM.end()),
                shape(query),
            ));
        }
        let dtype = query.dtype();
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(Error::tensor("query", "dtype f32, f16 or bf16", format!("{dtype:?}")));
        }
        let device = query.device();
        if !device.supports_dtype(dtype) {
            return Err(Error::tensor("query", format!("a dtype that {device:?} supports"), format!("{dtype:?}")));
        }
        if key_batch != batch || key_dim != head_dim || keys == 0 || kv_heads == 0 || heads % kv_heads != 0 {
            return Err(Error::tensor(
                "key",
                format!("[{batch}, heads dividing {heads}, tokens, {head_dim}] to go with query {}", shape(query)),
                shape(key),
            ));
        }
        if value.dims() != key.dims() {
            return Err(Error::tensor("value", format!("the shape of key, {}", shape(key)), shape(value)));
        }
        for (name, tensor) in [("key", key), ("value", value)] {
            if tensor.dtype() != dtype {
                return Err(Error::tensor(
                    name,
                    format!("the dtype of query, {dtype:?}"),
                    format!("{:?}", tensor.dtype()),
                ));
            }
            if tensor.device() != device {
                return Err(Error::tensor(
                    name,
                    format!("the device of query, {device:?}"),
                    format!("{:?}", tensor.device()),
                ));
            }
        }
        Ok(Self { batch, heads, kv_heads, queries, keys, head_dim, dtype, device })
    }

    /// As [`Problem::of`], for self-attention: as many keys as queries.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTensor`] naming the tensor that does not fit.
    pub fn of_self_attention(query: &Tensor<4>, key: &Tensor<4>, value: &Tensor<4>) -> Result<Self, Error> {
        let problem = Self::of(query, key, value)?;
        if problem.keys != problem.queries {
            return Err(Error::tensor("key", format!("{} tokens, as query has", problem.queries), shape(key)));
        }
        Ok(problem)
    }

    /// Query heads that share one key and value head.
    pub fn heads_per_kv(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Repeats key or value heads so that every query head has its own (a view where nothing has to be repeated).
    pub(crate) fn expand_kv(&self, tensor: Tensor<4>) -> Tensor<4> {
        let (shared, [batch, kv_heads, keys, dim]) = (self.heads_per_kv(), tensor.dims());
        if shared == 1 {
            return tensor;
        }
        tensor
            .reshape([batch, kv_heads, 1, keys, dim])
            .expand([batch, kv_heads, shared, keys, dim])
            .reshape([batch, self.heads, keys, dim])
    }
}

/// A shape as error messages print it.
pub(crate) fn shape(tensor: &Tensor<4>) -> String {
    format!("{:?}", tensor.dims())
}

/// How many values of `tensor` are NaN or infinite. Reads the count back from the device.
pub(crate) fn not_finite(tensor: &Tensor<4>) -> usize {
    let count: i64 = tensor.clone().is_finite().bool_not().int().sum().into_scalar();
    count as usize
}
