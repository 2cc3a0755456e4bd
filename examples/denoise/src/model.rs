//! The shipped model, held against the table of sizes.

use std::path::Path;

use burn::tensor::Device;
use mcsparse_dit::pretrained::{ClipConfig, ClipModel};

use crate::error::Error;
use crate::presets::Preset;
use crate::settings::Settings;

/// Loads the weights of `settings` from the folder of its size inside the folder of weights.
///
/// # Errors
///
/// [`Error::Run`] naming what is missing or does not fit.
pub fn load(settings: &Settings, device: &Device) -> Result<ClipModel, Error> {
    let folder = settings.options.weights.join(settings.preset.name);
    if !folder.is_dir() {
        return Err(Error::run(format!("weights {}", folder.display()), "no such folder; --weights names its parent"));
    }
    let config = ClipConfig::from_folder(&folder)?;
    fits(&folder, settings.preset, &config)?;
    let model = ClipModel::load_weights(&folder, &config, settings.options.dtype.burn(), device)?;
    Ok(model.with_frames(settings.frames)?)
}

/// Holds the files against the table of sizes, which the options were checked by.
fn fits(folder: &Path, preset: &Preset, config: &ClipConfig) -> Result<(), Error> {
    let ClipConfig { network, sampling } = config;
    let [patch_frames, patch_height, patch_width] = network.patch_size;
    let checks = [
        ("frames", preset.frames, sampling.frames),
        ("height", preset.side, sampling.height),
        ("width", preset.side, sampling.width),
        ("video_channels", 3, sampling.video_channels),
        ("frames of patch_size", 1, patch_frames),
        ("height of patch_size", preset.patch, patch_height),
        ("width of patch_size", preset.patch, patch_width),
        ("num_attention_heads", preset.heads, network.num_attention_heads),
        ("attention_head_dim", preset.head_dim, network.attention_head_dim),
        ("num_layers", preset.layers, network.num_layers),
    ];
    for (name, expected, got) in checks {
        if expected != got {
            let name = format!("weights {}: {name}", folder.display());
            return Err(Error::run(name, format!("expected {expected} for the {} model, got {got}", preset.name)));
        }
    }
    Ok(())
}
