//! Nothing wrong is timed: sampled rows of every output against plain loops in f64 on the host, which no device rounds.

use burn::tensor::{DType, Int, Tensor};
use mcsparse::ops::Route;

use crate::{
    inputs::{Inputs, TAIL_BLOCK},
    settings::Settings,
    stage::{Output, Work},
};

/// Query rows of a head, or groups, that are looked at.
const SAMPLED: usize = 24;

/// Share of the weight that kept keys may miss.
const SELECTION: f64 = 1e-4;

/// How far `output` is from what it should be: relative L2 error of attention, share of the attention weight that selection
/// missed, 0 for groups and top-K that are exact.
///
/// # Errors
///
/// What is wrong, if it is over what the dtype allows.
pub fn check(work: Work, route: &Route, output: &Output, inputs: &Inputs, settings: &Settings) -> Result<f64, String> {
    let host = Host::new(inputs, settings);
    let error = match output {
        Output::Attention(output, lse) => host.attention_error(work, output, lse.as_ref(), inputs),
        Output::Both(output, lse, indices) => {
            let missed = host.missed_weight(indices)?;
            if missed > SELECTION {
                return Err(format!("kept keys miss {missed:.1e} of the weight, over {SELECTION:.1e}"));
            }
            host.attention_error(work, output, Some(lse), inputs)
        }
        Output::Order(order) => host.order_error(order)?,
        Output::Indices(indices) => host.missed_weight(indices)?,
        Output::Top(top) => top_error(top, &inputs.rows, settings.keys()),
    };
    let limit = limit(work, route, settings.dtype);
    if error <= limit { Ok(error) } else { Err(format!("off by {error:.1e}, over {limit:.1e}")) }
}

fn limit(work: Work, route: &Route, dtype: DType) -> f64 {
    match (work, dtype) {
        (Work::Select, _) => SELECTION,
        (Work::Group | Work::TopK, _) => 0.0,
        (_, DType::F16) => 2f64.powi(-10),
        (_, DType::BF16) => 2f64.powi(-7),
        // GPUs may run Burn's own f32 products in TF32, or its attention in f16.
        _ if work == Work::Burn || !matches!(route, Route::Kernel { .. }) => 2e-3,
        _ => 1e-5,
    }
}

/// Everything that is needed, read back once.
struct Host<'a> {
    qkv: [Vec<f64>; 3],
    order: Vec<usize>,
    indices: Vec<usize>,
    settings: &'a Settings,
}

impl<'a> Host<'a> {
    fn new(inputs: &Inputs, settings: &'a Settings) -> Self {
        let qkv = inputs.qkv.each_ref().map(floats);
        Self { qkv, order: integers(&inputs.order), indices: integers(&inputs.indices), settings }
    }

    fn row(&self, part: usize, head: usize, i: usize) -> &[f64] {
        let Settings { tokens, head_dim, .. } = *self.settings;
        &self.qkv[part][(head * tokens + i) * head_dim..][..head_dim]
    }

    fn scores(&self, head: usize, i: usize, keys: &[usize]) -> Vec<f64> {
        let q = self.row(0, head, i);
        let dot = |&j: &usize| q.iter().zip(self.row(1, head, j)).map(|(a, b)| a * b).sum::<f64>();
        keys.iter().map(|j| self.settings.scale() * dot(j)).collect()
    }

    /// Softmax weights and log-sum-exp.
    fn weights(&self, head: usize, i: usize, keys: &[usize]) -> (Vec<f64>, f64) {
        let scores = self.scores(head, i, keys);
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = max + scores.iter().map(|s| (s - max).exp()).sum::<f64>().ln();
        (scores.iter().map(|s| (s - lse).exp()).collect(), lse)
    }

    /// Score, with the logarithm of the number of keys that are not among `kept`, and mean value of each block.
    fn tail(&self, head: usize, i: usize, kept: &[usize]) -> Vec<(f64, Vec<f64>)> {
        let Settings { tokens, head_dim, .. } = *self.settings;
        let blocks = (0..self.settings.blocks()).map(|b| b * TAIL_BLOCK..((b + 1) * TAIL_BLOCK).min(tokens));
        let mean = |part: usize, block: &std::ops::Range<usize>| -> Vec<f64> {
            let rows = || block.clone().map(|j| self.row(part, head, j));
            (0..head_dim).map(|c| rows().map(|row| row[c]).sum::<f64>() / block.len() as f64).collect()
        };
        let of_block = |block: std::ops::Range<usize>| {
            let left = block.clone().filter(|j| kept.binary_search(j).is_err()).count() as f64;
            let score: f64 = self.row(0, head, i).iter().zip(mean(1, &block)).map(|(a, b)| a * b).sum();
            (left.ln() + self.settings.scale() * score, mean(2, &block))
        };
        blocks.map(of_block).collect()
    }

    fn group(&self, head: usize, g: usize) -> &[usize] {
        let Settings { tokens, group, .. } = *self.settings;
        &self.order[head * tokens + g * group..head * tokens + ((g + 1) * group).min(tokens)]
    }

    fn attention_error(&self, work: Work, output: &Tensor<4>, lse: Option<&Tensor<3>>, inputs: &Inputs) -> f64 {
        let Settings { tokens, heads, head_dim, group, .. } = *self.settings;
        let (output, residual, lse) = (floats(output), floats(&inputs.residual), lse.map(floats));
        let all: Vec<usize> = (0..tokens).collect();
        let (mut error, mut norm, mut worst_lse) = (0.0, 0.0, 0f64);
        for head in 0..heads {
            for place in spread(tokens) {
                let i = self.order[head * tokens + place];
                let sparse = matches!(work, Work::Sparse | Work::Tail);
                let list = (head * self.settings.groups() + place / group) * self.settings.keys();
                let keys = if sparse { &self.indices[list..][..self.settings.keys()] } else { &all[..] };
                let (mut weights, mut exact) = self.weights(head, i, keys);
                let mut tail = Vec::new();
                if work == Work::Tail {
                    tail = self.tail(head, i, keys);
                    let (before, largest) = (exact, tail.iter().map(|(score, _)| *score).fold(exact, f64::max));
                    let sum: f64 = tail.iter().map(|(score, _)| (score - largest).exp()).sum();
                    exact = largest + ((before - largest).exp() + sum).ln();
                    weights.iter_mut().for_each(|weight| *weight *= (before - exact).exp());
                }
                let at = (head * tokens + i) * head_dim;
                for c in 0..head_dim {
                    let kept: f64 = keys.iter().zip(&weights).map(|(&j, w)| w * self.row(2, head, j)[c]).sum();
                    let sum = kept + tail.iter().map(|(score, value)| (score - exact).exp() * value[c]).sum::<f64>();
                    let expected = if sparse { sum + residual[at + c] } else { sum };
                    error += (output[at + c] - expected).powi(2);
                    norm += expected.powi(2);
                }
                if let Some(lse) = &lse {
                    let difference = (lse[head * tokens + i] - exact).abs();
                    worst_lse = if difference <= worst_lse { worst_lse } else { difference };
                }
            }
        }
        // NaN stays NaN here, and is over every limit. Log-sum-exp stays in f32 whatever the dtype.
        if worst_lse < 2e-3 { (error / norm).sqrt() } else { worst_lse }
    }

    fn order_error(&self, order: &Tensor<3, Int>) -> Result<f64, String> {
        for row in integers(order).chunks_mut(self.settings.tokens) {
            if row.chunks(self.settings.group).any(|group| !group.is_sorted()) {
                return Err("a group is not sorted".into());
            }
            row.sort_unstable();
            if !row.iter().copied().eq(0..self.settings.tokens) {
                return Err("no permutation".into());
            }
        }
        Ok(0.0)
    }

    fn missed_weight(&self, indices: &Tensor<4, Int>) -> Result<f64, String> {
        let Settings { tokens, heads, .. } = *self.settings;
        let (groups, k, indices) = (self.settings.groups(), self.settings.keys(), integers(indices));
        let all: Vec<usize> = (0..tokens).collect();
        let mut missed = 0f64;
        for head in 0..heads {
            // One group of the middle and the last one, which may be partial.
            for g in [groups / 2, groups - 1] {
                let mut mass = vec![0.0; tokens];
                for &i in self.group(head, g) {
                    self.weights(head, i, &all).0.iter().zip(&mut mass).for_each(|(w, m)| *m += w);
                }
                let picked = &indices[(head * groups + g) * k..][..k];
                if picked.windows(2).any(|w| w[0] >= w[1]) || picked[k - 1] >= tokens {
                    return Err("keys are not ascending indices".into());
                }
                let kept: f64 = picked.iter().map(|&j| mass[j]).sum();
                mass.sort_by(|a, b| b.total_cmp(a));
                let best: f64 = mass[..k].iter().sum();
                missed = missed.max(1.0 - kept / best);
            }
        }
        Ok(missed.max(0.0))
    }
}

/// The share of rows whose top-K is not exactly that of a sort on the host.
fn top_error(top: &Tensor<2, Int>, rows: &Tensor<2>, k: usize) -> f64 {
    let (top, rows, n) = (integers(top), floats(rows), rows.dims()[1]);
    let wrong = rows.chunks(n).zip(top.chunks(k)).filter(|(row, top)| {
        let mut places: Vec<usize> = (0..n).collect();
        places.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
        places.truncate(k);
        places.sort_unstable();
        places != *top
    });
    wrong.count() as f64 / (rows.len() / n) as f64
}

fn spread(n: usize) -> impl Iterator<Item = usize> {
    (0..n).step_by(n.div_ceil(SAMPLED)).chain(std::iter::once(n - 1))
}

fn floats<const D: usize>(tensor: &Tensor<D>) -> Vec<f64> {
    tensor.to_data().convert::<f64>().try_to_vec::<f64>().expect("converted to f64")
}

fn integers<const D: usize>(tensor: &Tensor<D, Int>) -> Vec<usize> {
    tensor.to_data().iter::<i64>().map(|i| i as usize).collect()
}
