//! Clips for the tests of the metrics.

use crate::clip::Clip;

/// Values that look like nothing in particular.
pub fn noise(size: [usize; 3], seed: u32) -> Clip {
    let mut state = seed;
    let values = (0..size.iter().product::<usize>() * 3).map(|i| {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        let noise = (state >> 8) as f32 / (1u32 << 24) as f32;
        0.5 * noise + 0.25 + 0.25 * (i as f32 / 7.0).sin()
    });
    Clip::new(size, values.collect())
}

/// A small one.
pub fn clip(seed: u32) -> Clip {
    noise([2, 13, 17], seed)
}

/// Changes every value.
pub fn map(clip: &Clip, change: impl Fn(usize, f32) -> f32) -> Clip {
    Clip::new(clip.size(), clip.values().iter().enumerate().map(|(i, &v)| change(i, v)).collect())
}
