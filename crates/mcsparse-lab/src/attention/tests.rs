//! Every recipe against direct formulas in f64 on the host.

use burn::tensor::{DType, Device, Tensor, TensorData};
use mcsparse::{Anchors, McSparse, McSparseConfig, Refresh as Renew, Schedule as Steps, SelfAttention};

use super::{
    clusters::k_means,
    rivals::{chipmunk, content_keys, lite, mc_sparse, pisa, reused_blocks, sol, svg2, token_keys, vanilla},
    *,
};
use crate::noise::normal;

const HEADS: usize = 2;
const DIM: usize = 8;
const BLOCK: usize = 8;
const GRID: [usize; 3] = [3, 4, 4];
/// Sums of some dozens of products in f32.
const CLOSE: f64 = 2e-5;

fn layouts() -> [Layout; 2] {
    // Whole blocks in tiles, and a last block of five.
    [Layout::tiled(GRID, [1, 2, 4]).unwrap(), Layout::raster(45)]
}

fn qkv(tokens: usize, seed: u64) -> [Tensor<4>; 3] {
    let shape = [1, HEADS, tokens, DIM];
    [0, 1, 2].map(|part| {
        let gain = if part == 0 { 2.0 } else { 1.0 };
        let values = normal(HEADS * tokens * DIM, 3 * seed + part).into_iter().map(|v| v * gain).collect::<Vec<_>>();
        Tensor::from_data(TensorData::new(values, shape), (&Device::flex(), DType::F32))
    })
}

fn call<'a>([q, k, v]: &[Tensor<4>; 3], layout: &'a Layout) -> Call<'a> {
    Call::new(q.clone(), k.clone(), v.clone(), layout).unwrap()
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

fn assert_close(ours: &[f64], expected: &[f64], what: &str) {
    assert_eq!(ours.len(), expected.len(), "{what}");
    let worst = ours.iter().zip(expected).map(|(a, b)| (a - b).abs() / (1.0 + b.abs())).fold(0.0, f64::max);
    assert!(worst < CLOSE, "{what}: off by {worst:e}");
}

/// Rows of one head.
#[derive(Clone)]
struct Host {
    q: Vec<Vec<f64>>,
    k: Vec<Vec<f64>>,
    v: Vec<Vec<f64>>,
}

impl Host {
    fn of(qkv: &[Tensor<4>; 3]) -> Vec<Self> {
        let tokens = qkv[0].dims()[2];
        let parts = qkv.clone().map(|t| values(t).chunks(DIM).map(<[f64]>::to_vec).collect::<Vec<_>>());
        let [q, k, v] = parts.map(|rows| rows.chunks(tokens).map(<[Vec<f64>]>::to_vec).collect::<Vec<_>>());
        (0..HEADS).map(|h| Self { q: q[h].clone(), k: k[h].clone(), v: v[h].clone() }).collect()
    }

    fn n(&self) -> usize {
        self.q.len()
    }

    fn score(&self, i: usize, j: usize) -> f64 {
        dot(&self.q[i], &self.k[j]) * (DIM as f64).powf(-0.5)
    }

    fn lse(&self, i: usize, keys: impl Iterator<Item = usize>) -> f64 {
        keys.map(|j| self.score(i, j).exp()).sum::<f64>().ln()
    }

    /// Output and log-sum-exp over the keys that `mask` keeps.
    fn attend(&self, i: usize, mask: &[bool]) -> (Vec<f64>, f64) {
        let kept = || (0..self.n()).filter(|&j| mask[j]);
        let lse = self.lse(i, kept());
        let mut output = vec![0.0; DIM];
        for j in kept() {
            add(&mut output, &self.v[j], (self.score(i, j) - lse).exp());
        }
        (output, lse)
    }

    /// Natural logarithm of the attention weight.
    fn log_weight(&self, i: usize, j: usize) -> f64 {
        self.score(i, j) - self.lse(i, 0..self.n())
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(to: &mut [f64], row: &[f64], weight: f64) {
    to.iter_mut().zip(row).for_each(|(to, x)| *to += weight * x);
}

fn mean(rows: &[Vec<f64>], of: &[usize]) -> Vec<f64> {
    let mut mean = vec![0.0; DIM];
    of.iter().for_each(|&i| add(&mut mean, &rows[i], 1.0 / of.len() as f64));
    mean
}

/// The mask of a pattern, `[head][query][key]`.
fn masks(pattern: &Pattern, tokens: usize) -> Vec<Vec<Vec<bool>>> {
    let flat: Vec<bool> = values(pattern.mask_of_queries()).into_iter().map(|v| v > 0.5).collect();
    let rows: Vec<_> = flat.chunks(tokens).map(<[bool]>::to_vec).collect();
    rows.chunks(tokens).map(<[Vec<bool>]>::to_vec).collect()
}

/// The runs of `size` tokens in the order of the layout.
fn runs(layout: &Layout, size: usize) -> Vec<Vec<usize>> {
    let order: Vec<usize> = values(layout.order(&Device::flex()).float()).into_iter().map(|v| v as usize).collect();
    order.chunks(size).map(<[usize]>::to_vec).collect()
}

/// The `count` keys of largest value, ties to the lowest.
fn largest(values: &[f64], count: usize) -> Vec<bool> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    let mut mask = vec![false; values.len()];
    order[..count].iter().for_each(|&j| mask[j] = true);
    mask
}

#[test]
fn densities_are_exact_and_outputs_are_masked_attention() {
    for layout in layouts() {
        let (tokens, whole) = (layout.tokens(), layout.tokens().is_multiple_of(BLOCK));
        let data = qkv(tokens, 1);
        let (call, hosts) = (call(&data, &layout), Host::of(&data));
        let (_, lse) = call.dense();
        for density in [0.1, 0.35, 0.5, 1.0] {
            for recipe in [
                vanilla(density, BLOCK, BLOCK),
                vanilla(density, 16, 4),
                reused_blocks(density, BLOCK, BLOCK),
                token_keys(density, BLOCK),
                token_keys(density, 1),
                content_keys(density, BLOCK),
                lite(density, BLOCK, 4),
                svg2(density, 12, 6),
                sol(density, BLOCK),
            ] {
                let pattern = select(&recipe, &call, Some(&lse));
                let (masks, exact) = (masks(&pattern, tokens), pattern.attend(&call));
                let (output, lse) = (values(exact.output), values(exact.lse));
                let threshold = matches!(recipe.select, Select::ThresholdBlocks { .. });
                for (h, host) in hosts.iter().enumerate() {
                    let kept = |i: usize| masks[h][i].iter().filter(|&&kept| kept).count();
                    if threshold && whole {
                        let pairs = (density * ((tokens / BLOCK).pow(2)) as f64).round() as usize;
                        assert_eq!((0..tokens).map(kept).sum::<usize>(), pairs * BLOCK * BLOCK, "{recipe:?}");
                    }
                    for (i, mask) in masks[h].iter().enumerate() {
                        if !threshold {
                            assert_eq!(kept(i), recipe.keys(tokens), "{recipe:?}, query {i}");
                        }
                        if kept(i) == 0 {
                            continue; // a group whose blocks are all approximated
                        }
                        let (expected, expected_lse) = host.attend(i, mask);
                        let row = h * tokens + i;
                        assert_close(&output[row * DIM..][..DIM], &expected, &format!("{recipe:?}"));
                        assert_close(&lse[row..][..1], &[expected_lse], &format!("{recipe:?}"));
                    }
                }
                if !threshold {
                    assert!((pattern.density() - recipe.keys(tokens) as f64 / tokens as f64).abs() < 1e-6);
                }
            }
        }
    }
}

#[test]
fn blocks_and_keys_are_those_of_the_formulas() {
    let density = 0.3;
    for (layout, group) in layouts().into_iter().flat_map(|layout| [(layout.clone(), 8), (layout, 1)]) {
        let tokens = layout.tokens();
        let data = qkv(tokens, 2);
        let (call, hosts) = (call(&data, &layout), Host::of(&data));
        let (_, lse) = call.dense();
        let (groups, blocks) = (runs(&layout, group), runs(&layout, BLOCK));
        let keys = token_keys(density, group).keys(tokens);
        type Score = fn(&Host, &[usize], &[usize]) -> f64;
        let pooled: Score = |host, g, b| dot(&mean(&host.q, g), &mean(&host.k, b));
        let weight: Score = |host, g, b| {
            g.iter().flat_map(|&i| b.iter().map(move |&j| (i, j))).map(|(i, j)| host.log_weight(i, j).exp()).sum()
        };
        let top: Score = |host, g, b| {
            let pairs = g.iter().flat_map(|&i| b.iter().map(move |&j| (i, j)));
            pairs.map(|(i, j)| host.log_weight(i, j)).fold(f64::NEG_INFINITY, f64::max)
        };
        for (recipe, score) in [
            (vanilla(density, group, BLOCK), pooled),
            (reused_blocks(density, group, BLOCK), weight),
            (lite(density, group, BLOCK), top),
        ] {
            let masks = masks(&select(&recipe, &call, Some(&lse)), tokens);
            for (host, masks) in hosts.iter().zip(&masks) {
                for g in &groups {
                    let mut by_key = vec![0.0; tokens];
                    for b in &blocks {
                        b.iter().for_each(|&j| by_key[j] = score(host, g, b));
                    }
                    g.iter().for_each(|&i| assert_eq!(masks[i], largest(&by_key, keys), "{recipe:?}"));
                }
            }
        }
        // Single keys for neighbouring queries.
        let masks = masks(&select(&token_keys(density, group), &call, Some(&lse)), tokens);
        for (host, masks) in hosts.iter().zip(&masks) {
            for g in &groups {
                let by_key: Vec<f64> = (0..tokens).map(|j| weight(host, g, &[j])).collect();
                g.iter().for_each(|&i| assert_eq!(masks[i], largest(&by_key, keys)));
            }
        }
    }
}

#[test]
fn the_threshold_counts_deviations_and_groups_compete() {
    let layout = &layouts()[0];
    let data = qkv(layout.tokens(), 3);
    let blocks = runs(layout, BLOCK);
    let masks = masks(&select(&sol(0.3, BLOCK), &call(&data, layout), None), layout.tokens());
    for (host, masks) in Host::of(&data).iter().zip(&masks) {
        let standard: Vec<f64> = blocks
            .iter()
            .flat_map(|g| {
                let row: Vec<f64> = blocks.iter().map(|b| dot(&mean(&host.q, g), &mean(&host.k, b))).collect();
                let mean = row.iter().sum::<f64>() / row.len() as f64;
                let spread = (row.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / row.len() as f64).sqrt();
                row.into_iter().map(move |s| (s - mean) / spread)
            })
            .collect();
        let kept = largest(&standard, (0.3 * standard.len() as f64).round() as usize);
        for (g, group) in blocks.iter().enumerate() {
            for (b, block) in blocks.iter().enumerate() {
                let pairs = group.iter().flat_map(|&i| block.iter().map(move |&j| (i, j)));
                pairs.for_each(|(i, j)| assert_eq!(masks[i][j], kept[g * blocks.len() + b]));
            }
        }
    }
}

#[test]
fn competing_groups_keep_the_most_weight_there_is() {
    let (layout, group) = (&layouts()[0], 8);
    let (tokens, data) = (layout.tokens(), qkv(layout.tokens(), 11));
    let call = call(&data, layout);
    let (_, lse) = call.dense();
    let (hosts, groups) = (Host::of(&data), runs(layout, group));
    for heads in [false, true] {
        let recipe = Recipe { select: Select::CompetingKeys { heads }, ..token_keys(0.2, group) };
        let masks = masks(&select(&recipe, &call, Some(&lse)), tokens);
        let weights: Vec<f64> = hosts
            .iter()
            .flat_map(|host| groups.iter().flat_map(move |g| (0..tokens).map(move |j| (host, g, j))))
            .map(|(host, g, j)| g.iter().map(|&i| host.log_weight(i, j).exp()).sum())
            .collect();
        let together = groups.len() * tokens * if heads { HEADS } else { 1 };
        let keys = together / tokens * recipe.keys(tokens);
        let kept: Vec<bool> = weights.chunks(together).flat_map(|weights| largest(weights, keys)).collect();
        for (h, masks) in masks.iter().enumerate() {
            for (g, members) in groups.iter().enumerate() {
                let expected = &kept[(h * groups.len() + g) * tokens..][..tokens];
                members.iter().for_each(|&i| assert_eq!(masks[i], expected, "heads {heads}"));
            }
        }
    }
}

#[test]
fn k_means_is_lloyd() {
    let (n, count, iterations) = (40, 5, 4);
    let flat = normal(n * DIM, 9);
    let rows: Vec<Vec<f64>> = flat.chunks(DIM).map(|row| row.iter().map(|&v| v.into()).collect()).collect();
    let tensor = Tensor::<3>::from_data(TensorData::new(flat, [1, n, DIM]), (&Device::flex(), DType::F32));
    let ours = k_means(tensor, count, iterations);
    let mut centroids: Vec<Vec<f64>> = (0..count).map(|c| rows[(2 * c + 1) * n / (2 * count)].clone()).collect();
    let nearest = |centroids: &[Vec<f64>], row: &[f64]| {
        let distance = |c: &[f64]| c.iter().zip(row).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
        (0..count).min_by(|&a, &b| distance(&centroids[a]).total_cmp(&distance(&centroids[b]))).unwrap()
    };
    for _ in 0..iterations {
        let of_row: Vec<usize> = rows.iter().map(|row| nearest(&centroids, row)).collect();
        for (c, centroid) in centroids.iter_mut().enumerate() {
            let members: Vec<usize> = (0..n).filter(|&i| of_row[i] == c).collect();
            if !members.is_empty() {
                *centroid = mean(&rows, &members);
            }
        }
    }
    let of_row: Vec<f64> = rows.iter().map(|row| nearest(&centroids, row) as f64).collect();
    assert_close(&values(ours.centroids), &centroids.concat(), "centroids");
    assert_eq!(values(ours.of_row.float()), of_row);
    let sizes: Vec<f64> = (0..count).map(|c| of_row.iter().filter(|&&o| o == c as f64).count() as f64).collect();
    assert_eq!(values(ours.sizes), sizes);
}

#[test]
fn clusters_keep_the_heaviest_clusters_first() {
    let layout = &layouts()[1];
    let (tokens, data) = (layout.tokens(), qkv(layout.tokens(), 4));
    let recipe = svg2(0.4, 12, 6);
    let masks = masks(&select(&recipe, &call(&data, layout), None), tokens);
    let flat = |t: &Tensor<4>| t.clone().reshape([HEADS, tokens, DIM]);
    let (queries, keys) = (k_means(flat(&data[0]), 4, 10), k_means(flat(&data[1]), 8, 10));
    let (qc, kc) = (values(queries.centroids), values(keys.centroids));
    let (q_of, k_of, sizes) = (values(queries.of_row.float()), values(keys.of_row.float()), values(keys.sizes));
    for (h, masks) in masks.iter().enumerate() {
        for (i, mask) in masks.iter().enumerate() {
            let row = q_of[h * tokens + i] as usize;
            let weight = |j: usize| {
                let c = k_of[h * tokens + j] as usize;
                let score = dot(&qc[(h * 4 + row) * DIM..][..DIM], &kc[(h * 8 + c) * DIM..][..DIM]);
                sizes[h * 8 + c] * (score * (DIM as f64).powf(-0.5)).exp()
            };
            let by_key: Vec<f64> = (0..tokens).map(weight).collect();
            assert_eq!(*mask, largest(&by_key, recipe.keys(tokens)), "head {h}, query {i}");
        }
    }
}

/// One run of a single step with a single layer.
fn sparse_output(recipe: Recipe, layout: &Layout, anchor: &[Tensor<4>; 3], then: &[Tensor<4>; 3]) -> Vec<f64> {
    let plan = Steps::warm_up(0).plan(2).unwrap();
    let mut attention = LabAttention::new(recipe, Schedule::new(plan, vec![]), layout.clone()).unwrap();
    let mut output = None;
    for (step, [q, k, v]) in [anchor, then].into_iter().enumerate() {
        attention.begin_step(step).unwrap();
        output = Some(attention.attend(0, q.clone(), k.clone(), v.clone()).unwrap());
    }
    values(output.unwrap())
}

#[test]
fn skipped_blocks_are_approximated_as_published() {
    for layout in layouts() {
        let tokens = layout.tokens();
        let data = qkv(tokens, 5);
        let (call, hosts, blocks) = (call(&data, &layout), Host::of(&data), runs(&layout, BLOCK));
        let scale = (DIM as f64).powf(-0.5);
        // With whole blocks, with blocks that are kept in part, and with nothing left.
        for recipe in [sol(0.3, BLOCK), pisa(0.3, BLOCK), pisa(0.4, BLOCK), pisa(1.0, BLOCK)] {
            let masks = masks(&select(&recipe, &call, None), tokens);
            let ours = sparse_output(recipe.clone(), &layout, &data, &data);
            let first_order = matches!(recipe.rest, Rest::FirstOrder { .. });
            for (h, host) in hosts.iter().enumerate() {
                let mut covariance = vec![vec![0.0; DIM]; DIM];
                for block in &blocks {
                    let centre = mean(&host.k, block);
                    for (&j, a) in block.iter().flat_map(|j| (0..DIM).map(move |a| (j, a))) {
                        add(&mut covariance[a], &host.v[j], host.k[j][a] - centre[a]);
                    }
                }
                for (i, mask) in masks[h].iter().enumerate() {
                    let (mut output, mut sum, mut skipped) = (vec![0.0; DIM], 0.0, 0.0);
                    for j in (0..tokens).filter(|&j| mask[j]) {
                        let weight = host.score(i, j).exp();
                        add(&mut output, &host.v[j], weight);
                        sum += weight;
                    }
                    for block in &blocks {
                        let left: Vec<usize> = block.iter().copied().filter(|&j| !mask[j]).collect();
                        if !left.is_empty() {
                            let weight = (scale * dot(&host.q[i], &mean(&host.k, &left))).exp() * left.len() as f64;
                            add(&mut output, &mean(&host.v, &left), weight);
                            skipped += weight;
                        }
                    }
                    if first_order {
                        for (row, q) in covariance.iter().zip(&host.q[i]) {
                            add(&mut output, row, skipped / tokens as f64 * scale * q);
                        }
                    }
                    let expected: Vec<f64> = output.iter().map(|o| o / (sum + skipped)).collect();
                    let row = h * tokens + i;
                    assert_close(&ours[row * DIM..][..DIM], &expected, &format!("{recipe:?}, query {i}"));
                }
            }
        }
    }
}

#[test]
fn everything_at_density_one_is_dense_attention() {
    let layout = &layouts()[1];
    let data = qkv(layout.tokens(), 6);
    let dense = values(call(&data, layout).dense().0);
    for recipe in [vanilla(1.0, 8, 8), pisa(1.0, 8), sol(1.0, 8), svg2(1.0, 8, 8), mc_sparse(1.0, 8), lite(1.0, 8, 8)] {
        assert_close(&sparse_output(recipe.clone(), layout, &data, &data), &dense, &format!("{recipe:?}"));
    }
}

#[test]
fn at_the_anchor_s_own_inputs_every_residual_gives_dense_attention() {
    let layout = &layouts()[1];
    let data = qkv(layout.tokens(), 7);
    let dense = values(call(&data, layout).dense().0);
    let base = content_keys(0.2, 8);
    for residual in [Residual::Added, Residual::Renormalised, Residual::Tail, Residual::Forecast { damping: 1.0 }] {
        let recipe = base.clone().with_residual(residual);
        assert_close(&sparse_output(recipe.clone(), layout, &data, &data), &dense, &format!("{recipe:?}"));
    }
    for recipe in [vanilla(0.2, 8, 8).plus_residual(), pisa(0.2, 8).plus_residual(), svg2(0.2, 8, 8).plus_residual()] {
        assert_close(&sparse_output(recipe.clone(), layout, &data, &data), &dense, &format!("{recipe:?}"));
    }
}

#[test]
fn residuals_are_their_formulas() {
    let layout = &layouts()[1];
    let (then, now) = (qkv(layout.tokens(), 8), qkv(layout.tokens(), 9));
    let calls = [call(&then, layout), call(&now, layout)];
    let (dense, dense_lse) = calls[0].dense();
    let base = content_keys(0.2, 8);
    let pattern = select(&base, &calls[0], Some(&dense_lse));
    let [old, new] = [0, 1].map(|i| pattern.attend(&calls[i]));
    let column = |t: Tensor<3>| t.unsqueeze_dim::<4>(3);
    let kept = column((old.lse.clone() - dense_lse.clone()).exp());
    let expected = new.output.clone() + dense.clone() - old.output.clone();
    assert_close(&sparse_output(base.clone().plus_residual(), layout, &then, &now), &values(expected), "added");
    let rest = dense - old.output * kept.clone();
    let expected = new.output.clone() * kept.clone() + rest.clone();
    let renormalised = base.clone().with_residual(Residual::Renormalised);
    assert_close(&sparse_output(renormalised, layout, &then, &now), &values(expected), "renormalised");
    // The tail's sum of exponentials is that of the anchor.
    let tail_sum = column(dense_lse).exp() * (kept.clone().neg().add_scalar(1.0));
    let sum = column(new.lse).exp();
    let tail = rest / kept.neg().add_scalar(1.0);
    let expected = (new.output * sum.clone() + tail * tail_sum.clone()) / (sum + tail_sum);
    let recipe = base.with_residual(Residual::Tail);
    assert_close(&sparse_output(recipe, layout, &then, &now), &values(expected), "tail");
}

/// Runs `steps` steps of two layers on drifting inputs.
fn run(attention: &mut dyn SelfAttention, tokens: usize, steps: usize) -> Vec<Vec<f64>> {
    (0..steps)
        .map(|step| {
            attention.begin_step(step).unwrap();
            let layers = (0..2).map(|layer| {
                let [a, b] = [qkv(tokens, 20 + layer), qkv(tokens, 30 + layer)];
                let [q, k, v] = [0, 1, 2].map(|i| a[i].clone() + b[i].clone().mul_scalar(0.1 * step as f64));
                values(attention.attend(layer as usize, q, k, v).unwrap())
            });
            layers.collect::<Vec<_>>().concat()
        })
        .collect()
}

#[test]
fn the_parts_together_are_the_library_s_method() {
    let (layout, density, steps) = (Layout::raster(45), 0.25, 6);
    let plan = Steps::warm_up(2).with_anchors(Anchors::At(vec![1, 3]));
    let config = McSparseConfig::density(density).with_group_size(8).with_schedule(plan.clone());
    let mut theirs = McSparse::new(&config, steps).unwrap();
    let schedule = Schedule::new(plan.plan(steps).unwrap(), vec![0]);
    let mut ours = LabAttention::new(mc_sparse(density, 8), schedule, layout).unwrap();
    for (step, (ours, theirs)) in run(&mut ours, 45, steps).iter().zip(run(&mut theirs, 45, steps)).enumerate() {
        assert_close(ours, &theirs, &format!("step {step}"));
    }
    assert_eq!(ours.anchors(), [1, 3]);
    // 11 of 45 keys: the library counts whole keys, the lab the density that was asked for.
    assert!((ours.effective_density() - theirs.report().effective_density()).abs() < 0.01);
}

#[test]
fn renewals_and_forecasts_are_those_of_the_library() {
    let (density, steps) = (0.25, 9);
    let plan = Steps::warm_up(2).with_anchors(Anchors::At(vec![1, 3, 6])).with_refresh(Renew::Residual);
    for damping in [None, Some(0.5), Some(1.0)] {
        let config = McSparseConfig::density(density).with_group_size(8).with_schedule(plan.clone());
        let mut theirs = McSparse::new(&config.with_residual_forecast(damping), steps).unwrap();
        let residual = damping.map_or(Residual::Added, |damping| Residual::Forecast { damping });
        let recipe = Recipe { refresh: Refresh::FirstAnchor, ..mc_sparse(density, 8) }.with_residual(residual);
        let schedule = Schedule::new(plan.plan(steps).unwrap(), vec![0]);
        let mut ours = LabAttention::new(recipe, schedule, Layout::raster(45)).unwrap();
        for (step, (ours, theirs)) in run(&mut ours, 45, steps).iter().zip(run(&mut theirs, 45, steps)).enumerate() {
            assert_close(ours, &theirs, &format!("{damping:?}, step {step}"));
        }
        assert!((ours.effective_density() - theirs.report().effective_density()).abs() < 0.01);
    }
}

#[test]
fn a_forecast_follows_a_residual_that_moves_in_a_line() {
    // Values alone move, in a line: so does everything that is linear in them, the residual of a fixed choice too.
    let (tokens, steps) = (45, 6);
    let plan = Steps::warm_up(3).with_anchors(Anchors::At(vec![0, 2])).plan(steps).unwrap();
    let base = content_keys(0.2, 8);
    let error = |damping: f64| {
        let recipe = Recipe { refresh: Refresh::FirstAnchor, ..base.clone() };
        let recipe = recipe.with_residual(Residual::Forecast { damping });
        let layout = Layout::raster(tokens);
        let mut attention = LabAttention::new(recipe, Schedule::new(plan.clone(), vec![]), layout.clone()).unwrap();
        let mut worst = 0.0f64;
        for step in 0..steps {
            attention.begin_step(step).unwrap();
            let ([q, k, a], [.., b]) = (qkv(tokens, 40), qkv(tokens, 41));
            let v = a + b.mul_scalar(0.2 * step as f64);
            let ours = values(attention.attend(0, q.clone(), k.clone(), v.clone()).unwrap());
            let dense = values(Call::new(q, k, v, &layout).unwrap().dense().0);
            worst = ours.iter().zip(dense).map(|(a, b)| (a - b).abs()).fold(worst, f64::max);
        }
        worst
    };
    assert!(error(1.0) < 1e-5, "{}", error(1.0));
    assert!(error(0.0) > 1e-2, "{}", error(0.0));
}

#[test]
fn stale_sums_use_the_step_before() {
    let layout = Layout::raster(45);
    let (before, now) = (qkv(45, 50), qkv(45, 51));
    let stale = call(&before, &layout).dense().1;
    let call = call(&now, &layout);
    let expected = select(&chipmunk(0.2, 8, true), &call, Some(&stale)).attend(&call).output;
    let plan = Steps::warm_up(2).plan(3).unwrap();
    let recipe = chipmunk(0.2, 8, true).with_residual(Residual::Off);
    let mut attention = LabAttention::new(recipe, Schedule::new(plan, vec![]), layout.clone()).unwrap();
    let mut output = vec![];
    for (step, [q, k, v]) in [&before, &now, &now].into_iter().enumerate() {
        attention.begin_step(step).unwrap();
        output = values(attention.attend(0, q.clone(), k.clone(), v.clone()).unwrap());
    }
    assert_close(&output, &values(expected), "stale");
    // One dense step, an anchor without a second pass or residual, one sparse step.
    assert!((attention.effective_density() - (1.0 + 1.0 + 0.2) / 3.0).abs() < 1e-12);
}

#[test]
fn what_cannot_be_is_refused() {
    let plan = || Schedule::new(Steps::warm_up(1).plan(3).unwrap(), vec![]);
    let refused = |recipe| LabAttention::new(recipe, plan(), Layout::raster(45)).unwrap_err().to_string();
    assert_eq!(refused(vanilla(0.0, 8, 8)), "density: expected above 0 and at most 1, got 0");
    assert!(refused(vanilla(0.2, 8, 0)).starts_with("group_size: expected groups, blocks and clusters of at least 1"));
    assert!(refused(Recipe { refresh: Refresh::EveryStep, ..token_keys(0.2, 8) }).starts_with("refresh: expected"));
    assert!(
        refused(Recipe { rest: Rest::Means { block: 0 }, ..vanilla(0.2, 8, 8) }).starts_with("group_size: expected")
    );
    assert!(refused(Recipe { rest: Rest::Means { block: 8 }, ..svg2(0.2, 8, 8) }).starts_with("rest: expected"));
    let mut attention = LabAttention::new(vanilla(0.2, 8, 8), plan(), Layout::raster(45)).unwrap();
    let [q, k, v] = qkv(44, 1);
    assert!(attention.attend(0, q.clone(), k.clone(), v.clone()).unwrap_err().to_string().contains("begin_step"));
    assert!(attention.begin_step(1).unwrap_err().to_string().contains("expected step 0 of 3, got 1"));
    attention.begin_step(0).unwrap();
    let error = attention.attend(0, q, k, v).unwrap_err().to_string();
    assert_eq!(error, "query: expected 45 tokens, as the layout has, got 44");
}
