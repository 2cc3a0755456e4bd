//! The timed stages, the routes that each is timed by, and the work that each does.

use burn::tensor::{Int, Tensor, module::attention};
use mcsparse::ops::{self, Epilogue, Kernels, Route, Stage};

use crate::{
    inputs::{Inputs, WORKSPACE, group_options, select_options, sparse_options, tail_options},
    settings::Settings,
};

/// The reference sorts on the host and keeps large temporaries: beyond this many tokens it is not timed.
const REFERENCE_TOKENS: usize = 8192;

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Burn's own attention.
    Burn,
    /// Dense attention with log-sum-exp.
    Dense,
    /// Grouping.
    Group,
    /// Selection.
    Select,
    /// Dense attention with the selection that rides in it.
    DenseSelect,
    /// The top-K of selection alone: one row for each group.
    TopK,
    /// Sparse attention with the residual added in its store, as on reuse steps.
    Sparse,
    /// Block means of the keys that are not kept, added to sparse attention, and the residual.
    Tail,
}

/// What a stage made.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant)] // one lives at a time
pub enum Output {
    /// Attention output, with log-sum-exp unless it is Burn's.
    Attention(Tensor<4>, Option<Tensor<3>>),
    /// Attention output with log-sum-exp, and kept keys.
    Both(Tensor<4>, Tensor<3>, Tensor<4, Int>),
    /// Groups.
    Order(Tensor<3, Int>),
    /// Kept keys.
    Indices(Tensor<4, Int>),
    /// Top-K of rows.
    Top(Tensor<2, Int>),
}

/// What bounds a stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// Operations of the two products on the pairs that are computed.
    Flops(f64),
    /// Bytes that have to be read and written.
    Bytes(f64),
}

impl Work {
    /// All, in the order of the table.
    pub const ALL: [Self; 8] =
        [Self::Burn, Self::Dense, Self::Group, Self::Select, Self::DenseSelect, Self::TopK, Self::Sparse, Self::Tail];

    /// The row's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Burn => "Burn's attention",
            Self::Dense => "dense",
            Self::Group => "group",
            Self::Select => "select",
            Self::DenseSelect => "dense with selection",
            Self::TopK => "top-K alone",
            Self::Sparse => "sparse + residual",
            Self::Tail => "tail + residual",
        }
    }

    /// The routes to time with their names, fastest first, each once.
    pub fn routes(self, inputs: &Inputs, settings: &Settings) -> Vec<(String, Route)> {
        let stage = match self {
            Self::Burn if settings.burn => return vec![("Burn".into(), Route::kernel("Burn"))],
            Self::Burn => return Vec::new(),
            Self::Dense => Stage::Dense,
            Self::Group => Stage::Group,
            Self::Select | Self::TopK => Stage::Select,
            Self::DenseSelect => Stage::DenseSelect,
            Self::Sparse => Stage::Sparse,
            Self::Tail => Stage::Tail,
        };
        let problem = inputs.problem();
        if self == Self::DenseSelect {
            // Where there is no kernel, the two stages are timed one by one.
            let route = ops::attend_and_select_route(&problem, settings.group, Kernels::Auto);
            return matches!(route, Route::Kernel { .. }).then(|| (route.to_string(), route)).into_iter().collect();
        }
        let mut routes = Vec::new();
        let auto = ops::route(stage, &problem, Kernels::Auto);
        if !matches!(auto, Route::Reference { .. }) {
            routes.push((auto.to_string(), auto));
        }
        if settings.tokens <= REFERENCE_TOKENS {
            routes.push(("reference".into(), ops::route(stage, &problem, Kernels::Reference)));
        }
        routes
    }

    /// Runs the stage once.
    pub fn run(self, route: &Route, inputs: &Inputs, settings: &Settings) -> Output {
        let [q, k, v] = inputs.qkv.clone();
        let (lse, order, indices) = (inputs.lse.clone(), inputs.order.clone(), inputs.indices.clone());
        match self {
            Self::Burn => Output::Attention(attention(q, k, v, None, None, Default::default()), None),
            Self::Dense => {
                let (output, lse) = ops::dense_attention(route, q, k, v, settings.scale(), WORKSPACE);
                Output::Attention(output, Some(lse))
            }
            Self::Group => Output::Order(ops::group_queries(route, q, group_options(settings))),
            Self::Select => Output::Indices(ops::select_keys(route, q, k, lse, order, select_options(settings))),
            Self::DenseSelect => {
                let options = select_options(settings);
                let (output, lse, indices) = ops::attend_and_select(route, q, k, v, order, lse, options);
                Output::Both(output, lse, indices)
            }
            Self::TopK => Output::Top(ops::partition_indices(route, inputs.rows.clone(), settings.keys(), false)),
            Self::Sparse => {
                let epilogue = Epilogue::AddResidual(inputs.residual.clone());
                let options = sparse_options(settings);
                let (output, lse) = ops::sparse_attention(route, q, k, v, order, indices, epilogue, options);
                Output::Attention(output, Some(lse))
            }
            Self::Tail => {
                let epilogue = Epilogue::AddResidual(inputs.residual.clone());
                let (sparse, options) = (inputs.sparse.clone(), tail_options(settings));
                let (output, lse) = ops::add_tail(route, q, k, v, order, indices, sparse, epilogue, options);
                Output::Attention(output, Some(lse))
            }
        }
    }

    /// The work of one run.
    pub fn load(self, settings: &Settings) -> Load {
        let (n, h, d) = (settings.tokens as f64, settings.heads as f64, settings.head_dim as f64);
        let (k, groups) = (settings.keys() as f64, settings.groups() as f64);
        match self {
            Self::Burn | Self::Dense | Self::DenseSelect => Load::Flops(4.0 * n * n * d * h),
            Self::Sparse => Load::Flops(4.0 * n * k * d * h),
            Self::Tail => Load::Flops(4.0 * n * settings.blocks() as f64 * d * h),
            Self::Select => Load::Flops(2.0 * n * n * d * h),
            // Every level of the recursion reads the queries.
            Self::Group => Load::Bytes(groups.log2().ceil().max(1.0) * n * h * d * settings.dtype.size() as f64),
            Self::TopK => Load::Bytes(4.0 * h * groups * (n + k)),
        }
    }

    /// Bytes that one run's output takes.
    pub fn output_bytes(self, settings: &Settings) -> usize {
        let rows = settings.heads * settings.tokens;
        match self {
            Self::Burn | Self::Dense | Self::Sparse | Self::Tail => {
                rows * (settings.head_dim * settings.dtype.size() + 4)
            }
            Self::Group => 4 * rows,
            Self::DenseSelect => Self::Dense.output_bytes(settings) + Self::Select.output_bytes(settings),
            Self::Select | Self::TopK => 4 * settings.heads * settings.groups() * settings.keys(),
        }
    }
}
