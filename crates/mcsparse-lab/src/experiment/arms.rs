//! One arm of a comparison: an attention method under a schedule.

use burn::tensor::Tensor;
use mcsparse::{KeyBudget, McSparse, McSparseConfig, Schedule as Steps, SelfAttention, reference};

use super::study::Study;
use crate::{
    attention::{LabAttention, Layout, Recipe, Schedule},
    error::Error,
};

/// What attends.
#[derive(Debug, Clone, PartialEq)]
pub enum Method {
    /// Dense attention by the library's kernel.
    Dense,
    /// Dense attention by tensor operations: its distance from [`Method::Dense`] is the floor of all comparisons.
    DenseByTensorOperations,
    /// The library's MC-Sparse. Group size, dense layers and schedule are those of the study and the arm.
    Library(Box<McSparseConfig>),
    /// A recipe of the lab.
    Recipe(Recipe),
}

/// One arm.
#[derive(Debug, Clone, PartialEq)]
pub struct Arm {
    /// Unique in its experiment, without spaces.
    pub id: String,
    /// For people.
    pub label: String,
    /// What attends.
    pub method: Method,
    /// Denoising steps.
    pub steps: usize,
    /// Dense steps and anchors.
    pub schedule: Steps,
}

/// What an arm has to know of the model that it runs in.
#[derive(Debug, Clone, Copy)]
pub struct Ground<'a> {
    /// Transformer blocks.
    pub layers: usize,
    /// Queries in a group of MC-Sparse.
    pub group_size: usize,
    /// Where tokens lie.
    pub layout: &'a Layout,
}

/// An arm that runs.
pub enum Running {
    /// The library.
    Library(Box<McSparse>),
    /// The lab.
    Lab(Box<LabAttention>),
    /// Dense by tensor operations.
    Reference(ReferenceDense),
}

/// The library's dense attention in tensor operations.
pub struct ReferenceDense;

impl Arm {
    /// Density of reuse steps; none for dense attention.
    pub fn density(&self) -> Option<f64> {
        match &self.method {
            Method::Dense | Method::DenseByTensorOperations => None,
            Method::Library(config) => match config.budget {
                KeyBudget::Density(density) => Some(density),
                KeyBudget::Keys(_) => None,
            },
            Method::Recipe(recipe) => Some(recipe.density),
        }
    }

    /// Ready to run in `study`. The first layer stays dense, as published.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] for a density or schedule that cannot be.
    pub fn start(&self, study: &Study) -> Result<Running, Error> {
        self.start_on(&Ground {
            layers: study.model.layers(),
            group_size: study.settings.group_size,
            layout: &study.layout,
        })
    }

    /// As [`Arm::start`], in any model.
    ///
    /// # Errors
    ///
    /// Those of [`Arm::start`].
    pub fn start_on(&self, ground: &Ground<'_>) -> Result<Running, Error> {
        let library = |config: McSparseConfig, dense_layers| -> Result<Running, Error> {
            let config = config
                .with_group_size(ground.group_size)
                .with_schedule(self.schedule.clone())
                .with_dense_layers(dense_layers);
            Ok(Running::Library(Box::new(McSparse::new(&config, self.steps)?)))
        };
        match &self.method {
            Method::Dense => library(McSparseConfig::density(1.0), (0..ground.layers).collect()),
            Method::DenseByTensorOperations => Ok(Running::Reference(ReferenceDense)),
            Method::Library(config) => library((**config).clone(), vec![0]),
            Method::Recipe(recipe) => {
                let schedule = Schedule::new(self.schedule.plan(self.steps)?, vec![0]);
                let lab = LabAttention::new(recipe.clone(), schedule, ground.layout.clone())?;
                Ok(Running::Lab(Box::new(lab)))
            }
        }
    }
}

impl Running {
    /// As models take it.
    pub fn attention(&mut self) -> &mut dyn SelfAttention {
        match self {
            Self::Library(attention) => attention.as_mut(),
            Self::Lab(attention) => attention.as_mut(),
            Self::Reference(attention) => attention,
        }
    }

    /// Attention work of the run as a share of dense attention.
    pub fn effective_density(&self) -> f64 {
        match self {
            Self::Library(attention) => attention.report().effective_density(),
            Self::Lab(attention) => attention.effective_density(),
            Self::Reference(_) => 1.0,
        }
    }

    /// The steps that were anchors; none for dense attention.
    pub fn anchors(&self) -> Vec<usize> {
        match self {
            Self::Library(attention) => attention.report().anchors(),
            Self::Lab(attention) => attention.anchors().to_vec(),
            _ => Vec::new(),
        }
    }
}

impl SelfAttention for ReferenceDense {
    fn attend(
        &mut self,
        _layer: usize,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
    ) -> Result<Tensor<4>, mcsparse::Error> {
        mcsparse::check::Problem::of(&query, &key, &value)?;
        let scale = (query.dims()[3] as f64).powf(-0.5);
        Ok(reference::dense_attention(query, key, value, scale, 1 << 30).0)
    }
}
