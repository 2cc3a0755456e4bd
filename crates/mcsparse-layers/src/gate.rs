//! Gates.

#[cfg(feature = "cube")]
use burn::backend::Dispatch;
use burn::tensor::{Int, Tensor};

#[cfg(feature = "cube")]
use crate::{Layer, LayerOps, f32_table, kernel, row_numbers};
use crate::{check_rows, reference};

/// `x + update * gate`, in f32; gates come from a row of a table.
///
/// # Shapes
///
/// - `x`, `update`: `[rows, size]` in one of f32, f16 or bf16; `gate`: `[n, size]`, read in f32
/// - `rows`: as in [`scaled_norm`](crate::scaled_norm)
/// - returns the shape and dtype of `x`
///
/// # Panics
///
/// If shapes or dtypes do not fit each other.
pub fn gated_add(x: Tensor<2>, update: Tensor<2>, gate: Tensor<2>, rows: Option<Tensor<1, Int>>) -> Tensor<2> {
    let ([count, size], [n, columns]) = (x.dims(), gate.dims());
    assert_eq!((update.dims(), update.dtype()), (x.dims(), x.dtype()), "gated_add: update: expected what x is");
    assert_eq!(columns, size, "gated_add: gate: expected one value a column");
    check_rows("gated_add", n, count, rows.as_ref().map(Tensor::dims));
    #[cfg(feature = "cube")]
    if kernel(&x.device(), Layer::GatedAdd { size }).is_ok() {
        let (x, update, gate) = (x.into_dispatch(), update.into_dispatch(), f32_table(gate));
        return Tensor::from_dispatch(match rows {
            Some(rows) => <Dispatch as LayerOps>::dit_gated_add_by_row(x, update, gate, row_numbers(rows)),
            None => <Dispatch as LayerOps>::dit_gated_add(x, update, gate),
        });
    }
    reference::gated_add(x, update, gate, rows)
}

/// `value * silu(gate)`, in f32: what is inside a gated feed-forward network.
///
/// # Shapes
///
/// - `x`: `[rows, 2 * hidden]` in f32, f16 or bf16, values before gates
/// - returns `[rows, hidden]` in the dtype of `x`
///
/// # Panics
///
/// If a row cannot be halved.
pub fn swiglu(x: Tensor<2>) -> Tensor<2> {
    let [_, size] = x.dims();
    assert!(size.is_multiple_of(2), "swiglu: x: rows of {size} values have no halves");
    #[cfg(feature = "cube")]
    if kernel(&x.device(), Layer::SwiGlu { hidden: size / 2 }).is_ok() {
        return Tensor::from_dispatch(<Dispatch as LayerOps>::dit_swiglu(x.into_dispatch()));
    }
    reference::swiglu(x)
}
