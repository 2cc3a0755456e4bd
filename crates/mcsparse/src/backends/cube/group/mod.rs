//! Grouping of queries by principal direction divisive partitioning, all heads and all nodes of a level in each launch.
//!
//! The nodes depend on the number of queries and the group size alone, so everything is planned on the host and nothing is
//! read back. A level is two launches where one cube takes a whole node (Gram matrix and direction, then projections and
//! split), and four where nodes are long enough to spread over many cubes.

mod direction;
mod gram;
mod gram_mma;
mod plan;
mod power;
mod project;
mod rows;
mod split;

use burn::{
    backend::{
        TensorMetadata,
        cubecl::{dtype_to_elem_type, dtype_to_storage_type},
    },
    tensor::{DType, Shape},
};
use burn_cubecl::tensor::CubeTensor;
use cubecl::{
    ir::{ElemType, FloatKind, HardwareProperties, features::MmaConfig},
    prelude::*,
};

use self::{
    plan::{Level, Plan, Tiling},
    rows::SizesLaunch,
};
use super::{CUBES_X, empty, radix};
use crate::{
    check::Problem,
    reference::{GroupOptions, start_vector},
};

/// Units of a cube: the WebGPU limit.
pub(super) const UNITS: u32 = 256;
/// Cubes that keep each multiprocessor busy; nodes are cut into chunks until there are as many.
const CUBES_PER_MULTIPROCESSOR: usize = 2;
/// Cubes to aim at where the number of multiprocessors is unknown.
const CUBES: usize = 64;
/// Projections that one cube keeps in shared memory, if that is as scarce as on software Vulkan and in browsers.
const ROOM: usize = 2048;
/// The same where a multiprocessor has more than three times as much.
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
        let alone = radix::scratch_bytes(SPLIT_UNITS as usize);
        (4 * gram).max(4 * split + radix::scratch_bytes(UNITS as usize)).max(alone)
    });
    needs.max().unwrap_or(0)
}

/// Whether Gram matrices go through matrix units: `mma.sync` of the dtype on planes of 32, with `ldmatrix`.
pub(super) fn matrix_units(client: &Client, dim: usize, dtype: DType) -> bool {
    if !matches!(dtype, DType::F16 | DType::BF16) || !gram_mma::takes(dim) {
        return false;
    }
    let (properties, elem) = (client.properties(), dtype_to_elem_type(dtype));
    let (hardware, matmul) = (&properties.hardware, &properties.features.matmul);
    let f32 = ElemType::Float(FloatKind::F32);
    let tile = MmaConfig { a_type: elem, b_type: elem, cd_type: f32, m: 16, n: 8, k: 16 };
    (hardware.plane_size_min, hardware.plane_size_max) == (gram_mma::PLANE as u32, gram_mma::PLANE as u32)
        && matmul.mma.contains(&tile)
        && matmul.ldmatrix.contains(&elem)
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

/// Cubes that keep the device busy.
fn busy_cubes(hardware: &HardwareProperties) -> usize {
    hardware.num_streaming_multiprocessors.map_or(CUBES, |count| CUBES_PER_MULTIPROCESSOR * count as usize)
}

/// Elements that rows can be read by as they lie.
fn vector(query: &CubeTensor) -> usize {
    let (dim, strides) = (query.shape()[3], query.meta.strides());
    if strides[3] != 1 {
        return 1;
    }
    let size = query.dtype.size();
    query
        .client
        .io_optimized_vector_sizes(size)
        .filter(|&v| v * size <= VECTOR_BYTES && dim % v == 0 && strides[..3].iter().all(|stride| stride % v == 0))
        .max()
        .unwrap_or(1)
}

/// Heads and nodes of one launch.
struct Part {
    first_head: usize,
    heads: usize,
    first_node: usize,
    nodes: usize,
    chunks: usize,
}

/// What all launches of a grouping share.
struct Launch<'a> {
    query: &'a CubeTensor,
    table: CubeTensor,
    start: CubeTensor,
    iterations: usize,
    tiling: Tiling,
    /// Whether Gram matrices go through matrix units.
    matrix_units: bool,
    split_units: u32,
    /// Projections that one cube keeps in shared memory.
    room: usize,
}

impl<'a> Launch<'a> {
    fn new(query: &'a CubeTensor, options: &GroupOptions, plan: &Plan, tiling: Tiling) -> Self {
        let upload = |bytes: &[u8], dtype: DType| {
            let shape = Shape::new([bytes.len() / 4]);
            let handle = query.client.create_from_slice(bytes);
            CubeTensor::new_contiguous(query.client.clone(), query.device.clone(), shape, handle, dtype)
        };
        let hardware = &query.client.properties().hardware;
        // A grouping without levels has an empty table, which no device would bind.
        let table: Vec<u8> = plan.table.iter().chain([&0]).flat_map(|n| n.to_ne_bytes()).collect();
        let start: Vec<u8> = start_vector(tiling.dim, options.seed).iter().flat_map(|x| x.to_ne_bytes()).collect();
        Self {
            query,
            table: upload(&table, DType::U32),
            start: upload(&start, DType::F32),
            iterations: options.power_iterations,
            tiling,
            // They take rows as 16-byte lines, which exotic views do not have.
            matrix_units: tiling.vector == gram_mma::VECTOR && matrix_units(&query.client, tiling.dim, query.dtype),
            split_units: 1 << hardware.max_units_per_cube.min(SPLIT_UNITS).ilog2(),
            room: if hardware.max_shared_memory_size > 96 * 1024 { LARGE_ROOM } else { ROOM },
        }
    }

    /// `order[.., i] = i`.
    fn identity(&self, order: &CubeTensor) {
        let [batch, heads, queries] = order.shape().dims();
        let len = batch * heads * queries;
        // SAFETY: the kernel writes `len` values, as many as `order` has.
        unsafe {
            split::identity::launch_unchecked(
                &self.query.client,
                count(len.div_ceil(UNITS as usize)),
                CubeDim::new_1d(UNITS),
                order.required_address_type(),
                order.clone().into_buffer_arg(),
                queries as u32,
                len as u32,
            );
        }
    }

    /// Splits the nodes of `part`: `order` into `next`.
    fn level(
        &self,
        part: &Part,
        level: &Level,
        partial: bool,
        order: &CubeTensor,
        next: &CubeTensor,
        projections: &CubeTensor,
    ) {
        let nodes = part.heads * part.nodes;
        let padded = self.tiling.padded();
        let f32s = |shape: &[usize]| empty(self.query, shape, DType::F32);
        let (directions, centres) = (f32s(&[nodes, padded]), f32s(&[nodes, padded]));
        if partial {
            let grams = f32s(&[nodes * part.chunks, padded * padded]);
            let means = f32s(&[nodes * part.chunks, padded]);
            self.gram(part, order, &grams, &means, false);
            self.direction(part, &grams, &means, &directions, &centres);
        } else {
            self.gram(part, order, &directions, &centres, true);
        }
        // A node that one cube takes whole is projected where it is split, if its projections fit there.
        let room = if level.chunks == 1 && level.longest <= self.room { self.room } else { 0 };
        if room == 0 {
            let part = Part { chunks: level.pieces, ..*part };
            self.project(&part, order, &directions, &centres, projections);
        }
        self.split(part, order, &directions, &centres, projections, next, room);
    }

    fn gram(&self, part: &Part, order: &CubeTensor, result: &CubeTensor, centres: &CubeTensor, whole: bool) {
        let cubes = part.heads * part.nodes * part.chunks * self.tiling.blocks * self.tiling.blocks;
        let address = address(&[self.query, order, result]);
        let query = self.query.clone().into_tensor_arg();
        let [order, table, start, result, centres] =
            [order, &self.table, &self.start, result, centres].map(|tensor| tensor.clone().into_buffer_arg());
        let (client, sizes, dtype) = (&self.query.client, self.sizes(part), dtype_to_storage_type(self.query.dtype));
        let (tiling, vector, count) = (self.tiling, self.tiling.vector, count(cubes));
        // SAFETY: rows are read through the order, a permutation of the queries, at strides of the query; results have the
        // shapes that the kernels name.
        unsafe {
            if self.matrix_units {
                gram_mma::gram_mma::launch_unchecked(
                    client,
                    count,
                    CubeDim::new_1d(gram_mma::units(tiling.dim)),
                    address,
                    vector,
                    query,
                    order,
                    table,
                    start,
                    result,
                    centres,
                    sizes,
                    tiling,
                    whole,
                    dtype,
                );
            } else {
                gram::gram::launch_unchecked(
                    client,
                    count,
                    CubeDim::new_1d(UNITS),
                    address,
                    vector,
                    query,
                    order,
                    table,
                    start,
                    result,
                    centres,
                    sizes,
                    tiling,
                    whole,
                    dtype,
                );
            }
        }
    }

    fn direction(
        &self,
        part: &Part,
        grams: &CubeTensor,
        means: &CubeTensor,
        directions: &CubeTensor,
        centres: &CubeTensor,
    ) {
        // SAFETY: as for `gram`.
        unsafe {
            direction::direction::launch_unchecked(
                &self.query.client,
                count(part.heads * part.nodes),
                CubeDim::new_1d(UNITS),
                address(&[self.query, grams]),
                self.tiling.vector,
                self.query.clone().into_tensor_arg(),
                self.table.clone().into_buffer_arg(),
                self.start.clone().into_buffer_arg(),
                grams.clone().into_buffer_arg(),
                means.clone().into_buffer_arg(),
                directions.clone().into_buffer_arg(),
                centres.clone().into_buffer_arg(),
                self.sizes(part),
                self.tiling,
                dtype_to_storage_type(self.query.dtype),
            );
        }
    }

    fn project(
        &self,
        part: &Part,
        order: &CubeTensor,
        directions: &CubeTensor,
        centres: &CubeTensor,
        projections: &CubeTensor,
    ) {
        // SAFETY: as for `gram`; projections have a place for each query of the launch's heads.
        unsafe {
            project::project_nodes::launch_unchecked(
                &self.query.client,
                count(part.heads * part.nodes * part.chunks),
                CubeDim::new_1d(UNITS),
                address(&[self.query, order, directions, projections]),
                self.tiling.vector,
                self.query.clone().into_tensor_arg(),
                order.clone().into_buffer_arg(),
                self.table.clone().into_buffer_arg(),
                directions.clone().into_buffer_arg(),
                centres.clone().into_buffer_arg(),
                projections.clone().into_buffer_arg(),
                self.sizes(part),
                self.tiling,
                dtype_to_storage_type(self.query.dtype),
            );
        }
    }

    #[allow(clippy::too_many_arguments)] // the buffers of the kernel
    fn split(
        &self,
        part: &Part,
        order: &CubeTensor,
        directions: &CubeTensor,
        centres: &CubeTensor,
        projections: &CubeTensor,
        next: &CubeTensor,
        room: usize,
    ) {
        let units = if room == 0 { self.split_units } else { UNITS };
        // SAFETY: as for `project`; a split permutes the tokens of its node and stays inside it.
        unsafe {
            split::split::launch_unchecked(
                &self.query.client,
                count(part.heads * part.nodes),
                CubeDim::new_1d(units),
                address(&[self.query, order, directions, projections]),
                self.tiling.vector,
                self.query.clone().into_tensor_arg(),
                order.clone().into_buffer_arg(),
                self.table.clone().into_buffer_arg(),
                directions.clone().into_buffer_arg(),
                centres.clone().into_buffer_arg(),
                projections.clone().into_buffer_arg(),
                next.clone().into_buffer_arg(),
                self.sizes(part),
                self.tiling,
                room,
                units,
                dtype_to_storage_type(self.query.dtype),
            );
        }
    }

    fn sizes(&self, part: &Part) -> SizesLaunch {
        let [_, heads, queries, _] = self.query.shape().dims::<4>();
        SizesLaunch::new(
            heads as u32,
            queries as u32,
            part.first_head as u32,
            part.heads as u32,
            part.first_node as u32,
            part.nodes as u32,
            part.chunks as u32,
            self.iterations as u32,
        )
    }
}

/// The widest of the tensors' addresses.
fn address(tensors: &[&CubeTensor]) -> AddressType {
    tensors.iter().map(|tensor| tensor.required_address_type()).max().unwrap_or_default()
}

/// A launch of at least `cubes` cubes.
fn count(cubes: usize) -> CubeCount {
    let x = cubes.min(CUBES_X);
    CubeCount::Static(x as u32, cubes.div_ceil(x) as u32, 1)
}
