//! Norms and gates that the timestep decides, one pass over memory each where the device has kernels for them.

use burn::nn::{LayerNorm, RmsNorm};
use burn::tensor::{DType, Int, Tensor};
use mcsparse_layers::{HeadNorm, Norm};

use super::RotaryTables;

/// Splits `[a, b, parts, inner]` into `PARTS` tensors `[a, b, inner]`.
pub(crate) fn parts<const PARTS: usize>(tensor: Tensor<4>) -> [Tensor<3>; PARTS] {
    let [a, b, _, inner] = tensor.dims();
    std::array::from_fn(|part| tensor.clone().slice_dim(2, part..part + 1).reshape([a, b, inner]))
}

/// `[batch, tokens, size]` as rows.
fn rows(x: Tensor<3>) -> Tensor<2> {
    let [batch, tokens, size] = x.dims();
    x.reshape([batch * tokens, size])
}

/// A table `[1 or batch, 1 or tokens, size]` as rows that the tokens of a batch take in equal runs.
fn table(table: Tensor<3>, batch: usize) -> Tensor<2> {
    let [elements, tokens, size] = table.dims();
    // One a token for all of the batch: the only case in which runs do not do.
    rows(if elements < batch && tokens > 1 { table.expand([batch, tokens, size]) } else { table })
}

/// `norm(x) * (1 + scale) + shift`, the norm a layer norm without weights, in f32; the result in the dtype of `x`.
///
/// `scale` and `shift` are f32 `[1 or batch, 1 or tokens, inner]`.
pub(crate) fn modulated_norm(x: Tensor<3>, scale: Tensor<3>, shift: Tensor<3>, eps: f64) -> Tensor<3> {
    let shape = x.dims();
    let [scale, shift] = [scale, shift].map(|given| table(given, shape[0]));
    mcsparse_layers::scaled_norm(rows(x), scale, shift, None, Norm::layer(eps).from_one()).reshape(shape)
}

/// `norm(x) * (1 + scale) + shift`, the norm with weights and by the root mean square, in f32; the result in the dtype of `x`.
///
/// `scale` and `shift` are `[n, size]`. `numbers` says which row of them each token of the batch takes; they are one row
/// without it.
pub(crate) fn modulated_rms_norm(
    norm: &RmsNorm,
    x: Tensor<3>,
    scale: Tensor<2>,
    shift: Tensor<2>,
    numbers: Option<Tensor<1, Int>>,
) -> Tensor<3> {
    let (shape, weight) = (x.dims(), norm.gamma.val().cast(DType::F32));
    // A few rows: cheap beside the tokens.
    let scale = scale.cast(DType::F32).add_scalar(1.0) * weight.unsqueeze();
    let how = Norm::root_mean_square(norm.epsilon);
    mcsparse_layers::scaled_norm(rows(x), scale, shift, numbers, how).reshape(shape)
}

/// A layer norm with weights, in f32; the result in the dtype of `x`. `eps` is that of `norm`, which keeps it to itself.
pub(crate) fn layer_norm(norm: &LayerNorm, x: Tensor<3>, eps: f64) -> Tensor<3> {
    let (shape, weight) = (x.dims(), norm.gamma.val());
    let bias = norm.beta.as_ref().map_or_else(|| weight.zeros_like(), |bias| bias.val());
    mcsparse_layers::layer_norm(rows(x), weight, bias, eps).reshape(shape)
}

/// As [`layer_norm`], by Burn, for a few tokens.
pub(crate) fn f32_norm(norm: &LayerNorm, x: Tensor<3>) -> Tensor<3> {
    let dtype = x.dtype();
    norm.forward(x.cast(DType::F32)).cast(dtype)
}

/// `x + update * gate`, added in f32; the result in the dtype of `x`. `gate` is f32 `[1 or batch, 1 or tokens, inner]`.
pub(crate) fn gated_add(x: Tensor<3>, update: Tensor<3>, gate: Tensor<3>) -> Tensor<3> {
    let shape = x.dims();
    mcsparse_layers::gated_add(rows(x), rows(update), table(gate, shape[0]), None).reshape(shape)
}

/// As [`gated_add`], with the row `numbers` of `gate` `[n, size]` for each token of the batch.
pub(crate) fn gated_add_by_row(x: Tensor<3>, update: Tensor<3>, gate: Tensor<2>, numbers: Tensor<1, Int>) -> Tensor<3> {
    let shape = x.dims();
    mcsparse_layers::gated_add(rows(x), rows(update), gate, Some(numbers)).reshape(shape)
}

/// `value * silu(gate)` of `[batch, tokens, 2 * hidden]`, values before gates, in f32; the result in the dtype of `x`.
pub(crate) fn swiglu(x: Tensor<3>) -> Tensor<3> {
    let [batch, tokens, size] = x.dims();
    mcsparse_layers::swiglu(rows(x)).reshape([batch, tokens, size / 2])
}

/// Projected queries or keys `[batch, tokens, heads * head_dim]`, normed and turned by `rotary`, if there is one, in f32:
/// `[batch, tokens, heads, head_dim]` in the dtype of `x`.
///
/// The norm has weights for all heads and one mean square for them, or weights for one head and each its own. `rotary` may go
/// on behind the tokens of `x`.
pub(crate) fn head_norm(norm: &RmsNorm, x: Tensor<3>, heads: usize, rotary: Option<&RotaryTables>) -> Tensor<4> {
    let ([batch, tokens, inner], weight) = (x.dims(), norm.gamma.val());
    let how = HeadNorm { heads, all_heads: weight.dims() == [inner], eps: norm.epsilon };
    match rotary {
        Some(rotary) => {
            let (angles, pairs) = rotary.first(tokens);
            mcsparse_layers::norm_and_rotate(rows(x), weight, angles, how, pairs)
        }
        None => mcsparse_layers::rms_norm(rows(x), weight, how),
    }
    .reshape([batch, tokens, heads, inner / heads])
}
