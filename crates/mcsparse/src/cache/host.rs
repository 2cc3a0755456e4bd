//! A slot in host memory: what a file holds, and where slots wait that the device has no room for.

use burn::tensor::{DType, Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::{
    slot::{Slot, SlotKey, SlotShape},
    stored::{Codes, KeyLists, Residual},
};
use crate::{IndexFormat, ResidualFormat};

/// What is known of a slot beside its numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Header {
    pub key: SlotKey,
    pub shape: SlotShape,
    pub index_format: IndexFormat,
    pub residual_format: ResidualFormat,
}

/// One part of a slot: its name, dtype and shape.
pub(super) type Part = (&'static str, DType, Vec<usize>);

impl Header {
    pub fn of(slot: &Slot) -> Self {
        Self {
            key: slot.key().clone(),
            shape: slot.shape().clone(),
            index_format: slot.index_format(),
            residual_format: slot.residual_format(),
        }
    }

    /// Bytes of all parts.
    pub fn size_in_bytes(&self) -> usize {
        let parts = self.parts().unwrap_or_default();
        parts.iter().map(|(_, dtype, shape)| dtype.size() * shape.iter().product::<usize>()).sum()
    }

    /// The parts in the order in which they are written.
    pub fn parts(&self) -> Result<Vec<Part>, String> {
        let shape = &self.shape;
        let (b, h) = (shape.batch, shape.heads);
        let rows = shape.grouped();
        let groups = rows.div_ceil(shape.group_size.max(1));
        let dtype = match shape.dtype.as_str() {
            "F32" => DType::F32,
            "F16" => DType::F16,
            "BF16" => DType::BF16,
            other => return Err(format!("residuals of dtype {other} cannot be stored")),
        };
        let words = self.index_format.words(shape.tokens, shape.kept_keys);
        let mut parts =
            vec![("order", DType::I32, vec![b, h, rows]), ("indices", DType::I32, vec![b, h, groups, words])];
        match self.residual_format {
            ResidualFormat::Input => parts.push(("residual", dtype, vec![b, h, rows, shape.head_dim])),
            ResidualFormat::Fp8 | ResidualFormat::Int8 => {
                parts.push(("codes", DType::I32, vec![b, h, rows, shape.head_dim.div_ceil(4)]));
                parts.push(("largest", dtype, vec![b, h, rows]));
            }
        }
        Ok(parts)
    }
}

/// A slot's numbers in host memory, part by part.
#[derive(Debug, Clone)]
pub(super) struct HostSlot {
    pub header: Header,
    pub step: Option<usize>,
    pub parts: Vec<TensorData>,
}

impl HostSlot {
    /// Copies a slot to the host. The bytes are there when this returns: a backend may put a read off until they are looked
    /// at, and hold the device's memory that long.
    pub fn of(slot: &Slot) -> Self {
        let mut parts = vec![slot.order().to_data(), slot.lists().words().to_data()];
        match slot.stored_residual() {
            Residual::Plain(values) => parts.push(values.to_data()),
            Residual::Codes(codes) => parts.extend([codes.words.to_data(), codes.largest.to_data()]),
        }
        parts.iter().for_each(|part| {
            let _ = part.as_bytes();
        });
        Self { header: Header::of(slot), step: slot.step(), parts }
    }

    /// Bytes of all parts.
    pub fn size_in_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.as_bytes().len()).sum()
    }

    /// The slot on `device`.
    ///
    /// # Panics
    ///
    /// If the parts are not those of the header.
    pub fn to_device(&self, device: &Device) -> Slot {
        let Header { key, shape, index_format, residual_format } = self.header.clone();
        let mut parts = self.parts.iter().cloned();
        let mut part = || parts.next().expect("as many parts as the header has");
        let order = Tensor::from_data(part(), (device, DType::I32));
        let lists = KeyLists::from_data(part(), index_format, shape.tokens, shape.kept_keys, device);
        let float = |data: TensorData| {
            let dtype = data.dtype();
            (data, (device.clone(), dtype))
        };
        let residual = match residual_format {
            ResidualFormat::Input => {
                let (data, options) = float(part());
                Residual::Plain(Tensor::from_data(data, (&options.0, options.1)))
            }
            format => {
                let words = Tensor::from_data(part(), (device, DType::I32));
                let (data, options) = float(part());
                let largest = Tensor::from_data(data, (&options.0, options.1));
                Residual::Codes(Codes { words, largest, format, head_dim: shape.head_dim })
            }
        };
        Slot::new(key, shape, self.step, order, lists, residual)
    }
}
