//! Options that fit together.

use denoise::{Error, device::DType};
use mcsparse::{Anchors, Budget, McSparseConfig, Placement, Plan, Schedule, SinkTokens, WarmUp, check::HEAD_DIM};

use crate::options::{Inputs, Options};
use crate::shape::Shape;

/// What is timed, checked as a whole before anything is made.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The sizes.
    pub shape: Shape,
    /// Float type.
    pub dtype: DType,
    /// MC-Sparse over a whole run.
    pub config: McSparseConfig,
    /// Its kinds of steps.
    pub plan: Plan,
    /// Its keys.
    pub budget: Budget,
    /// What hidden states are made of.
    pub inputs: Inputs,
    /// Bytes of scores that Burn's own attention may take.
    pub burn_bytes: usize,
    /// Calls that a time is the median of.
    pub samples: usize,
    /// Where the caches of a full run wait.
    pub placement: Placement,
    /// Bytes that there are, if that was said.
    pub memory: Option<usize>,
}

impl Settings {
    /// Fills in what was not asked for, and checks everything.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] naming the first option that does not fit.
    pub fn resolve(options: &Options) -> Result<Self, Error> {
        options.device.check()?;
        let shape = shape(options)?;
        if options.samples == 0 {
            return Err(Error::option("--samples", "at least 1", 0));
        }
        if let Some(memory) = options.memory.filter(|memory| !(memory.is_finite() && *memory > 0.0)) {
            return Err(Error::option("--memory", "a positive number", memory));
        }
        if !(1..=shape.heads).contains(&options.devices) {
            return Err(Error::option("--devices", format!("1 to {}, the heads", shape.heads), options.devices));
        }
        if let Some(outside) = options.dense_layers.0.iter().find(|&&layer| layer >= shape.layers) {
            return Err(Error::option("--dense-layers", format!("layers below {}", shape.layers), outside));
        }
        let anchors = match (&options.anchors, options.every) {
            (Some(at), _) => Anchors::At(at.0.clone()),
            (None, Some(every)) => Anchors::Every(every),
            (None, None) => Anchors::EndOfWarmUp,
        };
        let warm_up = options.warm_up.map_or(WarmUp::Fraction(0.2), WarmUp::Steps);
        let config = McSparseConfig::density(options.density)
            .with_group_size(options.group_size)
            .with_schedule(Schedule { warm_up, anchors, ..Schedule::default() })
            .with_sink(SinkTokens { prefix: shape.prefix, suffix: shape.suffix, within_budget: false })
            .with_dense_layers(options.dense_layers.0.clone())
            .with_index_format(options.key_form.format())
            .with_residual_format(options.residual_form.format())
            .with_selection(options.selection.selection())
            .with_workspace_bytes(options.workspace_bytes);
        config.validate().map_err(named)?;
        let plan = config.schedule.plan(shape.steps).map_err(named)?;
        let budget = config.budget_for(shape.tokens()).map_err(named)?;
        let on_flex = !options.device.is_queued();
        Ok(Self {
            dtype: options.dtype.unwrap_or(if on_flex { DType::F32 } else { DType::Bf16 }),
            burn_bytes: options.burn_bytes.unwrap_or(if on_flex { 1 << 30 } else { 0 }),
            inputs: options.inputs,
            samples: options.samples,
            placement: options.placement,
            memory: options.memory.map(|gib| (gib * f64::from(1 << 30)) as usize),
            shape,
            config,
            plan,
            budget,
        })
    }

    /// Layers of the model that MC-Sparse leaves dense.
    pub fn dense_layers(&self) -> usize {
        (0..self.shape.layers).filter(|layer| self.config.dense_layers.contains(layer)).count()
    }

    /// Bytes of the scores of one dense attention, which Burn's own may keep: it has a kernel that does not, for some shapes.
    pub fn score_bytes(&self) -> usize {
        self.shape.heads * self.shape.tokens().pow(2) * self.dtype.burn().size()
    }
}

fn shape(options: &Options) -> Result<Shape, Error> {
    let mut shape = options.model.shape();
    let sizes = [
        ("--heads", options.heads, &mut shape.heads),
        ("--head-dim", options.head_dim, &mut shape.head_dim),
        ("--hidden", options.hidden, &mut shape.hidden),
        ("--ffn", options.ffn, &mut shape.ffn),
        ("--layers", options.layers, &mut shape.layers),
        ("--steps", options.steps, &mut shape.steps),
        ("--branches", options.branches, &mut shape.branches),
    ];
    for (name, given, size) in sizes {
        match given {
            Some(0) => return Err(Error::option(name, "at least 1", 0)),
            Some(given) => *size = given,
            None => {}
        }
    }
    shape.grid = options.grid.map_or(shape.grid, |grid| grid.0);
    shape.prefix = options.prefix.unwrap_or(shape.prefix);
    shape.suffix = options.suffix.unwrap_or(shape.suffix);
    shape.cross_text = options.cross_text.unwrap_or(shape.cross_text);
    shape.mlp = options.mlp.unwrap_or(shape.mlp);
    if !HEAD_DIM.contains(&shape.head_dim) || shape.head_dim % 2 == 1 {
        return Err(Error::option("--head-dim", format!("an even number up to {}", HEAD_DIM.end()), shape.head_dim));
    }
    Ok(shape)
}

/// The refusal of the library with the option's name in place of the setting's.
fn named(error: mcsparse::Error) -> Error {
    match error {
        mcsparse::Error::InvalidConfig { argument, expected, got } => {
            Error::option(format!("--{}", argument.replace('_', "-")), expected, got)
        }
        other => Error::Run(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use mcsparse::StepKind;

    use super::*;

    fn resolve(arguments: &str) -> Result<Settings, Error> {
        Settings::resolve(&Options::try_parse_from(format!("dit-block {arguments}").split_whitespace()).unwrap())
    }

    #[test]
    fn models_and_their_changes() {
        let wan = resolve("--model wan2.1-14b-720p --density 0.25 --residual-form fp8").unwrap();
        assert_eq!((wan.shape.tokens(), wan.budget.keys, wan.plan.count(StepKind::Reuse)), (75_600, 18_900, 40));
        assert_eq!((wan.dense_layers(), wan.score_bytes()), (1, 40 * 75_600 * 75_600 * 4));
        let part = resolve("--model hunyuanvideo-720p --layers 2 --steps 6 --warm-up 2 --grid 2,4,8").unwrap();
        assert_eq!((part.shape.tokens(), part.config.sink.suffix, part.shape.layers), (64 + 256, 256, 2));
        assert_eq!(part.plan.to_string().split(' ').next(), Some("dArrrr"));
    }

    #[test]
    fn refusals_name_option_expectation_and_value() {
        for (arguments, expected) in [
            ("--density 1.5", "--density: expected above 0 and at most 1, got 1.5"),
            ("--heads 0", "--heads: expected at least 1, got 0"),
            ("--head-dim 257", "--head-dim: expected an even number up to 256, got 257"),
            ("--head-dim 7", "--head-dim: expected an even number up to 256, got 7"),
            ("--dense-layers 4", "--dense-layers: expected layers below 4, got 4"),
            ("--steps 4 --warm-up 4", "--warm-up: expected fewer than the 4 steps"),
            ("--devices 3", "--devices: expected 1 to 2, the heads, got 3"),
            ("--samples 0", "--samples: expected at least 1, got 0"),
            ("--workspace-bytes 0", "--workspace-bytes: expected at least 1, got 0"),
            ("--memory 0", "--memory: expected a positive number, got 0"),
            ("--group-size 0", "--group-size: expected at least 1"),
        ] {
            let error = resolve(arguments).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().starts_with(expected), "{arguments}: {error}");
        }
    }
}
