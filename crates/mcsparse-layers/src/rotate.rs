//! Norms of heads, and their rotary embedding.

#[cfg(feature = "cube")]
use burn::backend::Dispatch;
use burn::tensor::Tensor;

use crate::reference;
#[cfg(feature = "cube")]
use crate::{Layer, LayerOps, f32_table, kernel};

/// Which values of a head turn together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pairs {
    /// Neighbours: `2 i` with `2 i + 1`.
    Neighbours,
    /// Of the values that turn, `i` of the first half with `i` of the second.
    Halves,
}

/// How [`rms_norm`] and [`norm_and_rotate`] treat a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadNorm {
    /// Heads of a row.
    pub heads: usize,
    /// Whether one mean square serves all heads of a token, or each head has its own.
    pub all_heads: bool,
    /// Added to the mean square.
    pub eps: f64,
}

impl HeadNorm {
    /// Size of a head of `x` `[rows, size]`, checked with the norm's weights.
    fn head_dim(self, what: &str, x: &Tensor<2>, weight: &Tensor<1>) -> usize {
        let ([_, size], heads) = (x.dims(), self.heads);
        assert!(heads > 0 && size.is_multiple_of(heads), "{what}: heads: {heads} do not share out {size} values");
        let weights = if self.all_heads { size } else { size / heads };
        assert_eq!(weight.dims(), [weights], "{what}: weight");
        size / heads
    }

    #[cfg(feature = "cube")]
    fn layer(self, head_dim: usize, turned: usize) -> Layer {
        Layer::HeadNorm { heads: self.heads, head_dim, turned }
    }
}

/// Root-mean-square norm with weights, in f32.
///
/// # Shapes
///
/// - `x`: `[rows, heads * head_dim]` in f32, f16 or bf16
/// - `weight`: `[heads * head_dim]` if the norm runs over all heads, else `[head_dim]`; read in f32
/// - returns `[rows, heads, head_dim]` in the dtype of `x`
///
/// # Panics
///
/// If the shapes do not fit each other.
pub fn rms_norm(x: Tensor<2>, weight: Tensor<1>, norm: HeadNorm) -> Tensor<3> {
    let rows = x.dims()[0];
    let head_dim = norm.head_dim("rms_norm", &x, &weight);
    #[cfg(feature = "cube")]
    if kernel(&x.device(), norm.layer(head_dim, 0)).is_ok() {
        let normed = <Dispatch as LayerOps>::dit_rms_norm(x.into_dispatch(), f32_table(weight), norm);
        return Tensor::<2>::from_dispatch(normed).reshape([rows, norm.heads, head_dim]);
    }
    reference::rms_norm(x, weight, norm).reshape([rows, norm.heads, head_dim])
}

/// Root-mean-square norm with weights, then the rotary embedding of the first `turned` values of each head, in f32.
///
/// # Shapes
///
/// - `x`: `[batch * tokens, heads * head_dim]` in f32, f16 or bf16
/// - `weight`: `[heads * head_dim]` if the norm runs over all heads, else `[head_dim]`; read in f32
/// - `cos`, `sin`: `[tokens, turned / 2]`, one for each pair; read in f32, shared by the batch
/// - returns `[batch * tokens, heads, head_dim]` in the dtype of `x`
///
/// # Panics
///
/// If the shapes do not fit each other.
pub fn norm_and_rotate(
    x: Tensor<2>,
    weight: Tensor<1>,
    [cos, sin]: [Tensor<2>; 2],
    norm: HeadNorm,
    pairs: Pairs,
) -> Tensor<3> {
    let rows = x.dims()[0];
    let head_dim = norm.head_dim("norm_and_rotate", &x, &weight);
    let [tokens, half] = cos.dims();
    assert_eq!(sin.dims(), [tokens, half], "norm_and_rotate: sin: expected the shape of cos");
    assert!(2 * half <= head_dim, "norm_and_rotate: cos: {half} pairs in a head of {head_dim}");
    assert!(
        tokens > 0 && rows.is_multiple_of(tokens),
        "norm_and_rotate: cos: {tokens} tokens do not go into {rows} rows"
    );
    #[cfg(feature = "cube")]
    if half > 0 && kernel(&x.device(), norm.layer(head_dim, 2 * half)).is_ok() {
        let rotated: Tensor<2> = Tensor::from_dispatch(<Dispatch as LayerOps>::dit_norm_and_rotate(
            x.into_dispatch(),
            f32_table(weight),
            f32_table(cos),
            f32_table(sin),
            norm,
            pairs,
        ));
        return rotated.reshape([rows, norm.heads, head_dim]);
    }
    reference::norm_and_rotate(x, weight, [cos, sin], norm, pairs)
}
