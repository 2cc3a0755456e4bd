//! A network that is told where each pixel lies.

use std::path::Path;

use burn::tensor::{DType, Device, Tensor, TensorData};
use mcsparse::{Error, SelfAttention};

use super::config::COORDINATES;
use super::{ClipConfig, Sampling};
use crate::wan::{WanConfig, WanPrepared, WanTransformer};
use crate::{LoadError, VelocityModel, check};

/// A [`WanTransformer`] on pixels with the channels that it sees beside the noisy clip.
///
/// As a [`VelocityModel`] it takes clips of [`ClipModel::shape`], in any batch, and condition tokens in place of text.
/// All-zero tokens are what it was trained with as no condition, for classifier-free guidance.
#[derive(Debug, Clone)]
pub struct ClipModel {
    network: WanTransformer,
    sampling: Sampling,
    /// Tokens along frames, rows and columns.
    grid: [usize; 3],
    /// `[1, 3, frames, height, width]`.
    coordinates: Tensor<5>,
}

impl ClipModel {
    /// Puts a network and its clips together.
    ///
    /// # Errors
    ///
    /// Those of [`ClipConfig::validate`].
    pub fn new(network: WanTransformer, sampling: Sampling, device: &Device) -> Result<Self, Error> {
        let config = ClipConfig { network: network.config().clone(), sampling };
        config.validate()?;
        let grid = config.grid(config.sampling.frames)?;
        let coordinates = coordinates(&config.sampling, config.sampling.frames, device);
        Ok(Self { network, sampling: config.sampling, grid, coordinates })
    }

    /// Loads one size from its folder, for example `folder().join("nano")`: `config.json`, `sampling.json` and the
    /// weights, which become `dtype` (f32, f16 or bf16).
    ///
    /// # Errors
    ///
    /// [`LoadError`] naming the file, and what is missing or does not fit.
    pub fn load(folder: impl AsRef<Path>, dtype: DType, device: &Device) -> Result<Self, LoadError> {
        let folder = folder.as_ref();
        Self::load_weights(folder, &ClipConfig::from_folder(folder)?, dtype, device)
    }

    /// As [`ClipModel::load`], with a configuration that was read before.
    ///
    /// # Errors
    ///
    /// Those of [`ClipConfig::validate`] and [`WanTransformer::load`].
    pub fn load_weights(
        path: impl AsRef<Path>,
        config: &ClipConfig,
        dtype: DType,
        device: &Device,
    ) -> Result<Self, LoadError> {
        config.validate()?;
        let network = WanTransformer::load(path, &config.network, dtype, device)?;
        Ok(Self::new(network, config.sampling.clone(), device)?)
    }

    /// The same model for the first `frames` frames of a clip, which lie where they do in a full one.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] unless `frames` is 1 to the frames of a full clip, [`Error::InvalidTensor`] if it is no
    /// multiple of the network's patch.
    pub fn with_frames(mut self, frames: usize) -> Result<Self, Error> {
        if !(1..=self.sampling.frames).contains(&frames) {
            return Err(check::config("frames", format!("1 to {}", self.sampling.frames), frames));
        }
        self.grid = self.config().grid([frames, self.sampling.height, self.sampling.width])?;
        self.coordinates = coordinates(&self.sampling, frames, &self.coordinates.device());
        Ok(self)
    }

    /// The network.
    pub fn network(&self) -> &WanTransformer {
        &self.network
    }

    /// What the network is made of.
    pub fn config(&self) -> &WanConfig {
        self.network.config()
    }

    /// The clips that it was trained on, and how to sample them.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// How far the noise levels are moved towards 1; a setting of the samplers.
    pub fn flow_shift(&self) -> f64 {
        self.sampling.flow_shift
    }

    /// Shape of one clip: `[1, channels, frames, height, width]`.
    pub fn shape(&self) -> [usize; 5] {
        let [_, _, frames, height, width] = self.coordinates.dims();
        [1, self.sampling.video_channels, frames, height, width]
    }

    /// Tokens along frames, rows and columns.
    pub fn grid(&self) -> [usize; 3] {
        self.grid
    }

    /// Tokens of self-attention.
    pub fn tokens(&self) -> usize {
        self.grid.iter().product()
    }

    /// Transformer blocks.
    pub fn layers(&self) -> usize {
        self.config().num_layers
    }

    /// Attention heads.
    pub fn heads(&self) -> usize {
        self.config().num_attention_heads
    }

    /// What is appended to the clip, `[1, 3, frames, height, width]`: time, row and column of each pixel, as centres of
    /// an even division of -1 to 1.
    pub fn coordinates(&self) -> Tensor<5> {
        self.coordinates.clone()
    }

    /// Refuses latents of clips that are not the model's.
    fn check(&self, latents: [usize; 5]) -> Result<(), Error> {
        let [_, channels, frames, height, width] = self.shape();
        if latents[0] == 0 || latents[1..] != [channels, frames, height, width] {
            let expected = format!("[batch, {channels}, {frames}, {height}, {width}]");
            return Err(check::tensor("latents", expected, format!("{latents:?}")));
        }
        Ok(())
    }
}

impl VelocityModel for ClipModel {
    type Condition = Tensor<3>;
    type Prepared = WanPrepared;

    fn prepare(&self, tokens: Tensor<3>, latents: [usize; 5]) -> Result<WanPrepared, Error> {
        self.check(latents)?;
        VelocityModel::prepare(&self.network, tokens.into(), latents)
    }

    fn velocity(
        &self,
        latents: Tensor<5>,
        timestep: f64,
        prepared: &WanPrepared,
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<5>, Error> {
        self.check(latents.dims())?;
        let coordinates = self.coordinates.clone().cast(latents.dtype());
        let coordinates = match latents.dims()[0] {
            1 => coordinates,
            batch => coordinates.repeat_dim(0, batch),
        };
        self.network.velocity(Tensor::cat(vec![latents, coordinates], 1), timestep, prepared, attention)
    }
}

/// Time, row and column of each pixel of the first `frames` frames, `[1, 3, frames, height, width]`: centres of an even
/// division of -1 to 1.
fn coordinates(sampling: &Sampling, frames: usize, device: &Device) -> Tensor<5> {
    let Sampling { height, width, .. } = *sampling;
    let full = [sampling.frames, height, width];
    let mut values = Vec::with_capacity(COORDINATES * frames * height * width);
    for axis in 0..COORDINATES {
        for t in 0..frames {
            for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
                values.push(([t, y, x][axis] as f32 + 0.5) / full[axis] as f32 * 2.0 - 1.0);
            }
        }
    }
    Tensor::from_data(TensorData::new(values, [1, COORDINATES, frames, height, width]), device)
}
