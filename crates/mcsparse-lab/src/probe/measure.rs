//! Kept weight, output error and ageing of captured attention.

use burn::tensor::Tensor;
use mcsparse::{Anchors, IndexFormat, Schedule as Steps, SelfAttention};
use safetensors::{Dtype, serialize, tensor::TensorView};
use serde::{Deserialize, Serialize};

use super::{Options, capture::Capture};
use crate::{
    attention::{
        Call, LabAttention, Layout, Recipe, Schedule,
        rivals::{content_keys, mc_sparse, pisa, reused_blocks, sol, svg2, token_keys, vanilla},
        select,
    },
    error::Error,
    experiment::trajectory::{Scalars, measure},
};

/// The method that is suggested.
pub const OURS: &str = "MC-Sparse";

const WITHOUT: &str = "MC-Sparse without residual";

/// One method at one density on one layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The layer.
    pub capture: String,
    /// The method.
    pub method: String,
    /// Share of the keys that is kept.
    pub density: f64,
    /// Share of the attention weight on kept keys at the first step, by head.
    pub kept: Vec<f64>,
    /// Relative L2 error of the output at the first step, without a residual, by head.
    pub error: Vec<f64>,
    /// The same at each later step, the first one being the anchor, with the residual where the method has one.
    pub later: Vec<f64>,
}

/// What to begin with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Suggestion {
    /// Density of reuse steps.
    pub density: f64,
    /// Mean error of the output at that density: of the later steps, or of the first without a residual if it is the only one.
    pub error: f64,
    /// Whether that error is at most the target; the largest density that was tried, if none is.
    pub reached: bool,
    /// The first captured step after the anchor at which the error is above the target; none if it never is, or there is but
    /// one step.
    pub refresh_before: Option<usize>,
    /// Bytes of the cache for the whole model: kept keys in their smallest form, a residual in 16 bits.
    pub cache_bytes: usize,
    /// The same with a residual in 8 bits.
    pub cache_bytes_in_8_bits: usize,
}

/// Everything about a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The file.
    pub file: String,
    /// Batch, heads, tokens and head size, by layer.
    pub captures: Vec<(String, [usize; 4])>,
    /// The captured steps.
    pub steps: Vec<usize>,
    /// Queries in a group.
    pub group_size: usize,
    /// Relative error that may be.
    pub target: f64,
    /// All methods, densities and layers.
    pub measured: Vec<Measured>,
    /// What to begin with.
    pub suggestion: Suggestion,
}

/// The methods: name, what chooses, what runs over steps.
fn methods(density: f64, options: &Options) -> [(&'static str, Recipe); 8] {
    let (group, small) = (options.group_size, options.small_block);
    [
        (OURS, mc_sparse(density, group)),
        (WITHOUT, content_keys(density, group)),
        ("keys for neighbouring queries", token_keys(density, group)),
        ("exact blocks", reused_blocks(density, group, group)),
        ("block-sparse, pooled", vanilla(density, group, group)),
        ("PISA", pisa(density, small)),
        ("Sol-Attn", sol(density, small)),
        ("SVG2", svg2(density, group, small)),
    ]
}

/// Runs every method at every density on every layer.
pub(super) fn measure(options: &Options, captures: &[Capture], layouts: &[Layout]) -> Result<Report, Error> {
    let mut measured = Vec::new();
    for (capture, layout) in captures.iter().zip(layouts) {
        let [query, key, value] = capture.steps[0].1.clone();
        let call = Call::new(query, key, value, layout)?;
        let (dense, lse) = call.dense();
        let heads = call.problem.heads;
        let truth: Vec<Tensor<4>> = capture.steps[1..]
            .iter()
            .map(|(_, [q, k, v])| Ok(Call::new(q.clone(), k.clone(), v.clone(), layout)?.dense().0))
            .collect::<Result<_, Error>>()?;
        for &density in &options.densities {
            for (name, recipe) in methods(density, options) {
                // One step shows no residual at work.
                if name == WITHOUT && capture.steps.len() == 1 {
                    continue;
                }
                let mut scalars = Scalars::default();
                let pattern = select(&recipe, &call, Some(&lse));
                scalars.push(measure::kept_mass_by_head(&pattern.attend(&call).lse, &lse));
                scalars.push(measure::relative_error_by_head(&pattern.output(&recipe, &call), &dense));
                let later = later(&recipe, capture, layout, &truth, &mut scalars)?;
                let values = scalars.take();
                measured.push(Measured {
                    capture: capture.name.clone(),
                    method: name.into(),
                    density,
                    kept: values[..heads].to_vec(),
                    error: values[heads..2 * heads].to_vec(),
                    later: values[2 * heads..].to_vec(),
                });
                debug_assert_eq!(later, values.len() - 2 * heads);
            }
        }
    }
    let suggestion = suggest(options, captures, &measured);
    Ok(Report {
        file: options.file.display().to_string(),
        captures: captures.iter().map(|capture| (capture.name.clone(), capture.dims())).collect(),
        steps: captures[0].steps.iter().map(|(step, _)| *step).collect(),
        group_size: options.group_size,
        target: options.target,
        measured,
        suggestion,
    })
}

/// Errors of the steps after the first, which is the anchor; returns how many.
fn later(
    recipe: &Recipe,
    capture: &Capture,
    layout: &Layout,
    truth: &[Tensor<4>],
    scalars: &mut Scalars,
) -> Result<usize, Error> {
    let steps = capture.steps.len();
    if steps < 2 {
        return Ok(0);
    }
    let plan = Steps::warm_up(0).with_anchors(Anchors::At(vec![0])).plan(steps)?;
    let mut attention = LabAttention::new(recipe.clone(), Schedule::new(plan, Vec::new()), layout.clone())?;
    for (step, (_, [query, key, value])) in capture.steps.iter().enumerate() {
        attention.begin_step(step)?;
        let output = attention.attend(0, query.clone(), key.clone(), value.clone())?;
        if step > 0 {
            scalars.push(measure::relative_error(&output, &truth[step - 1]));
        }
    }
    Ok(steps - 1)
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}

fn suggest(options: &Options, captures: &[Capture], measured: &[Measured]) -> Suggestion {
    let several = captures.iter().any(|capture| capture.steps.len() > 1);
    let of = |density: f64| measured.iter().filter(move |m| m.method == OURS && m.density == density);
    let error = |density: f64| match several {
        true => mean(of(density).flat_map(|m| m.later.iter().copied())),
        false => mean(of(density).flat_map(|m| m.error.iter().copied())),
    };
    let mut densities = options.densities.clone();
    densities.sort_by(f64::total_cmp);
    let found = densities.iter().copied().find(|&density| error(density) <= options.target);
    let density = found.unwrap_or(densities[densities.len() - 1]);
    let at_age = |age: usize| {
        let values: Vec<f64> = of(density).filter_map(|m| m.later.get(age).copied()).collect();
        (!values.is_empty()).then(|| mean(values.into_iter()))
    };
    let steps = captures[0].steps.len().saturating_sub(1);
    let refresh_before = (0..steps).find(|&age| at_age(age).is_some_and(|error| error > options.target));
    let layers = options.layers.unwrap_or(captures.len());
    let whole_model = |of_a_value: usize, of_a_row: usize| {
        let by_layer = captures.iter().map(|capture| {
            let [batch, heads, tokens, dim] = capture.dims();
            let kept = mc_sparse(density, options.group_size).keys(tokens);
            let groups = tokens.div_ceil(options.group_size.min(tokens));
            let words = IndexFormat::smallest(tokens, kept).words(tokens, kept);
            // docs/method.md: order, indices, residual.
            batch * heads * (tokens * 4 + groups * words * 4 + tokens * (dim * of_a_value + of_a_row))
        });
        by_layer.sum::<usize>() / captures.len() * layers * options.branches
    };
    let refresh_before = refresh_before.map(|age| captures[0].steps[age + 1].0);
    Suggestion {
        density,
        error: error(density),
        reached: found.is_some(),
        refresh_before,
        cache_bytes: whole_model(2, 0),
        // A scale in 16 bits for each row.
        cache_bytes_in_8_bits: whole_model(1, 2),
    }
}

/// Output, log-sum-exp, order and indices of MC-Sparse at `density`, and its residual, of the first step of every layer, as
/// safetensors, to be compared with another implementation.
pub(super) fn outputs(
    options: &Options,
    captures: &[Capture],
    layouts: &[Layout],
    density: f64,
) -> Result<Vec<u8>, Error> {
    let recipe = content_keys(density, options.group_size);
    let mut tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for (capture, layout) in captures.iter().zip(layouts) {
        let [query, key, value] = capture.steps[0].1.clone();
        let call = Call::new(query, key, value, layout)?;
        let (dense, dense_lse) = call.dense();
        let pattern = select(&recipe, &call, Some(&dense_lse));
        let exact = pattern.attend(&call);
        let residual = dense.clone() - exact.output.clone();
        let mut put = |part: &str, shape: Vec<usize>, dtype: Dtype, bytes: Vec<u8>| {
            tensors.push((format!("{}.{part}", capture.name), dtype, shape, bytes));
        };
        for (part, tensor) in [("dense", dense), ("sparse", exact.output), ("residual", residual)] {
            let (shape, values): (_, Vec<f32>) = (tensor.dims().to_vec(), tensor.into_data().iter::<f32>().collect());
            put(part, shape, Dtype::F32, values.iter().flat_map(|v| v.to_le_bytes()).collect());
        }
        for (part, tensor) in [("dense_lse", dense_lse), ("sparse_lse", exact.lse)] {
            let (shape, values): (_, Vec<f32>) = (tensor.dims().to_vec(), tensor.into_data().iter::<f32>().collect());
            put(part, shape, Dtype::F32, values.iter().flat_map(|v| v.to_le_bytes()).collect());
        }
        let (order, indices) = pattern.lists(&call).expect("MC-Sparse keeps lists");
        for (part, shape, data) in [
            ("order", order.dims().to_vec(), order.into_data()),
            ("indices", indices.dims().to_vec(), indices.into_data()),
        ] {
            let values: Vec<i32> = data.iter::<i32>().collect();
            put(part, shape, Dtype::I32, values.iter().flat_map(|v| v.to_le_bytes()).collect());
        }
    }
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| Ok((name, TensorView::new(*dtype, shape.clone(), bytes)?)))
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()
        .map_err(|error| Error::run("outputs", error))?;
    let about = [
        ("density".to_owned(), density.to_string()),
        ("group_size".to_owned(), options.group_size.to_string()),
        ("note".to_owned(), "lse: natural logarithm; order and indices: see docs/method.md".to_owned()),
    ];
    serialize(views, Some(about.into_iter().collect())).map_err(|error| Error::run("outputs", error))
}
