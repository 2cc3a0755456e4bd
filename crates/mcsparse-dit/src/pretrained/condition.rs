//! The conditions that come with the models.

use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};
use safetensors::Dtype;

use super::file::TensorFile;
use crate::LoadError;

/// Ends the name of a real clip, as a size ends that of tokens.
const CLIP: &str = "clip";
const COLOURS: usize = 3;

/// `conditions.safetensors`: tokens of named clips for each size of the model, and some of the clips themselves.
#[derive(Debug, Clone)]
pub struct ConditionFile(TensorFile);

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
        TensorFile::open(folder.as_ref()).map(Self)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The conditions that one size of the model can be given, in order.
    pub fn names(&self, size: &str) -> Vec<String> {
        self.0.names(size)
    }

    /// Whether the file has the clip that the condition `name` was made from.
    pub fn has_clip(&self, name: &str) -> bool {
        self.0.tensors().tensor(&format!("{name}.{CLIP}")).is_ok()
    }

    /// Tokens of the condition `name` for one size of the model, `[1, tokens, token size]`.
    ///
    /// # Errors
    ///
    /// [`LoadError::UnknownCondition`] with the names that there are; [`LoadError::Format`] if the file has something
    /// else than tokens there.
    pub fn tokens(&self, name: &str, size: &str, device: &Device) -> Result<Tensor<3>, LoadError> {
        let (tensors, tensor) = (self.0.tensors(), format!("{name}.{size}"));
        let view = tensors.tensor(&tensor).map_err(|_| self.0.unknown(name, size, self.names(size)))?;
        let [tokens, token_size] = self.0.shape(&tensor, &view, Dtype::F32)?;
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
        let (tensors, tensor) = (self.0.tensors(), format!("{name}.{CLIP}"));
        let Ok(view) = tensors.tensor(&tensor) else {
            return Ok(None);
        };
        let [colours, frames, height, width] = self.0.shape(&tensor, &view, Dtype::U8)?;
        if colours != COLOURS {
            let reason = format!("{tensor}: expected {COLOURS} colours, got {:?}", view.shape());
            return Err(LoadError::format(self.path(), reason));
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
}
