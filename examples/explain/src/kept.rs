//! How much attention mass a choice of keys keeps.

use burn::tensor::{DType, Int, Tensor};
use mcsparse::{
    check::Problem,
    ops::{Kernels, Stage, dense_attention, group_queries, route, select_keys},
    reference::{GroupOptions, SelectOptions, attention_mass, top_k_indices},
};

/// Bytes for temporary tensors of a stage.
const WORKSPACE: usize = 1 << 28;

/// One head at one step.
#[derive(Debug, Clone)]
pub struct Head {
    query: Tensor<4>,
    key: Tensor<4>,
    lse: Tensor<3>,
    problem: Problem,
    group_size: usize,
    tiles: Tensor<1, Int>,
}

/// Indices of 32 bits, as the library has them.
const INDEX: DType = DType::I32;

impl Head {
    /// Takes head `head` of query, key and value `[1, heads, tokens, head_dim]`; blocks are the tokens of `tiles`,
    /// `group_size` by `group_size`.
    ///
    /// # Errors
    ///
    /// If the tensors do not fit each other.
    pub fn new(qkv: &[Tensor<4>; 3], head: usize, group_size: usize, tiles: &[i32]) -> Result<Self, mcsparse::Error> {
        let [query, key, value] = qkv.clone().map(|tensor| tensor.slice_dim(1, head..head + 1));
        let problem = Problem::of_self_attention(&query, &key, &value)?;
        let dense = route(Stage::Dense, &problem, Kernels::Auto);
        let scale = scale(&problem);
        let (_, lse) = dense_attention(&dense, query.clone(), key.clone(), value, scale, WORKSPACE);
        let tiles = Tensor::from_data(tiles, (&query.device(), INDEX));
        Ok(Self { query, key, lse, problem, group_size, tiles })
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.problem.queries
    }

    /// Groups by content: `[1, 1, tokens]`.
    pub fn content_order(&self) -> Tensor<3, Int> {
        let options =
            GroupOptions { group_size: self.group_size, power_iterations: 4, seed: 0, workspace_bytes: WORKSPACE };
        group_queries(&route(Stage::Group, &self.problem, Kernels::Auto), self.query.clone(), options)
    }

    /// Groups by position, tile after tile: `[1, 1, tokens]`.
    pub fn position_order(&self) -> Tensor<3, Int> {
        self.tiles.clone().reshape([1, 1, self.tokens()])
    }

    /// Attention mass of every key in every group of `order`, `[groups, tokens]`; a row sums to the size of its group.
    pub fn mass(&self, order: Tensor<3, Int>) -> Tensor<2> {
        self.mass_of(order, self.group_size)
    }

    /// Attention of every single query, `[tokens, tokens]`, queries in the order of the tiles.
    pub fn mass_of_queries(&self) -> Tensor<2> {
        self.mass_of(self.position_order(), 1)
    }

    fn mass_of(&self, order: Tensor<3, Int>, group_size: usize) -> Tensor<2> {
        let options = SelectOptions { group_size, ..self.select_options(1) };
        let mass = attention_mass(self.query.clone(), self.key.clone(), self.lse.clone(), order, &options);
        let [_, _, groups, keys] = mass.dims();
        mass.reshape([groups, keys])
    }

    /// The `keys` keys that MC-Sparse keeps for each group of `order`, `[groups, keys]`.
    pub fn selected(&self, order: Tensor<3, Int>, keys: usize) -> Tensor<2, Int> {
        let stage = route(Stage::Select, &self.problem, Kernels::Auto);
        let (query, key, lse) = (self.query.clone(), self.key.clone(), self.lse.clone());
        let indices = select_keys(&stage, query, key, lse, order, self.select_options(keys));
        let [_, _, groups, keys] = indices.dims();
        indices.reshape([groups, keys])
    }

    /// The keys of the `blocks` tiles of keys whose mean suits the mean query of each group of `order` best:
    /// `[groups, blocks * group_size]`.
    pub fn pooled_blocks(&self, order: Tensor<3, Int>, blocks: usize) -> Tensor<2, Int> {
        let [_, _, tokens, dim] = self.query.dims();
        let means = |rows: Tensor<2>| {
            rows.reshape([tokens / self.group_size, self.group_size, dim]).mean_dim(1).squeeze_dim::<2>(1)
        };
        let rows = self.query.clone().cast(DType::F32).reshape([tokens, dim]);
        let queries = means(rows.select(0, order.reshape([tokens])));
        let keys = self.key.clone().cast(DType::F32).reshape([tokens, dim]);
        let keys = means(keys.select(0, self.tiles.clone()));
        self.keys_of_blocks(top_k_indices(queries.matmul(keys.transpose()), blocks))
    }

    /// The keys of the `blocks` blocks that hold the most of `mass` `[groups, tokens]`.
    pub fn best_blocks(&self, mass: &Tensor<2>, blocks: usize) -> Tensor<2, Int> {
        let [groups, tokens] = mass.dims();
        let by_tile = mass.clone().select(1, self.tiles.clone());
        let summed = by_tile.reshape([groups, tokens / self.group_size, self.group_size]).sum_dim(2);
        self.keys_of_blocks(top_k_indices(summed.squeeze_dim::<2>(2), blocks))
    }

    fn keys_of_blocks(&self, blocks: Tensor<2, Int>) -> Tensor<2, Int> {
        let ([groups, count], size) = (blocks.dims(), self.group_size);
        let within = Tensor::<1, Int>::arange(0..size as i64, &blocks.device()).cast(INDEX).reshape([1, 1, size]);
        let first = blocks.mul_scalar(size as i64).reshape([groups, count, 1]);
        let places = (first + within).reshape([groups * count * size]);
        self.tiles.clone().select(0, places).reshape([groups, count * size])
    }

    fn select_options(&self, keys: usize) -> SelectOptions {
        SelectOptions {
            group_size: self.group_size,
            keys,
            sink_prefix: 0,
            sink_suffix: 0,
            scale: scale(&self.problem),
            workspace_bytes: WORKSPACE,
        }
    }
}

fn scale(problem: &Problem) -> f64 {
    (problem.head_dim as f64).powf(-0.5)
}

/// Share of `mass` `[groups, tokens]` that lies on `keys` `[groups, kept]`, over all groups.
pub fn kept(mass: &Tensor<2>, keys: Tensor<2, Int>) -> f64 {
    let sum = |values: Tensor<2>| f64::from(values.sum().into_scalar::<f32>());
    sum(mass.clone().gather(1, keys)) / sum(mass.clone())
}

/// The same for each group.
pub fn kept_by_group(mass: &Tensor<2>, keys: Tensor<2, Int>) -> Vec<f64> {
    let shares = mass.clone().gather(1, keys).sum_dim(1) / mass.clone().sum_dim(1);
    shares.into_data().iter::<f64>().collect()
}
