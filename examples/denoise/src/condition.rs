//! What one clip is denoised towards.

use std::path::Path;

use burn::tensor::{Device, Tensor};
use mcsparse_dit::LoadError;
use mcsparse_dit::pretrained::{ConditionFile, RgbClip};

use crate::clip::Clip;
use crate::error::Error;
use crate::settings::Settings;

/// What one clip is denoised towards.
pub struct Condition {
    /// `[1, tokens, token size]`.
    pub tokens: Tensor<3>,
    /// The real clip in the size of the denoised one, where it is known.
    pub clip: Option<Clip>,
}

/// Reads the file in the folder of weights.
///
/// # Errors
///
/// [`Error::Run`] naming the file.
pub fn open(weights: &Path) -> Result<ConditionFile, Error> {
    ConditionFile::open(weights).map_err(|error| match error {
        LoadError::Io { path, source } => {
            Error::run(format!("conditions {}", path.display()), format!("{source}; --weights names the folder"))
        }
        error => error.into(),
    })
}

/// Refuses a condition that is not there.
///
/// # Errors
///
/// [`Error::Option`] with the names of all that are.
pub fn check(file: &ConditionFile, settings: &Settings) -> Result<(), Error> {
    let names = file.names(settings.preset.name);
    if settings.options.first.is_some() || names.contains(&settings.condition) {
        return Ok(());
    }
    Err(Error::option("--condition", format!("one of {}", names.join(", ")), &settings.condition))
}

impl Condition {
    /// The condition of `settings`, which [`check`] has let pass.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if the file has something else than expected.
    pub fn load(file: &ConditionFile, settings: &Settings, device: &Device) -> Result<Self, Error> {
        let name = &settings.condition;
        let tokens = file.tokens(name, settings.preset.name, device)?;
        let clip = file.clip(name)?.map(|clip| {
            real(&clip, settings).map_err(|got| Error::run(file.path().display(), format!("{name}: {got}")))
        });
        Ok(Self { tokens, clip: clip.transpose()? })
    }
}

/// The frames that the model is asked for, made as small as the model's; or what is wrong with them.
fn real(clip: &RgbClip, settings: &Settings) -> Result<Clip, String> {
    let RgbClip { frames, height, width, .. } = *clip;
    let side = settings.preset.side;
    if frames < settings.frames || height != width || height % side != 0 {
        return Err(format!("a clip of [3, {frames}, {height}, {width}] for frames of {side} x {side}"));
    }
    let mut values = Vec::with_capacity(clip.bytes.len());
    for frame in 0..frames {
        for colour in 0..3 {
            let bytes = clip.frame(frame).iter().skip(colour).step_by(3);
            values.extend(bytes.map(|&byte| f32::from(byte) / 255.0));
        }
    }
    Ok(Clip::new([frames, height, width], values).first(settings.frames).shrunk(side))
}
