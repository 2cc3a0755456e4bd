//! Where everything lies.

use cubecl::prelude::*;

use super::super::super::hopper::layout::Layout;

/// Layouts of the tensors of a launch.
#[derive(CubeLaunch, CubeType)]
pub(in super::super::super) struct Layouts {
    pub query: Layout,
    pub key: Layout,
    pub value: Layout,
    pub other: Layout,
}
