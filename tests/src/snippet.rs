//! The snippet of the README; a test keeps both the same.
#![allow(missing_docs)]

use burn::{module::Module, nn::Linear, tensor::Tensor};
use mcsparse::{Error, McSparseAttention, MetaCache}; // (1)

#[derive(Module, Debug)]
pub struct SelfAttention {
    pub qkv: Linear,
    pub out: Linear,
    pub heads: usize,
    pub sparse: McSparseAttention, // (2) McSparseConfig::density(0.15).init(layer)?
}

impl SelfAttention {
    fn forward(&self, x: Tensor<3>, cache: &mut MetaCache) -> Result<Tensor<3>, Error> { // (3)
        let [batch, tokens, width] = x.dims();
        let qkv = self.qkv.forward(x).reshape([batch, tokens, 3, self.heads, width / self.heads]);
        let [q, k, v] = [0, 1, 2].map(|i| qkv.clone().slice_dim(2, i..i + 1).squeeze_dim::<4>(2).swap_dims(1, 2));
        // was: let y = attention(q, k, v, None, None, Default::default());
        let y = self.sparse.forward(q, k, v, cache)?; // (4)
        Ok(self.out.forward(y.swap_dims(1, 2).reshape([batch, tokens, width])))
    }
}

pub fn denoise(blocks: &[SelfAttention], mut x: Tensor<3>, steps: usize) -> Result<Tensor<3>, Error> {
    let mut cache = MetaCache::new(blocks[0].sparse.config(), steps)?; // (5)
    for step in 0..steps {
        cache.begin_step(step)?; // (6)
        for block in blocks {
            x = block.forward(x, &mut cache)?;
        }
    }
    println!("{}", cache.finish()?); // (7)
    Ok(x)
}
