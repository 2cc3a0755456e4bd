//! How far attention has moved since the anchor, for schedules that refresh by it.

use burn::{
    module::Module,
    tensor::{DType, Device, Tensor},
};

use super::{slot::SlotKey, stored::bytes};
use crate::reference::rows::arange;

/// Rows of a head that are watched, at equal distances. Heads, layers and branches are averaged over, so that few will do.
const ROWS: usize = 256;

/// Sparse outputs of the last anchors, and how far those of the present step are from them.
#[derive(Module, Debug, Default)]
pub(crate) struct Drift {
    watched: Vec<Watched>,
    changes: Vec<Tensor<1>>,
}

/// Some rows of the sparse output of one slot's anchor.
#[derive(Module, Debug)]
struct Watched {
    #[module(skip)]
    key: SlotKey,
    rows: Tensor<4>,
}

impl Drift {
    /// The watched rows of a sparse part, in f32: an `output` less `gain` times the `residual` in it, both `[batch, heads, rows,
    /// head_dim]`.
    pub fn rows_of(output: Tensor<4>, residual: Tensor<4>, gain: f32) -> Tensor<4> {
        sampled(output) - sampled(residual).mul_scalar(gain)
    }

    /// Remembers the [rows](Self::rows_of) of an anchor.
    pub fn watch(&mut self, key: &SlotKey, rows: Tensor<4>) {
        match self.watched.iter_mut().find(|watched| watched.key == *key) {
            Some(watched) => watched.rows = rows,
            None => self.watched.push(Watched { key: key.clone(), rows }),
        }
    }

    /// Notes how far the [rows](Self::rows_of) of a reuse step are from those of the anchor: `|now - then| / |then|` in the L2
    /// norm over batch, heads and the watched rows.
    pub fn note(&mut self, key: &SlotKey, now: Tensor<4>) {
        let Some(watched) = self.watched.iter().find(|watched| watched.key == *key) else { return };
        let then = watched.rows.clone().cast(DType::F32);
        let size = then.clone().square().sum().clamp_min(f32::MIN_POSITIVE);
        self.changes.push(((now - then).square().sum() / size).sqrt());
    }

    /// The mean change of the calls since the last question, read back from the device; `None` if there were none.
    pub fn take(&mut self) -> Option<f64> {
        let changes = std::mem::take(&mut self.changes);
        (!changes.is_empty()).then(|| f64::from(Tensor::cat(changes, 0).mean().into_scalar::<f32>()))
    }

    /// Forgets the changes of the last step.
    pub fn forget(&mut self) {
        self.changes.clear();
    }

    /// Bytes of what is remembered.
    pub fn size_in_bytes(&self) -> usize {
        self.watched.iter().map(|watched| bytes(&watched.rows)).sum()
    }
}

/// The watched rows in f32.
fn sampled(tensor: Tensor<4>) -> Tensor<4> {
    let [_, _, rows, _] = tensor.dims();
    let device: Device = tensor.device();
    let every = rows.div_ceil(ROWS);
    let index = arange(rows.div_ceil(every), &device).mul_scalar(every as i64);
    tensor.select(2, index).cast(DType::F32)
}
