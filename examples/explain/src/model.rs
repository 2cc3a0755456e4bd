//! The shipped model with what it sees besides the noisy clip.

use std::path::Path;

use burn::tensor::{DType, Device, Tensor, TensorData};
use mcsparse::SelfAttention;
use mcsparse_dit::{VelocityModel, wan::WanPrepared, wan::WanTransformer};
use safetensors::SafeTensors;
use serde::Deserialize;

use crate::Error;

/// What `sampling.json` says of a size of the model.
#[derive(Debug, Clone, Deserialize)]
pub struct Sampling {
    /// Frames of a clip.
    pub frames: usize,
    /// Rows of pixels.
    pub height: usize,
    /// Columns of pixels.
    pub width: usize,
    /// Channels that are denoised.
    pub video_channels: usize,
    /// Shift of the noise levels.
    pub flow_shift: f64,
}

/// A network that reads, beside the noisy clip, three channels of coordinates: time, row and column of each pixel.
#[derive(Debug)]
pub struct Model {
    network: WanTransformer,
    coordinates: Tensor<5>,
    /// Clip size and noise levels.
    pub sampling: Sampling,
}

impl Model {
    /// Puts a network and its settings together.
    pub fn new(network: WanTransformer, sampling: Sampling, device: &Device) -> Self {
        let size = [sampling.frames, sampling.height, sampling.width];
        Self { network, coordinates: coordinates(size, device), sampling }
    }

    /// Reads `config.json`, `sampling.json` and the weights of a folder.
    ///
    /// # Errors
    ///
    /// If a file is missing or is not what it should be.
    pub fn load(folder: &Path, device: &Device) -> Result<Self, Error> {
        let path = folder.join("sampling.json");
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let sampling = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Self::new(WanTransformer::from_folder(folder, DType::F32, device)?, sampling, device))
    }

    /// Layers, heads and the tokens along frames, rows and columns.
    ///
    /// # Errors
    ///
    /// If the clip does not fit the network.
    pub fn sizes(&self) -> Result<(usize, usize, [usize; 3]), Error> {
        let config = self.network.config();
        let Sampling { frames, height, width, .. } = self.sampling;
        Ok((config.num_layers, config.num_attention_heads, config.grid([frames, height, width])?))
    }

    /// Shape of the clip, `[1, channels, frames, height, width]`.
    pub fn shape(&self) -> [usize; 5] {
        let Sampling { frames, height, width, video_channels, .. } = self.sampling;
        [1, video_channels, frames, height, width]
    }
}

impl VelocityModel for Model {
    type Prepared = WanPrepared;

    fn prepare(&self, text: Tensor<3>, latents: [usize; 5]) -> Result<WanPrepared, mcsparse::Error> {
        VelocityModel::prepare(&self.network, text, latents)
    }

    fn velocity(
        &self,
        latents: Tensor<5>,
        timestep: f64,
        prepared: &WanPrepared,
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<5>, mcsparse::Error> {
        let input = Tensor::cat(vec![latents, self.coordinates.clone()], 1);
        self.network.velocity(input, timestep, prepared, attention)
    }
}

/// Time, row and column of each pixel, `[1, 3, frames, height, width]`, centres scaled to -1..1.
fn coordinates(size: [usize; 3], device: &Device) -> Tensor<5> {
    let axes = (0..3).map(|axis| {
        let n = size[axis];
        let centres: Vec<f32> = (0..n).map(|i| (i as f32 + 0.5) / n as f32 * 2.0 - 1.0).collect();
        let mut shape = [1; 5];
        shape[axis + 2] = n;
        let [frames, height, width] = size;
        Tensor::<1>::from_floats(centres.as_slice(), device).reshape(shape).expand([1, 1, frames, height, width])
    });
    Tensor::cat(axes.collect(), 1)
}

/// Condition tokens `[1, tokens, token size]` of `name` for a size of the model.
///
/// # Errors
///
/// If the file cannot be read or has no such condition; then the message lists those that it has.
pub fn condition(file: &Path, name: &str, size: &str, device: &Device) -> Result<Tensor<3>, Error> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let bytes = std::fs::read(file).map_err(|e| failed(&e))?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|e| failed(&e))?;
    let view = tensors.tensor(&format!("{name}.{size}")).map_err(|_| {
        let end = format!(".{size}");
        let mut names: Vec<_> = tensors.names().into_iter().filter_map(|n| n.strip_suffix(&end)).collect();
        names.sort_unstable();
        failed(&format!("no condition {name} for size {size}; there are {}", names.join(", ")))
    })?;
    let &[tokens, token_size] = view.shape() else {
        return Err(failed(&format!("{name}.{size}: expected [tokens, size], got {:?}", view.shape())).into());
    };
    if view.dtype() != safetensors::Dtype::F32 {
        return Err(failed(&format!("{name}.{size}: expected F32, got {:?}", view.dtype())).into());
    }
    let data = TensorData::from_bytes_vec(view.data().to_vec(), vec![1, tokens, token_size], DType::F32);
    Ok(Tensor::from_data(data, device))
}
