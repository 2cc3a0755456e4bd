//! Where attention weight is lost: the choice that keeps the most true weight, at coarser and finer granularity, for the same
//! number of pairs.

use std::path::Path;

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::{
    record::Record,
    runner::progress,
    study::{Settings, Study},
    trajectory::{Observe, Scalars, measure, watch},
};
use crate::{
    attention::{Call, Recipe, rivals, select},
    error::Error,
    files,
    statistics::Estimate,
};

/// The granularities from coarse to fine.
pub const KINDS: [(&str, &str); 5] = [
    ("pooled", "blocks, mean-pooled scores"),
    ("blocks", "best blocks for each query block"),
    ("position", "best keys for each group by position"),
    ("content", "best keys for each group by content"),
    ("query", "best keys for each query"),
];

/// Kept weight and output error of one choice, by layer and head.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Name, density and batch, as in `pooled@0.2#0`.
    pub id: String,
    /// One of [`KINDS`].
    pub kind: String,
    /// Share of the keys that is kept.
    pub density: f64,
    /// Clips of the batch.
    pub clips: Vec<String>,
    /// The steps that were looked at.
    pub steps: Vec<usize>,
    /// Share of the attention weight: `[step][layer][head]`.
    pub kept: Vec<Vec<Vec<f64>>>,
    /// Relative L2 error of the output: `[step][layer][head]`.
    pub error: Vec<Vec<Vec<f64>>>,
}

/// The recipe of `kind` at `density`.
fn recipe(kind: &str, density: f64, settings: &Settings) -> Recipe {
    let group = settings.group_size;
    match kind {
        "pooled" => rivals::vanilla(density, group, group),
        "blocks" => rivals::reused_blocks(density, group, group),
        "position" => rivals::token_keys(density, group),
        "content" => rivals::content_keys(density, group),
        _ => rivals::token_keys(density, 1),
    }
}

/// The steps that are looked at: a quarter, half and three quarters through.
pub fn steps(settings: &Settings) -> Vec<usize> {
    let mut steps: Vec<usize> = [1, 2, 3].map(|quarter| settings.steps * quarter / 4).to_vec();
    steps.dedup();
    steps
}

struct Looks<'a> {
    steps: Vec<usize>,
    recipes: Vec<Recipe>,
    settings: &'a Settings,
    scalars: Scalars,
}

impl Observe for Looks<'_> {
    fn wants(&self, step: usize) -> bool {
        self.steps.contains(&step)
    }

    fn see(&mut self, _step: usize, _layer: usize, call: &Call<'_>, (dense, lse): (&Tensor<4>, &Tensor<3>)) {
        for recipe in &self.recipes {
            let exact = select(recipe, call, Some(lse)).attend(call);
            self.scalars.push(measure::kept_mass_by_head(&exact.lse, lse));
            self.scalars.push(measure::relative_error_by_head(&exact.output, dense));
        }
    }
}

/// Measures all choices at all densities along dense runs; batch by batch, each added to the record as soon as it is done.
///
/// # Errors
///
/// [`Error::Run`] with what failed.
pub fn run(study: &Study, folder: &Path) -> Result<Record<Measured>, Error> {
    files::writable_folder(folder)?;
    let path = folder.join("oracles.json");
    let settings = &study.settings;
    let mut record: Record<Measured> = Record::open(&path, "oracles", settings)?;
    let batches = study.batches();
    let bar = progress(settings.steps * batches.len(), study.quiet);
    for (index, batch) in batches.iter().enumerate() {
        let id = |kind: &str, density: f64| format!("{kind}@{density}#{index}");
        if record.arms.iter().any(|arm| arm.id.ends_with(&format!("#{index}"))) {
            bar.inc(settings.steps as u64);
            continue;
        }
        let choices: Vec<_> = settings.densities.iter().flat_map(|&d| KINDS.map(|(kind, _)| (kind, d))).collect();
        let recipes = choices.iter().map(|&(kind, density)| recipe(kind, density, settings)).collect();
        let mut looks = Looks { steps: steps(settings), recipes, settings, scalars: Scalars::default() };
        watch(study, batch, &mut looks, || bar.inc(1))?;
        let heads = study.model.heads();
        let mut values = looks.scalars.take().into_iter();
        let mut arms: Vec<Measured> = choices
            .iter()
            .map(|&(kind, density)| Measured {
                id: id(kind, density),
                kind: kind.into(),
                density,
                clips: batch.iter().map(ToString::to_string).collect(),
                steps: looks.steps.clone(),
                kept: vec![Vec::new(); looks.steps.len()],
                error: vec![Vec::new(); looks.steps.len()],
            })
            .collect();
        for step in 0..looks.steps.len() {
            for _ in 0..study.model.layers() {
                for arm in &mut arms {
                    arm.kept[step].push(values.by_ref().take(heads).collect());
                    arm.error[step].push(values.by_ref().take(heads).collect());
                }
            }
        }
        debug_assert_eq!(looks.settings.densities.len() * KINDS.len(), arms.len());
        record.arms.extend(arms);
        record.write(&path)?;
    }
    bar.finish_and_clear();
    Ok(record)
}

impl Record<Measured> {
    /// Mean and interval of `of` over batches, for a kind and density; each batch is a mean over steps, layers and heads.
    pub fn mean(&self, kind: &str, density: f64, of: impl Fn(&Measured) -> &Vec<Vec<Vec<f64>>>) -> Option<Estimate> {
        let arms = self.arms.iter().filter(|arm| arm.kind == kind && arm.density == density);
        let means: Vec<f64> = arms
            .map(|arm| {
                let all: Vec<f64> = of(arm).iter().flatten().flatten().copied().collect();
                all.iter().sum::<f64>() / all.len() as f64
            })
            .collect();
        (!means.is_empty()).then(|| Estimate::of(&means))
    }

    /// The same by layer.
    pub fn by_layer(&self, kind: &str, density: f64) -> Vec<f64> {
        let arms: Vec<_> = self.arms.iter().filter(|arm| arm.kind == kind && arm.density == density).collect();
        let layers = arms.first().map_or(0, |arm| arm.kept[0].len());
        (0..layers)
            .map(|layer| {
                let of_layer = arms.iter().flat_map(|arm| arm.kept.iter().flat_map(move |step| &step[layer]));
                let all: Vec<f64> = of_layer.copied().collect();
                all.iter().sum::<f64>() / all.len() as f64
            })
            .collect()
    }
}
