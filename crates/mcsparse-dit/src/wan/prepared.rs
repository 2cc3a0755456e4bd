//! What a forward needs that does not change from step to step.

use super::{RotaryTables, attention::TextKeysValues};

/// Keys and values of a text for every block, and the rotary tables of a grid.
///
/// Made by [`WanTransformer::prepare`](super::WanTransformer::prepare) once for a whole denoising run. In memory it is
/// `2 * num_layers * text tokens * inner_dim` values and `tokens * head_dim` more.
#[derive(Debug, Clone)]
pub struct WanPrepared {
    pub(super) text: Vec<TextKeysValues>,
    pub(super) rotary: RotaryTables,
    pub(super) grid: [usize; 3],
}

impl WanPrepared {
    /// Tokens along frames, height and width.
    pub fn grid(&self) -> [usize; 3] {
        self.grid
    }
}
