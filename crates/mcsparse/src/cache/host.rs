//! A slot in host memory: what a file holds, and where slots wait that the device has no room for.

use burn::tensor::{Bytes, DType, Device, TensorData, Transaction};
use serde::{Deserialize, Serialize};

use super::{
    slot::{Slot, SlotKey, SlotShape},
    stored::{Codes, KeyLists, Residual, floats, ints},
};
use crate::{IndexFormat, ResidualFormat};

/// What is known of a slot beside its numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Header {
    pub key: SlotKey,
    pub shape: SlotShape,
    pub index_format: IndexFormat,
    pub residual_format: ResidualFormat,
    /// Whether there is a slope of the residual; files have none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub slope: bool,
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
            slope: slot.slope().is_some(),
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
        let names = [("residual", "codes", "largest"), ("slope", "slope_codes", "slope_largest")];
        for (plain, codes, largest) in names.into_iter().take(1 + usize::from(self.slope)) {
            match self.residual_format {
                ResidualFormat::Input => parts.push((plain, dtype, vec![b, h, rows, shape.head_dim])),
                ResidualFormat::Fp8 | ResidualFormat::Int8 => {
                    parts.push((codes, DType::I32, vec![b, h, rows, shape.head_dim.div_ceil(4)]));
                    parts.push((largest, dtype, vec![b, h, rows]));
                }
            }
        }
        Ok(parts)
    }
}

/// The same bytes, in the same memory, of which a clone is no copy. So pinned memory goes to the device as it is, each time.
fn shared(data: TensorData) -> TensorData {
    struct Owner(Bytes);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let (bytes, shape, dtype) = data.into_parts();
    let property = bytes.property();
    TensorData::from_bytes(Bytes::from_shared(bytes::Bytes::from_owner(Owner(bytes)), property), shape, dtype)
}

/// A slot's numbers in host memory, part by part.
#[derive(Debug, Clone)]
pub(super) struct HostSlot {
    pub header: Header,
    pub step: Option<usize>,
    pub parts: Vec<TensorData>,
}

impl HostSlot {
    /// Copies a slot to the host. The bytes are there when this returns, and nothing holds the device's memory.
    ///
    /// A plain read would be put off by a backend until the bytes are looked at, and keep the device's memory even then; a
    /// transaction reads at once. CUDA puts what it reads into pinned memory.
    pub fn of(slot: &Slot) -> Self {
        let read = Transaction::default().register(slot.order().clone()).register(slot.lists().words().clone());
        let residuals = std::iter::once(slot.stored_residual()).chain(slot.slope());
        let read = residuals.fold(read, |read, residual| match residual {
            Residual::Plain(values) => read.register(values.clone()),
            Residual::Codes(codes) => read.register(codes.words.clone()).register(codes.largest.clone()),
        });
        let parts = read.execute().into_iter().map(shared).collect();
        Self { header: Header::of(slot), step: slot.step(), parts }
    }

    /// Without the slope of the residual, as files have it.
    pub fn without_slope(mut self) -> Self {
        self.header.slope = false;
        self.parts.truncate(self.header.parts().map_or(usize::MAX, |parts| parts.len()));
        self
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
        let Header { key, shape, index_format, residual_format, slope } = self.header.clone();
        let mut parts = self.parts.iter().cloned();
        let mut part = || parts.next().expect("as many parts as the header has");
        let order = ints(part(), device);
        let lists = KeyLists::from_data(part(), index_format, shape.tokens, shape.kept_keys, device);
        let mut residual = || match residual_format {
            ResidualFormat::Input => Residual::Plain(floats(part(), device)),
            format => {
                let (words, largest) = (ints(part(), device), floats(part(), device));
                Residual::Codes(Codes { words, largest, format, head_dim: shape.head_dim })
            }
        };
        let (residual, slope) = (residual(), slope.then(residual));
        Slot::new(key, shape, self.step, order, lists, residual).with_slope(slope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_bytes_are_not_copied() {
        let data = TensorData::from([1.0f32, 2.0, 3.0]);
        let (expected, before) = (data.clone(), data.as_bytes().as_ptr());
        let shared = shared(data);
        let clone = shared.clone();
        assert_eq!((shared.as_bytes().as_ptr(), clone.as_bytes().as_ptr()), (before, before));
        assert_eq!(clone, expected);
    }
}
