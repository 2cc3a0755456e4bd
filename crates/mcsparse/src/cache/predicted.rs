//! What a slot will take, said before there is one.

use burn::tensor::DType;

use super::SlotBytes;
use crate::{Error, IndexFormat, McSparseConfig, ResidualFormat, Selection, residual_format::CODES};

impl McSparseConfig {
    /// Bytes that one layer and branch will keep between steps, for one batch element of `heads` heads of `head_dim` values
    /// with `tokens` tokens, in `dtype`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if the density or the sinks do not fit `tokens`.
    pub fn slot_bytes(&self, tokens: usize, heads: usize, head_dim: usize, dtype: DType) -> Result<SlotBytes, Error> {
        let keys = self.budget_for(tokens)?.keys;
        let rows = tokens - self.sink.len();
        let groups = rows.div_ceil(self.group_size.clamp(1, rows.max(1)));
        let lists = self.index_format.unwrap_or_else(|| IndexFormat::smallest(tokens, keys));
        let row = match self.residual_format {
            ResidualFormat::Input => head_dim * dtype.size(),
            ResidualFormat::Fp8 | ResidualFormat::Int8 => head_dim.div_ceil(CODES) * DType::I32.size() + dtype.size(),
        };
        Ok(SlotBytes {
            order: heads * rows * DType::I32.size(),
            indices: heads * groups * lists.words(tokens, keys) * DType::I32.size(),
            residual: heads * rows * row,
            slope: if self.residual_forecast.is_some() { heads * rows * row } else { 0 },
        })
    }

    /// Bytes of the log-sum-exps that one layer and branch keeps from a dense step until the anchor that follows it, for one
    /// batch element of `heads` heads with `tokens` tokens: none unless anchors select by them ([`Selection::Riding`]).
    pub fn log_sum_exp_bytes(&self, tokens: usize, heads: usize) -> usize {
        match self.selection {
            Selection::Exact => 0,
            Selection::Riding => heads * tokens.saturating_sub(self.sink.len()) * DType::F32.size(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The goal for Wan 2.1 14B at 720p: at most 600 MiB for a layer and branch.
    #[test]
    fn a_layer_of_the_large_model_takes_600_mib() {
        let config = McSparseConfig::density(0.25).with_residual_format(ResidualFormat::Fp8);
        let bytes = config.slot_bytes(75_600, 40, 128, DType::BF16).unwrap();
        let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
        assert!(mib(bytes.total()) <= 600.0, "{bytes:?}: {} MiB", mib(bytes.total()));
        let plain = config.with_residual_format(ResidualFormat::Input).with_index_format(Some(IndexFormat::Plain));
        assert_eq!(mib(plain.slot_bytes(75_600, 40, 128, DType::BF16).unwrap().total()).round(), 2454.0);
    }
}
