//! What a person looks at: an animation of the clips side by side and a sheet of all frames.

use std::io::Cursor;

use font8x8::legacy::BASIC_LEGACY;
use image::codecs::gif::{GifEncoder, Repeat};
use image::imageops::{FilterType, replace, resize};
use image::{Delay, DynamicImage, Frame, ImageFormat, Rgb, RgbImage};

use crate::clip::Clip;
use crate::error::Error;

/// Width of a panel of the animation, and of all frames of the sheet together, in pixels: what fits a screen.
const PANEL: usize = 256;
const SHEET: usize = 2048;
/// Milliseconds of one frame.
const FRAME_TIME: u32 = 125;
/// Speed of the choice of colours from 1 (best) to 30.
const PALETTE_SPEED: i32 = 10;
/// Height of a line of text, in pixels.
pub const LETTER: u32 = 8;
/// Height of the band that a line of text stands in, in pixels.
pub const BAND: u32 = 16;
const TEXT: Rgb<u8> = Rgb([255; 3]);

/// A clip with the words to put above it.
#[derive(Debug, Clone, Copy)]
pub struct Panel<'a> {
    /// The words.
    pub caption: &'a str,
    /// The clip.
    pub clip: &'a Clip,
}

/// An endless GIF with the panels from left to right, pixels enlarged by a whole factor.
///
/// # Errors
///
/// [`Error::Run`] if the encoder fails.
pub fn side_by_side(panels: &[Panel<'_>]) -> Result<Vec<u8>, Error> {
    let [frames, height, width] = panels[0].clip.size();
    let factor = (PANEL / width).max(1);
    let (height, width) = ((height * factor) as u32, (width * factor) as u32);
    let mut bytes = Vec::new();
    let mut encoder = GifEncoder::new_with_speed(&mut bytes, PALETTE_SPEED);
    let failed = |error| Error::run("the animation", error);
    encoder.set_repeat(Repeat::Infinite).map_err(failed)?;
    for frame in 0..frames {
        let mut canvas = RgbImage::new(width * panels.len() as u32, height + BAND);
        for (left, panel) in (0u32..).step_by(width as usize).zip(panels) {
            write(&mut canvas, panel.caption, left + 4, (BAND - LETTER) / 2);
            replace(&mut canvas, &enlarged(panel.clip, frame, factor), left.into(), BAND.into());
        }
        let rgba = DynamicImage::from(canvas).into_rgba8();
        let delay = Delay::from_numer_denom_ms(FRAME_TIME, 1);
        encoder.encode_frame(Frame::from_parts(rgba, 0, 0, delay)).map_err(failed)?;
    }
    drop(encoder);
    Ok(bytes)
}

/// A PNG with one row for each panel and one column for each frame.
///
/// # Errors
///
/// [`Error::Run`] if the encoder fails.
pub fn contact_sheet(panels: &[Panel<'_>]) -> Result<Vec<u8>, Error> {
    let [frames, height, width] = panels[0].clip.size();
    let factor = (SHEET / (width * frames)).clamp(1, (PANEL / width).max(1));
    let (height, width) = ((height * factor) as u32, (width * factor) as u32);
    let row = height + BAND;
    let mut canvas = RgbImage::new(width * frames as u32, row * panels.len() as u32);
    for (top, panel) in (0u32..).step_by(row as usize).zip(panels) {
        write(&mut canvas, panel.caption, 4, top + (BAND - LETTER) / 2);
        for frame in 0..frames {
            let left = frame as u32 * width;
            replace(&mut canvas, &enlarged(panel.clip, frame, factor), left.into(), (top + BAND).into());
        }
    }
    let mut bytes = Cursor::new(Vec::new());
    canvas.write_to(&mut bytes, ImageFormat::Png).map_err(|error| Error::run("the contact sheet", error))?;
    Ok(bytes.into_inner())
}

fn enlarged(clip: &Clip, frame: usize, factor: usize) -> RgbImage {
    let [_, height, width] = clip.size();
    let image = RgbImage::from_fn(width as u32, height as u32, |x, y| {
        let at = y as usize * width + x as usize;
        Rgb([0, 1, 2].map(|channel| (clip.plane(frame, channel)[at] * 255.0).round() as u8))
    });
    resize(&image, (width * factor) as u32, (height * factor) as u32, FilterType::Nearest)
}

/// Writes in an 8 x 8 font; letters that the canvas has no room for are left out.
pub fn write(canvas: &mut RgbImage, text: &str, left: u32, top: u32) {
    for (at, letter) in text.bytes().enumerate() {
        let rows = BASIC_LEGACY.get(usize::from(letter)).unwrap_or(&BASIC_LEGACY[usize::from(b'?')]);
        let left = left + at as u32 * LETTER;
        if left + LETTER > canvas.width() {
            return;
        }
        for (y, row) in (top..).zip(rows) {
            for x in (0..LETTER).filter(|x| row >> x & 1 == 1) {
                canvas.put_pixel(left + x, y, TEXT);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use image::AnimationDecoder;
    use image::codecs::gif::GifDecoder;

    use super::*;

    fn clip([frames, height, width]: [usize; 3], value: f32) -> Clip {
        Clip::new([frames, height, width], vec![value; frames * 3 * height * width])
    }

    #[test]
    fn the_animation_reads_back() {
        let (dark, light) = (clip([3, 32, 32], 0.0), clip([3, 32, 32], 1.0));
        let panels = [Panel { caption: "dark", clip: &dark }, Panel { caption: "light", clip: &light }];
        let bytes = side_by_side(&panels).unwrap();
        let frames = GifDecoder::new(Cursor::new(bytes)).unwrap().into_frames().collect_frames().unwrap();
        assert_eq!(frames.len(), 3);
        for frame in &frames {
            let image = frame.buffer();
            assert_eq!(image.dimensions(), (512, 272));
            assert_eq!((image.get_pixel(100, 200)[0], image.get_pixel(400, 200)[0]), (0, 255));
            let ink = |x: std::ops::Range<u32>| {
                x.flat_map(|x| (0..16).map(move |y| (x, y))).any(|(x, y)| image.get_pixel(x, y)[0] > 128)
            };
            assert!(ink(0..40) && ink(256..300) && !ink(100..250), "captions above their panels only");
        }
    }

    #[test]
    fn the_sheet_reads_back() {
        let (dark, light) = (clip([8, 32, 32], 0.0), clip([8, 32, 32], 1.0));
        let panels = [Panel { caption: "dark", clip: &dark }, Panel { caption: "light", clip: &light }];
        let image = image::load_from_memory(&contact_sheet(&panels).unwrap()).unwrap().into_rgb8();
        assert_eq!(image.dimensions(), (2048, 2 * 272));
        assert_eq!((image.get_pixel(1000, 100)[0], image.get_pixel(1000, 500)[0]), (0, 255));
        let large = clip([16, 128, 128], 0.5);
        let sheet = contact_sheet(&[Panel { caption: "large", clip: &large }]).unwrap();
        assert_eq!(image::load_from_memory(&sheet).unwrap().into_rgb8().dimensions(), (2048, 144));
    }
}
