//! Random inputs of every stage.

use burn::tensor::{DType, Device, Distribution, Int, Tensor};
use mcsparse::{
    check::Problem,
    ops::{self, Epilogue, Kernels, SparseOptions, Stage},
    reference::{GroupOptions, SelectOptions, TailOptions},
};

use crate::settings::Settings;

/// Bytes of temporary tensors.
pub const WORKSPACE: usize = 512 << 20;
/// Keys in a block of the tail.
pub const TAIL_BLOCK: usize = 64;
/// Inputs rotate until they take this much, so that none is found in a cache; and at most [`SETS`] times.
const ROTATED_BYTES: usize = 192 << 20;
const SETS: usize = 8;

/// Inputs and what the stages before made of them.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// Query, key and value in the layout of the settings.
    pub qkv: [Tensor<4>; 3],
    /// Log-sum-exp of dense attention.
    pub lse: Tensor<3>,
    /// Groups.
    pub order: Tensor<3, Int>,
    /// Kept keys.
    pub indices: Tensor<4, Int>,
    /// A residual.
    pub residual: Tensor<4>,
    /// Output of sparse attention and its log-sum-exp.
    pub sparse: (Tensor<4>, Tensor<3>),
    /// Rows for top-K alone: one for each group.
    pub rows: Tensor<2>,
}

impl Inputs {
    /// Fresh values from the device's generator, stages by the fastest routes.
    ///
    /// # Panics
    ///
    /// If the settings fit no problem.
    pub fn new(settings: &Settings, device: &Device) -> Self {
        let (tokens, heads) = (settings.tokens, settings.heads);
        let [second, third] = if settings.heads_first { [heads, tokens] } else { [tokens, heads] };
        let shape = [1, second, third, settings.head_dim];
        let random = || Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), (device, DType::F32));
        let view = || {
            let values = random().cast(settings.dtype);
            if settings.heads_first { values } else { values.swap_dims(1, 2) }
        };
        let qkv = [view(), view(), view()];
        let [q, k, v] = qkv.clone();
        let problem = Problem::of(&q, &k, &v).expect("checked settings");
        let route = |stage| ops::route(stage, &problem, Kernels::Auto);
        let lse =
            ops::dense_attention(&route(Stage::Dense), q.clone(), k.clone(), v.clone(), settings.scale(), WORKSPACE).1;
        let order = ops::group_queries(&route(Stage::Group), q.clone(), group_options(settings));
        let options = select_options(settings);
        let indices =
            ops::select_keys(&route(Stage::Select), q.clone(), k.clone(), lse.clone(), order.clone(), options);
        let rows = [settings.heads * settings.groups(), settings.tokens];
        let rows = Tensor::random(rows, Distribution::Default, (device, DType::F32));
        // As large as the output, so that neither hides errors of the other.
        let residual = view().mul_scalar((settings.keys() as f64).powf(-0.5));
        let (groups, lists, options) = (order.clone(), indices.clone(), sparse_options(settings));
        let sparse = ops::sparse_attention(&route(Stage::Sparse), q, k, v, groups, lists, Epilogue::Output, options);
        Self { qkv, lse, order, indices, residual, sparse, rows }
    }

    /// Several sets, as many as it takes to outgrow caches.
    pub fn rotation(settings: &Settings, device: &Device) -> Vec<Self> {
        let bytes = 4 * settings.tokens * settings.heads * settings.head_dim * settings.dtype.size();
        let sets = ROTATED_BYTES.div_ceil(bytes).clamp(1, SETS);
        (0..sets).map(|_| Self::new(settings, device)).collect()
    }

    /// The sizes.
    ///
    /// # Panics
    ///
    /// Never: they were checked.
    pub fn problem(&self) -> Problem {
        let [q, k, v] = &self.qkv;
        Problem::of(q, k, v).expect("checked settings")
    }
}

/// Settings of grouping.
pub fn group_options(settings: &Settings) -> GroupOptions {
    GroupOptions { group_size: settings.group, power_iterations: 4, seed: 0, workspace_bytes: WORKSPACE }
}

/// Settings of selection.
pub fn select_options(settings: &Settings) -> SelectOptions {
    SelectOptions {
        group_size: settings.group,
        keys: settings.keys(),
        sink_prefix: 0,
        sink_suffix: 0,
        scale: settings.scale(),
        workspace_bytes: WORKSPACE,
    }
}

/// Settings of sparse attention.
pub fn sparse_options(settings: &Settings) -> SparseOptions {
    SparseOptions { group_size: settings.group, scale: settings.scale(), workspace_bytes: WORKSPACE }
}

/// Settings of the tail.
pub fn tail_options(settings: &Settings) -> TailOptions {
    TailOptions {
        group_size: settings.group,
        block: TAIL_BLOCK,
        sink_prefix: 0,
        sink_suffix: 0,
        scale: settings.scale(),
        workspace_bytes: WORKSPACE,
    }
}
