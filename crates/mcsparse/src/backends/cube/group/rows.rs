//! What every kernel of the stage starts with: which rows a cube takes and how one is read.

use cubecl::prelude::*;

use super::{UNITS, plan::Tiling};

/// The numbers that change from launch to launch without a new compilation.
#[derive(CubeLaunch, CubeType)]
pub(super) struct Sizes {
    pub heads: u32,
    pub queries: u32,
    /// The first of the launch's heads, counted over the batch.
    pub first_head: u32,
    /// Heads of the launch.
    pub joined: u32,
    /// The first of the launch's nodes in the table.
    pub first_node: u32,
    /// Nodes of the launch.
    pub nodes: u32,
    /// Cubes that share the rows of a node, where the kernel cuts nodes.
    pub chunks: u32,
    /// Power iterations.
    pub iterations: u32,
}

/// The node of a cube.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Place {
    /// False for the cubes that round up the launch.
    pub exists: bool,
    /// Number of the cube among those of its node.
    pub part: u32,
    /// Number of the node among all nodes of the launch, head by head.
    pub node: usize,
    /// Head of the launch.
    pub joined: usize,
    /// Where the head begins in the order.
    pub order: usize,
    /// Where the head begins in the queries.
    pub base: usize,
    /// First place of the node in its head.
    pub first: u32,
    pub len: u32,
    pub lower: u32,
}

/// The node of this cube, of `parts` cubes each. Cubes of one node are neighbours.
#[cube]
pub(super) fn place<E: Float, N: Size>(
    query: &Tensor<Vector<E, N>>,
    table: &[u32],
    sizes: &Sizes,
    parts: u32,
) -> Place {
    let cube = CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X;
    place_of(query, table, sizes, cube / parts, cube % parts)
}

/// The `node`-th node of the launch, for the `part`-th of those that share it.
#[cube]
pub(super) fn place_of<E: Float, N: Size>(
    query: &Tensor<Vector<E, N>>,
    table: &[u32],
    sizes: &Sizes,
    node: u32,
    part: u32,
) -> Place {
    let exists = node < sizes.joined * sizes.nodes;
    let joined = node / sizes.nodes;
    let z = sizes.first_head + joined;
    let entry = 3 * (sizes.first_node + node % sizes.nodes) as usize;
    let (batch, head) = ((z / sizes.heads) as usize, (z % sizes.heads) as usize);
    Place {
        exists,
        part,
        node: node as usize,
        joined: joined as usize,
        order: z as usize * sizes.queries as usize,
        base: batch * query.stride(0) + head * query.stride(1),
        first: table[entry],
        len: table[entry + 1],
        lower: table[entry + 2],
    }
}

/// The elements from `column` on of the row of token `token`.
#[cube]
pub(super) fn read<E: Float, N: Size>(
    query: &Tensor<Vector<E, N>>,
    base: usize,
    token: i32,
    column: usize,
) -> Vector<f32, N> {
    let at = base + token as usize * query.stride(2) + column * query.stride(3);
    Vector::cast_from(query[at / query.vector_size()])
}

/// Sums the rows `order[from..from + count]` and divides by `count`; zero past the last column. `scratch` has room for
/// [`mean_scratch`] values.
#[cube]
pub(super) fn mean<E: Float, N: Size>(
    query: &Tensor<Vector<E, N>>,
    base: usize,
    order: &[i32],
    from: usize,
    count: u32,
    scratch: &mut Shared<[f32]>,
    mean: &mut Shared<[f32]>,
    #[comptime] tiling: Tiling,
) {
    let lanes = comptime!(tiling.vectors());
    let strips = comptime!(UNITS as usize / tiling.vectors());
    let (dim, vector) = (comptime!(tiling.dim), comptime!(tiling.vector));
    let unit = UNIT_POS as usize;
    let (strip, lane) = (unit / lanes, unit % lanes);
    if strip < strips {
        let mut sum = Vector::<f32, N>::new(0.0f32);
        let mut r = strip;
        while r < count as usize {
            sum += read(query, base, order[from + r], lane * vector);
            r += strips;
        }
        #[unroll]
        for e in 0..vector {
            scratch[strip * dim + lane * vector + e] = sum.extract(e);
        }
    }
    sync_cube();
    if unit < comptime!(tiling.padded()) {
        let mut total = 0.0f32;
        if unit < dim {
            for s in 0..strips {
                total += scratch[s * dim + unit];
            }
        }
        mean[unit] = total / f32::cast_from(max(count, 1u32));
    }
    sync_cube();
}

/// Values of shared memory that [`mean`] works in.
pub(super) const fn mean_scratch(tiling: &Tiling) -> usize {
    UNITS as usize / tiling.vectors() * tiling.dim
}
