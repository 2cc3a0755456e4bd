//! Norms over whole rows.

#[cfg(feature = "cube")]
use burn::backend::Dispatch;
use burn::tensor::{Int, Tensor};

#[cfg(feature = "cube")]
use crate::{Layer, LayerOps, f32_table, kernel, row_numbers};
use crate::{check_rows, reference};

/// How [`scaled_norm`] treats a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// Whether the mean is taken off first, as a layer norm does; else it is a root-mean-square norm.
    pub centred: bool,
    /// Added to the variance or the mean square.
    pub eps: f64,
    /// Added to every scale: 1 where scales say how far they are from 1.
    pub offset: f64,
}

impl Norm {
    /// A layer norm.
    pub fn layer(eps: f64) -> Self {
        Self { centred: true, eps, offset: 0.0 }
    }

    /// A root-mean-square norm.
    pub fn root_mean_square(eps: f64) -> Self {
        Self { centred: false, eps, offset: 0.0 }
    }

    /// The same with scales that say how far they are from 1.
    pub fn from_one(self) -> Self {
        Self { offset: 1.0, ..self }
    }
}

/// `norm(x) * (offset + scale) + shift`, in f32; scale and shift come from a row of a table.
///
/// # Shapes
///
/// - `x`: `[rows, size]` in f32, f16 or bf16; `scale`, `shift`: `[n, size]`, read in f32
/// - `rows`: `[rows]`, the row of the tables that each row of `x` takes, below `n`; `None` if equally many rows of `x`, one
///   after the other, share each, so that `n` divides their number
/// - returns the shape and dtype of `x`
///
/// # Panics
///
/// If the shapes do not fit each other.
pub fn scaled_norm(
    x: Tensor<2>,
    scale: Tensor<2>,
    shift: Tensor<2>,
    rows: Option<Tensor<1, Int>>,
    norm: Norm,
) -> Tensor<2> {
    let ([count, size], [n, _]) = (x.dims(), scale.dims());
    for (name, given) in [("scale", &scale), ("shift", &shift)] {
        assert_eq!(given.dims(), [n, size], "norm: {name}: expected one value a column");
    }
    check_rows("norm", n, count, rows.as_ref().map(Tensor::dims));
    #[cfg(feature = "cube")]
    if kernel(&x.device(), Layer::Norm { size }).is_ok() {
        let (x, scale, shift) = (x.into_dispatch(), f32_table(scale), f32_table(shift));
        return Tensor::from_dispatch(match rows {
            Some(rows) => <Dispatch as LayerOps>::dit_norm_by_row(x, scale, shift, row_numbers(rows), norm),
            None => <Dispatch as LayerOps>::dit_norm(x, scale, shift, norm),
        });
    }
    reference::scaled_norm(x, scale, shift, rows, norm)
}

/// `norm(x) * (1 + scale) + shift`: a layer norm without weights, in f32.
///
/// # Shapes
///
/// - `x`: `[rows, size]` in f32, f16 or bf16; `scale`, `shift`: `[size]`
/// - returns the shape and dtype of `x`
///
/// # Panics
///
/// If the shapes do not fit each other.
pub fn modulated_norm(x: Tensor<2>, scale: Tensor<1>, shift: Tensor<1>, eps: f64) -> Tensor<2> {
    scaled_norm(x, scale.unsqueeze(), shift.unsqueeze(), None, Norm::layer(eps).from_one())
}

/// `norm(x) * weight + bias`: a layer norm, in f32.
///
/// # Shapes
///
/// - `x`: `[rows, size]` in f32, f16 or bf16; `weight`, `bias`: `[size]`
/// - returns the shape and dtype of `x`
///
/// # Panics
///
/// If the shapes do not fit each other.
pub fn layer_norm(x: Tensor<2>, weight: Tensor<1>, bias: Tensor<1>, eps: f64) -> Tensor<2> {
    scaled_norm(x, weight.unsqueeze(), bias.unsqueeze(), None, Norm::layer(eps))
}
