//! What the files beside the weights say.

use std::path::Path;

use burn::tensor::Device;
use mcsparse::Error;
use serde::{Deserialize, Serialize};

use super::ClipModel;
use crate::wan::WanConfig;
use crate::{LoadError, check};

/// Time, row and column.
pub(super) const COORDINATES: usize = 3;
/// Timestep of pure noise, as the samplers of this crate count.
const TIMESTEPS: f64 = 1000.0;

/// What `sampling.json` says of a model: its clips, and how it was trained to be sampled.
///
/// Fields that are optional here may be absent from the file; fields of the file that are not here are remarks for
/// readers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Frames of a full clip.
    pub frames: usize,
    /// Rows of pixels.
    pub height: usize,
    /// Columns of pixels.
    pub width: usize,
    /// Channels that are denoised.
    pub video_channels: usize,
    /// Channels that say where a pixel lies: 3, for time, row and column.
    pub coordinate_channels: usize,
    /// How far the noise levels are moved towards 1; a setting of the samplers.
    pub flow_shift: f64,
    /// Timestep of pure noise: 1000.
    pub timestep_scale: f64,
    /// Denoising steps for good results.
    #[serde(default)]
    pub steps: Option<usize>,
    /// Strength of classifier-free guidance for good results.
    #[serde(default)]
    pub guidance: Option<f64>,
    /// Tokens of a full clip.
    #[serde(default)]
    pub video_tokens: Option<usize>,
    /// Tokens along each side of a thumbnail; the `grid` of [`condition_tokens`](super::condition_tokens).
    #[serde(default)]
    pub condition_grid: Option<usize>,
    /// Tokens of a condition: those of two thumbnails.
    #[serde(default)]
    pub condition_tokens: Option<usize>,
    /// Numbers of one token of a condition.
    #[serde(default)]
    pub condition_token_size: Option<usize>,
}

/// A network and its clips: `config.json` and `sampling.json` of one size.
///
/// Reading it takes no weights, so a program can hold a model against its expectations before it loads it.
#[derive(Debug, Clone, PartialEq)]
pub struct ClipConfig {
    /// The network.
    pub network: WanConfig,
    /// Its clips.
    pub sampling: Sampling,
}

impl Sampling {
    /// Reads a `sampling.json`.
    ///
    /// # Errors
    ///
    /// [`LoadError::Io`] if the file cannot be read, [`LoadError::Config`] if a field is missing or of another type.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|source| LoadError::io(path, source))?;
        serde_json::from_str(&text).map_err(|error| LoadError::config(path, error))
    }
}

impl ClipConfig {
    /// Reads `config.json` and `sampling.json` of a folder.
    ///
    /// # Errors
    ///
    /// [`LoadError::Io`] and [`LoadError::Config`], naming the file or folder and the field that does not fit the rest.
    pub fn from_folder(folder: impl AsRef<Path>) -> Result<Self, LoadError> {
        let folder = folder.as_ref();
        let sampling = Sampling::from_file(folder.join("sampling.json"))?;
        let config = Self { network: WanConfig::from_file(folder.join("config.json"))?, sampling };
        config.validate().map_err(|error| LoadError::config(folder, error))?;
        Ok(config)
    }

    /// Checks that network and clips fit each other.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] naming the first field that does not fit, [`Error::InvalidTensor`] if clips cannot be
    /// cut into patches.
    pub fn validate(&self) -> Result<(), Error> {
        let Self { network, sampling } = self;
        network.validate()?;
        let tokens = self.grid(sampling.frames)?.iter().product();
        let (video, grid) = (sampling.video_channels, sampling.condition_grid);
        let fields = [
            ("coordinate_channels", COORDINATES, Some(sampling.coordinate_channels)),
            ("in_channels", video + COORDINATES, Some(network.in_channels)),
            ("out_channels", video, Some(network.out_channels)),
            ("video_tokens", tokens, sampling.video_tokens),
            ("condition_token_size", network.text_dim, sampling.condition_token_size),
            ("condition_tokens", grid.map_or(0, |grid| 2 * grid * grid), grid.and(sampling.condition_tokens)),
        ];
        for (argument, expected, got) in fields {
            if let Some(got) = got.filter(|&got| got != expected) {
                return Err(check::config(argument, expected.to_string(), got));
            }
        }
        if sampling.timestep_scale != TIMESTEPS {
            return Err(check::config("timestep_scale", TIMESTEPS.to_string(), sampling.timestep_scale));
        }
        if !(sampling.flow_shift.is_finite() && sampling.flow_shift > 0.0) {
            return Err(check::config("flow_shift", "a positive number", sampling.flow_shift));
        }
        Ok(())
    }

    /// Tokens along frames, rows and columns of a clip of `frames` frames.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTensor`] if such a clip cannot be cut into patches.
    pub fn grid(&self, frames: usize) -> Result<[usize; 3], Error> {
        self.network.grid([frames, self.sampling.height, self.sampling.width])
    }

    /// A model with random weights on `device`.
    ///
    /// # Errors
    ///
    /// Those of [`ClipConfig::validate`].
    pub fn init(&self, device: &Device) -> Result<ClipModel, Error> {
        self.validate()?;
        ClipModel::new(self.network.init(device), self.sampling.clone(), device)
    }
}
