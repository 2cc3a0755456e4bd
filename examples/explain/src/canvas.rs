//! Rows of frames with a line of text above each row.

use std::{fs::File, io::BufWriter, path::Path};

use font8x8::legacy::BASIC_LEGACY;
use image::{
    ImageEncoder, Rgb, RgbImage,
    codecs::png::{CompressionType, FilterType, PngEncoder},
};

use crate::Error;

/// Enlargement of the 8 x 8 font.
const LETTER_SCALE: u32 = 2;
/// Height of the band that a line of text stands in.
const BAND: u32 = 28;
/// Between frames, and around everything.
const GAP: u32 = 4;

/// A sheet of cells of one size.
#[derive(Debug)]
pub struct Sheet {
    image: RgbImage,
    columns: u32,
    cell: [u32; 2],
}

impl Sheet {
    /// A white sheet; `cell` is the height and width of a cell in pixels.
    pub fn new(rows: usize, columns: usize, cell: [usize; 2]) -> Self {
        let (rows, columns, cell) = (rows as u32, columns as u32, cell.map(|size| size as u32));
        let width = GAP + columns * (cell[1] + GAP);
        let image = RgbImage::from_pixel(width, rows * (BAND + cell[0]) + GAP, Rgb([255; 3]));
        Self { image, columns, cell }
    }

    /// Fills row `row`: the caption, and every pixel of every cell by `colour(column, y, x)`.
    pub fn row(&mut self, row: usize, caption: &str, colour: impl Fn(usize, usize, usize) -> [u8; 3]) {
        let [height, width] = self.cell;
        let top = row as u32 * (BAND + height);
        self.write(caption, GAP, top + (BAND - 8 * LETTER_SCALE) / 2);
        for column in 0..self.columns {
            let left = GAP + column * (width + GAP);
            for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
                let pixel = Rgb(colour(column as usize, y as usize, x as usize));
                self.image.put_pixel(left + x, top + BAND + y, pixel);
            }
        }
    }

    /// Letters that the sheet has no room for are left out.
    fn write(&mut self, text: &str, left: u32, top: u32) {
        let size = 8 * LETTER_SCALE;
        for (at, letter) in text.bytes().enumerate() {
            let rows = BASIC_LEGACY.get(usize::from(letter)).unwrap_or(&BASIC_LEGACY[usize::from(b'?')]);
            let left = left + at as u32 * size;
            if left + size > self.image.width() {
                return;
            }
            for (y, x) in (0..size).flat_map(|y| (0..size).map(move |x| (y, x))) {
                if rows[(y / LETTER_SCALE) as usize] >> (x / LETTER_SCALE) & 1 == 1 {
                    self.image.put_pixel(left + x, top + y, Rgb([20; 3]));
                }
            }
        }
    }

    /// Writes a PNG.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let file = BufWriter::new(File::create(path).map_err(|e| failed(&e))?);
        let (width, height) = self.image.dimensions();
        PngEncoder::new_with_quality(file, CompressionType::Best, FilterType::Adaptive)
            .write_image(self.image.as_raw(), width, height, image::ExtendedColorType::Rgb8)
            .map_err(|e| failed(&e).into())
    }
}

/// A colour for each of `count` things; neighbours are alike in hue and differ in brightness.
pub fn distinct(index: usize, count: usize) -> [u8; 3] {
    let hue = index as f32 / count as f32 * 5.5;
    let value = [1.0, 0.62][index % 2];
    // Hue to RGB by distance on the circle of six.
    [0.0, 2.0, 4.0].map(|centre: f32| {
        let distance = (hue - centre).abs().min(6.0 - (hue - centre).abs());
        ((0.12 + 0.88 * (2.0 - distance).clamp(0.0, 1.0)) * value * 255.0) as u8
    })
}

/// A heat from 0 (black) over purple and orange to 1 (light yellow).
pub fn heat(value: f32) -> [u8; 3] {
    const STOPS: [[f32; 3]; 5] =
        [[0.0, 0.0, 4.0], [87.0, 16.0, 110.0], [188.0, 55.0, 84.0], [249.0, 142.0, 9.0], [252.0, 255.0, 164.0]];
    let at = value.clamp(0.0, 1.0) * (STOPS.len() - 1) as f32;
    let low = (at as usize).min(STOPS.len() - 2);
    [0, 1, 2].map(|c| (STOPS[low][c] + (at - low as f32) * (STOPS[low + 1][c] - STOPS[low][c])) as u8)
}
