//! Pictures of volumes, for people.

use std::io::Cursor;

use denoise::media::{BAND, LETTER, write};
use image::imageops::{FilterType, replace, resize};
use image::{GrayImage, ImageFormat, Rgb, RgbImage};
use mcsparse_dit::pretrained::DepthViews;
use mcsparse_lab::Error;
use mcsparse_lab::volume::Volume;

/// Width and height of a panel in pixels.
const PANEL: usize = 320;
/// Rays a pixel, along each side.
const RAYS: usize = 2;
/// Where one looks from: radians to the left of the front and above it, so that the seen sides are those of the views.
const YAW: f32 = 0.6;
const PITCH: f32 = 0.45;
/// Half the height of what a panel shows, in halves of the cube's side.
const REACH: f32 = 1.3;
/// Halvings of the step in which a ray enters the shape.
const HALVINGS: usize = 8;
const COLOUR: [f32; 3] = [0.93, 0.69, 0.38];
const BACKGROUND: f32 = 0.12;
/// Direction to the light, in the frame of the viewer: right, up, towards.
const LIGHT: [f32; 3] = [-0.3, 0.65, 0.7];
const AMBIENT: f32 = 0.15;

/// A PNG with the views that the model saw and the shapes from left to right, each under its caption.
///
/// # Errors
///
/// [`Error::Run`] if the encoder fails.
pub fn sheet(views: &DepthViews, shapes: &[(&str, &Volume)]) -> Result<Vec<u8>, Error> {
    let panel = PANEL as u32;
    let mut canvas = RgbImage::new(panel * (shapes.len() as u32 + 1), panel + BAND);
    write(&mut canvas, "views: front, left", LETTER / 2, (BAND - LETTER) / 2);
    let side = views.side() as u32;
    for (at, view) in [views.front(), views.left()].into_iter().enumerate() {
        let image = GrayImage::from_raw(side, side, view.to_vec()).expect("as many pixels as its sides say");
        let image = RgbImage::from_fn(side, side, |x, y| Rgb([image.get_pixel(x, y)[0]; 3]));
        let image = resize(&image, panel / 2, panel / 2, FilterType::Nearest);
        replace(&mut canvas, &image, i64::from(panel / 4), i64::from(BAND + at as u32 * panel / 2));
    }
    for (at, (caption, volume)) in (1..).zip(shapes) {
        write(&mut canvas, caption, at * panel + LETTER / 2, (BAND - LETTER) / 2);
        replace(&mut canvas, &picture(volume, PANEL), i64::from(at * panel), i64::from(BAND));
    }
    let mut bytes = Cursor::new(Vec::new());
    canvas.write_to(&mut bytes, ImageFormat::Png).map_err(|error| Error::run("the picture", error))?;
    Ok(bytes.into_inner())
}

/// The shape as seen along parallel rays from the upper left of its front.
pub fn picture(volume: &Volume, size: usize) -> RgbImage {
    let ((sin_yaw, cos_yaw), (sin_pitch, cos_pitch)) = (YAW.sin_cos(), PITCH.sin_cos());
    // In columns to the right, rows down, layers away from the front.
    let right = [cos_yaw, 0.0, -sin_yaw];
    let away = [sin_yaw * cos_pitch, sin_pitch, cos_yaw * cos_pitch];
    let up = [sin_yaw * sin_pitch, -cos_pitch, cos_yaw * sin_pitch];
    let scale = 2.0 * REACH / (size * RAYS) as f32;
    let ray = |x: usize, y: usize| {
        let [u, v] = [x, y].map(|at| (at as f32 + 0.5) * scale - REACH);
        let start: [f32; 3] = std::array::from_fn(|axis| u * right[axis] - v * up[axis] - 2.0 * away[axis]);
        let Some(hit) = first_hit(volume, start, away) else {
            return [BACKGROUND; 3];
        };
        let normal = outward(volume, hit);
        let along = |axis: [f32; 3]| dot(normal, axis);
        let seen = [along(right), along(up), -along(away)];
        // Softer than a cosine, so that sides in the shade have a form too.
        let facing = 0.5 + 0.5 * dot(seen, LIGHT) / dot(LIGHT, LIGHT).sqrt();
        COLOUR.map(|channel| channel * (AMBIENT + (1.0 - AMBIENT) * facing * facing))
    };
    RgbImage::from_fn(size as u32, size as u32, |x, y| {
        let mut sum = [0.0; 3];
        for (i, j) in (0..RAYS).flat_map(|j| (0..RAYS).map(move |i| (i, j))) {
            let colour = ray(x as usize * RAYS + i, y as usize * RAYS + j);
            sum.iter_mut().zip(colour).for_each(|(sum, value)| *sum += value);
        }
        Rgb(sum.map(|value| (value / (RAYS * RAYS) as f32 * 255.0).round().clamp(0.0, 255.0) as u8))
    })
}

fn dot(a: [f32; 3], b: [f32; 3]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Where a ray enters the shape.
fn first_hit(volume: &Volume, start: [f32; 3], away: [f32; 3]) -> Option<[f32; 3]> {
    let step = 1.0 / volume.side() as f32;
    let at = |t: f32| -> [f32; 3] { std::array::from_fn(|axis| start[axis] + t * away[axis]) };
    let steps = (4.0 / step) as usize;
    let inside = (0..steps).map(|i| i as f32 * step).find(|&t| value(volume, at(t)) > 0.0)?;
    let (mut outside, mut inside) = (inside - step, inside);
    for _ in 0..HALVINGS {
        let middle = (outside + inside) / 2.0;
        if value(volume, at(middle)) > 0.0 {
            inside = middle;
        } else {
            outside = middle;
        }
    }
    Some(at(inside))
}

/// The direction in which the values fall.
fn outward(volume: &Volume, at: [f32; 3]) -> [f32; 3] {
    let step = 1.5 / volume.side() as f32;
    let normal: [f32; 3] = std::array::from_fn(|axis| {
        let moved = |by: f32| value(volume, std::array::from_fn(|i| if i == axis { at[i] + by } else { at[i] }));
        moved(-step) - moved(step)
    });
    let length = dot(normal, normal).sqrt().max(1e-12);
    normal.map(|part| part / length)
}

/// The value at a point of the cube from -1 to 1 (column, row, layer), between the centres of voxels; -1 outside.
fn value(volume: &Volume, at: [f32; 3]) -> f32 {
    let side = volume.side();
    let place = at.map(|at| (at + 1.0) / 2.0 * side as f32 - 0.5);
    if place.iter().any(|&p| p <= -1.0 || p >= side as f32) {
        return -1.0;
    }
    let (low, part) = (place.map(f32::floor), place.map(|p| p - p.floor()));
    let mut sum = 0.0;
    for corner in 0..8 {
        let upper = [corner & 1, corner >> 1 & 1, corner >> 2];
        let weight: f32 = (0..3).map(|axis| if upper[axis] == 1 { part[axis] } else { 1.0 - part[axis] }).product();
        let index: [isize; 3] = std::array::from_fn(|axis| low[axis] as isize + upper[axis]);
        let inside = index.iter().all(|&i| (0..side as isize).contains(&i));
        let [column, row, layer] = index.map(|i| i as usize);
        sum += weight * if inside { volume.at(layer, row, column) } else { -1.0 };
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ball(radius: f32, centre: [f32; 3]) -> Volume {
        let axis = |i: usize| (i as f32 + 0.5) / 16.0 - 1.0;
        let all = (0..32 * 32 * 32).map(|i| [i % 32, i / 32 % 32, i / 1024].map(axis));
        let distance = |p: [f32; 3]| (0..3).map(|a| (p[a] - centre[a]).powi(2)).sum::<f32>().sqrt();
        Volume::new(32, all.map(|p| radius - distance(p)).collect())
    }

    /// Middle and extent of what is no background.
    fn box_of(image: &RgbImage) -> ([f32; 2], [f32; 2]) {
        let background = (BACKGROUND * 255.0).round() as u8;
        let seen: Vec<_> = image.enumerate_pixels().filter(|(_, _, pixel)| pixel[0] != background).collect();
        let bounds = |axis: fn(&(u32, u32, &Rgb<u8>)) -> u32| {
            let all = || seen.iter().map(axis);
            (all().min().unwrap() as f32, all().max().unwrap() as f32 + 1.0)
        };
        let (x, y) = (bounds(|p| p.0), bounds(|p| p.1));
        ([(x.0 + x.1) / 2.0, (y.0 + y.1) / 2.0], [x.1 - x.0, y.1 - y.0])
    }

    #[test]
    fn a_ball_is_a_lit_disc_of_its_size() {
        let image = picture(&ball(0.6, [0.0; 3]), 130);
        let (middle, extent) = box_of(&image);
        assert!(middle.iter().all(|m| (m - 65.0).abs() <= 1.0), "{middle:?}");
        // 100 pixels are 2 halves of the cube's side.
        assert!(extent.iter().all(|e| (e - 60.0).abs() <= 2.0), "{extent:?}");
        let light = |x: u32, y: u32| image.get_pixel(x, y)[0];
        assert!(light(55, 50) > light(80, 85) + 50, "lit from the upper left");
    }

    #[test]
    fn what_is_left_high_and_near_is_seen_so() {
        let centre = |at| box_of(&picture(&ball(0.3, at), 130)).0;
        let [x, y] = centre([0.0; 3]);
        let [column, row, layer] = [[0.5, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.5]].map(centre);
        // Both are farther from a viewer at the upper left of the front, who sees what is farther higher up.
        assert!(column[0] > x + 10.0 && column[1] < y - 3.0, "columns go right and away: {column:?}");
        assert!((row[0] - x).abs() < 1.5 && row[1] > y + 15.0, "rows go down: {row:?}");
        assert!(layer[0] < x - 5.0 && layer[1] < y - 5.0, "layers go away and left: {layer:?}");
        assert_eq!(picture(&ball(-1.0, [0.0; 3]), 8).get_pixel(4, 4)[0], (BACKGROUND * 255.0).round() as u8);
    }

    #[test]
    fn the_sheet_reads_back() {
        let views = DepthViews::new(4, vec![255; 16], vec![0; 16]).unwrap();
        let volume = ball(0.6, [0.0; 3]);
        let bytes = sheet(&views, &[("dense", &volume), ("MC-Sparse", &volume)]).unwrap();
        let image = image::load_from_memory(&bytes).unwrap().into_rgb8();
        assert_eq!(image.dimensions(), (960, 336));
        assert_eq!((image.get_pixel(160, 100)[0], image.get_pixel(160, 250)[0]), (255, 0));
        assert_eq!(image.get_pixel(480, 180), image.get_pixel(800, 180));
    }
}
