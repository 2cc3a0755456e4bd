//! The shipped model: a Wan transformer on pixels that is also told where each pixel lies.

use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};
use mcsparse::{Error as AttentionError, SelfAttention};
use mcsparse_dit::VelocityModel;
use mcsparse_dit::wan::{WanConfig, WanPrepared, WanTransformer};
use serde::Deserialize;

use crate::error::Error;
use crate::presets::Preset;
use crate::settings::Settings;

/// Channels of a clip, and of the place of a pixel: time, row, column.
const COLOURS: usize = 3;
const PLACES: usize = 3;
/// What the samplers give as the timestep of pure noise.
const TIMESTEPS: f64 = 1000.0;

/// The part of `sampling.json` that a run needs.
#[derive(Debug, Deserialize)]
struct Sampling {
    frames: usize,
    height: usize,
    width: usize,
    video_channels: usize,
    coordinate_channels: usize,
    flow_shift: f64,
    timestep_scale: f64,
}

/// The network with the channels that it sees beside the noisy clip.
pub struct ClipModel {
    network: WanTransformer,
    places: Tensor<5>,
    flow_shift: f64,
}

impl ClipModel {
    /// Loads the weights of `settings` from the folder of its size inside the folder of weights.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] naming what is missing or does not fit.
    pub fn load(settings: &Settings, device: &Device) -> Result<Self, Error> {
        let folder = settings.options.weights.join(settings.preset.name);
        if !folder.is_dir() {
            return Err(Error::run(
                format!("weights {}", folder.display()),
                "no such folder; --weights names its parent",
            ));
        }
        let sampling = read(&folder.join("sampling.json"))?;
        let config = WanConfig::from_file(folder.join("config.json"))?;
        fits(&folder, settings.preset, &sampling, &config)?;
        let network = WanTransformer::load(&folder, &config, settings.options.dtype.burn(), device)?;
        let places = places([sampling.frames, sampling.height, sampling.width], settings.frames, device);
        Ok(Self { network, places, flow_shift: sampling.flow_shift })
    }

    /// How far the noise levels are moved towards 1.
    pub fn flow_shift(&self) -> f64 {
        self.flow_shift
    }
}

impl VelocityModel for ClipModel {
    type Prepared = WanPrepared;

    fn prepare(&self, text: Tensor<3>, latents: [usize; 5]) -> Result<WanPrepared, AttentionError> {
        VelocityModel::prepare(&self.network, text, latents)
    }

    fn velocity(
        &self,
        latents: Tensor<5>,
        timestep: f64,
        prepared: &WanPrepared,
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<5>, AttentionError> {
        let input = Tensor::cat(vec![latents, self.places.clone()], 1);
        self.network.velocity(input, timestep, prepared, attention)
    }
}

fn read(path: &Path) -> Result<Sampling, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::run(path.display(), error))?;
    serde_json::from_str(&text).map_err(|error| Error::run(path.display(), error))
}

/// Holds the files against the table of sizes, which the options were checked by.
fn fits(folder: &Path, preset: &Preset, sampling: &Sampling, config: &WanConfig) -> Result<(), Error> {
    let [patch_frames, patch_height, patch_width] = config.patch_size;
    let checks = [
        ("frames", preset.frames, sampling.frames),
        ("height", preset.side, sampling.height),
        ("width", preset.side, sampling.width),
        ("video_channels", COLOURS, sampling.video_channels),
        ("coordinate_channels", PLACES, sampling.coordinate_channels),
        ("in_channels", COLOURS + PLACES, config.in_channels),
        ("out_channels", COLOURS, config.out_channels),
        ("frames of patch_size", 1, patch_frames),
        ("height of patch_size", preset.patch, patch_height),
        ("width of patch_size", preset.patch, patch_width),
        ("num_attention_heads", preset.heads, config.num_attention_heads),
        ("attention_head_dim", preset.head_dim, config.attention_head_dim),
        ("num_layers", preset.layers, config.num_layers),
    ];
    for (name, expected, got) in checks {
        if expected != got {
            let name = format!("weights {}: {name}", folder.display());
            return Err(Error::run(name, format!("expected {expected} for the {} model, got {got}", preset.name)));
        }
    }
    if sampling.timestep_scale != TIMESTEPS {
        let name = format!("weights {}: timestep_scale", folder.display());
        return Err(Error::run(name, format!("expected {TIMESTEPS}, got {}", sampling.timestep_scale)));
    }
    Ok(())
}

/// Time, row and column of each pixel of the first `frames` frames, `[1, 3, frames, height, width]`: centres of an even
/// division of -1 to 1. A shorter clip is the start of a full one, so its frames lie where they do there.
fn places(size: [usize; 3], frames: usize, device: &Device) -> Tensor<5> {
    let [_, height, width] = size;
    let mut values = Vec::with_capacity(PLACES * frames * height * width);
    for axis in 0..PLACES {
        for t in 0..frames {
            for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
                values.push(([t, y, x][axis] as f32 + 0.5) / size[axis] as f32 * 2.0 - 1.0);
            }
        }
    }
    Tensor::from_data(TensorData::new(values, [1, PLACES, frames, height, width]), device)
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;

    #[test]
    fn places_are_centres() {
        let all = places([4, 2, 2], 3, &Device::flex());
        assert_eq!(all.dims(), [1, 3, 3, 2, 2]);
        let values: Vec<f32> = all.into_data().try_to_vec().unwrap();
        assert_eq!(values[..12], [-0.75, -0.75, -0.75, -0.75, -0.25, -0.25, -0.25, -0.25, 0.25, 0.25, 0.25, 0.25]);
        assert_eq!(values[12..16], [-0.5, -0.5, 0.5, 0.5]);
        assert_eq!(values[24..28], [-0.5, 0.5, -0.5, 0.5]);
    }
}
