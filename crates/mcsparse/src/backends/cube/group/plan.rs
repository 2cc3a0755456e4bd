//! What is launched: nodes, levels and chunks, all known before anything runs.

use super::UNITS;
use crate::reference::GroupOptions;

/// Edge of the square that a cube's units form when they share a Gram matrix.
pub(super) const GRID: usize = 16;
/// The largest block of a Gram matrix that one cube takes: 8 by 8 values a unit stay in registers.
const BLOCK: usize = 128;
/// Rows below which a node is not cut further: the partial results would cost more than the reading.
const ROWS_PER_CHUNK: usize = 256;

/// How a Gram matrix is cut into blocks and a row into vectors. Part of the compiled kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Tiling {
    pub dim: usize,
    /// Elements that a row is read by.
    pub vector: usize,
    /// Blocks along an edge of the Gram matrix.
    pub blocks: usize,
    /// Rows and columns of a block that each unit holds.
    pub micro: usize,
}

impl Tiling {
    pub fn of(dim: usize, vector: usize) -> Self {
        let blocks = dim.div_ceil(BLOCK);
        Self { dim, vector, blocks, micro: dim.div_ceil(blocks * GRID) }
    }

    /// Rows and columns of a block.
    pub const fn edge(&self) -> usize {
        GRID * self.micro
    }

    /// Rows and columns of the whole matrix that each unit of the grid owns.
    pub const fn side(&self) -> usize {
        self.micro * self.blocks
    }

    /// Rows and columns of the matrix as it is stored.
    pub const fn padded(&self) -> usize {
        GRID * self.side()
    }

    /// Vectors of a row.
    pub const fn vectors(&self) -> usize {
        self.dim / self.vector
    }

    /// Neighbouring units that share one row when projecting.
    pub const fn lanes(&self) -> usize {
        let lanes = self.vectors().next_power_of_two();
        if lanes < 16 { lanes } else { 16 }
    }

    /// Rows that a cube projects between two barriers: a few for each run of lanes, to have as many loads in flight.
    pub const fn projected_rows(&self) -> usize {
        super::project::steps(self) * UNITS as usize / self.lanes()
    }
}

/// The nodes of one depth of the recursion. Finished ones are carried along, so that every level covers the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Level {
    /// Place of its first node in the table.
    pub first: usize,
    pub nodes: usize,
    /// Length of its longest node.
    pub longest: usize,
    /// Cubes that share the Gram matrix of a node.
    pub chunks: usize,
    /// Cubes that share the projections of a node: they leave nothing to add up, so there may be more.
    pub pieces: usize,
}

/// A grouping, level by level.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// For each node its first place in the order, its length and how many of its rows go to the lower side.
    pub table: Vec<u32>,
    pub levels: Vec<Level>,
    /// Heads that go through all levels together.
    pub heads: usize,
    queries: usize,
    tiling: Tiling,
    /// Bytes left for what a launch keeps of each node.
    budget: usize,
    /// Whether a unit takes a whole node and keeps nothing of it.
    alone: bool,
}

impl Plan {
    /// For `joined` heads of all batch elements on a device that is busy with `cubes` cubes, none where units work alone.
    pub fn new(joined: usize, queries: usize, tiling: Tiling, options: &GroupOptions, cubes: Option<usize>) -> Self {
        let (alone, cubes) = (cubes.is_none(), cubes.unwrap_or(1));
        let lower = |len: usize| len.div_ceil(options.group_size) / 2 * options.group_size;
        let (mut table, mut levels) = (Vec::new(), Vec::new());
        let mut nodes = vec![(0, queries)];
        while nodes.iter().any(|&(_, len)| lower(len) > 0) {
            let longest = nodes.iter().map(|&(_, len)| len).max().unwrap_or(0);
            let most = longest.div_ceil(ROWS_PER_CHUNK);
            // Rounded down: a few cubes too many would wait for all others.
            let chunks = (cubes / (joined * nodes.len())).clamp(1, most);
            let pieces = (4 * cubes).div_ceil(joined * nodes.len()).clamp(1, most);
            levels.push(Level { first: table.len() / 3, nodes: nodes.len(), longest, chunks, pieces });
            let mut next = Vec::with_capacity(2 * nodes.len());
            for (first, len) in nodes {
                table.extend([first, len, lower(len)].map(|n| n as u32));
                match lower(len) {
                    0 => next.push((first, len)),
                    lower => next.extend([(first, lower), (first + lower, len - lower)]),
                }
            }
            nodes = next;
        }
        let mut plan = Self {
            table,
            levels,
            heads: 1,
            queries,
            tiling,
            budget: options.workspace_bytes.saturating_sub(4 * joined * queries),
            alone,
        };
        let widest = plan.levels.iter().map(|level| plan.head_bytes(level)).max().unwrap_or(1);
        plan.heads = (plan.budget / (widest + 4 * queries)).clamp(1, joined);
        plan.budget = plan.budget.saturating_sub(4 * plan.heads * queries);
        plan
    }

    /// Whether the Gram matrices of a level go through global memory: they do unless one cube takes a whole node.
    pub fn partial(&self, level: &Level) -> bool {
        level.chunks > 1 || self.tiling.blocks > 1
    }

    /// Nodes of `level` that one launch takes for all of its heads.
    pub fn nodes_per_launch(&self, level: &Level) -> usize {
        if self.alone {
            return level.nodes;
        }
        (self.budget / (self.heads * self.bytes_of_node(level))).clamp(1, level.nodes)
    }

    /// Bytes that are allocated at once: the second order, the projections, and what the largest launch keeps.
    pub fn workspace_bytes(&self, joined: usize) -> usize {
        let kept = |level: &Level| self.heads * self.nodes_per_launch(level) * self.bytes_of_node(level);
        4 * joined * self.queries + 4 * self.heads * self.queries + self.levels.iter().map(kept).max().unwrap_or(0)
    }

    fn head_bytes(&self, level: &Level) -> usize {
        level.nodes * self.bytes_of_node(level)
    }

    /// Direction and centre of a node, and the Gram matrices and means of its chunks.
    fn bytes_of_node(&self, level: &Level) -> usize {
        if self.alone {
            return 0;
        }
        let padded = self.tiling.padded();
        let chunk = 4 * (padded * padded + padded);
        8 * padded + if self.partial(level) { level.chunks * chunk } else { 0 }
    }
}
