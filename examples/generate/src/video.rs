//! The video that was asked for, and the settings of a run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use mcsparse::{Anchors, McSparseConfig, Schedule, WarmUp};
use mcsparse_lab::method_options::MethodOptions;

use crate::error::Error;
use crate::memory::Sequence;
use crate::options::Options;
use crate::shape::{Defaults, Form};

/// The video that was asked for, and how to get there.
pub struct Video {
    /// Shape of its latents.
    pub latents: [usize; 5],
    /// Frames.
    pub frames: usize,
    /// Steps; of MiniMax-H3 the points of its grid.
    pub steps: usize,
    /// Forwards of one branch: `steps`, and one fewer with MiniMax-H3.
    pub evaluations: usize,
    /// Shift of the noise levels.
    pub shift: f64,
    /// Guidance.
    pub guidance: f64,
}

impl Video {
    /// What `options` ask for, and where they do not, what the pipeline of the model does.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] naming the option that cannot be used.
    pub fn resolve(options: &Options, form: &Form) -> Result<Self, Error> {
        let Defaults { size, frames, steps, shift, guidance } = form.defaults();
        let (frames, steps) = (options.frames.unwrap_or(frames), options.steps.unwrap_or(steps));
        let latents = form.latents(options.size.unwrap_or(size), frames)?;
        let shift = options.shift.unwrap_or(shift);
        if shift <= 0.0 {
            return Err(Error::option("--shift", "a positive number", shift));
        }
        let evaluations = match form {
            Form::H3(_) if steps < 2 => return Err(Error::option("--steps", "at least 2 points", steps)),
            Form::H3(_) => steps - 1,
            _ => steps,
        };
        let guidance = options.guidance.unwrap_or(guidance);
        Ok(Self { latents, frames, steps, evaluations, shift, guidance })
    }

    /// The tokens of one forward, of which a step has `branches`.
    pub fn sequence(&self, form: &Form, text: usize, branches: usize) -> Sequence {
        let patch = form.patch();
        let grid = [self.latents[2] / patch[0], self.latents[3] / patch[1], self.latents[4] / patch[2]];
        let (others, cross) = match form {
            Form::Wan { .. } => (0, text),
            Form::H3(_) => (Form::h3_layout(text, self.frames, self.latents).tokens().prefix, 0),
            _ => (text, 0),
        };
        Sequence { video: grid.iter().product(), others, cross, branches }
    }

    /// Everything that decides the latents.
    pub fn settings(&self, options: &Options) -> BTreeMap<String, String> {
        let path = |path: &Option<PathBuf>| path.as_ref().map_or("random".into(), |path| path.display().to_string());
        let weights = match options.source.random {
            Some(name) => format!("random {name:?}"),
            None => path(&options.source.weights),
        };
        [
            ("weights", weights),
            ("conditions", path(&options.conditions)),
            ("latents", format!("{:?}", self.latents)),
            ("steps", self.steps.to_string()),
            ("shift", self.shift.to_string()),
            ("guidance", self.guidance.to_string()),
            ("seed", options.seed.to_string()),
            ("dtype", format!("{:?}", options.dtype)),
            ("density", options.density.to_string()),
            ("group_size", options.group_size.to_string()),
            ("warm_up", format!("{:?}", options.warm_up)),
            ("every", format!("{:?}", options.every)),
            ("all_layers", options.all_layers.to_string()),
            ("options", options.method_options.apply(McSparseConfig::density(options.density)).describe_options()),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
    }
}

/// The settings of MC-Sparse.
///
/// # Errors
///
/// [`Error::Option`] for a setting out of range.
pub fn config(options: &Options) -> Result<McSparseConfig, Error> {
    if !(options.density > 0.0 && options.density <= 1.0) {
        return Err(Error::option("--density", "above 0 and at most 1", options.density));
    }
    let warm_up = options.warm_up.map_or(WarmUp::Fraction(0.2), WarmUp::Steps);
    let anchors = options.every.map_or(Anchors::EndOfWarmUp, Anchors::Every);
    let dense = if options.all_layers { vec![] } else { vec![0] };
    let config = McSparseConfig::density(options.density)
        .with_group_size(options.group_size)
        .with_dense_layers(dense)
        .with_schedule(Schedule { warm_up, anchors, ..Schedule::default() });
    let config = options.method_options.apply(config);
    match config.validate() {
        Err(mcsparse::Error::InvalidConfig { argument, expected, got }) => {
            Err(Error::option(MethodOptions::option_of(argument), expected, got))
        }
        _ => Ok(config),
    }
}
