//! Grouping of queries by principal direction divisive partitioning, all heads and all nodes of a level in each launch.
//!
//! The nodes depend on the number of queries and the group size alone, so everything is planned on the host and nothing is
//! read back. A level is two launches where one cube takes a whole node (Gram matrix and direction, then projections and
//! split), and four where nodes are long enough to spread over many cubes.

mod alone;
mod direction;
mod gram;
mod gram_mma;
mod launch;
mod plan;
mod power;
mod project;
mod rows;
mod split;

use burn::{backend::TensorMetadata, tensor::DType};
use burn_cubecl::tensor::CubeTensor;
use cubecl::{ir::HardwareProperties, prelude::*};

use self::{
    launch::{Launch, Part},
    plan::{Plan, Tiling},
};
use super::{
    empty, radix, reads_by,
    tier::{self, Choice, Tier},
};
use crate::{check::Problem, reference::GroupOptions};

/// Units of a cube: the WebGPU limit.
pub(super) const UNITS: u32 = 256;
/// Cubes that keep each multiprocessor busy; nodes are cut into chunks until there are as many.
const CUBES_PER_MULTIPROCESSOR: usize = 2;
/// Cubes to aim at where the number of multiprocessors is unknown.
const CUBES: usize = 64;
/// Projections that one cube keeps in shared memory, if that is as scarce as on software Vulkan and in browsers.
const ROOM: usize = 2048;
/// The same on devices with more than 96 KiB of it.
const LARGE_ROOM: usize = 4096;
/// Units that split a node whose projections are in global memory, where the device has as many.
const SPLIT_UNITS: u32 = 1024;
/// The longest vectors that rows are read by, in bytes.
const VECTOR_BYTES: usize = 16;

/// Bytes of shared memory of the kernel that needs most, for any strides of the query.
pub(super) fn shared_bytes(dim: usize) -> usize {
    let vectors = [1, 2, 4, 8].into_iter().filter(|vector| dim.is_multiple_of(*vector));
    let needs = vectors.map(|vector| {
        let tiling = Tiling::of(dim, vector);
        let gram = gram::scratch(&tiling) + 2 * tiling.padded() + 2 * plan::GRID;
        let split = project::project_scratch(&tiling) + ROOM;
        let alone = radix::scratch_bytes(SPLIT_UNITS, true);
        (4 * gram).max(4 * split + radix::scratch_bytes(UNITS, false)).max(alone)
    });
    needs.max().unwrap_or(0)
}

/// Whether Gram matrices go through matrix units (`mma.sync` of the dtype on planes of 32, with `ldmatrix`), or why not.
pub(super) fn matrix_units(client: &Client, dim: usize, dtype: DType) -> Result<(), String> {
    gram_mma::takes(dim)?;
    super::matrix_units::supports(client.properties(), dtype, dim)?;
    let Choice { tier, mut declined } = tier::choose(client.properties(), dtype, dim)?;
    if tier <= Tier::Matrix { Ok(()) } else { Err(declined.pop().unwrap_or_default()) }
}

/// The order `[batch, heads, queries]`, group after group.
pub(super) fn group_queries(query: CubeTensor, options: &GroupOptions) -> CubeTensor {
    let [batch, heads, queries, dim] = query.shape().dims();
    let hardware = query.client.properties().hardware.clone();
    let tiling = Tiling::of(dim, vector(&query));
    let joined = batch * heads;
    let plan = Plan::new(joined, queries, tiling, options, busy_cubes(&hardware));

    let launch = Launch::new(&query, options, &plan, tiling);
    let mut order = empty(&query, &[batch, heads, queries], DType::I32);
    launch.identity(&order);
    if plan.levels.is_empty() {
        return order;
    }
    let mut next = empty(&query, &[batch, heads, queries], DType::I32);
    let projections = empty(&query, &[plan.heads, queries], DType::F32);
    for first_head in (0..joined).step_by(plan.heads) {
        let taken = plan.heads.min(joined - first_head);
        // All heads start from the same buffer and end in the same one.
        let (mut from, mut to) = (order.clone(), next.clone());
        for level in &plan.levels {
            let nodes = plan.nodes_per_launch(level);
            for first_node in (0..level.nodes).step_by(nodes) {
                let part = Part {
                    first_head,
                    heads: taken,
                    first_node: level.first + first_node,
                    nodes: nodes.min(level.nodes - first_node),
                    chunks: level.chunks,
                };
                launch.level(&part, level, plan.partial(level), &from, &to, &projections);
            }
            (from, to) = (to, from);
        }
    }
    if !plan.levels.len().is_multiple_of(2) {
        std::mem::swap(&mut order, &mut next);
    }
    order
}

/// Bytes that the grouping of `problem` allocates at once besides its result. `options.workspace_bytes` bounds them as far
/// as the second order and one node of one head fit.
pub(super) fn workspace_bytes(client: &Client, problem: &Problem, options: &GroupOptions) -> usize {
    let (joined, tiling) = (problem.batch * problem.heads, Tiling::of(problem.head_dim, 1));
    let cubes = busy_cubes(&client.properties().hardware);
    Plan::new(joined, problem.queries, tiling, options, cubes).workspace_bytes(joined)
}

/// Cubes that keep the device busy; none where units work alone.
fn busy_cubes(hardware: &HardwareProperties) -> Option<usize> {
    let multiprocessors = hardware.num_streaming_multiprocessors;
    (!super::alone::applies(hardware))
        .then(|| multiprocessors.map_or(CUBES, |count| CUBES_PER_MULTIPROCESSOR * count as usize))
}

/// Elements that rows can be read by as they lie.
fn vector(query: &CubeTensor) -> usize {
    let size = query.dtype.size();
    query
        .client
        .io_optimized_vector_sizes(size)
        .filter(|&vector| vector * size <= VECTOR_BYTES && reads_by(query, vector))
        .max()
        .unwrap_or(1)
}
