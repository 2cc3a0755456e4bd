//! Attention with plain loops in f64: slow, and too simple to be wrong in the same way as anything it judges.

use burn::tensor::{Int, Tensor};

use crate::values;

/// Query, key and value as flat f64 values with their sizes.
pub struct Naive {
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    /// Batch size.
    pub batch: usize,
    /// Query heads.
    pub heads: usize,
    kv_heads: usize,
    /// Query tokens.
    pub queries: usize,
    /// Key tokens.
    pub keys: usize,
    dim: usize,
    scale: f64,
}

impl Naive {
    /// Reads the tensors back.
    pub fn new(query: &Tensor<4>, key: &Tensor<4>, value: &Tensor<4>, scale: f64) -> Self {
        let [batch, heads, queries, dim] = query.dims();
        let [_, kv_heads, keys, _] = key.dims();
        Self { q: values(query), k: values(key), v: values(value), batch, heads, kv_heads, queries, keys, dim, scale }
    }

    fn score(&self, z: usize, i: usize, j: usize) -> f64 {
        let kv = self.kv(z);
        let q = &self.q[(z * self.queries + i) * self.dim..][..self.dim];
        let k = &self.k[(kv * self.keys + j) * self.dim..][..self.dim];
        self.scale * q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>()
    }

    fn kv(&self, z: usize) -> usize {
        let (b, h) = (z / self.heads, z % self.heads);
        b * self.kv_heads + h / (self.heads / self.kv_heads)
    }

    /// Output row and log-sum-exp of query `i` of joined head `z` over `keys`.
    pub fn attend(&self, z: usize, i: usize, keys: &[usize]) -> (Vec<f64>, f64) {
        let scores: Vec<f64> = keys.iter().map(|&j| self.score(z, i, j)).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        let mut output = vec![0.0; self.dim];
        for (&j, s) in keys.iter().zip(&scores) {
            let v = &self.v[(self.kv(z) * self.keys + j) * self.dim..][..self.dim];
            let weight = (s - max).exp() / sum;
            output.iter_mut().zip(v).for_each(|(o, v)| *o += weight * v);
        }
        (output, max + sum.ln())
    }

    /// Dense output and log-sum-exp of all rows.
    pub fn dense(&self) -> (Vec<f64>, Vec<f64>) {
        let all: Vec<usize> = (0..self.keys).collect();
        self.rows(|_, _| all.clone())
    }

    /// Output and log-sum-exp of all rows, row `i` of head `z` over the keys that `of` names.
    pub fn rows(&self, of: impl Fn(usize, usize) -> Vec<usize>) -> (Vec<f64>, Vec<f64>) {
        let (mut outputs, mut lses) = (Vec::new(), Vec::new());
        for z in 0..self.batch * self.heads {
            for i in 0..self.queries {
                let (output, lse) = self.attend(z, i, &of(z, i));
                outputs.extend(output);
                lses.push(lse);
            }
        }
        (outputs, lses)
    }

    /// Attention weight that the queries `group` of head `z` give to each key.
    pub fn mass(&self, z: usize, group: &[usize]) -> Vec<f64> {
        let all: Vec<usize> = (0..self.keys).collect();
        self.mass_by(z, group, |i| self.attend(z, i, &all).1)
    }

    /// The same with log-sum-exps that need not be those of the scores.
    pub fn mass_by(&self, z: usize, group: &[usize], lse: impl Fn(usize) -> f64) -> Vec<f64> {
        let mut mass = vec![0.0; self.keys];
        for &i in group {
            let lse = lse(i);
            for (j, mass) in mass.iter_mut().enumerate() {
                *mass += (self.score(z, i, j) - lse).exp();
            }
        }
        mass
    }
}

/// The indices of an integer tensor, row by row along the last axis.
pub fn index_rows<const D: usize>(tensor: &Tensor<D, Int>) -> Vec<Vec<usize>> {
    let width = tensor.dims()[D - 1];
    let flat: Vec<usize> =
        tensor.to_data().iter::<i64>().map(|i| usize::try_from(i).expect("no negative index")).collect();
    flat.chunks(width.max(1)).map(<[usize]>::to_vec).collect()
}

/// The groups of one row of an order.
pub fn groups(order: &[usize], group_size: usize) -> Vec<Vec<usize>> {
    order.chunks(group_size).map(<[usize]>::to_vec).collect()
}
