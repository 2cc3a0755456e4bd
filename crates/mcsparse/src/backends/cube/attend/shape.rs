//! How the attention kernel without matrix units cuts a problem.

use cubecl::prelude::*;

use super::super::{
    tier::Tier,
    tile::{SIDE, TILE_KEYS, VECTOR, rows_for},
};
use crate::ops::Finish;

/// The least bytes of shared memory that every problem can do with.
pub(in super::super) const SHARED_BYTES: usize = Tile { rows: 4, slice: 4, planes: false }.shared_bytes();

/// Which keys a group attends to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in super::super) enum Keys {
    /// All, and there is one group of all queries as they come.
    All,
    /// Those of the group's list.
    Listed,
    /// All, each as many times as the group's list says, in one softmax with what the output and the log-sum-exp hold already.
    /// The list holds the bits of the natural logarithm in f32, or of a number below zero for none.
    Counted,
}

impl Keys {
    /// Whether queries are those of the group.
    pub const fn grouped(self) -> bool {
        !matches!(self, Keys::All)
    }
}

/// How a cube cuts its work.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Tile {
    /// Queries of a unit.
    pub rows: usize,
    /// Vectors of a query or key that are in shared memory at a time.
    pub slice: usize,
    /// Whether the units of a row exchange registers.
    pub planes: bool,
}

/// Vectors from one row of weights to the next: odd, against bank conflicts.
pub(super) const WEIGHTS_PITCH: usize = SIDE + 1;

impl Tile {
    /// For groups of `group_size` on a device with `shared_bytes` of shared memory.
    pub fn new(group_size: usize, tier: Tier, shared_bytes: usize) -> Self {
        let small = Tile { rows: rows_for(group_size), slice: 4, planes: tier == Tier::Planes };
        // Twice the slice, half the barriers.
        let large = Tile { slice: 8, ..small };
        if large.shared_bytes() <= shared_bytes { large } else { small }
    }

    pub const fn queries(&self) -> usize {
        SIDE * self.rows
    }

    pub const fn pitch(&self) -> usize {
        self.slice + 1
    }

    /// Vectors of queries and keys, of values, or of what a row's units tell each other: one memory for all in turn.
    pub const fn stage(&self) -> usize {
        (self.queries() + TILE_KEYS) * self.pitch()
    }

    /// Values, of `vectors` each, that the stage holds.
    pub const fn values(&self, vectors: usize) -> usize {
        let mut values = TILE_KEYS;
        while values * vectors > self.stage() {
            values /= 2;
        }
        values
    }

    const fn shared_bytes(&self) -> usize {
        4 * VECTOR * (self.stage() + self.queries() * WEIGHTS_PITCH)
    }
}

/// The numbers that change from launch to launch without a new compilation.
#[derive(CubeLaunch, CubeType)]
pub(super) struct Sizes {
    pub queries: u32,
    /// Keys that a query attends to.
    pub keys: u32,
    /// Keys that there are.
    pub all_keys: u32,
    pub group_size: u32,
    pub groups: u32,
    pub tiles_per_group: u32,
    pub heads: u32,
    pub batch: u32,
    /// Query heads for each key/value head.
    pub heads_per_kv: u32,
    pub scale: f32,
    /// On a residual that is added.
    pub factor: f32,
}

/// Whether the output has tokens before heads in memory, as models go on with it. A residual, which is encoded and stored, has
/// heads before tokens, unless it is made over an output that was written before.
pub(super) const fn tokens_first(finish: Finish, keys: Keys) -> bool {
    !matches!(finish, Finish::ResidualOf) || matches!(keys, Keys::Counted)
}

/// The row of the output's memory for `token` of `head`.
#[cube]
pub(super) fn output_row(
    batch: usize,
    head: usize,
    token: usize,
    sizes: &Sizes,
    #[comptime] finish: Finish,
    #[comptime] keys: Keys,
) -> usize {
    let (queries, heads) = (sizes.queries as usize, sizes.heads as usize);
    if comptime!(tokens_first(finish, keys)) {
        (batch * queries + token) * heads + head
    } else {
        (batch * heads + head) * queries + token
    }
}

/// [`Sizes`] of a kernel that is compiled and not launched.
#[cfg(feature = "cuda-source")]
pub(super) fn sizes() -> SizesCompilationArg {
    SizesCompilationArg {
        queries: (),
        keys: (),
        all_keys: (),
        group_size: (),
        groups: (),
        tiles_per_group: (),
        heads: (),
        batch: (),
        heads_per_kv: (),
        scale: (),
        factor: (),
    }
}
