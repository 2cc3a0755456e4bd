//! Heads, and the two ways to attend: through the caller's [`SelfAttention`], or densely and at once.

use burn::tensor::Tensor;
use mcsparse::check::Problem;
use mcsparse::ops::{self, Kernels, Stage};
use mcsparse::{Error, SelfAttention};

use crate::check;

/// Bytes of temporary memory for dense attention where the backend has no kernel.
const WORKSPACE_BYTES: usize = 1 << 29;

/// `[batch, tokens, heads * head_dim]` to `[batch, tokens, heads, head_dim]`.
pub(crate) fn split_heads(x: Tensor<3>, heads: usize) -> Tensor<4> {
    let [batch, tokens, inner] = x.dims();
    x.reshape([batch, tokens, heads, inner / heads])
}

/// `[batch, heads, tokens, head_dim]` to `[batch, tokens, heads * head_dim]`.
fn merge_heads(x: Tensor<4>) -> Tensor<3> {
    let [batch, heads, tokens, head_dim] = x.dims();
    x.swap_dims(1, 2).reshape([batch, tokens, heads * head_dim])
}

/// Self-attention of one layer, left to `attention`; what it returns must have the shape of `query`.
///
/// All are `[batch, tokens, heads, head_dim]`, after QK norm and rotary embedding; the result is
/// `[batch, tokens, heads * head_dim]`.
pub(crate) fn self_attend(
    layer: usize,
    [query, key, value]: [Tensor<4>; 3],
    attention: &mut dyn SelfAttention,
) -> Result<Tensor<3>, Error> {
    // Views: whoever needs heads before tokens in memory copies there, and only what it needs.
    let [query, key, value] = [query, key, value].map(|tensor| tensor.swap_dims(1, 2));
    let expected = query.dims();
    let output = attention.attend(layer, query, key, value)?;
    if output.dims() != expected {
        let got = format!("{:?} in layer {layer}", output.dims());
        return Err(check::tensor("attention output", format!("the shape of query, {expected:?}"), got));
    }
    Ok(merge_heads(output))
}

/// Dense attention that no method replaces: cross-attention to a condition, and the refiners of text.
///
/// By the kernel of `mcsparse` where the backend has one: Burn's own asks for multiples of 32 queries on CUDA.
///
/// # Shapes
///
/// - `query`: `[batch, queries, heads, head_dim]`; `key`, `value`: `[batch, keys, heads, head_dim]`
/// - returns `[batch, queries, heads * head_dim]`
pub(crate) fn dense(query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Tensor<3> {
    let [query, key, value] = [query, key, value].map(|tensor| tensor.swap_dims(1, 2));
    let problem = Problem::of(&query, &key, &value).expect("tensors of one model");
    let route = ops::route(Stage::Dense, &problem, Kernels::Auto);
    let scale = (problem.head_dim as f64).powf(-0.5);
    merge_heads(ops::dense_attention(&route, query, key, value, scale, WORKSPACE_BYTES).0)
}
