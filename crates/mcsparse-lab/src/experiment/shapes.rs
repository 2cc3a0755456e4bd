//! Methods on the shape model: how far the shapes of each are from dense ones and from the true solids.

use std::{fmt::Write, path::Path, time::Instant};

use burn::tensor::{Device, Tensor, TensorData};
use mcsparse::{McSparseConfig, Schedule as Steps, SelfAttention};
use mcsparse_dit::{
    Conditions, denoise,
    pretrained::{ClipModel, SolidFile},
    sampler::FlowEuler,
};
use serde::{Deserialize, Serialize};

use super::{
    arms::{Arm, Ground, Method},
    lists::FLOOR,
    plot::{self, Line},
    record::Record,
    report::Page,
    runner::progress,
    table,
};
use crate::{
    attention::{
        Layout,
        rivals::{chipmunk, content_keys, vanilla},
    },
    device::{DType, DeviceName},
    error::Error,
    files,
    mesh::Mesh,
    noise::normal,
    presets::SHAPE,
    statistics::Estimate,
    volume::{Likeness, Volume},
};

/// Name of the arm that all others are compared with.
const DENSE: &str = "dense";

/// What decides the numbers; a record is only continued under the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShapeSettings {
    /// Where it runs.
    pub device: DeviceName,
    /// Float type of the network.
    pub dtype: DType,
    /// Shapes; solids take turns, and each has a noise of its own.
    pub shapes: usize,
    /// Shapes that are denoised together.
    pub batch: usize,
    /// Seed of the first shape's noise.
    pub seed: u64,
    /// Denoising steps.
    pub steps: usize,
    /// Densities of reuse steps.
    pub densities: Vec<f64>,
    /// Queries in a group, and keys in a block.
    pub group_size: usize,
}

/// One shape of one arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShapeResult {
    /// Solid and seed.
    pub shape: String,
    /// How near it is to the shape by dense attention from the same noise.
    pub to_dense: Likeness,
    /// How near it is to the solid whose views the model saw.
    pub to_truth: Likeness,
}

/// One arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShapeArm {
    /// Unique in the experiment.
    pub id: String,
    /// For people.
    pub label: String,
    /// Density of reuse steps; none for dense attention.
    pub density: Option<f64>,
    /// Attention work as a share of dense attention, as a mean over shapes.
    pub effective_density: f64,
    /// Time of denoising and metrics.
    pub seconds: f64,
    /// In the order of the study.
    pub shapes: Vec<ShapeResult>,
}

/// What was found.
pub type ShapeRecord = Record<ShapeArm, ShapeSettings>;

/// A shape with its surface.
struct Surface {
    volume: Volume,
    mesh: Mesh,
}

impl Surface {
    fn of(volume: Volume) -> Self {
        Self { mesh: Mesh::of(&volume), volume }
    }

    fn likeness(&self, other: &Self) -> Result<Likeness, Error> {
        self.volume.likeness(&self.mesh, &other.volume, &other.mesh)
    }
}

/// The loaded model with what it is to denoise.
pub struct ShapeStudy {
    settings: ShapeSettings,
    model: ClipModel,
    device: Device,
    layout: Layout,
    quiet: bool,
    /// Name, condition tokens and the solid of each shape.
    shapes: Vec<(String, Tensor<3>, Surface)>,
}

impl ShapeStudy {
    /// Loads what `settings` ask for.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] for settings that cannot be, [`Error::Run`] for files and devices that fail.
    pub fn open(settings: ShapeSettings, weights: &Path, quiet: bool) -> Result<Self, Error> {
        for (option, value) in
            [("--shapes", settings.shapes), ("--batch", settings.batch), ("--group-size", settings.group_size)]
        {
            if value == 0 {
                return Err(Error::option(option, "at least 1", value));
            }
        }
        if settings.steps < 2 {
            return Err(Error::option("--steps", "at least 2, an anchor and a sparse step", settings.steps));
        }
        if let Some(density) = settings.densities.iter().find(|&&d| !(d > 0.0 && d <= 1.0)) {
            return Err(Error::option("--densities", "shares above 0 and at most 1", density));
        }
        settings.device.check()?;
        let config = SHAPE.config(weights)?;
        let folder = weights.join(SHAPE.name);
        let solids = SolidFile::open(&folder)?;
        let names = solids.names();
        let grid = config.sampling.condition_grid.filter(|_| !names.is_empty());
        let grid =
            grid.ok_or_else(|| Error::run(folder.display(), "no solids, or no condition_grid for their views"))?;
        let device = settings.device.open(settings.dtype)?;
        let model = ClipModel::load_weights(&folder, &config, settings.dtype.burn(), &device)?;
        let layout = Layout::tiled(model.grid(), SHAPE.tile)?;
        let shapes = (0..settings.shapes).map(|index| {
            let name = &names[index % names.len()];
            let tokens = solids.views(name)?.tokens(grid, &device)?;
            Ok((name.clone(), tokens, Surface::of(Volume::from(&solids.truth(name)?))))
        });
        let shapes = shapes.collect::<Result<_, Error>>()?;
        Ok(Self { settings, model, device, layout, quiet, shapes })
    }

    /// The shapes numbered `range`, denoised together.
    fn denoise(
        &self,
        range: std::ops::Range<usize>,
        attention: &mut dyn SelfAttention,
        mut on_step: impl FnMut(),
    ) -> Result<Vec<Surface>, Error> {
        let [_, channels, layers, rows, columns] = self.model.shape();
        let values = range.clone().flat_map(|i| normal(layers * rows * columns, self.settings.seed + i as u64));
        let noise = TensorData::new(values.collect::<Vec<_>>(), [range.len(), channels, layers, rows, columns]);
        let tokens = Tensor::cat(self.shapes[range].iter().map(|(_, tokens, _)| tokens.clone()).collect(), 0);
        let latents = denoise(
            &self.model,
            &mut FlowEuler::uniform(self.settings.steps, self.model.flow_shift())?,
            Tensor::from_data(noise, &self.device),
            Conditions::unguided(tokens),
            attention,
            |_| on_step(),
        )?;
        Ok(Volume::from_batch(latents)?.into_iter().map(Surface::of).collect())
    }

    fn batches(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let Self { settings: ShapeSettings { shapes, batch, .. }, .. } = *self;
        (0..shapes).step_by(batch).map(move |start| start..(start + batch).min(shapes))
    }

    /// All shapes of one arm, and the share of dense attention's work.
    fn run(&self, arm: &Arm, on_step: impl Fn()) -> Result<(Vec<Surface>, f64), Error> {
        let ground = Ground { layers: self.model.layers(), group_size: self.settings.group_size, layout: &self.layout };
        let (mut surfaces, mut work) = (Vec::new(), 0.0);
        for range in self.batches() {
            let mut running = arm.start_on(&ground)?;
            surfaces.extend(self.denoise(range.clone(), running.attention(), &on_step)?);
            work += running.effective_density() * range.len() as f64;
        }
        Ok((surfaces, work / self.settings.shapes as f64))
    }
}

/// The arms: dense attention, its floor, and at each density MC-Sparse, without its residual, and two rivals.
pub fn arms(settings: &ShapeSettings) -> Vec<Arm> {
    let arm = |id: String, label: &str, method: Method| Arm {
        id,
        label: label.into(),
        method,
        steps: settings.steps,
        schedule: Steps::default(),
    };
    let group = settings.group_size;
    let mut arms = vec![
        arm(DENSE.into(), "dense", Method::Dense),
        arm(FLOOR.into(), "dense, tensor operations", Method::DenseByTensorOperations),
    ];
    for &density in &settings.densities {
        arms.push(arm(
            format!("mc-sparse@{density}"),
            "MC-Sparse",
            Method::Library(Box::new(McSparseConfig::density(density))),
        ));
        for (id, label, recipe) in [
            ("content", "MC-Sparse without residual", content_keys(density, group)),
            ("chipmunk", "Chipmunk, exact sums", chipmunk(density, group, false)),
            ("vanilla", "block-sparse", vanilla(density, group, group)),
        ] {
            arms.push(arm(format!("{id}@{density}"), label, Method::Recipe(recipe)));
        }
    }
    arms
}

/// Runs the arms that the record in `folder` lacks, adding each as soon as it is done.
///
/// # Errors
///
/// [`Error::Run`] with what failed; what was done before is in the record.
pub fn run(study: &ShapeStudy, folder: &Path) -> Result<ShapeRecord, Error> {
    files::writable_folder(folder)?;
    let path = folder.join("shapes.json");
    let mut record = ShapeRecord::open(&path, "shapes", &study.settings)?;
    let arms = arms(&study.settings);
    let left: Vec<&Arm> = arms.iter().filter(|arm| record.arms.iter().all(|done| done.id != arm.id)).collect();
    if left.is_empty() {
        return Ok(record);
    }
    let forwards = (left.len() + usize::from(left[0].id != DENSE)) * study.settings.steps * study.batches().count();
    if !study.quiet {
        eprintln!("shapes: {} arms to go, {forwards} forward passes", left.len());
    }
    let bar = progress(forwards, study.quiet);
    bar.set_message(DENSE);
    let started = Instant::now();
    // Needed whatever is left: all are compared with it.
    let (dense, work) = study.run(&arms[0], || bar.inc(1))?;
    for arm in left {
        bar.set_message(arm.id.clone());
        let made;
        let (surfaces, effective_density, seconds) = if arm.id == DENSE {
            (&dense, work, started.elapsed().as_secs_f64())
        } else {
            let started = Instant::now();
            made = study.run(arm, || bar.inc(1))?;
            (&made.0, made.1, started.elapsed().as_secs_f64())
        };
        let shapes = surfaces.iter().zip(&dense).zip(&study.shapes).enumerate().map(
            |(index, ((surface, dense), (name, _, truth)))| {
                let shape = format!("{name}/{}", study.settings.seed + index as u64);
                Ok(ShapeResult { shape, to_dense: surface.likeness(dense)?, to_truth: surface.likeness(truth)? })
            },
        );
        let shapes = shapes.collect::<Result<_, Error>>()?;
        let (id, label) = (arm.id.clone(), arm.label.clone());
        record.arms.push(ShapeArm { id, label, density: arm.density(), effective_density, seconds, shapes });
        record.write(&path)?;
    }
    bar.finish_and_clear();
    Ok(record)
}

/// A measure of one shape.
type Measure = fn(&ShapeResult) -> f64;

fn estimate(arm: &ShapeArm, of: Measure) -> Estimate {
    Estimate::of(&arm.shapes.iter().map(of).collect::<Vec<_>>())
}

/// The page of the record; the plot goes to `folder`.
///
/// # Errors
///
/// [`Error::Run`] if the plot cannot be written.
pub fn page(record: &ShapeRecord, folder: &Path) -> Result<Page, Error> {
    let ShapeSettings { device, dtype, shapes, seed, steps, group_size, .. } = &record.settings;
    let mut text = format!(
        "Model `{}`, {shapes} shapes (noise from seed {seed} on), {steps} steps, no guidance, {dtype} on {device}; groups of \
         {group_size}, first layer dense. Lengths are in halves of the cube's side; the F-score is at 1 % of the side.\n\n",
        SHAPE.name
    );
    let columns: [(&str, Measure); 5] = [
        ("Chamfer to dense", |shape| shape.to_dense.chamfer),
        ("IoU to dense", |shape| shape.to_dense.iou),
        ("F-score to dense", |shape| shape.to_dense.f_score),
        ("IoU to the solid", |shape| shape.to_truth.iou),
        ("Chamfer to the solid", |shape| shape.to_truth.chamfer),
    ];
    let heads: Vec<&str> =
        ["method", "density", "of the run"].into_iter().chain(columns.iter().map(|column| column.0)).collect();
    text += &table::header(&heads);
    for arm in &record.arms {
        let density = arm.density.map_or("1".into(), |density| density.to_string());
        let cells = [arm.label.clone(), density, format!("{:.3}", arm.effective_density)];
        let values = columns.iter().map(|(_, of)| format!("{:.4}", estimate(arm, *of)));
        table::row(&mut text, &cells.into_iter().chain(values).collect::<Vec<_>>());
    }
    let _ = write!(text, "\nIoU to dense of MC-Sparse less that of the method, paired by shape:\n\n");
    text += &gains(record);
    let plot = "shapes.svg";
    let axes = ["density of reuse steps", "IoU to dense"];
    plot::lines(&folder.join(plot), "distance from dense attention, shapes", axes, &lines(record))?;
    Ok(Page { text, plots: vec![plot.into()] })
}

/// The arms of one label, by density, in the order of the record.
fn labels(record: &ShapeRecord) -> Vec<(&str, Vec<&ShapeArm>)> {
    let mut labels: Vec<(&str, Vec<&ShapeArm>)> = Vec::new();
    for arm in record.arms.iter().filter(|arm| arm.density.is_some()) {
        match labels.iter_mut().find(|(label, _)| *label == arm.label) {
            Some((_, arms)) => arms.push(arm),
            None => labels.push((&arm.label, vec![arm])),
        }
    }
    labels
}

fn gains(record: &ShapeRecord) -> String {
    let densities: Vec<String> = record.settings.densities.iter().map(|density| format!("at {density}")).collect();
    let heads: Vec<&str> = ["method"].into_iter().chain(densities.iter().map(String::as_str)).collect();
    let mut text = table::header(&heads);
    let iou = |arm: &ShapeArm| arm.shapes.iter().map(|shape| shape.to_dense.iou).collect::<Vec<_>>();
    let labels = labels(record);
    for (label, arms) in labels.iter().skip(1) {
        let cells = record.settings.densities.iter().map(|&density| {
            let at = |arms: &[&ShapeArm]| arms.iter().find(|arm| arm.density == Some(density)).map(|arm| iou(arm));
            match (at(&labels[0].1), at(arms)) {
                (Some(ours), Some(theirs)) => format!("{:.4}", Estimate::of_pairs(&ours, &theirs)),
                _ => String::new(),
            }
        });
        table::row(&mut text, &[(*label).to_owned()].into_iter().chain(cells).collect::<Vec<_>>());
    }
    text
}

fn lines(record: &ShapeRecord) -> Vec<Line> {
    let point = |arm: &&ShapeArm| {
        let Estimate { mean, half_width } = estimate(arm, |shape| shape.to_dense.iou);
        (arm.density.unwrap_or(1.0), mean, half_width)
    };
    let line = |(label, arms): (&str, Vec<&ShapeArm>)| {
        let mut points: Vec<_> = arms.iter().map(point).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line { name: label.into(), points, scattered: false }
    };
    labels(record).into_iter().map(line).collect()
}
