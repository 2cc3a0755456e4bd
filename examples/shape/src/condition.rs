//! What a shape is denoised towards.

use std::path::Path;

use mcsparse_dit::LoadError;
use mcsparse_dit::pretrained::{DepthViews, SolidFile};
use mcsparse_lab::Error;
use mcsparse_lab::volume::Volume;

use crate::settings::Settings;

/// What a shape is denoised towards.
pub struct Condition {
    /// Two depth views.
    pub views: DepthViews,
    /// The solid itself, where it is known.
    pub truth: Option<Volume>,
}

/// Reads the file of solids in the folder of weights.
///
/// # Errors
///
/// [`Error::Run`] naming the file.
pub fn open(settings: &Settings) -> Result<SolidFile, Error> {
    let folder = settings.options.weights.join(settings.preset.name);
    SolidFile::open(folder).map_err(|error| match error {
        LoadError::Io { path, source } => {
            Error::run(format!("solids {}", path.display()), format!("{source}; --weights names the folder above"))
        }
        error => error.into(),
    })
}

impl Condition {
    /// The views of one's own that `settings` name, or those of a solid.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] for a solid that is not in the file, [`Error::Run`] for files that cannot be used.
    pub fn load(file: &SolidFile, settings: &Settings) -> Result<Self, Error> {
        let side = settings.preset.side;
        if let (Some(front), Some(left)) = (&settings.options.front, &settings.options.left) {
            let views = DepthViews::new(side, pixels(front, side)?, pixels(left, side)?)?;
            return Ok(Self { views, truth: None });
        }
        let (name, names) = (&settings.condition, file.names());
        if !names.contains(name) {
            return Err(Error::option("--solid", format!("one of {}", names.join(", ")), name));
        }
        let (views, truth) = (file.views(name)?, Volume::from(&file.truth(name)?));
        if truth.side() != side {
            let got = format!("{name}: expected {side} voxels a side, got {}", truth.side());
            return Err(Error::run(file.path().display(), got));
        }
        Ok(Self { views, truth: Some(truth) })
    }
}

/// The bytes of a grey image of the size of a view.
fn pixels(path: &Path, side: usize) -> Result<Vec<u8>, Error> {
    let failed = |error: &dyn std::fmt::Display| Error::run(format!("image {}", path.display()), error);
    let reader = image::ImageReader::open(path).map_err(|error| failed(&error))?;
    let reader = reader.with_guessed_format().map_err(|error| failed(&error))?;
    let image = reader.decode().map_err(|error| failed(&error))?.into_luma8();
    // Enlarging or shrinking would invent depths between a solid and nothing.
    if image.dimensions() != (side as u32, side as u32) {
        let (width, height) = image.dimensions();
        return Err(failed(&format!("expected {side} x {side} pixels, got {width} x {height}")));
    }
    Ok(image.into_raw())
}
