//! Denoises latents with the weights of a video transformer, with dense attention or with MC-Sparse.
//!
//! [`start`] is the whole program: options are resolved to a model and a video ([`shape`]), the memory is estimated
//! ([`memory`]), weights and conditions are loaded ([`conditions`]), and [`run`] denoises.

pub mod attention;
pub mod clock;
pub mod conditions;
pub mod memory;
pub mod options;
pub mod report;
pub mod run;
pub mod shape;
pub mod tensors;
pub mod video;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::{DType, Device, Distribution, Tensor};
use indicatif::{ProgressBar, ProgressStyle};
use mcsparse_dit::hunyuan::{HunyuanVideo, HunyuanVideo15};
use mcsparse_dit::minimax_h3::{H3Conditions, H3Velocity, MiniMaxH3};
use mcsparse_dit::sampler::{FlowEuler, Sampler, UniPc};
use mcsparse_dit::wan::{WanConfig, WanExperts, WanTransformer};
use mcsparse_dit::{CheckpointOptions, Conditions, LoadError, LoadProgress};

use conditions::Source;
use memory::Estimate;
use options::Method;
use run::{Arm, Job};
use shape::Form;
use video::Video;

pub use mcsparse_lab::error::{self, Error};
pub use options::Options;

/// Runs the program.
///
/// # Errors
///
/// [`Error::Option`] for options that cannot be used, found before weights are loaded; [`Error::Run`] for anything that
/// fails afterwards.
pub fn start(options: &Options) -> Result<(), Error> {
    let device = Device::default();
    if let Some(name) = options.source.write_random {
        let checkpoint = CheckpointOptions { dtype: options.dtype.burn(), seed: options.seed, ..Default::default() };
        name.form().write_random(&options.out, &checkpoint, &device)?;
        println!("{}", options.out.display());
        return Ok(());
    }
    let (form, folders) = match (&options.source.weights, options.source.random) {
        (Some(folder), _) => Form::of_folder(folder)?,
        (None, Some(name)) => (name.form(), Vec::new()),
        (None, None) => unreachable!("clap asks for one of them"),
    };
    if !device.supports_dtype(options.dtype.burn()) {
        return Err(Error::option(
            "--dtype",
            format!("a dtype that {device:?} supports"),
            format!("{:?}", options.dtype),
        ));
    }
    let video = Video::resolve(options, &form)?;
    let config = video::config(options)?;
    let source = Source::open(options.conditions.as_deref())?;
    let others = source.text_tokens(&form);
    let guided = form.is_guided() && video.guidance != 1.0;
    if guided && !source.has_negative() {
        let expected = "1, or negative_text in the file of conditions";
        return Err(Error::option("--guidance", expected, video.guidance));
    }
    let sequence = video.sequence(&form, others, if guided { 2 } else { 1 });
    let on_cpu = is_cpu(&device);
    let parameters = form.parameters(&device);
    let estimate = Estimate::of(&form, parameters, sequence, options.dtype, options.method, &config)?;
    let steps = match options.method {
        Method::Dense => format!("{} dense", video.evaluations),
        _ => config.schedule.plan(video.evaluations)?.to_string(),
    };
    if !options.quiet {
        let [heads, head_dim, layers] = form.attention();
        println!("{:.2} billion parameters, {layers} layers of {heads} heads x {head_dim}", parameters as f64 / 1e9);
        println!("{} video tokens, {} that join them, latents {:?}", sequence.video, sequence.others, video.latents);
        println!("steps {steps}");
        println!("memory: about {estimate}");
    }
    estimate.check(memory::limit(options.memory, on_cpu))?;
    if options.dry_run {
        return Ok(());
    }
    run::writable(&options.out)?;

    let job = Job {
        device: &device,
        config,
        layers: form.attention()[2],
        settings: video.settings(options),
        save_every: options.save_every,
        out: options.out.clone(),
        rehearsal: !(options.no_rehearsal || on_cpu),
        quiet: options.quiet,
    };
    let arms = denoise(options, &job, &form, &folders, &video, &source, guided)?;
    report::print(&arms);
    let json = serde_json::to_string_pretty(&report::json(&job.settings, &arms)).expect("plain data");
    let path = options.out.join("report.json");
    std::fs::write(&path, json).map_err(|error| Error::run(path.display(), error))?;
    if let Some(usage) = device.memory_pool_usage() {
        println!("reserved on the device: {:.1} GiB", usage.bytes_reserved as f64 / f64::from(1 << 30));
    }
    Ok(())
}

/// Whether the device shares the memory of the system and works off every call at once.
fn is_cpu(device: &Device) -> bool {
    #[cfg(feature = "flex")]
    return *device == Device::flex();
    #[cfg(not(feature = "flex"))]
    {
        let _ = device;
        false
    }
}

fn denoise(
    options: &Options,
    job: &Job<'_>,
    form: &Form,
    folders: &[PathBuf],
    video: &Video,
    source: &Source,
    guided: bool,
) -> Result<BTreeMap<bool, Arm>, Error> {
    let (device, latents) = (job.device, video.latents);
    device.seed(options.seed);
    let noise = || Tensor::<5>::random(latents, Distribution::Normal(0.0, 1.0), (device, DType::F32));
    let arms: &[bool] = match options.method {
        Method::Dense => &[false],
        Method::McSparse => &[true],
        Method::Both => &[false, true],
    };
    let each = |run: &dyn Fn(bool) -> Result<Arm, Error>| {
        let compared = arms.len() > 1;
        let one = |&sparse: &bool| {
            if let Some(arm) = if compared { job.finished(sparse)? } else { None } {
                println!("{}: finished before the interruption", run::arm_name(sparse));
                return Ok((sparse, arm));
            }
            let arm = run(sparse)?;
            println!("{}", job.write(sparse, &arm)?.display());
            if compared {
                job.keep_finished(sparse, &arm)?;
            }
            Ok((sparse, arm))
        };
        let all = arms.iter().map(one).collect::<Result<BTreeMap<_, _>, Error>>()?;
        if compared {
            job.forget_finished();
        }
        Ok(all)
    };
    let unipc =
        |steps: usize| -> Result<Box<dyn Sampler>, mcsparse::Error> { Ok(Box::new(UniPc::wan(steps, video.shift)?)) };
    let euler = |steps: usize| -> Result<Box<dyn Sampler>, mcsparse::Error> {
        Ok(Box::new(FlowEuler::uniform(steps, video.shift)?))
    };
    match form {
        Form::Wan { config, boundary } => {
            let noise = noise();
            let condition = |prefix: &str| source.wan(config, prefix, latents, device);
            let mut conditions = match guided {
                true => Conditions::guided(condition("")?, condition("negative_")?, video.guidance),
                false => Conditions::unguided(condition("")?),
            };
            let first = wan(options, config, folders.first(), 0, device)?;
            let Some(boundary) = boundary else {
                return each(&|sparse| job.denoise(sparse, &first, unipc, video.steps, noise.clone(), &conditions));
            };
            if let Some(second) = form.second_guidance().filter(|_| options.guidance.is_none()) {
                conditions = conditions.with_expert_guidance("low_noise", second);
            }
            let second = wan(options, config, folders.get(1), 1, device)?;
            let experts = WanExperts::new(first, second, *boundary)?;
            each(&|sparse| job.denoise(sparse, &experts, unipc, video.steps, noise.clone(), &conditions))
        }
        Form::Hunyuan(config) => {
            let noise = noise();
            let conditions = Conditions::unguided(source.hunyuan(config, video.guidance, latents, device)?);
            let model = match folders.first() {
                Some(folder) => {
                    let (dtype, bar) = (options.dtype.burn(), progress(options));
                    HunyuanVideo::load_with_progress(folder, config, dtype, device, bar)?
                }
                None => HunyuanVideo::random(config, options.dtype.burn(), options.seed, device)?,
            };
            each(&|sparse| job.denoise(sparse, &model, euler, video.steps, noise.clone(), &conditions))
        }
        Form::Hunyuan15(config) => {
            let noise = noise();
            let condition = |prefix: &str| source.hunyuan15(config, prefix, device);
            let conditions = match guided {
                true => Conditions::guided(condition("")?, condition("negative_")?, video.guidance),
                false => Conditions::unguided(condition("")?),
            };
            let model = match folders.first() {
                Some(folder) => {
                    let (dtype, bar) = (options.dtype.burn(), progress(options));
                    HunyuanVideo15::load_with_progress(folder, config, dtype, device, bar)?
                }
                None => HunyuanVideo15::random(config, options.dtype.burn(), options.seed, device)?,
            };
            each(&|sparse| job.denoise(sparse, &model, euler, video.steps, noise.clone(), &conditions))
        }
        Form::H3(config) => {
            let text = source.h3(config.text_dim, device)?;
            let layout = Form::h3_layout(text.dims()[1], video.frames, latents);
            let rows = |tokens: usize, size: usize| {
                Tensor::random([1, tokens, size], Distribution::Normal(0.0, 1.0), (device, DType::F32))
            };
            let noise = H3Velocity {
                video: rows(layout.video_tokens(), config.video_dim()),
                audio: rows(layout.audio_tokens(), config.audio_in_channels),
            };
            let conditions = H3Conditions { text, layout, keyframes: None };
            let model = match folders.first() {
                Some(folder) => {
                    let (dtype, bar) = (options.dtype.burn(), progress(options));
                    MiniMaxH3::load_with_progress(folder, config, dtype, device, bar)?
                }
                None => MiniMaxH3::random(config, options.dtype.burn(), options.seed, device)?,
            };
            each(&|sparse| job.denoise_h3(sparse, &model, video.steps, video.shift, noise.clone(), &conditions))
        }
    }
}

fn wan(
    options: &Options,
    config: &WanConfig,
    folder: Option<&PathBuf>,
    number: u64,
    device: &Device,
) -> Result<WanTransformer, LoadError> {
    let dtype = options.dtype.burn();
    match folder {
        Some(folder) => WanTransformer::load_with_progress(folder as &Path, config, dtype, device, progress(options)),
        None => WanTransformer::random(config, dtype, options.seed + number, device),
    }
}

/// A bar that follows the loading of weights.
fn progress(options: &Options) -> impl Fn(LoadProgress) + Send + Sync + 'static {
    let bar = if options.quiet { ProgressBar::hidden() } else { ProgressBar::new(0) };
    let style = "weights    {bar:40} {bytes} of {total_bytes}, {elapsed}";
    bar.set_style(ProgressStyle::with_template(style).expect("a valid template"));
    move |progress| {
        bar.set_length(progress.of_bytes);
        bar.set_position(progress.bytes);
        if progress.tensors == progress.of_tensors {
            bar.finish();
        }
    }
}
