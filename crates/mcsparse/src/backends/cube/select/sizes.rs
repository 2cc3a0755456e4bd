//! What every kernel of column sums is told at launch.

use cubecl::prelude::*;

/// The numbers that change from launch to launch without a new compilation.
#[derive(CubeLaunch, CubeType)]
pub(super) struct Sizes {
    pub queries: u32,
    pub keys: u32,
    pub group_size: u32,
    pub groups: u32,
    pub heads: u32,
    /// Query heads for each key/value head.
    pub heads_per_kv: u32,
    /// The row of the first one of `mass` among all `[batch, heads, groups]`.
    pub first_row: u32,
    /// Rows of this launch.
    pub rows: u32,
    /// Cubes, or pieces of their work, that share the keys of a row, where the kernel asks.
    pub splits: u32,
    /// Keys before this one are sinks.
    pub sink_end: u32,
    /// Keys from this one on are sinks.
    pub sink_start: u32,
    /// What sinks get: infinity, which shader languages have no constant for.
    pub always: f32,
    pub scale: f32,
}
