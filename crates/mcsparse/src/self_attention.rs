//! The one interface between a transformer and the attention that runs inside it.

use burn::tensor::{Tensor, module::attention};

use crate::{Branch, Error, check};

/// What the tokens of one sequence are, from its start to its end.
///
/// A model announces it before its layers, so that a method knows which tokens are denoised and where they lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenLayout {
    /// Tokens before the grid that are not denoised or not of its kind: text, reference frames, audio.
    pub prefix: usize,
    /// Tokens along frames, rows and columns, columns fastest.
    pub grid: [usize; 3],
    /// Tokens after the grid, of the kinds that `prefix` counts.
    pub suffix: usize,
}

impl TokenLayout {
    /// A grid and nothing else.
    pub fn grid(grid: [usize; 3]) -> Self {
        Self { prefix: 0, grid, suffix: 0 }
    }

    /// All tokens.
    pub fn tokens(&self) -> usize {
        self.prefix + self.grid.iter().product::<usize>() + self.suffix
    }
}

/// Self-attention as a transformer block calls it: after QK norm and rotary embedding, before the output projection.
///
/// A model that calls this trait runs dense attention, MC-Sparse or any other method without knowing which.
/// Cross-attention does not belong here.
pub trait SelfAttention {
    /// Attends within one layer.
    ///
    /// # Shapes
    ///
    /// - `query`: `[batch, heads, tokens, head_dim]` in f32, f16 or bf16, head_dim 1 to 256
    /// - `key`, `value`: `[batch, kv_heads, tokens, head_dim]` in the same dtype, `heads` a multiple of `kv_heads`
    /// - returns `[batch, heads, tokens, head_dim]` in the dtype of `query`
    ///
    /// The tensors may be strided views; nothing asks for contiguous memory.
    ///
    /// # Errors
    ///
    /// Whatever the method cannot do with these inputs in its present state; nothing has run then, but see [`crate::HeadParallel`].
    fn attend(&mut self, layer: usize, query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Result<Tensor<4>, Error>;

    /// Announces denoising step `step`, counted from 0. A denoising loop calls it once before each step.
    ///
    /// # Errors
    ///
    /// If the method keeps a step clock and `step` is not the next one.
    fn begin_step(&mut self, step: usize) -> Result<(), Error> {
        let _ = step;
        Ok(())
    }

    /// Announces the guidance branch (and expert) that the following layers belong to.
    ///
    /// # Errors
    ///
    /// If the method was told its branches beforehand and `branch` is none of them, or keeps a step clock and no step has begun.
    fn begin_branch(&mut self, branch: &Branch) -> Result<(), Error> {
        let _ = branch;
        Ok(())
    }

    /// Announces the tokens of the sequence that the following layers attend within. A model calls it once in each
    /// forward, before its first layer; what a method does with it is its own business.
    ///
    /// # Errors
    ///
    /// If the method cannot work on such a sequence.
    fn begin_sequence(&mut self, layout: &TokenLayout) -> Result<(), Error> {
        let _ = layout;
        Ok(())
    }
}

/// Burn's own dense attention, the baseline.
#[derive(Clone, Copy, Debug, Default)]
pub struct DenseAttention {
    /// Factor on the scores; `None` is `1 / sqrt(head_dim)`.
    pub scale: Option<f64>,
}

impl SelfAttention for DenseAttention {
    fn attend(
        &mut self,
        _layer: usize,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
    ) -> Result<Tensor<4>, Error> {
        let problem = check::Problem::of(&query, &key, &value)?;
        // Burn 0.22 promises equal head counts only.
        let (key, value) = (problem.expand_kv(key), problem.expand_kv(value));
        let options = burn::tensor::ops::AttentionModuleOptions { scale: self.scale, ..Default::default() };
        Ok(attention(query, key, value, None, None, options))
    }
}
