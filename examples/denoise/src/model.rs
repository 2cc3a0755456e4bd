//! The shipped model, held against the table of sizes.

use burn::tensor::Device;
use mcsparse_dit::pretrained::ClipModel;

use crate::error::Error;
use crate::settings::Settings;

/// Loads the weights of `settings` from the folder of its size inside the folder of weights.
///
/// # Errors
///
/// [`Error::Run`] naming what is missing or does not fit.
pub fn load(settings: &Settings, device: &Device) -> Result<ClipModel, Error> {
    let (preset, options) = (settings.preset, &settings.options);
    let config = preset.config(&options.weights)?;
    let model = ClipModel::load_weights(options.weights.join(preset.name), &config, options.dtype.burn(), device)?;
    Ok(model.with_frames(settings.frames)?)
}
