//! From a part of the plan to launches of the kernels.

use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape},
};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{
    LARGE_ROOM, ROOM, SPLIT_UNITS, UNITS, alone, direction, gram, gram_mma, matrix_units,
    plan::{Level, Plan, Tiling},
    project,
    rows::SizesLaunch,
    split,
};
use crate::{
    backends::cube::{CUBES_X, alone as units, empty},
    reference::{GroupOptions, start_vector},
};

/// Heads and nodes of one launch.
pub(super) struct Part {
    pub first_head: usize,
    pub heads: usize,
    pub first_node: usize,
    pub nodes: usize,
    pub chunks: usize,
}

/// What all launches of a grouping share.
pub(super) struct Launch<'a> {
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
    /// Whether a unit takes a whole node.
    alone: bool,
}

impl<'a> Launch<'a> {
    pub fn new(query: &'a CubeTensor, options: &GroupOptions, plan: &Plan, tiling: Tiling) -> Self {
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
            matrix_units: tiling.vector == gram_mma::VECTOR
                && matrix_units(&query.client, tiling.dim, query.dtype).is_ok(),
            split_units: 1 << hardware.max_units_per_cube.min(SPLIT_UNITS).ilog2(),
            room: if hardware.max_shared_memory_size > 96 * 1024 { LARGE_ROOM } else { ROOM },
            alone: units::applies(hardware),
        }
    }

    /// `order[.., i] = i`.
    pub fn identity(&self, order: &CubeTensor) {
        let [batch, heads, queries] = order.shape().dims();
        let len = batch * heads * queries;
        let (cube_count, cube_dim) = units::launch(&self.query.client, len);
        // SAFETY: the kernel writes `len` values, as many as `order` has.
        unsafe {
            split::identity::launch_unchecked(
                &self.query.client,
                cube_count,
                cube_dim,
                order.required_address_type(),
                order.clone().into_buffer_arg(),
                queries as u32,
                len as u32,
            );
        }
    }

    /// Splits the nodes of `part`: `order` into `next`.
    pub fn level(
        &self,
        part: &Part,
        level: &Level,
        partial: bool,
        order: &CubeTensor,
        next: &CubeTensor,
        projections: &CubeTensor,
    ) {
        if self.alone {
            return self.split_alone(part, order, next, projections);
        }
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

    /// All of it by units that work alone.
    fn split_alone(&self, part: &Part, order: &CubeTensor, next: &CubeTensor, projections: &CubeTensor) {
        let (cube_count, cube_dim) = units::launch(&self.query.client, part.heads * part.nodes);
        let vector = units::vector(&[self.query]);
        // SAFETY: as for `split`.
        unsafe {
            alone::split::launch_unchecked(
                &self.query.client,
                cube_count,
                cube_dim,
                address(&[self.query, order, projections]),
                vector,
                self.query.clone().into_tensor_arg(),
                order.clone().into_buffer_arg(),
                self.table.clone().into_buffer_arg(),
                self.start.clone().into_buffer_arg(),
                projections.clone().into_buffer_arg(),
                next.clone().into_buffer_arg(),
                self.sizes(part),
                self.tiling.dim,
                vector,
                dtype_to_storage_type(self.query.dtype),
            );
        }
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
            direction::combine::launch_unchecked(
                &self.query.client,
                count(part.heads * part.nodes * direction::combining_cubes(&self.tiling)),
                CubeDim::new_1d(UNITS),
                address(&[self.query, grams]),
                self.tiling.vector,
                self.query.clone().into_tensor_arg(),
                self.table.clone().into_buffer_arg(),
                grams.clone().into_buffer_arg(),
                means.clone().into_buffer_arg(),
                self.sizes(part),
                self.tiling,
                dtype_to_storage_type(self.query.dtype),
            );
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
