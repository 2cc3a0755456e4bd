//! Nothing wrong is timed: sampled rows of every part and kind of step against plain loops in f64 on the host.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{DType, Int, Tensor};
use denoise::Error;

use crate::block::{Block, EPS};
use crate::measure::Bench;
use crate::rotary::angles;
use crate::shape::Shape;
use crate::steps::{Calls, Kind, LAYER};

/// Rows that are looked at, and columns of a product.
const SAMPLED: usize = 6;

/// Compares everything.
///
/// # Errors
///
/// [`Error::Run`] naming the first thing that is off by more than its dtype allows.
pub fn check(bench: &Bench) -> Result<(), Error> {
    parts(bench)?;
    cross_attention(bench)?;
    attention(bench)
}

/// What results of a dtype may be off by, relative to the norm of the row: one rounding of the result and a few of what it
/// was made of. GPUs may compute Burn's f32 products in TF32.
fn limit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-9),
        DType::BF16 => 2f64.powi(-6),
        _ => 2e-3,
    }
}

fn judge(what: &str, got: &[f64], expected: &[f64], limit: f64) -> Result<(), Error> {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let error = norm(&mut got.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied());
    if got.len() == expected.len() && error <= limit {
        return Ok(());
    }
    Err(Error::run(what, format!("off by {error:.1e} from sums in f64, over {limit:.1e}")))
}

fn parts(bench: &Bench) -> Result<(), Error> {
    let (block, x, shape) = (bench.block, bench.x, &bench.settings.shape);
    let limit = limit(bench.settings.dtype.burn());
    let [shift, scale, gate] = [0, 1, 2].map(|i| floats(&block.modulation[i]));
    let factor: Vec<f64> = scale.iter().map(|scale| 1.0 + scale).collect();
    let normed = block.norm(x.clone(), 0);
    for i in sampled(shape.tokens()) {
        judge("norm", &row(&normed, i), &layer_norm(&row(x, i), &factor, &shift), limit)?;
    }
    let projected = block.project(normed.clone());
    for (layer, output) in [&block.query, &block.key, &block.value].into_iter().zip(&projected) {
        product("projection", &normed, layer, output, limit)?;
    }
    for (which, projected) in projected.iter().take(2).enumerate() {
        let rotated = block.norm_and_rotate(projected.clone(), which);
        let rotated = rotated.reshape([shape.tokens(), shape.inner()]);
        let weight = floats(&block.norms[which]);
        for i in sampled(shape.tokens()) {
            let (row, turned) = (row(projected, i), row(&rotated, i));
            let expected = rotate(shape, &row, &weight, &angles(shape, i));
            judge("QK norm and RoPE", &turned, &expected, limit)?;
        }
    }
    let flat = projected[2].clone();
    let (output, product_alone) = (block.add_attention(x.clone(), flat.clone()), block.output.forward(flat.clone()));
    product("output projection", &flat, &block.output, &product_alone, limit)?;
    for i in sampled(shape.tokens()) {
        let (x, update) = (row(x, i), row(&product_alone, i));
        let expected: Vec<f64> = x.iter().zip(update).zip(&gate).map(|((x, u), g)| x + u * g).collect();
        judge("gated sum", &row(&output, i), &expected, limit)?;
    }
    // What the second half of the feed-forward network makes is one more product of the kind that was looked at.
    let inside = block.activate(normed.clone());
    for i in sampled(shape.tokens()) {
        let expected: Vec<f64> = activated(block, &row(&normed, i));
        let got = row(&inside, i);
        let columns: Vec<f64> = columns(shape.ffn).map(|c| got[c]).collect();
        judge("MLP", &columns, &expected, 2.0 * limit)?;
    }
    Ok(())
}

/// Sampled columns of sampled rows of `x` times a layer.
fn product(
    what: &str,
    x: &Tensor<2>,
    layer: &crate::block::Linear,
    output: &Tensor<2>,
    limit: f64,
) -> Result<(), Error> {
    let [tokens, outputs] = output.dims();
    for i in sampled(tokens) {
        let (x, all) = (row(x, i), row(output, i));
        let expected: Vec<f64> = columns(outputs).map(|c| column(layer, &x, c)).collect();
        let got: Vec<f64> = columns(outputs).map(|c| all[c]).collect();
        // Of a few columns, cancellation in one may show.
        judge(what, &got, &expected, 2.0 * limit)?;
    }
    Ok(())
}

fn column(layer: &crate::block::Linear, x: &[f64], c: usize) -> f64 {
    let weight = floats(&layer.weight.clone().slice_dim(1, c..c + 1));
    let bias = floats(&layer.bias.clone().slice_dim(0, c..c + 1))[0];
    weight.iter().zip(x).map(|(w, x)| w * x).sum::<f64>() + bias
}

/// Sampled columns of what is inside the feed-forward network.
fn activated(block: &Block, x: &[f64]) -> Vec<f64> {
    let [_, ffn] = block.mlp[0].weight.dims();
    let inside = |c: usize| {
        let first = column(&block.mlp[0], x, c);
        if block.mlp.len() == 2 {
            let y = (2.0 / std::f64::consts::PI).sqrt() * (first + 0.044715 * first.powi(3));
            0.5 * first * (1.0 + y.tanh())
        } else {
            first / (1.0 + (-first).exp()) * column(&block.mlp[1], x, c)
        }
    };
    columns(ffn).map(inside).collect()
}

/// A layer norm with weights and bias.
fn layer_norm(row: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let n = row.len() as f64;
    let mean = row.iter().sum::<f64>() / n;
    let deviation = (row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n + EPS).sqrt();
    row.iter().zip(weight).zip(bias).map(|((x, a), b)| (x - mean) / deviation * a + b).collect()
}

/// Sampled rows of the attention to the text and of all that leads to it and from it.
fn cross_attention(bench: &Bench) -> Result<(), Error> {
    let (block, x, shape) = (bench.block, bench.x, &bench.settings.shape);
    let Some(cross) = &block.cross else { return Ok(()) };
    let limit = limit(bench.settings.dtype.burn());
    let steps = block.attend_to_text(cross, x.clone());
    let [weight, bias] = cross.norm.each_ref().map(floats);
    product("query of the cross-attention", &steps.normed, &cross.query, &steps.projected, limit)?;
    let query = block.tokens(steps.query.clone());
    let (still, weights) = (vec![0.0; shape.head_dim / 2], floats(&cross.weight));
    for i in sampled(shape.tokens()) {
        let expected = layer_norm(&row(x, i), &weight, &bias);
        judge("norm before the cross-attention", &row(&steps.normed, i), &expected, limit)?;
        let expected = rotate(shape, &row(&steps.projected, i), &weights, &still);
        judge("query norm of the cross-attention", &row(&query, i), &expected, limit)?;
    }
    let qkv = [steps.query, cross.keys.clone(), cross.values.clone()];
    for head in [0, shape.heads - 1].map(|head| Head::new(head, &qkv)) {
        let columns = head.index * shape.head_dim..(head.index + 1) * shape.head_dim;
        let output = steps.attended.clone().slice_dim(1, columns);
        let keys: Vec<usize> = (0..shape.cross_text).collect();
        for i in sampled(shape.tokens()) {
            judge("cross-attention", &row(&output, i), &head.attend(i, &keys), limit)?;
        }
    }
    let update = cross.output.forward(steps.attended.clone());
    product("output of the cross-attention", &steps.attended, &cross.output, &update, limit)?;
    let output = block.add_cross(x.clone());
    for i in sampled(shape.tokens()) {
        let expected: Vec<f64> = row(x, i).iter().zip(row(&update, i)).map(|(x, u)| x + u).collect();
        judge("sum after the cross-attention", &row(&output, i), &expected, limit)?;
    }
    Ok(())
}

/// The norm of queries or keys and their rotation by `angles`.
fn rotate(shape: &Shape, row: &[f64], weight: &[f64], angles: &[f64]) -> Vec<f64> {
    let dim = shape.head_dim;
    let square = |values: &[f64]| (values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64 + EPS).sqrt();
    let whole = square(row);
    row.chunks(dim)
        .enumerate()
        .flat_map(|(head, values)| {
            let size = if shape.norm_all_heads { whole } else { square(values) };
            let weight = if shape.norm_all_heads { &weight[head * dim..][..dim] } else { weight };
            let x: Vec<f64> = values.iter().zip(weight).map(|(x, w)| x / size * w).collect();
            let turned = move |c: usize| {
                let (a, b, angle) = (x[c / 2 * 2], x[c / 2 * 2 + 1], angles[c / 2]);
                if c.is_multiple_of(2) { a * angle.cos() - b * angle.sin() } else { b * angle.cos() + a * angle.sin() }
            };
            (0..dim).map(turned).collect::<Vec<_>>()
        })
        .collect()
}

/// The first and the last head of each kind of step, sampled rows.
fn attention(bench: &Bench) -> Result<(), Error> {
    let (settings, shape) = (bench.settings, &bench.settings.shape);
    let limit = limit(settings.dtype.burn());
    let qkv = bench.block.qkv(bench.x.clone());
    let heads: Vec<Head> = [0, shape.heads - 1].map(|head| Head::new(head, &qkv)).into();
    for kind in Kind::ALL {
        let mut calls = Calls::new(kind, settings, &qkv)?;
        let mut attend = || {
            let [q, k, v] = qkv.clone();
            Ok::<_, Error>(calls.attention()?.attend(LAYER, q, k, v)?)
        };
        let output = match kind {
            // It is timed only where it may keep its scores, and where it does not panic.
            Kind::Burn if settings.score_bytes() > settings.burn_bytes => continue,
            Kind::Burn => match catch_unwind(AssertUnwindSafe(attend)) {
                Ok(output) => output?,
                Err(_) => continue,
            },
            _ => attend()?,
        };
        let lists = match kind {
            Kind::Reuse => Some(calls.run().and_then(|run| run.cache().slots().first()).expect("an anchor filled it")),
            _ => None,
        };
        for head in &heads {
            let output = one_head(&output, head.index);
            let lists = lists.map(|slot| {
                let list = one_head(&slot.residual(), head.index);
                let order = integers(&slot.order().clone().slice_dim(1, head.index..head.index + 1));
                let indices = integers(&slot.indices().slice_dim(1, head.index..head.index + 1));
                (order, indices, list)
            });
            for place in sampled(shape.video()) {
                let (mut keys, mut row, mut residual) = ((0..shape.tokens()).collect(), shape.prefix + place, None);
                if let Some((order, indices, list)) = &lists {
                    let group = place / settings.config.group_size;
                    keys = indices[group * settings.budget.keys..][..settings.budget.keys].to_vec();
                    row = shape.prefix + order[place];
                    residual = Some(self::row(list, order[place]));
                }
                let mut expected = head.attend(row, &keys);
                residual.into_iter().for_each(|r| expected.iter_mut().zip(r).for_each(|(e, r)| *e += r));
                judge(kind.name(), &self::row(&output, row), &expected, limit)?;
            }
        }
    }
    Ok(())
}

/// Queries, keys and values of one head.
struct Head {
    index: usize,
    query: Tensor<2>,
    keys: Vec<f64>,
    values: Vec<f64>,
    dim: usize,
}

impl Head {
    fn new(index: usize, qkv: &[Tensor<4>; 3]) -> Self {
        let [query, keys, values] = qkv.each_ref().map(|tensor| one_head(tensor, index));
        let dim = query.dims()[1];
        Self { index, keys: floats(&keys), values: floats(&values), query, dim }
    }

    fn attend(&self, i: usize, keys: &[usize]) -> Vec<f64> {
        let q = row(&self.query, i);
        let scale = (self.dim as f64).powf(-0.5);
        let part = |all: &'_ [f64], j: usize| all[j * self.dim..][..self.dim].to_vec();
        let score = |&j: &usize| scale * q.iter().zip(part(&self.keys, j)).map(|(a, b)| a * b).sum::<f64>();
        let scores: Vec<f64> = keys.iter().map(score).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let mut output = vec![0.0; self.dim];
        for (&j, weight) in keys.iter().zip(&weights) {
            output.iter_mut().zip(part(&self.values, j)).for_each(|(o, v)| *o += weight / sum * v);
        }
        output
    }
}

/// Places spread over `0..n`, both ends among them.
fn sampled(n: usize) -> impl Iterator<Item = usize> {
    (0..n).step_by(n.div_ceil(SAMPLED)).chain(std::iter::once(n - 1))
}

fn columns(n: usize) -> impl Iterator<Item = usize> {
    sampled(n)
}

fn one_head(tensor: &Tensor<4>, head: usize) -> Tensor<2> {
    let [_, _, rows, dim] = tensor.dims();
    tensor.clone().slice_dim(1, head..head + 1).reshape([rows, dim])
}

fn row(tensor: &Tensor<2>, i: usize) -> Vec<f64> {
    floats(&tensor.clone().slice_dim(0, i..i + 1))
}

fn floats<const D: usize>(tensor: &Tensor<D>) -> Vec<f64> {
    tensor.to_data().iter::<f64>().collect()
}

fn integers<const D: usize>(tensor: &Tensor<D, Int>) -> Vec<usize> {
    tensor.to_data().iter::<i64>().map(|i| i as usize).collect()
}
