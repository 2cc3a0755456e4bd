//! How what an anchor leaves behind ages: residual, choice and output against steps since the anchor, along a dense run.

use std::{collections::HashMap, path::Path};

use burn::tensor::{DType, Tensor};
use mcsparse::StepKind;
use serde::{Deserialize, Serialize};

use super::{
    record::Record,
    runner::progress,
    study::{ClipSpec, Settings, Study},
    trajectory::{Observe, Scalars, measure, watch},
};
use crate::{
    attention::{Call, Pattern, Recipe, rivals, select},
    error::Error,
    files,
};

/// What is measured at each layer and age, in this order.
pub const MEASURES: [(&str, &str); 11] = [
    ("residual", "change of the residual, of its own size"),
    ("output", "change of the dense output, of its own size"),
    ("sparse", "change of the sparse output, of its own size"),
    ("reuse-error", "error of a reuse step: change of the residual, of the size of the output"),
    ("plain-error", "error without the residual"),
    ("gain", "factor on the residual that would be best"),
    ("overlap", "kept keys that would be kept again"),
    ("cached-mass", "attention weight that the old choice holds"),
    ("fresh-mass", "attention weight that a fresh choice of keys would hold"),
    ("blocks-error", "error without a residual, exact blocks of the anchor"),
    ("position-error", "error without a residual, keys for groups by position of the anchor"),
];

/// One batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Aged {
    /// Density and batch, as in `0.15#0`.
    pub id: String,
    /// Share of the keys that is kept.
    pub density: f64,
    /// The step of the anchor.
    pub anchor: usize,
    /// Clips of the batch.
    pub clips: Vec<String>,
    /// Name of the measure to `[age][layer]`.
    pub measures: HashMap<String, Vec<Vec<f64>>>,
}

struct Ages {
    recipe: Recipe,
    /// Choices of the anchor that are only looked at for their errors.
    others: [Recipe; 2],
    anchor: usize,
    slots: HashMap<usize, Slot>,
    scalars: Scalars,
}

struct Slot {
    pattern: Pattern,
    others: [Pattern; 2],
    indices: Tensor<3>,
    dense: Tensor<4>,
    sparse: Tensor<4>,
    residual: Tensor<4>,
}

impl Observe for Ages {
    fn wants(&self, step: usize) -> bool {
        step >= self.anchor
    }

    fn see(&mut self, step: usize, layer: usize, call: &Call<'_>, (dense, lse): (&Tensor<4>, &Tensor<3>)) {
        let dense = dense.clone().cast(DType::F32);
        if step == self.anchor {
            let pattern = select(&self.recipe, call, Some(lse));
            let sparse = pattern.attend(call).output;
            let residual = dense.clone() - sparse.clone();
            let others = self.others.each_ref().map(|recipe| select(recipe, call, Some(lse)));
            let indices = pattern.kept_by_group();
            let slot = Slot { indices, pattern, others, dense: dense.clone(), sparse, residual };
            self.slots.insert(layer, slot);
        }
        let slot = &self.slots[&layer];
        let exact = slot.pattern.attend(call);
        let residual = dense.clone() - exact.output.clone();
        let fresh = slot.pattern.with_fresh_keys(&self.recipe, call, lse);
        let kept = slot.indices.clone().sum();
        let values = [
            measure::relative_error(&residual, &slot.residual),
            measure::relative_error(&dense, &slot.dense),
            measure::relative_error(&exact.output, &slot.sparse),
            measure::relative_error(&(exact.output.clone() + slot.residual.clone()), &dense),
            measure::relative_error(&exact.output, &dense),
            measure::best_gain(&slot.residual, &residual),
            (fresh.kept_by_group() * slot.indices.clone()).sum() / kept,
            measure::kept_mass(&exact.lse, lse),
            measure::kept_mass(&fresh.attend(call).lse, lse),
            measure::relative_error(&slot.others[0].attend(call).output, &dense),
            measure::relative_error(&slot.others[1].attend(call).output, &dense),
        ];
        values.into_iter().for_each(|value| self.scalars.push(value));
    }
}

/// The anchor of the default schedule.
pub fn anchor(settings: &Settings) -> Result<usize, Error> {
    let plan = mcsparse::Schedule::default().plan(settings.steps)?;
    Ok((0..settings.steps).find(|&step| plan.kind(step) == Some(StepKind::Anchor)).unwrap_or(0))
}

/// Measures one batch at one density.
///
/// # Errors
///
/// [`Error::Run`] with what failed.
pub fn measure_batch(
    study: &Study,
    clips: &[ClipSpec],
    density: f64,
    on_step: impl FnMut(),
) -> Result<HashMap<String, Vec<Vec<f64>>>, Error> {
    let anchor = anchor(&study.settings)?;
    let recipe = rivals::content_keys(density, study.settings.group_size);
    let group = study.settings.group_size;
    let others = [rivals::reused_blocks(density, group, group), rivals::token_keys(density, group)];
    let mut ages = Ages { recipe, others, anchor, slots: HashMap::new(), scalars: Scalars::default() };
    watch(study, clips, &mut ages, on_step)?;
    let layers = study.model.layers();
    let mut measures: HashMap<String, Vec<Vec<f64>>> = HashMap::new();
    for (call, values) in ages.scalars.take().chunks_exact(MEASURES.len()).enumerate() {
        for ((name, _), value) in MEASURES.iter().zip(values) {
            let by_age = measures.entry((*name).to_owned()).or_default();
            by_age.resize(call / layers + 1, Vec::new());
            by_age[call / layers].push(*value);
        }
    }
    Ok(measures)
}

/// Measures all batches at the densities of the study; each is added to the record as soon as it is done.
///
/// # Errors
///
/// [`Error::Run`] with what failed.
pub fn run(study: &Study, folder: &Path) -> Result<Record<Aged>, Error> {
    files::writable_folder(folder)?;
    let path = folder.join("drift.json");
    let settings = &study.settings;
    let mut record: Record<Aged> = Record::open(&path, "drift", settings)?;
    let batches = study.batches();
    let bar = progress(settings.steps * batches.len() * settings.densities.len(), study.quiet);
    for &density in &settings.densities {
        for (index, batch) in batches.iter().enumerate() {
            let id = format!("{density}#{index}");
            if record.arms.iter().any(|arm| arm.id == id) {
                bar.inc(settings.steps as u64);
                continue;
            }
            let measures = measure_batch(study, batch, density, || bar.inc(1))?;
            let clips = batch.iter().map(ToString::to_string).collect();
            record.arms.push(Aged { id, density, anchor: anchor(settings)?, clips, measures });
            record.write(&path)?;
        }
    }
    bar.finish_and_clear();
    Ok(record)
}

/// The best factor on the residual for each layer and age, `[layer][age]`, fitted on `clips`.
///
/// # Errors
///
/// [`Error::Run`] with what failed.
pub fn law(study: &Study, clips: &[ClipSpec], density: f64) -> Result<Vec<Vec<f64>>, Error> {
    let measures = measure_batch(study, clips, density, || {})?;
    let gains = &measures["gain"];
    Ok((0..study.model.layers()).map(|layer| gains.iter().map(|layers| layers[layer]).collect()).collect())
}

impl Record<Aged> {
    /// Means over batches of a measure at one density, by age, over the layers but the first, which stays dense.
    pub fn by_age(&self, measure: &str, density: f64) -> Vec<f64> {
        let tables: Vec<_> =
            self.arms.iter().filter(|arm| arm.density == density).filter_map(|arm| arm.measures.get(measure)).collect();
        let ages = tables.iter().map(|table| table.len()).min().unwrap_or(0);
        (0..ages)
            .map(|age| {
                let values: Vec<f64> = tables.iter().flat_map(|table| table[age].iter().skip(1)).copied().collect();
                values.iter().sum::<f64>() / values.len() as f64
            })
            .collect()
    }
}
