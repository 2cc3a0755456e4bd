//! One denoising run: steps, times, state.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor, TensorData};
use mcsparse::{McSparseConfig, Selection, StepKind};
use mcsparse_dit::minimax_h3::{self, H3Conditions, H3Euler, H3Velocity, MiniMaxH3};
use mcsparse_dit::sampler::Sampler;
use mcsparse_dit::{Conditions, VelocityModel, resume};
use serde::{Deserialize, Serialize};

use crate::attention::{Run, kinds};
use crate::clock::{Clock, Part, sync};
use crate::error::Error;
use crate::tensors::{self, TensorFile};

/// What both arms of a comparison share.
pub struct Job<'a> {
    /// Where it runs.
    pub device: &'a Device,
    /// Settings of MC-Sparse.
    pub config: McSparseConfig,
    /// Layers that attention runs in.
    pub layers: usize,
    /// Everything that decides the result, to recognise an unfinished run by.
    pub settings: BTreeMap<String, String>,
    /// Steps between two states that are kept; 0 for none.
    pub save_every: usize,
    /// Folder for states.
    pub out: PathBuf,
    /// Whether steps of every kind run beforehand.
    pub rehearsal: bool,
    /// No progress.
    pub quiet: bool,
}

/// What one run made.
pub struct Arm {
    /// Latents by name.
    pub latents: Vec<(String, TensorData)>,
    /// Kind and time of every step that ran here.
    pub steps: Vec<(StepKind, Duration)>,
    /// Bytes that were kept between steps at the end.
    pub cache_bytes: usize,
    /// Attention work as a share of a dense run.
    pub effective_density: f64,
    /// What ran in each stage.
    pub report: String,
    /// The step that it went on from.
    pub resumed_at: usize,
}

impl Arm {
    fn of(steps: Vec<(StepKind, Duration)>, run: &Run, latents: Vec<(String, TensorData)>, resumed_at: usize) -> Self {
        let method = run.method();
        Self {
            latents,
            steps,
            cache_bytes: method.cache().size_in_bytes(),
            effective_density: method.report().effective_density(),
            report: method.report().to_string(),
            resumed_at,
        }
    }
}

/// An [`Arm`] but for its latents.
#[derive(Serialize, Deserialize)]
struct ArmRecord {
    /// Kind and seconds.
    steps: Vec<(StepKind, f64)>,
    cache_bytes: usize,
    effective_density: f64,
    report: String,
    resumed_at: usize,
}

impl ArmRecord {
    fn of(arm: &Arm) -> Self {
        Self {
            steps: arm.steps.iter().map(|(kind, time)| (*kind, time.as_secs_f64())).collect(),
            cache_bytes: arm.cache_bytes,
            effective_density: arm.effective_density,
            report: arm.report.clone(),
            resumed_at: arm.resumed_at,
        }
    }

    fn with(self, latents: Vec<(String, TensorData)>) -> Arm {
        let time = |(kind, seconds): (StepKind, f64)| (kind, Duration::from_secs_f64(seconds.max(0.0)));
        Arm {
            latents,
            steps: self.steps.into_iter().map(time).collect(),
            cache_bytes: self.cache_bytes,
            effective_density: self.effective_density,
            report: self.report,
            resumed_at: self.resumed_at,
        }
    }
}

impl Job<'_> {
    /// Kinds of the steps from `from` on; all dense for the dense arm.
    fn kinds(&self, sparse: bool, steps: usize, first_steps: &[usize], from: usize) -> Result<Vec<StepKind>, Error> {
        if !sparse {
            return Ok(vec![StepKind::Dense; steps - from]);
        }
        let plan = self.config.schedule.plan(steps)?;
        let plan: Vec<_> = (0..steps).filter_map(|step| plan.kind(step)).collect();
        Ok(kinds(&plan, first_steps, from))
    }

    fn state_file(&self, arm: &str) -> PathBuf {
        self.out.join(format!("{arm}.partial.safetensors"))
    }

    /// A file of an unfinished run of these settings.
    fn unfinished(&self, path: &Path) -> Result<Option<TensorFile>, Error> {
        if !path.exists() {
            return Ok(None);
        }
        let file = TensorFile::open(path)?;
        let metadata = file.metadata();
        for (key, value) in &self.settings {
            let got = metadata.get(key).map_or("nothing", |got| got.as_str());
            if got != value {
                let why = format!(
                    "an unfinished run with {key} {got}, and this one has {value}; remove the file or choose another --out"
                );
                return Err(Error::run(path.display(), why));
            }
        }
        Ok(Some(file))
    }

    /// The state of an unfinished run of these settings.
    fn state(&self, arm: &str) -> Result<Option<(usize, TensorFile)>, Error> {
        let path = self.state_file(arm);
        let Some(file) = self.unfinished(&path)? else { return Ok(None) };
        let step = file.metadata().get("step").and_then(|step| step.parse().ok());
        let step = step.ok_or_else(|| Error::run(path.display(), "expected a step in its metadata"))?;
        Ok(Some((step, file)))
    }

    fn finished_file(&self, sparse: bool) -> PathBuf {
        self.out.join(format!("{}.finished.safetensors", arm_name(sparse)))
    }

    /// The arm of a comparison that an interrupted run of these settings had finished.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if there is one of other settings, or it cannot be read.
    pub fn finished(&self, sparse: bool) -> Result<Option<Arm>, Error> {
        let path = self.finished_file(sparse);
        let Some(file) = self.unfinished(&path)? else { return Ok(None) };
        let record = file.metadata().get("arm").and_then(|arm| serde_json::from_str::<ArmRecord>(arm).ok());
        let record = record.ok_or_else(|| Error::run(path.display(), "expected an arm in its metadata"))?;
        let latents: Result<_, Error> =
            file.names().into_iter().map(|name| Ok((name.clone(), file.data(&name)?))).collect();
        Ok(Some(record.with(latents?)))
    }

    /// Keeps an arm of a comparison until all are finished.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if it cannot be written.
    pub fn keep_finished(&self, sparse: bool, arm: &Arm) -> Result<(), Error> {
        let mut metadata = self.settings.clone();
        metadata.insert("arm".into(), serde_json::to_string(&ArmRecord::of(arm)).expect("plain data"));
        tensors::write(&self.finished_file(sparse), arm.latents.clone(), metadata)
    }

    /// Forgets the arms that were kept.
    pub fn forget_finished(&self) {
        for sparse in [false, true] {
            // It may not be there, and the latents are.
            let _ = std::fs::remove_file(self.finished_file(sparse));
        }
    }

    fn keep(&self, arm: &str, step: usize, tensors: Vec<(String, TensorData)>) -> Result<(), Error> {
        let mut metadata = self.settings.clone();
        metadata.insert("step".into(), step.to_string());
        tensors::write(&self.state_file(arm), tensors, metadata)
    }

    fn finish(&self, arm: &str) {
        // It may not be there, and the latents are.
        let _ = std::fs::remove_file(self.state_file(arm));
    }

    /// Steps of the rehearsal: an anchor that selects by the step before needs one.
    fn rehearsed_steps(&self) -> usize {
        if self.config.selection == Selection::Riding { 3 } else { 2 }
    }

    fn rehearse(&self, run: impl FnOnce(usize, &mut Run) -> Result<(), Error>, sparse: bool) -> Result<(), Error> {
        if !self.rehearsal {
            return Ok(());
        }
        let steps = self.rehearsed_steps();
        let kinds: Vec<_> = match (sparse, steps) {
            (false, _) => vec![StepKind::Dense; steps],
            (true, 2) => vec![StepKind::Anchor, StepKind::Reuse],
            (true, _) => vec![StepKind::Dense, StepKind::Anchor, StepKind::Reuse],
        };
        let started = Instant::now();
        run(steps, &mut Run::new(&self.config, &kinds, self.layers, 0)?)?;
        sync(self.device)?;
        if !self.quiet {
            eprintln!("rehearsal, in which kernels are compiled: {:.1} s", started.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// Runs one arm of a model that predicts velocities.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] with what failed.
    pub fn denoise<M: VelocityModel>(
        &self,
        sparse: bool,
        model: &M,
        sampler: impl Fn(usize) -> Result<Box<dyn Sampler>, mcsparse::Error>,
        steps: usize,
        noise: Tensor<5>,
        conditions: &Conditions<M::Condition>,
    ) -> Result<Arm, Error>
    where
        M::Condition: Clone,
    {
        let arm = arm_name(sparse);
        self.rehearse(
            |steps, run| {
                let mut sampler = sampler(steps)?;
                mcsparse_dit::denoise(model, sampler.as_mut(), noise.clone(), conditions.clone(), run, |_| ())?;
                Ok(())
            },
            sparse && model.first_steps(sampler(self.rehearsed_steps())?.timesteps()).len() == 1,
        )?;
        let mut sampler = sampler(steps)?;
        let (mut latents, mut from) = (noise, 0);
        if let Some((step, file)) = self.state(arm)? {
            let names = file.names().into_iter().filter(|name| name != "latents");
            let state: Result<Vec<_>, Error> =
                names.map(|name| Ok((name.clone(), file.tensor::<5>(&name, self.device)?))).collect();
            sampler.restore(step, state?)?;
            (latents, from) = (file.tensor("latents", self.device)?, step);
        }
        let kinds = self.kinds(sparse, steps, &model.first_steps(sampler.timesteps()), from)?;
        let mut run = Run::new(&self.config, &kinds, self.layers, from)?;
        let mut clock = Clock::start(self.device, arm, &kinds, self.quiet)?;
        // The sampler is in the hands of the loop, so a part of the run ends where a state is kept.
        while sampler.steps_taken() < steps {
            let stop = match self.save_every {
                0 => steps,
                every => (sampler.steps_taken() / every + 1) * every,
            };
            latents = {
                let mut part = Part { sampler: sampler.as_mut(), stop: stop.min(steps) };
                resume(model, &mut part, latents, conditions.clone(), &mut run, |_| clock.step())?
            };
            clock.result()?;
            if sampler.steps_taken() < steps {
                let state = sampler.state().into_iter().map(|(name, tensor)| (name.to_owned(), tensor));
                let state = state.chain([("latents".to_owned(), latents.clone())]);
                let tensors: Result<Vec<_>, Error> = state.map(|(name, tensor)| Ok((name, read(tensor)?))).collect();
                self.keep(arm, sampler.steps_taken(), tensors?)?;
                clock.restart()?;
            }
        }
        Ok(Arm::of(clock.finish(), &run, vec![("latents".into(), read(latents)?)], from))
    }

    /// Runs one arm of MiniMax-H3.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] with what failed.
    pub fn denoise_h3(
        &self,
        sparse: bool,
        model: &MiniMaxH3,
        points: usize,
        shift: f64,
        noise: H3Velocity,
        conditions: &H3Conditions,
    ) -> Result<Arm, Error> {
        let arm = arm_name(sparse);
        let clocks = |points: usize| -> Result<[H3Euler; 2], mcsparse::Error> {
            Ok([H3Euler::new(points, shift)?, H3Euler::new(points, H3Euler::AUDIO_SHIFT)?])
        };
        self.rehearse(
            |steps, run| {
                let [mut video, mut audio] = clocks(steps + 1)?;
                let conditions = conditions.clone();
                minimax_h3::denoise(model, [&mut video, &mut audio], noise.clone(), conditions, run, |_, _| ())?;
                Ok(())
            },
            sparse,
        )?;
        let [mut video, mut audio] = clocks(points)?;
        let (steps, mut latents, mut from) = (points - 1, noise, 0);
        if let Some((step, file)) = self.state(arm)? {
            for clock in [&mut video, &mut audio] {
                Sampler::<3>::restore(clock, step, Vec::new())?;
            }
            let of = |name: &str| file.tensor::<3>(name, self.device);
            (latents, from) = (H3Velocity { video: of("video")?, audio: of("audio")? }, step);
        }
        let kinds = self.kinds(sparse, steps, &[0], from)?;
        let mut run = Run::new(&self.config, &kinds, self.layers, from)?;
        let mut clock = Clock::start(self.device, arm, &kinds, self.quiet)?;
        let mut kept = Ok(());
        let clocks = [&mut video, &mut audio];
        let latents = minimax_h3::resume(model, clocks, latents, conditions.clone(), &mut run, |step, latents| {
            clock.step();
            if (step + 1).is_multiple_of(self.save_every) && step + 1 < steps && kept.is_ok() {
                kept = named(latents).and_then(|tensors| self.keep(arm, step + 1, tensors));
                kept = std::mem::replace(&mut kept, Ok(())).and_then(|()| clock.restart());
            }
        })?;
        kept?;
        clock.result()?;
        Ok(Arm::of(clock.finish(), &run, named(&latents)?, from))
    }

    /// Writes what an arm made, and forgets its state.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if it cannot be written.
    pub fn write(&self, sparse: bool, arm: &Arm) -> Result<PathBuf, Error> {
        let path = self.out.join(format!("{}.safetensors", arm_name(sparse)));
        tensors::write(&path, arm.latents.clone(), self.settings.clone())?;
        self.finish(arm_name(sparse));
        Ok(path)
    }
}

/// What an arm is called.
pub fn arm_name(sparse: bool) -> &'static str {
    if sparse { "mc-sparse" } else { "dense" }
}

fn named(latents: &H3Velocity) -> Result<Vec<(String, TensorData)>, Error> {
    Ok(vec![("video".into(), read(latents.video.clone())?), ("audio".into(), read(latents.audio.clone())?)])
}

fn read<const D: usize>(tensor: Tensor<D>) -> Result<TensorData, Error> {
    tensor.try_into_data().map_err(|error| Error::run("reading latents from the device", format!("{error:?}")))
}

/// Makes `folder` and makes sure that it can be written to.
///
/// # Errors
///
/// [`Error::Run`] if not.
pub fn writable(folder: &Path) -> Result<(), Error> {
    let fail = |error: std::io::Error| Error::run(folder.display(), error);
    std::fs::create_dir_all(folder).map_err(fail)?;
    let probe = folder.join(".writable");
    std::fs::write(&probe, b"").map_err(fail)?;
    std::fs::remove_file(&probe).map_err(fail)
}
