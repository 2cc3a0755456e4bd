//! Whether a clip moves as another does.

use serde::{Deserialize, Serialize};

use super::mean;
use crate::clip::Clip;

/// Temporal consistency, from the differences of successive frames.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Temporal {
    /// PSNR of the differences themselves, in dB: the error of the motion, blind to what stands still. A peak of 1, as for
    /// pixels.
    #[serde(with = "super::decibel")]
    pub motion_psnr: f64,
    /// Mean absolute difference of successive frames, over that of the reference: above 1 the clip flickers more. The
    /// quantity behind the temporal flickering of VBench (Huang et al. 2024), which is 1 less it. NaN-free: 1 if neither
    /// clip moves, infinite if only the reference stands still.
    #[serde(with = "super::decibel")]
    pub flicker: f64,
}

/// Temporal consistency of `clip` with `reference`; `None` for clips of one frame.
///
/// # Panics
///
/// If the sizes differ.
pub fn temporal(clip: &Clip, reference: &Clip) -> Option<Temporal> {
    assert_eq!(clip.size(), reference.size());
    let [frames, height, width] = clip.size();
    let size = 3 * height * width;
    (frames > 1).then(|| {
        let moves = |clip: &Clip| {
            let values = clip.values();
            (size..values.len()).map(|i| f64::from(values[i]) - f64::from(values[i - size])).collect::<Vec<_>>()
        };
        let (ours, theirs) = (moves(clip), moves(reference));
        let error = mean(ours.iter().zip(&theirs).map(|(a, b)| (a - b).powi(2)));
        let [ours, theirs] = [ours, theirs].map(|moves| mean(moves.into_iter().map(f64::abs)));
        let flicker = if ours == theirs { 1.0 } else { ours / theirs };
        Temporal { motion_psnr: -10.0 * error.log10(), flicker }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::testing::{clip, map};

    #[test]
    fn motion_is_blind_to_what_stands_still() {
        let a = clip(1);
        let brighter = temporal(&map(&a, |_, v| v + 0.125), &a).unwrap();
        assert!(brighter.motion_psnr > 100.0 && (brighter.flicker - 1.0).abs() < 1e-5, "{brighter:?}");
        // The second frame off by 0.1: so is the one difference.
        let half = a.values().len() / 2;
        let jumps = temporal(&map(&a, |i, v| if i < half { v } else { v + 0.1 }), &a).unwrap();
        assert!((jumps.motion_psnr - 20.0).abs() < 1e-4, "{jumps:?}");
        // Twice the motion.
        let values = a.values();
        let doubled = map(&a, |i, v| if i < half { v } else { values[i - half] + 2.0 * (v - values[i - half]) });
        assert!((temporal(&doubled, &a).unwrap().flicker - 2.0).abs() < 1e-4);
        assert_eq!(temporal(&a.first(1), &a.first(1)), None);
        let still = map(&a, |_, _| 0.5);
        assert_eq!(temporal(&still, &still).unwrap(), Temporal { motion_psnr: f64::INFINITY, flicker: 1.0 });
    }
}
