//! MC-Sparse behind the interface that models call.

use burn::tensor::Tensor;

use crate::{Branch, Error, McSparseConfig, MetaCache, RunReport, SelfAttention, SinkTokens, TokenLayout, attention};

/// One denoising run with MC-Sparse: the settings and the cache together, as a [`SelfAttention`].
///
/// Where a model announces the layout of its sequence ([`SelfAttention::begin_sequence`]), the tokens around its grid
/// are sinks, in addition to those that the settings ask for: at either end the larger number counts.
#[derive(Debug, Clone)]
pub struct McSparse {
    config: McSparseConfig,
    /// Those that the settings ask for, whatever the model announces.
    sink: SinkTokens,
    cache: MetaCache,
}

impl McSparse {
    /// A run of `steps` steps.
    ///
    /// # Errors
    ///
    /// See [`MetaCache::new`].
    pub fn new(config: &McSparseConfig, steps: usize) -> Result<Self, Error> {
        Self::with_cache(config, MetaCache::new(config, steps)?)
    }

    /// The same run with another cache, for example one with announced branches or timed stages. Its schedule must be that of `config`,
    /// or every call is refused.
    ///
    /// # Errors
    ///
    /// See [`McSparseConfig::validate`].
    pub fn with_cache(config: &McSparseConfig, cache: MetaCache) -> Result<Self, Error> {
        config.validate()?;
        Ok(Self { config: config.clone(), sink: config.sink, cache })
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

    fn begin_sequence(&mut self, layout: &TokenLayout) -> Result<(), Error> {
        let sink = SinkTokens {
            prefix: self.sink.prefix.max(layout.prefix),
            suffix: self.sink.suffix.max(layout.suffix),
            ..self.sink
        };
        let config = McSparseConfig { sink, ..self.config.clone() };
        config.budget_for(layout.tokens())?;
        self.config = config;
        Ok(())
    }
}
