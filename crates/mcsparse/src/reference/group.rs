//! Grouping of similar queries: principal direction divisive partitioning (Boley 1998) with splits at the median rank.

use burn::tensor::{DType, Int, Tensor};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{
    rows::{INDEX, arange, chunk_len, join_heads, take_rows},
    top_k::partition_indices,
};

/// How queries are grouped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupOptions {
    /// Queries in a group; only the last group may have fewer.
    pub group_size: usize,
    /// Power iterations for each principal direction.
    pub power_iterations: usize,
    /// Seed of the start vector.
    pub seed: u64,
    /// Bytes that temporary tensors may take.
    pub workspace_bytes: usize,
}

/// Groups the queries of every `[batch, head]` by content: each node of the recursion is split at the median of the
/// projections on its principal direction, at a multiple of the group size, until every node is one group.
///
/// Group `g` holds the queries `order[g * group_size .. (g + 1) * group_size]`, in ascending order. Equal projections go
/// to the lower side by position, so the result is one fixed permutation; NaN in the queries spoils the likeness of
/// groups but never the permutation.
///
/// # Shapes
///
/// - `query`: `[batch, heads, queries, head_dim]`
/// - returns `order`: `[batch, heads, queries]`, 32-bit integers, a permutation of `0..queries` in each row
pub fn group_queries(query: Tensor<4>, options: &GroupOptions) -> Tensor<3, Int> {
    let [batch, heads, queries, dim] = query.dims();
    let device = query.device();
    let z = batch * heads;
    let rows = join_heads(query.cast(DType::F32));
    let start = start_vector(dim, options.seed);
    let mut order = arange(queries, &device).reshape([1, queries]).expand([z, queries]);

    let mut level = vec![Node { first: 0, len: queries }];
    while level.iter().any(|node| node.len > options.group_size) {
        let mut next = Vec::new();
        let mut splits: Vec<(usize, Vec<Node>)> = Vec::new();
        for node in level {
            let lower = node.lower_len(options.group_size);
            if lower == 0 {
                next.push(node);
                continue;
            }
            next.extend([Node { len: lower, ..node }, Node { first: node.first + lower, len: node.len - lower }]);
            // Nodes of one size are split together; there are at most three sizes a level.
            match splits.iter_mut().find(|(len, _)| *len == node.len) {
                Some((_, nodes)) => nodes.push(node),
                None => splits.push((node.len, vec![node])),
            }
        }
        for (len, nodes) in splits {
            // The gathered queries, the centred ones and a temporary.
            let chunk = chunk_len(nodes.len(), 3 * 4 * z * len * dim, options.workspace_bytes);
            for nodes in nodes.chunks(chunk) {
                order = split(&rows, order, nodes, options, &start);
            }
        }
        level = next;
    }
    order.reshape([batch, heads, queries])
}

/// A run of the order that is still to be split.
#[derive(Debug, Clone, Copy)]
struct Node {
    first: usize,
    len: usize,
}

impl Node {
    /// Queries that go to the lower side: half of the node's groups. 0 if the node is one group.
    fn lower_len(&self, group_size: usize) -> usize {
        self.len.div_ceil(group_size) / 2 * group_size
    }
}

/// Splits nodes of one length; returns the order with each node's lower half in front of its upper half.
fn split(
    rows: &Tensor<3>,
    order: Tensor<2, Int>,
    nodes: &[Node],
    options: &GroupOptions,
    start: &[f32],
) -> Tensor<2, Int> {
    let [z, _, dim] = rows.dims();
    let (device, count, len) = (rows.device(), nodes.len(), nodes[0].len);
    let lower = nodes[0].lower_len(options.group_size);
    let positions: Vec<i32> = nodes.iter().flat_map(|n| (n.first..n.first + len).map(|p| p as i32)).collect();
    let positions = Tensor::<1, Int>::from_data(positions.as_slice(), (&device, INDEX));

    let members = order.clone().select(1, positions.clone());
    let x = take_rows(rows.clone(), members.clone()).reshape([z * count, len, dim]);
    let x = x.clone() - x.mean_dim(1);
    let direction = principal_direction(x.clone(), options.power_iterations, start);
    // The partition takes the largest, so the projection is negated to put its smallest values on the lower side. It is
    // stable: both sides keep their order, which keeps every group sorted.
    let projection = x.matmul(direction).reshape([z * count, len]).neg();
    let places = partition_indices(projection, lower, true);
    let split = members.reshape([z * count, len]).gather(1, places).reshape([z, count * len]);

    let all_positions = positions.reshape([1, count * len]).expand([z, count * len]);
    // `order + (split - members)` at the nodes' positions: assignment in terms of the addition that all backends have.
    let change = split - order.clone().gather(1, all_positions.clone());
    order.scatter(1, all_positions, change, burn::tensor::IndexingUpdateOp::Add)
}

/// The principal direction `[nodes, dim, 1]` of centred rows `x` `[nodes, len, dim]` by power iteration on `x^T x`.
fn principal_direction(x: Tensor<3>, iterations: usize, start: &[f32]) -> Tensor<3> {
    let [nodes, _, dim] = x.dims();
    let gram = x.clone().swap_dims(1, 2).matmul(x);
    let start = Tensor::<1>::from_floats(start, &gram.device());
    let mut direction = start.reshape([1, dim, 1]).expand([nodes, dim, 1]);
    for _ in 0..iterations {
        direction = gram.clone().matmul(direction);
        // By the largest element first, so that squaring neither overflows nor vanishes. Identical rows give zero and
        // stay zero: all projections tie, and the split is by position.
        let largest = direction.clone().abs().max_dim(1).clamp_min(f32::MIN_POSITIVE);
        direction = direction / largest;
        let norm = direction.clone().square().sum_dim(1).sqrt().clamp_min(f32::MIN_POSITIVE);
        direction = direction / norm;
    }
    direction
}

/// A start vector of standard normal numbers that depends on the seed alone.
pub(crate) fn start_vector(dim: usize, seed: u64) -> Vec<f32> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut uniform = move || rng.random_range(f64::EPSILON..1.0);
    // Box and Muller 1958.
    (0..dim).map(|_| ((-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()) as f32).collect()
}
