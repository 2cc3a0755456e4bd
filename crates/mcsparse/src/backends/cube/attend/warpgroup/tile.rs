//! How a cube of the warpgroup kernel works, and where in shared memory everything is.

use cubecl::prelude::*;

use super::{
    super::{
        super::hopper::{
            WARPGROUP,
            barrier::{publish, set_up},
            copy::{ROWS, tile_bytes},
        },
        shape::Sizes,
    },
    ride::RIDE_BYTES,
    step::Addend,
};
use crate::ops::Finish;

/// Warpgroups that compute, 64 queries each.
pub(super) const CONSUMERS: usize = 2;
/// Units of a cube: four more planes bring keys and values, 32 rows of a tile each.
pub(super) const UNITS: usize = (CONSUMERS + 1) * WARPGROUP;
/// Queries of a tile.
pub(in super::super) const QUERIES: usize = 64 * CONSUMERS;
/// Keys of a step.
pub(super) const KEYS: usize = ROWS;

/// A part of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in super::super::super) struct Tile {
    pub head_dim: usize,
    /// Buffers for a step's keys and as many for its values.
    pub stages: usize,
    /// `bf16` or `f16`, as PTX spells them.
    pub element: &'static str,
    /// Whether the scale is negative: then the smallest product is the heaviest.
    pub negative: bool,
    /// Whether keys and queries are picked by lists.
    pub gathered: bool,
    /// Whether every row starts at 16 bytes.
    pub whole: bool,
    /// What is done with the output.
    pub finish: Finish,
    /// How the other tensor is read for that.
    pub addend: Addend,
    /// Whether queries come in groups, one a tile, whose column sums over all keys are written beside the output.
    pub rides: bool,
}

impl Tile {
    /// Keys of a step whose products start before the exponentials of the others: as many as leave the last weights room
    /// beside the next scores. Reading by elements and column sums take registers of their own.
    pub const fn first_keys(&self) -> usize {
        if self.whole && !self.rides { 80 } else { 96 }
    }

    /// Whether queries are picked by the order.
    pub const fn ordered(&self) -> bool {
        self.gathered || self.rides
    }

    /// Places for column sums on their way out, see [`super::ride`].
    pub const fn rides_at_once(&self) -> usize {
        if self.rides { self.stages + 1 } else { 0 }
    }

    /// Queries, keys, values, column sums, barriers, tokens and norms of the queries of this tile and the next.
    pub const fn shared_bytes(&self) -> usize {
        let tiles = (1 + 2 * self.stages) * tile_bytes(self.head_dim) + self.rides_at_once() * RIDE_BYTES;
        let of_queries = if self.rides { 2 } else { 1 };
        tiles + 8 * (4 * self.stages + 2) + of_queries * 2 * 4 * QUERIES
    }
}

/// Addresses in shared memory.
#[derive(CubeType)]
pub(super) struct Buffers {
    pub query: u32,
    pub keys: u32,
    pub values: u32,
    /// Barriers, one a buffer: it is full, it is empty.
    pub full_keys: u32,
    pub full_values: u32,
    pub empty_keys: u32,
    pub empty_values: u32,
    pub full_query: u32,
    pub empty_query: u32,
    /// Tokens of the queries, for even tiles and for odd ones.
    pub tokens: u32,
    /// The same of their norms, see [`super::ride`].
    pub norms: u32,
    /// Column sums of a step, [`RIDE_BYTES`] each.
    pub rides: u32,
}

#[cube]
impl Buffers {
    pub fn new(start: u32, #[comptime] tile: Tile) -> Buffers {
        let bytes = comptime!(tile_bytes(tile.head_dim) as u32);
        let stages = comptime!(tile.stages as u32);
        let rides = start + comptime!((1 + 2 * stages) * bytes);
        let barriers = rides + comptime!((tile.rides_at_once() * RIDE_BYTES) as u32);
        Buffers {
            query: start,
            keys: start + bytes,
            values: start + comptime!((1 + stages) * bytes),
            full_keys: barriers,
            full_values: barriers + comptime!(8 * stages),
            empty_keys: barriers + comptime!(16 * stages),
            empty_values: barriers + comptime!(24 * stages),
            full_query: barriers + comptime!(32 * stages),
            empty_query: barriers + comptime!(32 * stages + 8),
            tokens: barriers + comptime!(32 * stages + 16),
            norms: barriers + comptime!(32 * stages + 16 + 2 * 4 * QUERIES as u32),
            rides,
        }
    }

    /// Sets up all barriers; by one unit.
    pub fn set_up(&self, #[comptime] tile: Tile) {
        // Every unit that copies arrives at a full buffer, one of each plane that computes at an empty one.
        let (copying, computing) = comptime!((WARPGROUP as u32, 4 * CONSUMERS as u32));
        #[unroll]
        for s in 0..comptime!(tile.stages as u32) {
            set_up(self.full_keys + comptime!(8 * s), copying);
            set_up(self.full_values + comptime!(8 * s), copying);
            set_up(self.empty_keys + comptime!(8 * s), computing);
            set_up(self.empty_values + comptime!(8 * s), computing);
        }
        // Once more for the tokens.
        set_up(self.full_query, 2 * copying);
        set_up(self.empty_query, computing);
        publish();
    }
}

/// A tile of queries: those from `first` to `end` of the order of a head.
#[derive(CubeType)]
pub(super) struct Work {
    pub batch: u32,
    pub head: u32,
    pub kv_head: u32,
    pub first: u32,
    /// End of the group.
    pub end: u32,
    /// Where the head starts in the order, and in the log-sum-exps.
    pub of_head: usize,
    /// Where the group's list of keys starts.
    pub list: usize,
}

#[cube]
impl Work {
    /// The `index`-th of all. Neighbours are of one head, so that cubes that run together share its keys in the cache.
    pub fn at(index: u32, sizes: &Sizes) -> Work {
        let tiles = sizes.groups * sizes.tiles_per_group;
        let (joined, tile_in_head) = (index / tiles, index % tiles);
        let group = tile_in_head / sizes.tiles_per_group;
        let head = joined % sizes.heads;
        Work {
            batch: joined / sizes.heads,
            head,
            kv_head: head / sizes.heads_per_kv,
            first: group * sizes.group_size + tile_in_head % sizes.tiles_per_group * comptime!(QUERIES as u32),
            end: min((group + 1) * sizes.group_size, sizes.queries),
            of_head: joined as usize * sizes.queries as usize,
            list: (joined as usize * sizes.groups as usize + group as usize) * sizes.keys as usize,
        }
    }

    /// Whether there are queries in it: the last tile of a short last group may have none.
    pub fn exists(&self) -> bool {
        self.first < self.end
    }

    /// The token of the query at `place` of the head's order; past the group's end, of its last query.
    pub fn token(&self, place: u32, order: &[i32], sizes: &Sizes, #[comptime] ordered: bool) -> u32 {
        let place = min(place, self.end - 1);
        if comptime!(ordered) {
            // Lists are clamped wherever they are read: a wrong one gives wrong values, never foreign memory.
            min(order[self.of_head + place as usize] as u32, sizes.queries - 1)
        } else {
            place
        }
    }

    /// The token of the key at `place` of the group's list; past its end, of its last key.
    pub fn key(&self, place: u32, indices: &[i32], sizes: &Sizes, #[comptime] gathered: bool) -> u32 {
        let place = min(place, sizes.keys - 1);
        if comptime!(gathered) { min(indices[self.list + place as usize] as u32, sizes.all_keys - 1) } else { place }
    }
}

/// All tiles of a launch.
#[cube]
pub(super) fn total(sizes: &Sizes) -> u32 {
    sizes.groups * sizes.tiles_per_group * sizes.heads * sizes.batch
}
