//! Rotary embedding of packed positions: halves of a head turn against each other, and the rest of it stays.

use burn::tensor::Device;

use super::{MiniMaxH3Config, Position};
use crate::layers::RotaryTables;

/// Tables for tokens at `positions`.
///
/// Angles are products in f32 of position and frequency, as the model was trained.
pub(super) fn tables(positions: &[Position], config: &MiniMaxH3Config, device: &Device) -> RotaryTables {
    let frequencies = config.rope_freq_dim;
    let inverse: Vec<f32> = (0..frequencies)
        .map(|i| 1.0 / (config.rope_theta as f32).powf((2 * i) as f32 / (2 * frequencies) as f32))
        .collect();
    let inverse = &inverse;
    let angles = positions
        .iter()
        .flatten()
        .flat_map(move |&at| inverse.iter().map(move |&frequency| f64::from(at as f32 * frequency)));
    RotaryTables::of_halves(angles, positions.len(), device)
}
