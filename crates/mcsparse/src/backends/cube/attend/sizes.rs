//! What every attention kernel is told at launch.

use cubecl::prelude::*;

/// The numbers that change from launch to launch without a new compilation.
#[derive(CubeLaunch, CubeType)]
pub(in super::super) struct Sizes {
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
}
