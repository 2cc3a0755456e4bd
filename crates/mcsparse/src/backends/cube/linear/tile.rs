//! How a cube works, and where in shared memory everything is.

use cubecl::prelude::*;

use super::{
    super::hopper::{
        WARPGROUP,
        barrier::{publish, set_up},
    },
    kernel::Sizes,
};

/// Warpgroups that multiply, 64 rows each.
pub(super) const CONSUMERS: usize = 2;
/// Units of a cube: one more plane asks for rows and weights.
pub(super) const UNITS: usize = CONSUMERS * WARPGROUP + 32;
/// Cubes of a cluster: tiles one below the other, which share their weights.
pub(super) const CLUSTER: usize = 2;
/// Rows of a tile of the output.
pub(super) const ROWS: usize = 64 * CONSUMERS;
/// Columns of a tile of the output: the most that one product has, so that rows are read seldom.
pub(super) const COLUMNS: usize = 256;
/// Inputs of a step: a row of 128 bytes, which is as far as a swizzle goes.
pub(super) const DEPTH: usize = 64;
/// Columns that are brought at once, for the same reason.
pub(super) const BLOCK: usize = 64;
/// Buffers for a step.
pub(super) const STAGES: usize = 4;
/// Tiles of a cluster one below the other whose columns of tiles are walked together: with 11 of those they make as many as an
/// H200 has clusters, which then share what they read in the cache.
const BAND: u32 = 6;

/// A part of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Tile {
    /// `bf16` or `f16`, as PTX spells them.
    pub element: &'static str,
    /// Whether there is a bias.
    pub bias: bool,
}

/// Bytes of a step's rows.
pub(super) const ROWS_BYTES: usize = ROWS * DEPTH * 2;
/// Bytes of a block of its weights.
pub(super) const BLOCK_BYTES: usize = DEPTH * BLOCK * 2;
/// Bytes of a step.
pub(super) const STEP_BYTES: usize = ROWS_BYTES + COLUMNS / BLOCK * BLOCK_BYTES;

impl Tile {
    /// Rows, weights, barriers.
    pub const SHARED_BYTES: usize = STAGES * STEP_BYTES + 8 * 2 * STAGES;
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
        let barriers = start + comptime!((STAGES * STEP_BYTES) as u32);
        Buffers { steps: start, full: barriers, empty: barriers + comptime!(8 * STAGES as u32) }
    }

    /// Sets up all barriers; by one unit.
    pub fn set_up(&self) {
        #[unroll]
        for s in 0..comptime!(STAGES as u32) {
            // The unit that asks; one of each plane that multiplies in any cube of the cluster, as all get the same weights.
            set_up(self.full + comptime!(8 * s), 1u32);
            set_up(self.empty + comptime!(8 * s), comptime!((CLUSTER * 4 * CONSUMERS) as u32));
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
    /// That of cube `rank` of the `index`-th tiles of a cluster. Its rows may all be past the last one.
    pub fn at(index: u32, rank: u32, sizes: &Sizes) -> Work {
        let (down, across) = (clusters_down(sizes), sizes.outputs / comptime!(COLUMNS as u32));
        let (band, within) = (index / (across * BAND), index % (across * BAND));
        let height = min(BAND, down - band * BAND);
        Work {
            first_row: ((band * BAND + within % height) * comptime!(CLUSTER as u32) + rank) * comptime!(ROWS as u32),
            first_column: within / height * comptime!(COLUMNS as u32),
        }
    }
}

#[cube]
fn clusters_down(sizes: &Sizes) -> u32 {
    sizes.rows.div_ceil(comptime!((CLUSTER * ROWS) as u32))
}

/// All tiles of clusters of a launch.
#[cube]
pub(super) fn total(sizes: &Sizes) -> u32 {
    clusters_down(sizes) * (sizes.outputs / comptime!(COLUMNS as u32))
}
