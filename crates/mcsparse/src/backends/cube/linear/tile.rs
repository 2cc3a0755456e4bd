//! How a cube works, and where in shared memory everything is.

use cubecl::prelude::*;

use super::{
    super::hopper::{
        WARPGROUP,
        barrier::{publish, set_up},
        copy,
    },
    kernel::Sizes,
};

/// Warpgroups that multiply, 64 rows each.
pub(super) const CONSUMERS: usize = 2;
/// Units of a cube: four more planes bring rows and weights.
pub(super) const UNITS: usize = (CONSUMERS + 1) * WARPGROUP;
/// Rows of a tile of the output.
pub(super) const ROWS: usize = 64 * CONSUMERS;
/// Columns of a tile of the output: the most that one product has, so that rows are read seldom.
pub(super) const COLUMNS: usize = 256;
/// Inputs of a step.
pub(super) const DEPTH: usize = copy::ROWS;
/// Buffers for a step.
pub(super) const STAGES: usize = 2;
/// Rows of tiles whose columns of tiles are walked together: with 11 of those they make as many tiles as an H200 has
/// multiprocessors, which then share what they read in the cache.
const BAND: u32 = 12;

/// A part of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Tile {
    /// `bf16` or `f16`, as PTX spells them.
    pub element: &'static str,
    /// Whether there is a bias.
    pub bias: bool,
}

/// Bytes of a step's rows, and of half of its weights.
pub(super) const BYTES: usize = copy::tile_bytes(DEPTH);

impl Tile {
    /// Rows, weights, barriers.
    pub const SHARED_BYTES: usize = STAGES * 3 * BYTES + 8 * 2 * STAGES;
}

/// Addresses in shared memory.
#[derive(CubeType)]
pub(super) struct Buffers {
    /// Rows, then weights, for each step.
    pub steps: u32,
    /// Barriers, one a buffer: it is full, it is empty.
    pub full: u32,
    pub empty: u32,
}

#[cube]
impl Buffers {
    pub fn new(start: u32) -> Buffers {
        let barriers = start + comptime!((STAGES * 3 * BYTES) as u32);
        Buffers { steps: start, full: barriers, empty: barriers + comptime!(8 * STAGES as u32) }
    }

    /// Sets up all barriers; by one unit.
    pub fn set_up(&self) {
        #[unroll]
        for s in 0..comptime!(STAGES as u32) {
            // Every unit that copies arrives once for the rows and twice for the weights; one of each plane that multiplies.
            set_up(self.full + comptime!(8 * s), comptime!(3 * WARPGROUP as u32));
            set_up(self.empty + comptime!(8 * s), comptime!(4 * CONSUMERS as u32));
        }
        publish();
    }
}

/// A tile of the output.
#[derive(CubeType)]
pub(super) struct Work {
    pub first_row: u32,
    pub first_column: u32,
}

#[cube]
impl Work {
    /// The `index`-th of all.
    pub fn at(index: u32, sizes: &Sizes) -> Work {
        let (down, across) = (sizes.rows.div_ceil(comptime!(ROWS as u32)), sizes.outputs / comptime!(COLUMNS as u32));
        let (band, within) = (index / (across * BAND), index % (across * BAND));
        let height = min(BAND, down - band * BAND);
        Work {
            first_row: (band * BAND + within % height) * comptime!(ROWS as u32),
            first_column: within / height * comptime!(COLUMNS as u32),
        }
    }
}

/// All tiles of a launch.
#[cube]
pub(super) fn total(sizes: &Sizes) -> u32 {
    sizes.rows.div_ceil(comptime!(ROWS as u32)) * (sizes.outputs / comptime!(COLUMNS as u32))
}
