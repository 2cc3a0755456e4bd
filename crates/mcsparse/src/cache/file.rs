//! Slots in a safetensors file.

use std::{borrow::Cow, collections::HashMap, io::Write, path::Path};

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use safetensors::{Dtype, SafeTensors, View};
use serde::{Deserialize, Serialize};

use super::slot::{Slot, SlotKey, SlotShape};
use crate::Error;

const FORMAT: &str = "mcsparse-cache-1";

/// The tensors of a slot, in the order that the checksum covers them.
const PARTS: [&str; 3] = ["order", "indices", "residual"];

#[derive(Serialize, Deserialize)]
struct Header {
    key: SlotKey,
    shape: SlotShape,
}

struct Stored {
    data: TensorData,
    dtype: Dtype,
    shape: Vec<usize>,
}

impl View for Stored {
    fn dtype(&self) -> Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.data.as_bytes())
    }
    fn data_len(&self) -> usize {
        self.data.as_bytes().len()
    }
}

/// CRC-32 over the list of slots and all tensor bytes.
struct Checksum(crc32fast::Hasher);

impl Checksum {
    fn new(headers: &str) -> Self {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(headers.as_bytes());
        Self(hasher)
    }

    fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(self) -> String {
        format!("{:08x}", self.0.finalize())
    }
}

fn refuse(path: &Path, reason: impl ToString) -> Error {
    Error::CacheFile { path: path.display().to_string(), reason: reason.to_string() }
}

fn stored(data: TensorData, path: &Path) -> Result<Stored, Error> {
    let dtype = match data.dtype() {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I32 => Dtype::I32,
        other => return Err(refuse(path, format!("a tensor of dtype {other:?} cannot be stored"))),
    };
    let shape = data.shape().as_slice().to_vec();
    Ok(Stored { data, dtype, shape })
}

pub(super) fn save(slots: &[Slot], path: &Path) -> Result<(), Error> {
    let mut tensors = Vec::new();
    let mut headers = Vec::new();
    for (i, slot) in slots.iter().enumerate() {
        headers.push(Header { key: slot.key().clone(), shape: slot.shape().clone() });
        tensors.push((format!("{i}.order"), stored(slot.order().to_data(), path)?));
        tensors.push((format!("{i}.indices"), stored(slot.indices().to_data(), path)?));
        tensors.push((format!("{i}.residual"), stored(slot.residual().to_data(), path)?));
    }
    let headers = serde_json::to_string(&headers).map_err(|e| refuse(path, e))?;
    let mut checksum = Checksum::new(&headers);
    tensors.iter().for_each(|(_, tensor)| checksum.update(tensor.data.as_bytes()));
    let metadata = HashMap::from([
        ("format".to_string(), FORMAT.to_string()),
        ("slots".to_string(), headers),
        ("crc32".to_string(), checksum.finish()),
    ]);
    let bytes = safetensors::serialize(tensors, Some(metadata)).map_err(|e| refuse(path, e))?;
    // Written beside the target and renamed, so that a crash leaves the old file or the new one.
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".{}.partial", std::process::id()));
    let partial = std::path::PathBuf::from(partial);
    let write = || {
        let mut file = std::fs::File::create(&partial)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        std::fs::rename(&partial, path)
    };
    write().map_err(|e: std::io::Error| {
        let _ = std::fs::remove_file(&partial);
        refuse(path, e)
    })
}

pub(super) fn load(path: &Path, device: &Device) -> Result<Vec<Slot>, Error> {
    let bytes = std::fs::read(path).map_err(|e| refuse(path, e))?;
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| refuse(path, e))?;
    let metadata = header.metadata().clone().unwrap_or_default();
    match metadata.get("format") {
        Some(format) if format == FORMAT => {}
        other => return Err(refuse(path, format!("expected format {FORMAT}, got {other:?}"))),
    }
    let slots = metadata.get("slots").ok_or_else(|| refuse(path, "the list of slots is missing"))?;
    let headers: Vec<Header> = serde_json::from_str(slots).map_err(|e| refuse(path, e))?;
    for (i, header) in headers.iter().enumerate() {
        if headers[..i].iter().any(|other| other.key == header.key) {
            return Err(refuse(path, format!("layer {} of {} is there twice", header.key.layer, header.key.branch)));
        }
    }
    let file = SafeTensors::deserialize(&bytes).map_err(|e| refuse(path, e))?;
    let mut checksum = Checksum::new(slots);
    for name in (0..headers.len()).flat_map(|i| PARTS.map(|part| format!("{i}.{part}"))) {
        checksum.update(file.tensor(&name).map_err(|e| refuse(path, format!("{name}: {e}")))?.data());
    }
    if metadata.get("crc32") != Some(&checksum.finish()) {
        return Err(refuse(path, "the contents do not have the checksum that they were written with"));
    }
    let read = |name: String, expected: &[usize], dtype: Option<&str>| {
        let view = file.tensor(&name).map_err(|e| refuse(path, format!("{name}: {e}")))?;
        if view.shape() != expected {
            return Err(refuse(path, format!("{name}: expected shape {expected:?}, got {:?}", view.shape())));
        }
        let kind = match view.dtype() {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            Dtype::I32 => DType::I32,
            other => return Err(refuse(path, format!("{name}: unknown dtype {other:?}"))),
        };
        if format!("{kind:?}") != dtype.unwrap_or("I32") {
            return Err(refuse(path, format!("{name}: expected dtype {}, got {kind:?}", dtype.unwrap_or("I32"))));
        }
        Ok(TensorData::from_bytes_vec(view.data().to_vec(), view.shape().to_vec(), kind))
    };
    headers
        .into_iter()
        .enumerate()
        .map(|(i, Header { key, shape })| {
            let (b, h) = (shape.batch, shape.heads);
            let sinks = shape.sink_prefix.saturating_add(shape.sink_suffix);
            let grouped = shape.tokens.saturating_sub(sinks);
            let groups = grouped.div_ceil(shape.group_size.max(1));
            let order = read(format!("{i}.order"), &[b, h, grouped], None)?;
            let indices = read(format!("{i}.indices"), &[b, h, groups, shape.kept_keys], None)?;
            let residual = read(format!("{i}.residual"), &[b, h, grouped, shape.head_dim], Some(&shape.dtype))?;
            permutations(&order, grouped).map_err(|e| refuse(path, format!("{i}.order: {e}")))?;
            ascending(&indices, shape.kept_keys, shape.tokens)
                .map_err(|e| refuse(path, format!("{i}.indices: {e}")))?;
            if !device.supports_dtype(residual.dtype()) {
                return Err(refuse(path, format!("{i}.residual: {device:?} does not support {}", shape.dtype)));
            }
            let dtype = residual.dtype();
            Ok(Slot::new(
                key,
                shape,
                None,
                Tensor::<3, Int>::from_data(order, (device, DType::I32)),
                Tensor::<4, Int>::from_data(indices, (device, DType::I32)),
                Tensor::<4>::from_data(residual, (device, dtype)),
            ))
        })
        .collect()
}

/// Rows that are no permutation would leave output rows unwritten.
fn permutations(order: &TensorData, len: usize) -> Result<(), String> {
    let flat: Vec<i64> = order.iter::<i64>().collect();
    for row in flat.chunks(len.max(1)) {
        let mut seen = vec![false; len];
        for &place in row {
            match usize::try_from(place).ok().and_then(|p| seen.get_mut(p)) {
                Some(seen) if !*seen => *seen = true,
                _ => {
                    return Err(format!(
                        "expected a permutation of 0..{len} in each row, got {place} twice or too large"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// An index outside its range would read foreign memory in a kernel that trusts it, a repeated one count a key twice.
fn ascending(indices: &TensorData, width: usize, below: usize) -> Result<(), String> {
    let flat: Vec<i64> = indices.iter::<i64>().collect();
    for row in flat.chunks(width.max(1)) {
        let sorted = row.windows(2).all(|pair| pair[0] < pair[1]);
        if !sorted || row.first().is_some_and(|&i| i < 0) || row.last().is_some_and(|&i| i >= below as i64) {
            return Err(format!("expected ascending indices below {below} in each row, got {row:?}"));
        }
    }
    Ok(())
}
