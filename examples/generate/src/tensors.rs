//! Safetensors files of conditions, latents and unfinished runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::{DType, Device, Tensor, TensorData};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};

use crate::error::Error;

/// A file, read whole: conditions and latents are small.
pub struct TensorFile {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl TensorFile {
    /// Reads `path`.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if it cannot be read or is no safetensors file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let bytes = std::fs::read(path).map_err(|error| Error::run(path.display(), error))?;
        SafeTensors::deserialize(&bytes).map_err(|error| Error::run(path.display(), error))?;
        Ok(Self { path: path.into(), bytes })
    }

    fn content(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).expect("checked when it was opened")
    }

    /// The names in it.
    pub fn names(&self) -> Vec<String> {
        self.content().names().into_iter().map(str::to_owned).collect()
    }

    /// What was written beside the tensors.
    pub fn metadata(&self) -> BTreeMap<String, String> {
        let (_, metadata) = SafeTensors::read_metadata(&self.bytes).expect("checked when it was opened");
        metadata.metadata().iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// The shape of `name`.
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.content().tensor(name).ok().map(|view| view.shape().to_vec())
    }

    /// The float tensor `name`, in its own dtype, on `device`.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if it is not there, has another rank or is no float.
    pub fn tensor<const D: usize>(&self, name: &str, device: &Device) -> Result<Tensor<D>, Error> {
        let data = self.data(name)?;
        if data.shape().len() != D {
            return Err(self.wrong(name, &format!("{D} axes"), format!("{:?}", data.shape())));
        }
        // On the device in f32: not every device has the dtype of the file.
        Ok(Tensor::from_data(data.convert_dtype(DType::F32), (device, DType::F32)))
    }

    /// The values of the float tensor `name`, in its own dtype.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if it is not there or is no float.
    pub fn data(&self, name: &str) -> Result<TensorData, Error> {
        let content = self.content();
        let view = content.tensor(name).map_err(|_| {
            Error::run(self.path.display(), format!("expected a tensor {name}, found {}", self.names().join(", ")))
        })?;
        let dtype = match view.dtype() {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            other => return Err(self.wrong(name, "f32, f16 or bf16", format!("{other:?}"))),
        };
        Ok(TensorData::from_bytes_vec(view.data().to_vec(), view.shape().to_vec(), dtype))
    }

    /// The mask `name`, one value a token, if it is there.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if it is of another kind.
    pub fn mask(&self, name: &str) -> Result<Option<Vec<bool>>, Error> {
        let content = self.content();
        let Ok(view) = content.tensor(name) else { return Ok(None) };
        let size = match view.dtype() {
            Dtype::BOOL | Dtype::U8 | Dtype::I8 => 1,
            Dtype::I32 => 4,
            Dtype::I64 => 8,
            other => return Err(self.wrong(name, "bool or integers", format!("{other:?}"))),
        };
        Ok(Some(view.data().chunks_exact(size).map(|value| value.iter().any(|&byte| byte != 0)).collect()))
    }

    fn wrong(&self, name: &str, expected: &str, got: String) -> Error {
        Error::run(self.path.display(), format!("{name}: expected {expected}, got {got}"))
    }
}

/// Writes f32 tensors of any rank to `path`, whole or not at all.
///
/// # Errors
///
/// [`Error::Run`] if it cannot be written.
pub fn write(path: &Path, tensors: Vec<(String, TensorData)>, metadata: BTreeMap<String, String>) -> Result<(), Error> {
    let fail = |error: &dyn std::fmt::Display| Error::run(path.display(), error);
    let tensors: Vec<_> = tensors.into_iter().map(|(name, data)| (name, data.convert_dtype(DType::F32))).collect();
    let views: Result<Vec<_>, _> = tensors
        .iter()
        .map(|(name, data)| Ok((name, TensorView::new(Dtype::F32, data.shape().to_vec(), data.as_bytes())?)))
        .collect();
    let views = views.map_err(|error: safetensors::SafeTensorError| fail(&error))?;
    let bytes = serialize(views, Some(metadata.into_iter().collect())).map_err(|error| fail(&error))?;
    let unfinished = path.with_extension("unfinished");
    let written = std::fs::write(&unfinished, bytes).and_then(|()| std::fs::rename(&unfinished, path));
    written.map_err(|error| {
        // What is reported is why it could not be written, whether or not its remains can be removed.
        let _ = std::fs::remove_file(&unfinished);
        fail(&error)
    })
}
