//! Options that fit together and to the model.

use mcsparse::{Anchors, Budget, McSparseConfig, Plan, Schedule, WarmUp, ops::Kernels};

use crate::error::Error;
use crate::options::{KernelsName, MethodOptions, Options};
use crate::presets::Preset;

/// The fewest steps that a run can have: an anchor and a step that reuses it.
const FEWEST_STEPS: usize = 2;

/// What a run does, checked as a whole before any weights are read.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The options that stand as they are.
    pub options: Options,
    /// The model.
    pub preset: &'static Preset,
    /// What is denoised.
    pub condition: String,
    /// Frames of the clip.
    pub frames: usize,
    /// Tokens of the clip.
    pub tokens: usize,
    /// Denoising steps.
    pub steps: usize,
    /// Strength of guidance; 1 is none.
    pub guidance: f64,
    /// MC-Sparse.
    pub config: McSparseConfig,
    /// Its kinds of steps.
    pub plan: Plan,
    /// Its keys.
    pub budget: Budget,
}

impl Settings {
    /// Fills in what was not asked for, and checks everything.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] naming the first option that does not fit.
    pub fn resolve(options: &Options) -> Result<Self, Error> {
        options.device.check()?;
        let preset = options.size.preset();
        let defaults = &preset.defaults;

        let frames = options.frames.unwrap_or(defaults.frames);
        if !(1..=preset.frames).contains(&frames) {
            let expected = format!("1 to {}, the frames of the {} model", preset.frames, preset.name);
            return Err(Error::option("--frames", expected, frames));
        }
        let steps = options.steps.unwrap_or(defaults.steps);
        if steps < FEWEST_STEPS {
            return Err(Error::option(
                "--steps",
                format!("at least {FEWEST_STEPS}, an anchor and a sparse step"),
                steps,
            ));
        }
        let guidance = options.guidance.unwrap_or(defaults.guidance);
        if guidance < 1.0 {
            return Err(Error::option("--guidance", "at least 1, which is none", guidance));
        }
        let dense = &options.dense_layers.0;
        if let Some(outside) = dense.iter().find(|&&layer| layer >= preset.layers) {
            let expected = format!("layers below {}, those of the {} model", preset.layers, preset.name);
            return Err(Error::option("--dense-layers", expected, outside));
        }
        if (0..preset.layers).all(|layer| dense.contains(&layer)) {
            return Err(Error::option("--dense-layers", "at least one layer left to MC-Sparse", "all of them"));
        }

        let config = config(options, preset);
        let tokens = preset.tokens(frames);
        let named = |error| named(error, options.every.is_some(), options.anchors.is_some());
        config.validate().map_err(named)?;
        let plan = config.schedule.plan(steps).map_err(named)?;
        let budget = config.budget_for(tokens).map_err(named)?;
        let condition = match (&options.first, &options.last) {
            (Some(first), Some(last)) => format!("{} to {}", first.display(), last.display()),
            _ => options.condition.clone().unwrap_or_else(|| defaults.condition.into()),
        };
        Ok(Self { options: options.clone(), preset, condition, frames, tokens, steps, guidance, config, plan, budget })
    }

    /// The settings under which every layer is dense at every step: the same dense kernel as MC-Sparse runs.
    pub fn dense_config(&self) -> McSparseConfig {
        self.config.clone().with_dense_layers((0..self.preset.layers).collect())
    }
}

fn config(options: &Options, preset: &Preset) -> McSparseConfig {
    let defaults = &preset.defaults;
    let config = match options.keys {
        Some(keys) => McSparseConfig::keys(keys),
        None => McSparseConfig::density(options.density.unwrap_or(defaults.density)),
    };
    let anchors = match (&options.anchors, options.every) {
        (Some(at), _) => Anchors::At(at.0.clone()),
        (None, Some(every)) => Anchors::Every(every),
        (None, None) => Anchors::EndOfWarmUp,
    };
    let warm_up = options.warm_up.map_or(WarmUp::Fraction(defaults.warm_up), WarmUp::Steps);
    let config = config
        .with_group_size(options.group_size.unwrap_or(defaults.group_size))
        .with_schedule(Schedule { warm_up, anchors, ..Schedule::default() })
        .with_dense_layers(options.dense_layers.0.clone())
        .with_index_format(options.key_form.format())
        .with_residual_format(options.residual_form.format())
        .with_kernels(match options.kernels {
            KernelsName::Auto => Kernels::Auto,
            KernelsName::Reference => Kernels::Reference,
        });
    options.method.apply(config)
}

/// The refusal of the library with the option's name in place of the setting's; `every` and `anchors` say whether these
/// options were given.
pub fn named(error: mcsparse::Error, every: bool, anchors: bool) -> Error {
    match error {
        mcsparse::Error::InvalidConfig { argument, expected, got } => {
            let option = match argument {
                "anchors" if every => "every",
                // Without anchors of one's own, the warm-up alone decides where the anchor is.
                "anchors" if !anchors => "warm_up",
                argument => argument,
            };
            Error::option(MethodOptions::option_of(option), expected, got)
        }
        other => Error::Run(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use mcsparse::{ResidualGain, StepKind, Tail};

    use super::*;

    fn resolve(arguments: &[&str]) -> Result<Settings, Error> {
        Settings::resolve(&Options::try_parse_from(["denoise"].iter().chain(arguments)).unwrap())
    }

    #[test]
    fn every_size_runs_without_options() {
        for size in ["small", "nano"] {
            let settings = resolve(&["--size", size]).unwrap();
            assert!(settings.plan.count(StepKind::Reuse) > settings.steps / 2);
            assert!(settings.frames <= settings.preset.frames);
        }
    }

    #[test]
    fn options_reach_the_config() {
        let all =
            "--size nano --keys 40 --group-size 16 --warm-up 3 --every 4 --steps 12 --dense-layers none --frames 4";
        let settings = resolve(&all.split(' ').collect::<Vec<_>>()).unwrap();
        assert!(settings.plan.to_string().starts_with("ddArrrArrrAr"));
        assert_eq!((settings.budget.keys, settings.tokens, settings.config.group_size), (40, 256, 16));
        assert!(settings.config.dense_layers.is_empty());
        assert_eq!(settings.dense_config().dense_layers, [0, 1, 2, 3]);
        let forms = resolve(&["--key-form", "offsets", "--residual-form", "fp8"]).unwrap().config;
        assert_eq!(forms.index_format, Some(mcsparse::IndexFormat::Offsets));
        assert_eq!(forms.residual_format, mcsparse::ResidualFormat::Fp8);
        let further = resolve(&["--drift-bound", "0.3", "--residual-decay", "0.98", "--tail-block", "64"]).unwrap();
        assert_eq!(further.config.schedule.drift_bound, Some(0.3));
        assert_eq!(further.config.residual_gain, ResidualGain::decay(0.98));
        assert_eq!((further.config.tail, further.budget.means), (Tail::BlockMeans { block: 64 }, 64));
        let at = resolve(&["--size", "nano", "--anchors", "3,9", "--warm-up", "4"]).unwrap();
        assert!(at.plan.to_string().starts_with("dddArrrrrA"));
    }

    #[test]
    fn refusals_name_option_expectation_and_value() {
        for (arguments, expected) in [
            ("--density 1.5", "--density: expected above 0 and at most 1, got 1.5"),
            ("--density -0.1", "--density: expected above 0 and at most 1, got -0.1"),
            ("--size nano --keys 513", "--keys: expected 1 to 512, the keys that there are to choose from, got 513"),
            ("--frames 17", "--frames: expected 1 to 16, the frames of the small model, got 17"),
            ("--size nano --frames 9", "--frames: expected 1 to 8, the frames of the nano model, got 9"),
            ("--steps 1", "--steps: expected at least 2, an anchor and a sparse step, got 1"),
            ("--guidance 0.5", "--guidance: expected at least 1, which is none, got 0.5"),
            ("--steps 4 --warm-up 4", "--warm-up: expected fewer than the 4 steps"),
            ("--steps 9 --anchors 1,9", "--anchors: expected steps below 9, got 9"),
            ("--steps 9 --warm-up 2 --anchors 5", "--anchors: expected one before step 2"),
            ("--steps 9 --warm-up 2 --every 1", "--every: expected at least one step that is no anchor"),
            ("--drift-bound 0", "--drift-bound: expected a number above 0, got 0"),
            ("--residual-decay 1.1", "--residual-decay: expected 0 to 1, got 1.1"),
            ("--dense-layers 0,10", "--dense-layers: expected layers below 10, those of the small model, got 10"),
            ("--size nano --dense-layers 3,2,1,0", "--dense-layers: expected at least one layer left"),
        ] {
            let error = resolve(&expected_arguments(arguments)).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().starts_with(expected), "{arguments}: {error}");
        }
    }

    fn expected_arguments(all: &str) -> Vec<&str> {
        all.split(' ').collect()
    }
}
