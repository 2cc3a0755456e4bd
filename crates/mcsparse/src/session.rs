//! MC-Sparse behind the interface that models call.

use burn::tensor::Tensor;

use crate::{Branch, Error, McSparseConfig, MetaCache, RunReport, SelfAttention, attention};

/// One denoising run with MC-Sparse: the settings and the cache together, as a [`SelfAttention`].
#[derive(Debug, Clone)]
pub struct McSparse {
    config: McSparseConfig,
    cache: MetaCache,
}

impl McSparse {
    /// A run of `steps` steps.
    ///
    /// # Errors
    ///
    /// See [`MetaCache::new`].
    pub fn new(config: &McSparseConfig, steps: usize) -> Result<Self, Error> {
        Ok(Self { cache: MetaCache::new(config, steps)?, config: config.clone() })
    }

    /// The same run with another cache, for example one with announced branches or timed stages.
    pub fn with_cache(config: &McSparseConfig, cache: MetaCache) -> Result<Self, Error> {
        config.validate()?;
        Ok(Self { config: config.clone(), cache })
    }

    /// The cache.
    pub fn cache(&self) -> &MetaCache {
        &self.cache
    }

    /// The cache, for clearing, saving or loading.
    pub fn cache_mut(&mut self) -> &mut MetaCache {
        &mut self.cache
    }

    /// What ran so far.
    pub fn report(&self) -> &RunReport {
        self.cache.report()
    }
}

impl SelfAttention for McSparse {
    fn attend(&mut self, layer: usize, query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Result<Tensor<4>, Error> {
        attention::forward(&self.config, layer, query, key, value, &mut self.cache)
    }

    fn begin_step(&mut self, step: usize) -> Result<(), Error> {
        self.cache.begin_step(step)
    }

    fn begin_branch(&mut self, branch: &Branch) -> Result<(), Error> {
        self.cache.begin_branch(branch)
    }
}
