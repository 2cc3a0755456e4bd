//! Options that fit together and to the model.

use denoise::settings::named;
use mcsparse::{Anchors, Budget, McSparseConfig, Plan, Schedule, WarmUp};
use mcsparse_lab::Error;
use mcsparse_lab::presets::{Preset, SHAPE};

use crate::options::Options;

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
    /// MC-Sparse.
    pub config: McSparseConfig,
    /// Its kinds of steps.
    pub plan: Plan,
    /// Its keys.
    pub budget: Budget,
}

impl Settings {
    /// Checks everything.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] naming the first option that does not fit.
    pub fn resolve(options: &Options) -> Result<Self, Error> {
        options.device.check()?;
        let preset = &SHAPE;
        if options.steps < FEWEST_STEPS {
            let expected = format!("at least {FEWEST_STEPS}, an anchor and a sparse step");
            return Err(Error::option("--steps", expected, options.steps));
        }
        if options.guidance < 1.0 {
            return Err(Error::option("--guidance", "at least 1, which is none", options.guidance));
        }
        let dense = &options.dense_layers.0;
        if let Some(outside) = dense.iter().find(|&&layer| layer >= preset.layers) {
            return Err(Error::option("--dense-layers", format!("layers below {}", preset.layers), outside));
        }
        if (0..preset.layers).all(|layer| dense.contains(&layer)) {
            return Err(Error::option("--dense-layers", "at least one layer left to MC-Sparse", "all of them"));
        }
        let anchors = match (&options.anchors, options.every) {
            (Some(at), _) => Anchors::At(at.0.clone()),
            (None, Some(every)) => Anchors::Every(every),
            (None, None) => Anchors::EndOfWarmUp,
        };
        let warm_up = options.warm_up.map_or(WarmUp::Fraction(preset.defaults.warm_up), WarmUp::Steps);
        let config = McSparseConfig::density(options.density)
            .with_group_size(options.group_size)
            .with_schedule(Schedule { warm_up, anchors, ..Schedule::default() })
            .with_dense_layers(dense.clone());
        let config = options.method.apply(config);
        let named = |error| named(error, options.every.is_some(), options.anchors.is_some());
        config.validate().map_err(named)?;
        let plan = config.schedule.plan(options.steps).map_err(named)?;
        let budget = config.budget_for(preset.tokens(preset.frames)).map_err(named)?;
        let condition = match (&options.front, &options.left) {
            (Some(front), Some(left)) => format!("{} and {}", front.display(), left.display()),
            _ => options.solid.clone(),
        };
        Ok(Self { options: options.clone(), preset, condition, config, plan, budget })
    }

    /// The settings under which every layer is dense at every step: the same dense kernel as MC-Sparse runs.
    pub fn dense_config(&self) -> McSparseConfig {
        self.config.clone().with_dense_layers((0..self.preset.layers).collect())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn resolve(arguments: &str) -> Result<Settings, Error> {
        let all = ["shape"].into_iter().chain(arguments.split_whitespace());
        Settings::resolve(&Options::try_parse_from(all).unwrap())
    }

    #[test]
    fn options_reach_the_config() {
        let settings = resolve("--density 0.25 --group-size 64 --warm-up 3 --every 4 --steps 12 --dense-layers none");
        let settings = settings.unwrap();
        assert!(settings.plan.to_string().starts_with("ddArrrArrrAr"));
        assert_eq!((settings.budget.keys, settings.config.group_size), (1024, 64));
        assert!(settings.config.dense_layers.is_empty());
        assert_eq!(settings.dense_config().dense_layers, [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn refusals_name_option_expectation_and_value() {
        for (arguments, expected) in [
            ("--density 1.5", "--density: expected above 0 and at most 1, got 1.5"),
            ("--steps 1", "--steps: expected at least 2, an anchor and a sparse step, got 1"),
            ("--guidance 0.5", "--guidance: expected at least 1, which is none, got 0.5"),
            ("--steps 4 --warm-up 4", "--warm-up: expected fewer than the 4 steps"),
            ("--steps 9 --anchors 1,9", "--anchors: expected steps below 9, got 9"),
            ("--dense-layers 0,8", "--dense-layers: expected layers below 8, got 8"),
            ("--dense-layers 7,6,5,4,3,2,1,0", "--dense-layers: expected at least one layer left"),
        ] {
            let error = resolve(arguments).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().starts_with(expected), "{arguments}: {error}");
        }
    }
}
