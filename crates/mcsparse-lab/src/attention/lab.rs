//! A recipe under a schedule, behind the interface that models call.

use std::collections::HashMap;

use burn::tensor::Tensor;
use mcsparse::{Branch, Error, Plan, SelfAttention, StepKind};

use super::{
    layout::Layout,
    pattern::{Exact, Pattern},
    recipe::{Recipe, Refresh, Residual, Rest, Select},
    residual::Left,
    rest::with_rest,
    select::{Call, select},
};

/// When a run is dense, refreshes and reuses.
#[derive(Debug, Clone)]
pub struct Schedule {
    /// The kinds of the steps.
    pub plan: Plan,
    /// Layers that are dense at every step.
    pub dense_layers: Vec<usize>,
}

impl Schedule {
    /// A plan and dense layers.
    pub fn new(plan: Plan, dense_layers: Vec<usize>) -> Self {
        Self { plan, dense_layers }
    }
}

/// One denoising run of a [`Recipe`].
#[derive(Debug)]
pub struct LabAttention {
    recipe: Recipe,
    schedule: Schedule,
    layout: Layout,
    slots: HashMap<(usize, Branch), Slot>,
    branch: Branch,
    step: Option<usize>,
    /// The kind of the present step.
    kind: StepKind,
    anchors: Vec<usize>,
    pairs: f64,
    dense_pairs: f64,
}

#[derive(Debug, Default)]
struct Slot {
    pattern: Option<Pattern>,
    left: Option<Left>,
    /// Log-sum-exp of the last dense step.
    lse: Option<Tensor<3>>,
}

impl LabAttention {
    /// A run under `schedule` over the tokens of `layout`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] for a density outside (0, 1], sizes of zero, and parts that do not go together.
    pub fn new(recipe: Recipe, schedule: Schedule, layout: Layout) -> Result<Self, Error> {
        let refuse = |argument, expected: &str, got: String| {
            Err(Error::InvalidConfig { argument, expected: expected.to_owned(), got })
        };
        if !(recipe.density > 0.0 && recipe.density <= 1.0) {
            return refuse("density", "above 0 and at most 1", recipe.density.to_string());
        }
        let sizes = match recipe.select {
            Select::PooledBlocks { block }
            | Select::ExactBlocks { block }
            | Select::LargestBlocks { block }
            | Select::ThresholdBlocks { block } => [block, recipe.group_size],
            Select::Clusters { queries, keys, .. } => [queries, keys],
            Select::Keys | Select::StaleKeys | Select::CompetingKeys { .. } => [recipe.group_size; 2],
        };
        let rest = matches!(recipe.rest, Rest::Means { block: 0 } | Rest::FirstOrder { block: 0 });
        if sizes.contains(&0) || rest {
            return refuse("group_size", "groups, blocks and clusters of at least 1 token", format!("{sizes:?}"));
        }
        let by_weight = recipe.scores_again() || recipe.select == Select::StaleKeys;
        if by_weight && recipe.refresh == Refresh::EveryStep {
            return refuse("refresh", "anchors, where choosing needs dense attention", format!("{:?}", recipe.refresh));
        }
        if matches!(recipe.select, Select::Clusters { .. }) && recipe.rest != Rest::Dropped {
            return refuse("rest", "none beside clusters", format!("{:?}", recipe.rest));
        }
        Ok(Self {
            recipe,
            schedule,
            layout,
            slots: HashMap::new(),
            branch: Branch::default(),
            step: None,
            kind: StepKind::Dense,
            anchors: Vec::new(),
            pairs: 0.0,
            dense_pairs: 0.0,
        })
    }

    /// Attention work so far as a share of dense attention, counted as [`Plan::effective_density`] does: an anchor 1, half
    /// more if all pairs are scored again, and [`Recipe::work`] if it makes a residual, which is also what a sparse step counts.
    /// Pooling, clustering, grouping and the first-order term are left out; they are of lower order in the tokens.
    pub fn effective_density(&self) -> f64 {
        self.pairs / self.dense_pairs
    }

    /// The steps that were anchors.
    pub fn anchors(&self) -> &[usize] {
        &self.anchors
    }

    fn sparse(&self, pattern: &Pattern, call: &Call<'_>) -> Exact {
        with_rest(pattern.attend(call), self.recipe.rest, pattern, call)
    }

    fn count(&mut self, share: f64, call: &Call<'_>) {
        let all = (call.problem.batch * call.problem.heads) as f64 * (call.problem.queries as f64).powi(2);
        self.pairs += share * all;
        self.dense_pairs += all;
    }

    fn anchor(&mut self, call: &Call<'_>, step: usize, mut slot: Slot) -> (Tensor<4>, Slot) {
        let (dense, lse) = call.dense();
        let choose = slot.pattern.is_none() || self.recipe.refresh != Refresh::FirstAnchor;
        // The first anchor has no step before it whose log-sum-exp it could take, if there is no warm-up.
        let stale = slot.lse.take().filter(|_| self.recipe.select == Select::StaleKeys);
        if choose {
            slot.pattern = Some(select(&self.recipe, call, Some(stale.as_ref().unwrap_or(&lse))));
        }
        let pattern = slot.pattern.clone().expect("just chosen");
        let has_residual = self.recipe.residual != Residual::Off;
        let sparse = has_residual.then(|| self.sparse(&pattern, call));
        let again = stale.is_none() && self.recipe.select == Select::StaleKeys;
        let scores = if choose && (self.recipe.scores_again() || again) { 0.5 } else { 0.0 };
        self.count(1.0 + scores + if has_residual { self.recipe.work() } else { 0.0 }, call);
        let made = || sparse.expect("made for a residual");
        slot.left = Some(Left::new(&self.recipe.residual, (&dense, &lse), made, slot.left.as_ref(), step));
        slot.lse = Some(lse);
        (dense, slot)
    }

    fn reuse(&mut self, call: &Call<'_>, step: usize, slot: &Slot) -> Option<Tensor<4>> {
        let left = slot.left.as_ref()?;
        let fresh = (self.recipe.refresh == Refresh::EveryStep).then(|| select(&self.recipe, call, None));
        let sparse = self.sparse(fresh.as_ref().or(slot.pattern.as_ref())?, call);
        self.count(self.recipe.work(), call);
        Some(left.apply(&self.recipe.residual, sparse, step))
    }
}

impl SelfAttention for LabAttention {
    fn attend(&mut self, layer: usize, query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Result<Tensor<4>, Error> {
        let step = self.step.ok_or_else(|| Error::Clock("no step has begun; call begin_step first".into()))?;
        let dtype = query.dtype();
        let layout = self.layout.clone();
        let call = Call::new(query, key, value, &layout)?;
        if self.schedule.dense_layers.contains(&layer) {
            self.count(1.0, &call);
            return Ok(call.dense().0);
        }
        let at = (layer, self.branch.clone());
        let slot = self.slots.remove(&at).unwrap_or_default();
        let (output, slot) = match self.kind {
            StepKind::Dense => {
                let (dense, lse) = call.dense();
                self.count(1.0, &call);
                (dense, Slot { lse: Some(lse), ..slot })
            }
            StepKind::Anchor => self.anchor(&call, step, slot),
            StepKind::Reuse => {
                let output = self.reuse(&call, step, &slot).ok_or_else(|| Error::NoAnchor {
                    layer,
                    branch: self.branch.to_string(),
                    step,
                    reason: "no anchor came before".into(),
                })?;
                (output, slot)
            }
        };
        self.slots.insert(at, slot);
        Ok(if output.dtype() == dtype { output } else { output.cast(dtype) })
    }

    fn begin_step(&mut self, step: usize) -> Result<(), Error> {
        let expected = self.step.map_or(0, |step| step + 1);
        let planned = self.schedule.plan.kind(step).filter(|_| step == expected).ok_or_else(|| {
            Error::Clock(format!("expected step {expected} of {}, got {step}", self.schedule.plan.steps()))
        })?;
        self.kind = planned;
        if self.kind == StepKind::Anchor {
            self.anchors.push(step);
        }
        self.step = Some(step);
        Ok(())
    }

    fn begin_branch(&mut self, branch: &Branch) -> Result<(), Error> {
        self.branch = branch.clone();
        Ok(())
    }
}
