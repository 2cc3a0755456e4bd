//! The clips that the shipped model can be asked for.

use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor, TensorData};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::clip::Clip;
use crate::error::Error;
use crate::presets::Preset;
use crate::settings::Settings;

const FILE: &str = "conditions.safetensors";

/// The file with the tokens, and some of the real clips, of all conditions.
pub struct ConditionFile {
    path: PathBuf,
    bytes: Vec<u8>,
}

/// What one clip is denoised towards.
pub struct Condition {
    /// `[1, tokens, token size]`.
    pub tokens: Tensor<3>,
    /// The real clip in the size of the denoised one, where the file has it.
    pub clip: Option<Clip>,
}

impl ConditionFile {
    /// Reads the file in the folder of weights.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] naming the file.
    pub fn open(weights: &Path) -> Result<Self, Error> {
        let path = weights.join(FILE);
        let bytes = std::fs::read(&path).map_err(|error| {
            Error::run(format!("conditions {}", path.display()), format!("{error}; --weights names the folder"))
        })?;
        SafeTensors::deserialize(&bytes).map_err(|error| Error::run(path.display(), error))?;
        Ok(Self { path, bytes })
    }

    /// The conditions of one model, in order, each with whether its real clip is there.
    pub fn names(&self, preset: &Preset) -> Vec<(String, bool)> {
        let all = self.tensors().names().into_iter().map(str::to_owned).collect::<Vec<_>>();
        let suffix = format!(".{}", preset.name);
        let mut names: Vec<_> = all
            .iter()
            .filter_map(|tensor| tensor.strip_suffix(&suffix))
            .map(|name| (name.to_owned(), all.contains(&format!("{name}.clip"))))
            .collect();
        names.sort();
        names
    }

    /// Refuses a condition that is not there.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] with the names of all that are.
    pub fn check(&self, settings: &Settings) -> Result<(), Error> {
        let names: Vec<_> = self.names(settings.preset).into_iter().map(|(name, _)| name).collect();
        if names.contains(&settings.condition) {
            return Ok(());
        }
        Err(Error::option("--condition", format!("one of {}", names.join(", ")), &settings.condition))
    }

    /// The condition of `settings`.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] if there is none of that name, [`Error::Run`] if the file has something else than expected.
    pub fn condition(&self, settings: &Settings, device: &Device) -> Result<Condition, Error> {
        self.check(settings)?;
        let name = &settings.condition;
        let tensors = self.tensors();
        let view = tensors.tensor(&format!("{name}.{}", settings.preset.name)).expect("checked above");
        let [tokens, size] = self.shape(name, &view, Dtype::F32)?;
        let values = view.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes")));
        let data = TensorData::new(values.collect::<Vec<_>>(), [1, tokens, size]);
        let clip = tensors.tensor(&format!("{name}.clip")).ok();
        Ok(Condition {
            tokens: Tensor::from_data(data, device),
            clip: clip.map(|view| self.clip(name, &view, settings)).transpose()?,
        })
    }

    /// The frames of a clip that the model is asked for, made as small as the model's.
    fn clip(&self, name: &str, view: &TensorView<'_>, settings: &Settings) -> Result<Clip, Error> {
        let [channels, frames, height, width] = self.shape(name, view, Dtype::U8)?;
        let side = settings.preset.side;
        if channels != 3 || frames < settings.frames || height != width || height % side != 0 {
            let got = format!("a clip of [{channels}, {frames}, {height}, {width}] for frames of {side} x {side}");
            return Err(Error::run(self.path.display(), format!("{name}: {got}")));
        }
        let plane = height * width;
        let planes = (0..frames).flat_map(|frame| (0..3).map(move |channel| (channel * frames + frame) * plane));
        let bytes = planes.flat_map(|start| &view.data()[start..start + plane]);
        let values = bytes.map(|&byte| f32::from(byte) / 255.0).collect();
        Ok(Clip::new([frames, height, width], values).first(settings.frames).shrunk(side))
    }

    fn shape<const D: usize>(&self, name: &str, view: &TensorView<'_>, dtype: Dtype) -> Result<[usize; D], Error> {
        let shape = <[usize; D]>::try_from(view.shape()).ok().filter(|_| view.dtype() == dtype);
        shape.ok_or_else(|| {
            let got = format!("{name}: expected {D} axes of {dtype:?}, got {:?} of {:?}", view.shape(), view.dtype());
            Error::run(self.path.display(), got)
        })
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).expect("checked on opening")
    }
}
