//! Images of one's own to begin and end a clip with.

use std::path::Path;

use burn::tensor::{Device, Tensor};
use image::imageops::{FilterType, crop_imm, resize};
use mcsparse_dit::pretrained::{ClipModel, Origin, condition_tokens};

use crate::error::Error;
use crate::settings::Settings;

/// The first and the last image, in RGB bytes of the size of the model's frames.
pub struct Images {
    first: Vec<u8>,
    last: Vec<u8>,
    side: usize,
}

impl Images {
    /// Reads those that the options name, if they do.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] naming the file.
    pub fn read(settings: &Settings) -> Result<Option<Self>, Error> {
        let side = settings.preset.side;
        match (&settings.options.first, &settings.options.last) {
            (Some(first), Some(last)) => {
                Ok(Some(Self { first: square(first, side)?, last: square(last, side)?, side }))
            }
            _ => Ok(None),
        }
    }

    /// Their condition tokens.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if the model does not say how large its thumbnails are.
    pub fn tokens(&self, model: &ClipModel, device: &Device) -> Result<Tensor<3>, Error> {
        let grid = model.sampling().condition_grid;
        let grid = grid.ok_or_else(|| Error::run("--first", "sampling.json of the model has no condition_grid"))?;
        Ok(condition_tokens(&self.first, &self.last, self.side, grid, Origin::default(), device)?)
    }
}

/// The middle square of an image, `[side, side, 3]`.
fn square(path: &Path, side: usize) -> Result<Vec<u8>, Error> {
    let failed = |error: &dyn std::fmt::Display| Error::run(format!("image {}", path.display()), error);
    let reader = image::ImageReader::open(path).map_err(|error| failed(&error))?;
    let reader = reader.with_guessed_format().map_err(|error| failed(&error))?;
    let image = reader.decode().map_err(|error| failed(&error))?.into_rgb8();
    let (width, height) = image.dimensions();
    let (edge, side) = (width.min(height), side as u32);
    let middle = crop_imm(&image, (width - edge) / 2, (height - edge) / 2, edge, edge);
    Ok(resize(&*middle, side, side, FilterType::Triangle).into_raw())
}
