//! How near one clip is to another.

use serde::Serialize;

use crate::clip::Clip;

/// Side of the Gaussian window of SSIM.
const WINDOW: usize = 11;
/// Its standard deviation.
const SIGMA: f64 = 1.5;
/// The constants of SSIM for values from 0 to 1: `(0.01)^2` and `(0.03)^2`.
const C1: f64 = 1e-4;
const C2: f64 = 9e-4;

/// Peak signal-to-noise ratio in dB; infinite for equal clips, which JSON holds as null.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Psnr {
    /// Mean of the ratios of the frames.
    pub mean_over_frames: f64,
    /// Ratio of the error averaged over all frames.
    pub of_mean_error: f64,
}

/// PSNR of two clips of the same size.
///
/// # Panics
///
/// If the sizes differ.
pub fn psnr(a: &Clip, b: &Clip) -> Psnr {
    assert_eq!(a.size(), b.size());
    let errors: Vec<f64> = (0..a.size()[0])
        .map(|frame| {
            let mut sum = 0.0;
            for channel in 0..3 {
                let pairs = a.plane(frame, channel).iter().zip(b.plane(frame, channel));
                sum += pairs.map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum::<f64>();
            }
            sum / (3 * a.size()[1] * a.size()[2]) as f64
        })
        .collect();
    let decibel = |error: f64| -10.0 * error.log10();
    Psnr {
        mean_over_frames: mean(errors.iter().map(|&error| decibel(error))),
        of_mean_error: decibel(mean(errors.iter().copied())),
    }
}

/// Structural similarity of two clips of the same size: mean over frames, RGB channels and all places where the window
/// fits, as Wang et al. (2004) define it: Gaussian window of 11 x 11 with sigma 1.5, K1 0.01, K2 0.03.
///
/// # Panics
///
/// If the sizes differ, or frames are smaller than the window.
pub fn ssim(a: &Clip, b: &Clip) -> f64 {
    assert_eq!(a.size(), b.size());
    let [frames, height, width] = a.size();
    assert!(height >= WINDOW && width >= WINDOW, "frames of {height} x {width} are smaller than the window");
    mean((0..frames * 3).map(|i| {
        let (frame, channel) = (i / 3, i % 3);
        plane_ssim(a.plane(frame, channel), b.plane(frame, channel), width)
    }))
}

fn plane_ssim(a: &[f32], b: &[f32], width: usize) -> f64 {
    let blurred = |value: fn(f64, f64) -> f64| {
        let products: Vec<f64> = a.iter().zip(b).map(|(&a, &b)| value(a.into(), b.into())).collect();
        blur(&products, width)
    };
    let (mean_a, mean_b) = (blurred(|a, _| a), blurred(|_, b| b));
    let (aa, bb, ab) = (blurred(|a, _| a * a), blurred(|_, b| b * b), blurred(|a, b| a * b));
    mean((0..aa.len()).map(|i| {
        let (ma, mb) = (mean_a[i], mean_b[i]);
        let (va, vb, cov) = (aa[i] - ma * ma, bb[i] - mb * mb, ab[i] - ma * mb);
        (2.0 * ma * mb + C1) * (2.0 * cov + C2) / ((ma * ma + mb * mb + C1) * (va + vb + C2))
    }))
}

/// Gaussian means of the windows that fit, one axis after the other.
fn blur(plane: &[f64], width: usize) -> Vec<f64> {
    let weights = window();
    let weigh = |values: &mut dyn Iterator<Item = f64>| values.zip(weights).map(|(value, w)| value * w).sum::<f64>();
    let narrow = width + 1 - WINDOW;
    let rows: Vec<f64> = plane
        .chunks_exact(width)
        .flat_map(|row| row.windows(WINDOW).map(|values| weigh(&mut values.iter().copied())))
        .collect();
    let starts = 0..rows.len() - (WINDOW - 1) * narrow;
    starts.map(|start| weigh(&mut rows[start..].iter().step_by(narrow).copied())).collect()
}

fn window() -> [f64; WINDOW] {
    let mut weights = [0.0; WINDOW];
    for (i, weight) in weights.iter_mut().enumerate() {
        let distance = i as f64 - (WINDOW / 2) as f64;
        *weight = (-distance * distance / (2.0 * SIGMA * SIGMA)).exp();
    }
    let sum: f64 = weights.iter().sum();
    weights.map(|weight| weight / sum)
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: [usize; 3] = [2, 13, 17];

    /// Values that look like nothing in particular.
    fn clip(seed: u32) -> Clip {
        let mut state = seed;
        let values = (0..SIZE.iter().product::<usize>() * 3).map(|i| {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            let noise = (state >> 8) as f32 / (1u32 << 24) as f32;
            0.5 * noise + 0.25 + 0.25 * (i as f32 / 7.0).sin()
        });
        Clip::new(SIZE, values.collect())
    }

    fn map(clip: &Clip, change: impl Fn(usize, f32) -> f32) -> Clip {
        Clip::new(clip.size(), clip.values().iter().enumerate().map(|(i, &v)| change(i, v)).collect())
    }

    /// The definition word for word: weighted deviations from the weighted mean, window by window, no separation.
    fn ssim_by_definition(a: &Clip, b: &Clip) -> f64 {
        let [frames, height, width] = a.size();
        let weight = |y: usize, x: usize| {
            let (dy, dx) = (y as f64 - 5.0, x as f64 - 5.0);
            (-(dy * dy + dx * dx) / 4.5).exp()
        };
        let all = || (0..11).flat_map(|y| (0..11).map(move |x| (y, x)));
        let total: f64 = all().map(|(y, x)| weight(y, x)).sum();
        let (mut sum, mut count) = (0.0, 0);
        for (frame, channel) in (0..frames).flat_map(|f| (0..3).map(move |c| (f, c))) {
            for (top, left) in (0..=height - 11).flat_map(|t| (0..=width - 11).map(move |l| (t, l))) {
                let at = |c: &Clip, y, x| f64::from(c.plane(frame, channel)[(top + y) * width + left + x]);
                let expect =
                    |f: &dyn Fn(usize, usize) -> f64| all().map(|(y, x)| weight(y, x) / total * f(y, x)).sum::<f64>();
                let (ma, mb) = (expect(&|y, x| at(a, y, x)), expect(&|y, x| at(b, y, x)));
                let va = expect(&|y, x| (at(a, y, x) - ma).powi(2));
                let vb = expect(&|y, x| (at(b, y, x) - mb).powi(2));
                let cov = expect(&|y, x| (at(a, y, x) - ma) * (at(b, y, x) - mb));
                let luminance = (2.0 * ma * mb + 0.0001) / (ma.powi(2) + mb.powi(2) + 0.0001);
                sum += luminance * (2.0 * cov + 0.0009) / (va + vb + 0.0009);
                count += 1;
            }
        }
        sum / f64::from(count)
    }

    #[test]
    fn ssim_is_the_definition() {
        let (a, b) = (clip(1), clip(2));
        for other in
            [b.clone(), map(&a, |_, v| v * 0.8), map(&a, |i, v| v + 0.02 * (i % 3) as f32), map(&a, |_, v| 1.0 - v)]
        {
            let (ours, expected) = (ssim(&a, &other), ssim_by_definition(&a, &other));
            assert!((ours - expected).abs() < 1e-10, "{ours} {expected}");
        }
        assert!(ssim(&a, &b) < 0.9);
        assert!((ssim(&a, &a) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn ssim_of_flat_clips_is_the_luminance_term() {
        let flat = |value| map(&clip(1), |_, _| value);
        let expected = (2.0 * 0.25 * 0.5 + C1) / (0.0625 + 0.25 + C1);
        assert!((ssim(&flat(0.25), &flat(0.5)) - expected).abs() < 1e-9);
    }

    #[test]
    fn psnr_of_known_errors() {
        let a = map(&clip(3), |_, v| v * 0.5);
        let same = psnr(&a, &a);
        assert!(same.mean_over_frames.is_infinite() && same.of_mean_error.is_infinite());
        // An error of 0.1 everywhere is 20 dB.
        let shifted = psnr(&a, &map(&a, |_, v| v + 0.1));
        assert!((shifted.mean_over_frames - 20.0).abs() < 1e-4 && (shifted.of_mean_error - 20.0).abs() < 1e-4);
        // 20 dB in the first frame and 40 dB in the second: a mean error of 0.00505.
        let half = a.values().len() / 2;
        let mixed = psnr(&a, &map(&a, |i, v| v + if i < half { 0.1 } else { 0.01 }));
        assert!((mixed.mean_over_frames - 30.0).abs() < 1e-3, "{mixed:?}");
        assert!((mixed.of_mean_error - 10.0 * (1.0f64 / 0.00505).log10()).abs() < 1e-3, "{mixed:?}");
    }
}
