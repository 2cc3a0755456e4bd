//! Buffers that take turns.

use cubecl::prelude::*;

/// The next buffer, and the parity of its barriers' phase.
#[derive(CubeType)]
pub(in super::super) struct Turn {
    pub stage: u32,
    pub parity: u32,
}

#[cube]
impl Turn {
    pub fn new(parity: u32) -> Turn {
        Turn { stage: 0u32.runtime(), parity }
    }

    /// On to the next of `stages` buffers.
    pub fn advance(&mut self, #[comptime] stages: usize) {
        self.stage += 1;
        if self.stage == comptime!(stages as u32) {
            self.stage = 0;
            self.parity = 1 - self.parity;
        }
    }
}
