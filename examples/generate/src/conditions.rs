//! What a model is told to show: read from a file, or made up for measurements.

use std::path::Path;

use burn::tensor::{DType, Device, Distribution, Tensor};
use mcsparse_dit::hunyuan::{Hunyuan15Condition, HunyuanCondition, HunyuanVideo15Config, HunyuanVideoConfig, trim};
use mcsparse_dit::wan::{WanCondition, WanConfig};

use crate::error::Error;
use crate::tensors::TensorFile;

/// Text tokens of made-up conditions: as many as the pipelines pad to, or let through.
const WAN_TEXT: usize = 512;
const HUNYUAN_TEXT: usize = 256;
const HUNYUAN15_TEXT: usize = 256;
const H3_TEXT: usize = 256;
/// Tokens of a CLIP image encoder: a patch each, and one for the whole.
const WAN_IMAGE: usize = 257;

/// Where conditions come from.
pub enum Source {
    /// A file.
    File(TensorFile),
    /// Nowhere.
    Random,
}

impl Source {
    /// Opens `path`, if there is one.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if it cannot be read.
    pub fn open(path: Option<&Path>) -> Result<Self, Error> {
        path.map_or(Ok(Self::Random), |path| Ok(Self::File(TensorFile::open(path)?)))
    }

    fn has(&self, name: &str) -> bool {
        match self {
            Self::File(file) => file.shape(name).is_some(),
            Self::Random => true,
        }
    }

    /// Whether there is something to be led away from.
    pub fn has_negative(&self) -> bool {
        self.has("negative_text")
    }

    /// `name`, or random values of `shape`.
    fn tensor<const D: usize>(&self, name: &str, shape: [usize; D], device: &Device) -> Result<Tensor<D>, Error> {
        match self {
            Self::File(file) => file.tensor(name, device),
            Self::Random => Ok(Tensor::random(shape, Distribution::Normal(0.0, 1.0), (device, DType::F32))),
        }
    }

    /// `name` if a file has it; nothing where there is no file.
    fn optional<const D: usize>(&self, name: &str, device: &Device) -> Result<Option<Tensor<D>>, Error> {
        match self {
            Self::File(file) if file.shape(name).is_some() => file.tensor(name, device).map(Some),
            _ => Ok(None),
        }
    }

    /// `name` without the tokens that `name_mask` hides.
    fn trimmed(&self, name: &str, shape: [usize; 3], device: &Device) -> Result<Tensor<3>, Error> {
        let tokens = self.tensor(name, shape, device)?;
        match self {
            Self::File(file) => match file.mask(&format!("{name}_mask"))? {
                Some(mask) => Ok(trim(tokens, &mask)?),
                None => Ok(tokens),
            },
            Self::Random => Ok(tokens),
        }
    }

    /// For Wan; `prefix` is empty or `negative_`.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] naming what is missing or does not fit.
    pub fn wan(
        &self,
        config: &WanConfig,
        prefix: &str,
        latents: [usize; 5],
        device: &Device,
    ) -> Result<WanCondition, Error> {
        let text = self.tensor(&format!("{prefix}text"), [1, WAN_TEXT, config.text_dim], device)?;
        let image = match config.image_dim {
            // Both branches see the same image.
            Some(size) => Some(self.tensor("image", [1, WAN_IMAGE, size], device)?),
            None => None,
        };
        let more = config.in_channels - config.out_channels;
        let latents = match more {
            0 => None,
            more => Some(self.tensor("latents", [1, more, latents[2], latents[3], latents[4]], device)?),
        };
        Ok(WanCondition { text, image, latents })
    }

    /// For HunyuanVideo.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] naming what is missing or does not fit.
    pub fn hunyuan(
        &self,
        config: &HunyuanVideoConfig,
        guidance: f64,
        latents: [usize; 5],
        device: &Device,
    ) -> Result<HunyuanCondition, Error> {
        let more = config.in_channels - config.out_channels;
        let latents = match more {
            0 => None,
            more => Some(self.tensor("latents", [1, more, latents[2], latents[3], latents[4]], device)?),
        };
        Ok(HunyuanCondition {
            text: self.trimmed("text", [1, HUNYUAN_TEXT, config.text_embed_dim], device)?,
            pooled: self.tensor("pooled", [1, config.pooled_projection_dim], device)?,
            guidance: config.guidance_embeds.then_some(guidance),
            latents,
        })
    }

    /// For HunyuanVideo-1.5; `prefix` is empty or `negative_`.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] naming what is missing or does not fit.
    pub fn hunyuan15(
        &self,
        config: &HunyuanVideo15Config,
        prefix: &str,
        device: &Device,
    ) -> Result<Hunyuan15Condition, Error> {
        let text = format!("{prefix}text");
        let characters = format!("{prefix}characters");
        let has_characters = matches!(self, Self::File(_)) && self.has(&characters);
        Ok(Hunyuan15Condition {
            text: self.trimmed(&text, [1, HUNYUAN15_TEXT, config.text_embed_dim], device)?,
            characters: has_characters.then(|| self.trimmed(&characters, [0; 3], device)).transpose()?,
            image: self.optional("image", device)?,
            latents: self.optional("latents", device)?,
        })
    }

    /// Text for MiniMax-H3.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] naming what is missing or does not fit.
    pub fn h3(&self, text_dim: usize, device: &Device) -> Result<Tensor<3>, Error> {
        self.trimmed("text", [1, H3_TEXT, text_dim], device)
    }

    /// Text tokens that join the video, for what is said before anything is loaded.
    pub fn text_tokens(&self, form: &crate::shape::Form) -> usize {
        let made_up = match form {
            crate::shape::Form::Wan { .. } => WAN_TEXT,
            crate::shape::Form::Hunyuan(_) => HUNYUAN_TEXT,
            crate::shape::Form::Hunyuan15(_) => HUNYUAN15_TEXT,
            crate::shape::Form::H3(_) => H3_TEXT,
        };
        match self {
            Self::File(file) => file.shape("text").and_then(|shape| shape.get(1).copied()).unwrap_or(made_up),
            Self::Random => made_up,
        }
    }
}
