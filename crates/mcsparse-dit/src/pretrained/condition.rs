//! The conditions that come with the models.

use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor, TensorData};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::LoadError;

const FILE: &str = "conditions.safetensors";
/// Ends the name of a real clip, as a size ends that of tokens.
const CLIP: &str = "clip";
const COLOURS: usize = 3;

/// `conditions.safetensors`: tokens of named clips for each size of the model, and some of the clips themselves.
#[derive(Debug, Clone)]
pub struct ConditionFile {
    path: PathBuf,
    bytes: Vec<u8>,
}

/// Frames of RGB bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RgbClip {
    /// Number of frames.
    pub frames: usize,
    /// Rows of pixels.
    pub height: usize,
    /// Columns of pixels.
    pub width: usize,
    /// `[frames, height, width, 3]`.
    pub bytes: Vec<u8>,
}

impl RgbClip {
    /// One frame, `[height, width, 3]`, counted from 0.
    ///
    /// # Panics
    ///
    /// If there is no such frame.
    pub fn frame(&self, frame: usize) -> &[u8] {
        assert!(frame < self.frames, "frame {frame} of a clip of {}", self.frames);
        let size = self.height * self.width * COLOURS;
        &self.bytes[frame * size..][..size]
    }
}

impl ConditionFile {
    /// Reads the file in the folder of weights, for example [`folder`](super::folder).
    ///
    /// # Errors
    ///
    /// [`LoadError::Io`] if it cannot be read, [`LoadError::Format`] if it is no safetensors file.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = folder.as_ref().join(FILE);
        let bytes = std::fs::read(&path).map_err(|source| LoadError::io(&path, source))?;
        SafeTensors::deserialize(&bytes).map_err(|error| LoadError::format(&path, error))?;
        Ok(Self { path, bytes })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The conditions that one size of the model can be given, in order.
    pub fn names(&self, size: &str) -> Vec<String> {
        let tensors = self.tensors();
        let of_size = |tensor: &str| match tensor.rsplit_once('.') {
            Some((name, end)) if end == size => Some(name.to_owned()),
            _ => None,
        };
        let mut names: Vec<_> = tensors.names().into_iter().filter_map(of_size).collect();
        names.sort_unstable();
        names
    }

    /// Whether the file has the clip that the condition `name` was made from.
    pub fn has_clip(&self, name: &str) -> bool {
        self.tensors().tensor(&format!("{name}.{CLIP}")).is_ok()
    }

    /// Tokens of the condition `name` for one size of the model, `[1, tokens, token size]`.
    ///
    /// # Errors
    ///
    /// [`LoadError::UnknownCondition`] with the names that there are; [`LoadError::Format`] if the file has something
    /// else than tokens there.
    pub fn tokens(&self, name: &str, size: &str, device: &Device) -> Result<Tensor<3>, LoadError> {
        let (tensors, tensor) = (self.tensors(), format!("{name}.{size}"));
        let view = tensors.tensor(&tensor).map_err(|_| LoadError::UnknownCondition {
            path: self.path.clone(),
            name: name.into(),
            size: size.into(),
            names: self.names(size),
        })?;
        let [tokens, token_size] = self.shape(&tensor, &view, Dtype::F32)?;
        let values = view.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes")));
        let data = TensorData::new(values.collect::<Vec<_>>(), [1, tokens, token_size]);
        Ok(Tensor::from_data(data, device))
    }

    /// The clip that the condition `name` was made from, in the size of the largest model; none if the file is without.
    ///
    /// # Errors
    ///
    /// [`LoadError::Format`] if the file has something else than an RGB clip there.
    pub fn clip(&self, name: &str) -> Result<Option<RgbClip>, LoadError> {
        let (tensors, tensor) = (self.tensors(), format!("{name}.{CLIP}"));
        let Ok(view) = tensors.tensor(&tensor) else {
            return Ok(None);
        };
        let [colours, frames, height, width] = self.shape(&tensor, &view, Dtype::U8)?;
        if colours != COLOURS {
            let reason = format!("{tensor}: expected {COLOURS} colours, got {:?}", view.shape());
            return Err(LoadError::format(&self.path, reason));
        }
        let (plane, stored) = (height * width, view.data());
        let mut bytes = Vec::with_capacity(stored.len());
        for frame in 0..frames {
            for pixel in 0..plane {
                bytes.extend((0..COLOURS).map(|colour| stored[(colour * frames + frame) * plane + pixel]));
            }
        }
        Ok(Some(RgbClip { frames, height, width, bytes }))
    }

    fn shape<const D: usize>(&self, name: &str, view: &TensorView<'_>, dtype: Dtype) -> Result<[usize; D], LoadError> {
        let shape = <[usize; D]>::try_from(view.shape()).ok().filter(|_| view.dtype() == dtype);
        shape.ok_or_else(|| {
            let got = format!("{:?} of {:?}", view.shape(), view.dtype());
            LoadError::format(&self.path, format!("{name}: expected {D} axes of {dtype:?}, got {got}"))
        })
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).expect("checked on opening")
    }
}
