//! The settings of MC-Sparse.

use burn::config::Config;

use crate::{
    Anchors, Error, IndexFormat, KeyBudget, McSparseAttention, Plan, Refresh, ResidualFormat, ResidualGain, Schedule,
    Selection, SinkTokens, Tail,
    budget::{Budget, check_density},
    ops::Kernels,
};

/// Settings of MC-Sparse; build with [`McSparseConfig::density`] or [`McSparseConfig::keys`] and the `with_` methods.
///
/// `Config` gives JSON loading and saving; whatever a file says is validated by [`McSparseConfig::init`].
#[derive(Config, Debug, PartialEq)]
pub struct McSparseConfig {
    /// Keys that each query group keeps.
    pub budget: KeyBudget,
    /// Queries in a group, the `C` of the method: the query tile of the kernels.
    #[config(default = 128)]
    pub group_size: usize,
    /// Tokens that are always attended and whose query rows are dense.
    #[config(default = "SinkTokens::default()")]
    pub sink: SinkTokens,
    /// Factor on the scores; `None` is `1 / sqrt(head_dim)`.
    #[config(default = "None")]
    pub scale: Option<f64>,
    /// Layers that stay dense throughout; the first one by default, as published.
    #[config(default = "vec![0]")]
    pub dense_layers: Vec<usize>,
    /// Dense, anchor and reuse steps.
    #[config(default = "Schedule::default()")]
    pub schedule: Schedule,
    /// Power iterations for each principal direction.
    #[config(default = 4)]
    pub power_iterations: usize,
    /// Seed of the power iteration's start vector.
    #[config(default = 0)]
    pub seed: u64,
    /// Whether to refuse NaN and infinity in query, key and value. Reads a count back from the device at each call.
    #[config(default = false)]
    pub check_finite: bool,
    /// Whether kernels may be used; the reference alone is for comparison.
    #[config(default = "Kernels::Auto")]
    pub kernels: Kernels,
    /// Bytes that temporary tensors of one stage may take; the work is cut in chunks to fit, never below one group.
    #[config(default = 536870912)]
    pub workspace_bytes: usize,
    /// The form in which kept keys are cached; `None` is the smallest for the budget. All are exact.
    #[config(default = "None")]
    pub index_format: Option<IndexFormat>,
    /// The form in which residuals are cached. The 8-bit ones halve the cache of 16-bit inputs and round the residual.
    #[config(default = "ResidualFormat::Input")]
    pub residual_format: ResidualFormat,
    /// How much of the residual a reuse step adds, by its age; all of it unless set.
    #[config(default = "ResidualGain::default()")]
    pub residual_gain: ResidualGain,
    /// What stands in for the keys that a group does not keep; nothing unless set.
    #[config(default = "Tail::Dropped")]
    pub tail: Tail,
    /// Extrapolates residuals along a line: a reuse step adds `residual + damping * age * slope`, with the change of the residual a
    /// step between its last two renewals. `None` unless set, and the number is the damping; 0.5 and 1 are good choices
    /// (docs/findings.md). The schedule must renew the residual alone ([`crate::Refresh::Residual`]), since residuals of other keys do not lie on
    /// a line. Slopes are cached in the form of the residual, from the second anchor on, and not saved in files.
    #[config(default = "None")]
    pub residual_forecast: Option<f64>,
    /// By which log-sum-exps keys are selected; those of the anchor itself unless set.
    #[config(default = "Selection::Exact")]
    pub selection: Selection,
}

impl McSparseConfig {
    /// Keeps `density` of all keys, above 0 and at most 1; sinks come on top unless they are to count ([`SinkTokens::within_budget`]).
    pub fn density(density: f64) -> Self {
        Self::new(KeyBudget::Density(density))
    }

    /// Keeps `keys` keys.
    pub fn keys(keys: usize) -> Self {
        Self::new(KeyBudget::Keys(keys))
    }

    /// The attention of layer `layer` (counted from 0), ready to stand in the place of dense self-attention.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] naming the setting outside its range.
    pub fn init(&self, layer: usize) -> Result<McSparseAttention, Error> {
        self.validate()?;
        Ok(McSparseAttention::new(self.clone(), layer))
    }

    /// Checks every setting that can be checked without a sequence length and a number of steps.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] naming the setting outside its range.
    pub fn validate(&self) -> Result<(), Error> {
        match self.budget {
            KeyBudget::Density(density) => check_density(density)?,
            KeyBudget::Keys(0) => return Err(Error::config("keys", "at least 1", 0)),
            KeyBudget::Keys(_) => {}
        }
        if self.group_size == 0 {
            return Err(Error::config("group_size", "at least 1 query a group", 0));
        }
        if self.power_iterations == 0 {
            return Err(Error::config("power_iterations", "at least 1", 0));
        }
        if self.workspace_bytes == 0 {
            return Err(Error::config("workspace_bytes", "at least 1", 0));
        }
        self.schedule.validate()?;
        self.residual_gain.validate()?;
        self.tail.validate()?;
        if self.residual_gain.needs_age() && self.schedule.anchors == Anchors::Loaded {
            return Err(Error::config(
                "residual_gain",
                "the same at every age where slots are loaded, whose anchors are not known",
                format!("{:?}", self.residual_gain),
            ));
        }
        match self.residual_forecast {
            Some(damping) if !(damping > 0.0 && (damping as f32).is_finite()) => {
                return Err(Error::config("residual_forecast", "a damping above 0", damping));
            }
            Some(damping) if self.schedule.refresh != Refresh::Residual => {
                return Err(Error::config(
                    "residual_forecast",
                    "none unless anchors renew the residual alone (Refresh::Residual)",
                    damping,
                ));
            }
            _ => {}
        }
        match self.scale {
            Some(scale) if !(scale as f32).is_finite() => {
                Err(Error::config("scale", "a number that is finite in f32", scale))
            }
            _ => Ok(()),
        }
    }

    /// The factor on the scores for `head_dim`.
    pub fn scale_for(&self, head_dim: usize) -> f64 {
        self.scale.unwrap_or_else(|| (head_dim as f64).powf(-0.5))
    }

    /// The budget at `tokens` tokens.
    ///
    /// # Errors
    ///
    /// See [`Budget::resolve`].
    pub fn budget_for(&self, tokens: usize) -> Result<Budget, Error> {
        let budget = Budget::resolve(self.budget, self.sink, tokens)?;
        Ok(Budget { means: self.tail.means(tokens - budget.sinks), ..budget })
    }

    /// Attention work of a whole run over `layers` layers of `tokens` tokens as a share of a dense run, warm-up, anchors
    /// and dense layers counted (see [`Plan::effective_density`]). Anchors that follow a drift bound are not foreseen, and
    /// selection is counted as a pass of its own, whether it rides or not.
    ///
    /// # Errors
    ///
    /// See [`Budget::resolve`].
    pub fn effective_density(&self, plan: &Plan, layers: usize, tokens: usize) -> Result<f64, Error> {
        if layers == 0 {
            return Err(Error::config("layers", "at least 1", 0));
        }
        let sparse = plan.effective_density(&self.budget_for(tokens)?);
        let dense = (0..layers).filter(|l| self.dense_layers.contains(l)).count() as f64;
        let layers = layers as f64;
        Ok((dense + (layers - dense) * sparse) / layers)
    }

    /// What a run of `steps` steps over `layers` layers of `tokens` tokens comes to: the kinds of the steps, the keys that
    /// are kept and the densities, in one line for people.
    ///
    /// # Errors
    ///
    /// As [`McSparseConfig::validate`], [`Schedule::plan`] and [`Budget::resolve`].
    pub fn describe(&self, steps: usize, layers: usize, tokens: usize) -> Result<String, Error> {
        self.validate()?;
        let plan = self.schedule.plan(steps)?;
        let budget = self.budget_for(tokens)?;
        let dense = (0..layers).filter(|l| self.dense_layers.contains(l)).count();
        let options = self.describe_options();
        let options = if options.is_empty() { options } else { format!("; {options}") };
        Ok(format!(
            "{plan}; {} of {tokens} keys ({} sinks) for groups of {}; density {:.3} on reuse steps, {:.3} over the run \
             with {dense} of {layers} layers dense{options}",
            budget.keys,
            budget.sinks,
            self.group_size,
            budget.reuse_density(),
            self.effective_density(&plan, layers, tokens)?
        ))
    }

    /// The settings that make it another method than the published one, for people; empty if there are none.
    pub fn describe_options(&self) -> String {
        let mut parts = Vec::new();
        if let Tail::BlockMeans { block } = self.tail {
            parts.push(format!("means of {block} keys for the others"));
        }
        let ResidualGain { factor, decay, table } = &self.residual_gain;
        if *factor != 1.0 {
            parts.push(format!("residual times {factor}"));
        }
        if *decay != 1.0 {
            parts.push(format!("residual decays by {decay} a step"));
        }
        if table.is_some() {
            parts.push("residual times a table by layer and age".into());
        }
        if self.schedule.refresh == Refresh::Residual {
            parts.push("later anchors renew the residual alone".into());
        }
        if let Some(damping) = self.residual_forecast {
            parts.push(format!("residuals extrapolated along a line times {damping}"));
        }
        if self.selection == Selection::Riding {
            parts.push("keys by the log-sum-exps of an earlier step".into());
        }
        if let Some(bound) = self.schedule.drift_bound {
            parts.push(format!("further anchors where outputs drift by more than {bound}"));
        }
        parts.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_json() {
        let config = McSparseConfig::keys(7).with_group_size(64).with_scale(Some(0.3)).with_sink(SinkTokens {
            prefix: 2,
            suffix: 0,
            within_budget: true,
        });
        let config = config.with_index_format(Some(IndexFormat::Bitmap)).with_residual_format(ResidualFormat::Fp8);
        let config = config.with_residual_gain(ResidualGain::by_layer_and_age(vec![vec![1.0, 0.9]]));
        let config = config.with_tail(Tail::BlockMeans { block: 64 }).with_selection(Selection::Riding);
        let schedule = Schedule::warm_up(2).with_drift_bound(0.3).with_refresh(Refresh::Residual);
        let config = config.with_schedule(schedule).with_residual_forecast(Some(0.5));
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<McSparseConfig>(&json).unwrap(), config);
    }

    /// JSON that was written before an option existed.
    #[test]
    fn reads_settings_without_the_newest_options() {
        let config = McSparseConfig::density(0.2);
        let mut json = serde_json::to_value(&config).unwrap();
        json.as_object_mut().unwrap().remove("residual_forecast").unwrap();
        json["schedule"].as_object_mut().unwrap().remove("refresh").unwrap();
        assert_eq!(serde_json::from_value::<McSparseConfig>(json).unwrap(), config);
    }

    #[test]
    fn refuses_by_name() {
        let message = |c: McSparseConfig| c.init(0).unwrap_err().to_string();
        let config = || McSparseConfig::density(0.2);
        assert_eq!(message(McSparseConfig::density(1.5)), "density: expected above 0 and at most 1, got 1.5");
        assert!(message(McSparseConfig::keys(0)).starts_with("keys:"));
        assert_eq!(message(config().with_group_size(0)), "group_size: expected at least 1 query a group, got 0");
        assert!(message(config().with_power_iterations(0)).starts_with("power_iterations:"));
        assert!(message(config().with_scale(Some(f64::NAN))).starts_with("scale:"));
        assert!(message(config().with_workspace_bytes(0)).starts_with("workspace_bytes:"));
        assert!(message(config().with_residual_gain(ResidualGain::decay(2.0))).starts_with("residual_gain.decay:"));
        assert!(
            message(config().with_tail(Tail::BlockMeans { block: 0 })).starts_with("tail.block: expected at least 1")
        );
        assert!(
            message(config().with_residual_forecast(Some(0.5)))
                .starts_with("residual_forecast: expected none unless anchors")
        );
        let renewing = || config().with_schedule(Schedule::default().with_refresh(Refresh::Residual));
        assert!(renewing().with_residual_forecast(Some(0.5)).init(0).is_ok());
        for damping in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let message = message(renewing().with_residual_forecast(Some(damping)));
            assert!(message.starts_with("residual_forecast: expected a damping above 0, got"), "{message}");
        }
        let of = |schedule: Schedule| message(config().with_schedule(schedule));
        let fraction = Schedule { warm_up: crate::WarmUp::Fraction(1.0), ..Schedule::default() };
        assert!(of(fraction).starts_with("warm_up: expected a fraction"));
        assert!(of(Schedule::warm_up(1).with_anchors(Anchors::Every(0))).starts_with("anchors: expected an interval"));
        assert!(of(Schedule::warm_up(1).with_drift_bound(-1.0)).starts_with("drift_bound: expected a number"));
        let loaded = config().with_schedule(Schedule::warm_up(1).with_anchors(Anchors::Loaded));
        let renewing = loaded.schedule.clone().with_refresh(Refresh::Residual);
        assert!(of(renewing).starts_with("refresh: expected All"));
        assert!(loaded.clone().with_residual_gain(ResidualGain::constant(0.9)).init(0).is_ok());
        assert!(
            message(loaded.with_residual_gain(ResidualGain::decay(0.9))).starts_with("residual_gain: expected the")
        );
    }

    #[test]
    fn a_run_is_described_with_its_densities() {
        let config = McSparseConfig::density(0.25).with_schedule(Schedule::warm_up(2));
        assert_eq!(
            config.describe(4, 4, 1000).unwrap(),
            "dArr (1 dense, 1 anchor, 2 reuse); 250 of 1000 keys (0 sinks) for groups of 128; density 0.250 on reuse \
             steps, 0.859 over the run with 1 of 4 layers dense"
        );
    }

    #[test]
    fn options_are_described_and_counted() {
        let config = McSparseConfig::density(0.25)
            .with_schedule(Schedule::warm_up(2).with_drift_bound(0.3))
            .with_residual_gain(ResidualGain { factor: 0.9, decay: 0.98, table: Some(Vec::new()) })
            .with_tail(Tail::BlockMeans { block: 100 })
            .with_selection(Selection::Riding)
            .with_dense_layers(Vec::new());
        let text = config.describe(4, 4, 1000).unwrap();
        assert!(
            text.ends_with(
                "density 0.260 on reuse steps, 0.820 over the run with 0 of 4 layers dense; means of 100 keys for the \
                 others; residual times 0.9; residual decays by 0.98 a step; residual times a table by layer and age; keys by the \
                 log-sum-exps of an earlier step; further anchors where outputs drift by more than 0.3"
            ),
            "{text}"
        );
    }

    #[test]
    fn effective_density_counts_dense_layers() {
        let config = McSparseConfig::density(0.25).with_dense_layers(vec![0, 9]);
        let plan = Schedule::warm_up(2).plan(4).unwrap();
        let layer = (1.0 + 1.75 + 0.25 + 0.25) / 4.0;
        let whole = config.effective_density(&plan, 4, 64).unwrap();
        assert!((whole - (1.0 + 3.0 * layer) / 4.0).abs() < 1e-12);
    }
}
