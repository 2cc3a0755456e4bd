//! How a cube of the warpgroup kernel works, and where in shared memory everything is.

use cubecl::prelude::*;

use super::super::{
    super::hopper::{
        WARPGROUP,
        barrier::{publish, set_up},
        copy::{ROWS, tile_bytes},
    },
    sizes::Sizes,
};

/// Warpgroups that compute, a group of queries each; they share the keys.
pub(super) const CONSUMERS: usize = 3;
/// Units of a cube: four planes bring queries and keys.
pub(super) const UNITS: usize = (CONSUMERS + 1) * WARPGROUP;
/// Queries of a group at a time.
pub(super) const QUERIES: usize = ROWS;
/// Keys of a step.
pub(super) const KEYS: usize = ROWS;

/// Buffers for a step's keys.
pub(super) const STAGES: usize = 4;

/// A part of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in super::super::super) struct Tile {
    pub head_dim: usize,
    /// `bf16` or `f16`, as PTX spells them.
    pub element: &'static str,
    /// Whether every row starts at 16 bytes.
    pub whole: bool,
}

impl Tile {
    /// Queries of each warpgroup, keys, barriers, norms of the queries.
    pub const fn shared_bytes(&self) -> usize {
        (CONSUMERS + STAGES) * tile_bytes(self.head_dim) + 8 * (2 * STAGES + 2) + 4 * CONSUMERS * QUERIES
    }
}

/// Addresses in shared memory.
#[derive(CubeType)]
pub(super) struct Buffers {
    pub queries: u32,
    pub keys: u32,
    /// Barriers, one a buffer: it is full, it is empty.
    pub full_keys: u32,
    pub empty_keys: u32,
    pub full_queries: u32,
    pub empty_queries: u32,
    /// Minus the binary logarithms of the queries' sums of exponentials.
    pub norms: u32,
}

#[cube]
impl Buffers {
    pub fn new(start: u32, #[comptime] tile: Tile) -> Buffers {
        let bytes = comptime!(tile_bytes(tile.head_dim) as u32);
        let stages = comptime!(STAGES as u32);
        let barriers = start + comptime!((CONSUMERS as u32 + stages) * bytes);
        Buffers {
            queries: start,
            keys: start + comptime!(CONSUMERS as u32 * bytes),
            full_keys: barriers,
            empty_keys: barriers + comptime!(8 * stages),
            full_queries: barriers + comptime!(16 * stages),
            empty_queries: barriers + comptime!(16 * stages + 8),
            norms: barriers + comptime!(16 * stages + 16),
        }
    }

    /// Sets up all barriers; by one unit.
    pub fn set_up(&self) {
        // Every unit that copies arrives at a full buffer, one of each plane that computes at an empty one.
        let (copying, computing) = comptime!((WARPGROUP as u32, 4 * CONSUMERS as u32));
        #[unroll]
        for s in 0..comptime!(STAGES as u32) {
            set_up(self.full_keys + comptime!(8 * s), copying);
            set_up(self.empty_keys + comptime!(8 * s), computing);
        }
        // A copy for each warpgroup, and the norms.
        set_up(self.full_queries, comptime!(CONSUMERS as u32 + 1) * copying);
        set_up(self.empty_queries, computing);
        publish();
    }
}

/// What a cube does at a time: neighbouring groups of a head, one a warpgroup, and some of the keys.
#[derive(CubeType)]
pub(super) struct Work {
    pub batch: u32,
    pub head: u32,
    pub kv_head: u32,
    /// The first group.
    pub group: u32,
    /// Groups from this one on are not part of the launch.
    pub end: u32,
    /// The row of the first group among those of the launch.
    pub row: u32,
    /// Where the head starts in the order, and in the log-sum-exps.
    pub of_head: usize,
    /// Steps of keys from here on,
    pub first_step: u32,
    /// to here.
    pub last_step: u32,
}

/// Pieces of work of a launch over rows from `first_row` on: groups of two heads do not share one.
pub(super) fn pieces(first_row: usize, rows: usize, groups: usize) -> usize {
    let of_first = rows.min(groups - first_row % groups);
    let rest = rows - of_first;
    of_first.div_ceil(CONSUMERS) + rest / groups * groups.div_ceil(CONSUMERS) + (rest % groups).div_ceil(CONSUMERS)
}

#[cube]
impl Work {
    /// The `index`-th of all; pieces of the same groups are neighbours.
    pub fn at(index: u32, sizes: &Sizes) -> Work {
        let consumers = comptime!(CONSUMERS as u32);
        let (piece, split) = (index / sizes.splits, index % sizes.splits);
        let (first_head, skipped) = (sizes.first_row / sizes.groups, sizes.first_row % sizes.groups);
        // Pieces of the first head, which may begin in its middle.
        let of_first = min(sizes.rows, sizes.groups - skipped);
        let pieces = of_first.div_ceil(consumers);
        let a_head = sizes.groups.div_ceil(consumers);
        let later = piece >= pieces;
        let on = select(later, piece - min(piece, pieces), 0u32);
        let joined = first_head + select(later, 1 + on / a_head, 0u32);
        let place = consumers * select(later, on % a_head, piece);
        let group = place + select(later, 0u32, skipped);
        let row = joined * sizes.groups + group - sizes.first_row;
        let steps = sizes.keys.div_ceil(comptime!(KEYS as u32));
        let head = joined % sizes.heads;
        Work {
            batch: joined / sizes.heads,
            head,
            kv_head: head / sizes.heads_per_kv,
            group,
            end: min(sizes.groups, group + (sizes.rows - row)),
            row,
            of_head: joined as usize * sizes.queries as usize,
            first_step: split * steps / sizes.splits,
            last_step: (split + 1) * steps / sizes.splits,
        }
    }
}
