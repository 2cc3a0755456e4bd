//! Structural similarity, at one scale and at several.

use rayon::prelude::*;

use super::mean;
use crate::clip::Clip;

/// Side of the Gaussian window of SSIM.
const WINDOW: usize = 11;
/// Its standard deviation.
const SIGMA: f64 = 1.5;
/// The constants of SSIM for values from 0 to 1: `(0.01)^2` and `(0.03)^2`.
const C1: f64 = 1e-4;
const C2: f64 = 9e-4;

/// Weights of the scales of MS-SSIM, finest first.
const SCALES: [f64; 5] = [0.0448, 0.2856, 0.3001, 0.2363, 0.1333];

/// Structural similarity of two clips of the same size: mean over frames, RGB channels and all places where the window
/// fits, as Wang et al. (2004) define it: Gaussian window of 11 x 11 with sigma 1.5, K1 0.01, K2 0.03.
///
/// # Panics
///
/// If the sizes differ, or frames are smaller than the window.
pub fn ssim(a: &Clip, b: &Clip) -> f64 {
    let [_, height, width] = a.size();
    assert!(height >= WINDOW && width >= WINDOW, "frames of {height} x {width} are smaller than the window");
    over_planes(a, b, |a, b| Terms::of(a, b, width).similarity)
}

/// Structural similarity at five scales (Wang, Simoncelli and Bovik 2003): contrast and structure of the clip and of four
/// halvings (means of 2 x 2 pixels, a last odd row or column left out), luminance of the coarsest, each to its published
/// power; computed for each frame and channel, then averaged. A negative term counts as 0, which has a real power.
///
/// `None` if frames are too small: the coarsest scale has to hold the window of 11, so sides of 176 pixels.
///
/// # Panics
///
/// If the sizes differ.
pub fn ms_ssim(a: &Clip, b: &Clip) -> Option<f64> {
    let [_, height, width] = a.size();
    let smallest = height.min(width) >> (SCALES.len() - 1);
    (smallest >= WINDOW).then(|| over_planes(a, b, |a, b| at_scales(a, b, width, &SCALES)))
}

/// The product over scales; the weights say how many there are.
fn at_scales(a: &[f32], b: &[f32], width: usize, weights: &[f64]) -> f64 {
    let (mut a, mut b, mut width) = (a.to_vec(), b.to_vec(), width);
    let mut product = 1.0;
    for (scale, weight) in weights.iter().enumerate() {
        let terms = Terms::of(&a, &b, width);
        let last = scale + 1 == weights.len();
        let term = if last { terms.similarity } else { terms.contrast_structure };
        product *= term.max(0.0).powf(*weight);
        if !last {
            (a, b) = (halved(&a, width), halved(&b, width));
            width /= 2;
        }
    }
    product
}

/// Means of 2 x 2 pixels.
fn halved(plane: &[f32], width: usize) -> Vec<f32> {
    let rows = plane.chunks_exact(width).collect::<Vec<_>>();
    let pairs = rows.chunks_exact(2);
    pairs
        .flat_map(|pair| {
            let (above, below) = (pair[0].chunks_exact(2), pair[1].chunks_exact(2));
            above.zip(below).map(|(a, b)| (a[0] + a[1] + b[0] + b[1]) / 4.0)
        })
        .collect()
}

/// Mean of `value` over all frames and channels; in a fixed order, so that it is the same in every run.
fn over_planes(a: &Clip, b: &Clip, value: impl Fn(&[f32], &[f32]) -> f64 + Sync) -> f64 {
    assert_eq!(a.size(), b.size());
    let planes = (0..a.size()[0] * 3).into_par_iter();
    let values: Vec<f64> = planes.map(|i| value(a.plane(i / 3, i % 3), b.plane(i / 3, i % 3))).collect();
    mean(values)
}

/// Means over one plane.
struct Terms {
    /// Of luminance times contrast and structure.
    similarity: f64,
    /// Of contrast and structure alone.
    contrast_structure: f64,
}

impl Terms {
    fn of(a: &[f32], b: &[f32], width: usize) -> Self {
        let blurred = |value: fn(f64, f64) -> f64| {
            let products: Vec<f64> = a.iter().zip(b).map(|(&a, &b)| value(a.into(), b.into())).collect();
            blur(&products, width)
        };
        let (mean_a, mean_b) = (blurred(|a, _| a), blurred(|_, b| b));
        let (aa, bb, ab) = (blurred(|a, _| a * a), blurred(|_, b| b * b), blurred(|a, b| a * b));
        let at = |i: usize| {
            let (ma, mb) = (mean_a[i], mean_b[i]);
            let (va, vb, cov) = (aa[i] - ma * ma, bb[i] - mb * mb, ab[i] - ma * mb);
            ((2.0 * ma * mb + C1) / (ma * ma + mb * mb + C1), (2.0 * cov + C2) / (va + vb + C2))
        };
        Self {
            similarity: mean((0..aa.len()).map(|i| at(i).0 * at(i).1)),
            contrast_structure: mean((0..aa.len()).map(|i| at(i).1)),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::testing::{self, clip, map};

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

    /// What `skimage.metrics.structural_similarity` of scikit-image 0.26 gives, with `gaussian_weights=True`,
    /// `sigma=1.5`, `use_sample_covariance=False` and `data_range=1`, as a mean over frames and channels.
    #[test]
    fn ssim_is_that_of_scikit_image() {
        let (a, b) = (clip(1), clip(2));
        assert!((ssim(&a, &b) - 0.647_750_142).abs() < 1e-6, "{}", ssim(&a, &b));
        let scaled = map(&a, |_, v| v * 0.8);
        assert!((ssim(&a, &scaled) - 0.952_061_946).abs() < 1e-6, "{}", ssim(&a, &scaled));
    }

    #[test]
    fn scales_multiply_as_published() {
        let size = [1, 25, 30];
        let (a, b) = (testing::noise(size, 1), testing::noise(size, 2));
        let (weights, width) = ([0.3, 0.7], size[2]);
        let (ours, mut expected) = (at_scales(a.plane(0, 1), b.plane(0, 1), width, &weights), 1.0);
        expected *= Terms::of(a.plane(0, 1), b.plane(0, 1), width).contrast_structure.powf(0.3);
        // The halves by hand, the odd row left out.
        let half = |clip: &Clip| -> Vec<f32> {
            let at = |y: usize, x: usize| clip.plane(0, 1)[y * width + x];
            (0..12)
                .flat_map(|y| (0..15).map(move |x| (2 * y, 2 * x)))
                .map(|(y, x)| (at(y, x) + at(y, x + 1) + at(y + 1, x) + at(y + 1, x + 1)) / 4.0)
                .collect()
        };
        expected *= Terms::of(&half(&a), &half(&b), width / 2).similarity.powf(0.7);
        assert!((ours - expected).abs() < 1e-12 && ours < 0.95, "{ours} {expected}");
        assert!((SCALES.iter().sum::<f64>() - 1.0).abs() < 1e-3);
        assert_eq!(ms_ssim(&a, &b), None);
        let large = testing::noise([1, 176, 180], 3);
        assert!((ms_ssim(&large, &large).unwrap() - 1.0).abs() < 1e-12);
        let other = map(&large, |i, v| v + 0.1 * (i % 2) as f32);
        assert!((0.5..0.999).contains(&ms_ssim(&large, &other).unwrap()));
    }

    #[test]
    fn ssim_of_flat_clips_is_the_luminance_term() {
        let flat = |value| map(&clip(1), |_, _| value);
        let expected = (2.0 * 0.25 * 0.5 + C1) / (0.0625 + 0.25 + C1);
        assert!((ssim(&flat(0.25), &flat(0.5)) - expected).abs() < 1e-9);
    }
}
