//! Peak signal-to-noise ratio.

use serde::{Deserialize, Serialize};

use super::mean;
use crate::clip::Clip;

/// Peak signal-to-noise ratio in dB; infinite for equal clips, which JSON holds as null.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Psnr {
    /// Mean of the ratios of the frames.
    #[serde(with = "super::decibel")]
    pub mean_over_frames: f64,
    /// Ratio of the error averaged over all frames.
    #[serde(with = "super::decibel")]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::testing::{clip, map};

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

    /// What `skimage.metrics.peak_signal_noise_ratio` of scikit-image 0.26 gives.
    #[test]
    fn psnr_is_that_of_scikit_image() {
        assert!((psnr(&clip(1), &clip(2)).of_mean_error - 13.722_080).abs() < 1e-5);
    }

    #[test]
    fn infinity_survives_json() {
        let psnr = Psnr { mean_over_frames: f64::INFINITY, of_mean_error: 12.5 };
        let text = serde_json::to_string(&psnr).unwrap();
        assert_eq!(text, r#"{"mean_over_frames":null,"of_mean_error":12.5}"#);
        assert_eq!(serde_json::from_str::<Psnr>(&text).unwrap(), psnr);
    }
}
