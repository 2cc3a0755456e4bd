//! Slots in a safetensors file.

use std::{borrow::Cow, collections::HashMap, io::Write, path::Path};

use burn::tensor::{DType, Device, TensorData};
use safetensors::{Dtype, SafeTensors, View};

use super::{
    host::{Header, HostSlot},
    slot::Slot,
};
use crate::{Error, IndexFormat};

/// Name and version. Version 1 had plain indices and residuals only; version 2 no tails, and is read as having none.
const FORMAT: &str = "mcsparse-cache-3";
const BEFORE: &str = "mcsparse-cache-2";

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

pub(super) fn save(slots: &[HostSlot], model: Option<&str>, path: &Path) -> Result<(), Error> {
    let mut tensors = Vec::new();
    for (i, slot) in slots.iter().enumerate() {
        let parts = slot.header.parts().map_err(|e| refuse(path, e))?;
        for ((name, ..), data) in parts.into_iter().zip(&slot.parts) {
            tensors.push((format!("{i}.{name}"), stored(data.clone(), path)?));
        }
    }
    let headers: Vec<&Header> = slots.iter().map(|slot| &slot.header).collect();
    let headers = serde_json::to_string(&headers).map_err(|e| refuse(path, e))?;
    let mut checksum = Checksum::new(&headers);
    tensors.iter().for_each(|(_, tensor)| checksum.update(tensor.data.as_bytes()));
    let mut metadata = HashMap::from([
        ("format".to_string(), FORMAT.to_string()),
        ("slots".to_string(), headers),
        ("crc32".to_string(), checksum.finish()),
    ]);
    metadata.extend(model.map(|model| ("model".to_string(), model.to_string())));
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

/// The slots of a file on `device`; `model` is whose they must be, if it is named.
pub(super) fn load(path: &Path, model: Option<&str>, device: &Device) -> Result<Vec<Slot>, Error> {
    let bytes = std::fs::read(path).map_err(|e| refuse(path, e))?;
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| refuse(path, e))?;
    let metadata = header.metadata().clone().unwrap_or_default();
    match metadata.get("format") {
        Some(format) if format == FORMAT || format == BEFORE => {}
        other => return Err(refuse(path, format!("expected format {FORMAT}, got {other:?}"))),
    }
    match (model, metadata.get("model")) {
        (Some(model), found) if found.map(String::as_str) != Some(model) => {
            let found = found.map_or("none by name".to_string(), |found| format!("{found:?}"));
            return Err(refuse(path, format!("expected a cache of the model {model:?}, got {found}")));
        }
        _ => {}
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
    let mut parts = Vec::new();
    for header in &headers {
        parts.push(header.parts().map_err(|e| refuse(path, e))?);
    }
    for (i, (part, ..)) in parts.iter().enumerate().flat_map(|(i, parts)| parts.iter().map(move |part| (i, part))) {
        let name = format!("{i}.{part}");
        checksum.update(file.tensor(&name).map_err(|e| refuse(path, format!("{name}: {e}")))?.data());
    }
    if metadata.get("crc32") != Some(&checksum.finish()) {
        return Err(refuse(path, "the contents do not have the checksum that they were written with"));
    }
    let read = |name: String, dtype: DType, expected: &[usize]| {
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
        if kind != dtype {
            return Err(refuse(path, format!("{name}: expected dtype {dtype:?}, got {kind:?}")));
        }
        if !device.supports_dtype(kind) {
            return Err(refuse(path, format!("{name}: {device:?} does not support {kind:?}")));
        }
        Ok(TensorData::from_bytes_vec(view.data().to_vec(), view.shape().to_vec(), kind))
    };
    let mut slots = Vec::new();
    for (i, (header, parts)) in headers.into_iter().zip(parts).enumerate() {
        let mut data = Vec::new();
        for (part, dtype, shape) in &parts {
            data.push(read(format!("{i}.{part}"), *dtype, shape)?);
        }
        let shape = &header.shape;
        permutations(&data[0], shape.grouped()).map_err(|e| refuse(path, format!("{i}.order: {e}")))?;
        ascending(&data[1], header.index_format, shape.kept_keys, shape.tokens)
            .map_err(|e| refuse(path, format!("{i}.indices: {e}")))?;
        slots.push(HostSlot { header, step: None, parts: data }.to_device(device));
    }
    Ok(slots)
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

/// An index outside its range would read foreign memory in a kernel that trusts it, a repeated one count a key twice, and
/// lists that are too short leave a kernel's memory unwritten.
fn ascending(words: &TensorData, format: IndexFormat, kept: usize, below: usize) -> Result<(), String> {
    let flat: Vec<u32> = words.iter::<i32>().map(|word| word as u32).collect();
    for row in flat.chunks(format.words(below, kept).max(1)) {
        let list = format.expand(row, below, kept);
        let sorted = list.windows(2).all(|pair| pair[0] < pair[1]);
        if !sorted || list.len() != kept || list.last().is_some_and(|&i| i as usize >= below) {
            return Err(format!("expected {kept} ascending indices below {below} in each row, got {list:?}"));
        }
    }
    Ok(())
}
