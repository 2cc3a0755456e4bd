//! A safetensors file that stays in memory.

use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::LoadError;

/// Name of the files of conditions.
const NAME: &str = "conditions.safetensors";

/// A file of conditions, checked to be safetensors.
#[derive(Debug, Clone)]
pub(super) struct TensorFile {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl TensorFile {
    /// Reads `conditions.safetensors` in `folder`.
    pub fn open(folder: &Path) -> Result<Self, LoadError> {
        let path = folder.join(NAME);
        let bytes = std::fs::read(&path).map_err(|source| LoadError::io(&path, source))?;
        SafeTensors::deserialize(&bytes).map_err(|error| LoadError::format(&path, error))?;
        Ok(Self { path, bytes })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).expect("checked on opening")
    }

    /// The parts before `.end` of the names that end so, in order.
    pub fn names(&self, end: &str) -> Vec<String> {
        let tensors = self.tensors();
        let of_end = |tensor: &str| match tensor.rsplit_once('.') {
            Some((name, of)) if of == end => Some(name.to_owned()),
            _ => None,
        };
        let mut names: Vec<_> = tensors.names().into_iter().filter_map(of_end).collect();
        names.sort_unstable();
        names
    }

    /// The shape of a tensor that is to have `D` axes of `dtype`.
    pub fn shape<const D: usize>(
        &self,
        name: &str,
        view: &TensorView<'_>,
        dtype: Dtype,
    ) -> Result<[usize; D], LoadError> {
        let shape = <[usize; D]>::try_from(view.shape()).ok().filter(|_| view.dtype() == dtype);
        shape.ok_or_else(|| {
            let got = format!("{:?} of {:?}", view.shape(), view.dtype());
            LoadError::format(&self.path, format!("{name}: expected {D} axes of {dtype:?}, got {got}"))
        })
    }

    /// That the file has no condition `name` for `size` of the model.
    pub fn unknown(&self, name: &str, size: &str, names: Vec<String>) -> LoadError {
        LoadError::UnknownCondition { path: self.path.clone(), name: name.into(), size: size.into(), names }
    }
}
