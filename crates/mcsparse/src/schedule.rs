//! Which steps of a denoising run are dense, which are anchors and which reuse the cache.

use serde::{Deserialize, Serialize};

use crate::{Budget, Error};

/// More steps than any run has; a plan keeps one kind for each.
const MAX_STEPS: usize = 1_000_000;

/// What one layer does at one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StepKind {
    /// Dense attention, nothing cached.
    Dense,
    /// Dense attention that also refreshes groups, key indices and residual; returns the dense output.
    Anchor,
    /// Sparse attention over the cached keys, plus the cached residual.
    Reuse,
}

/// How many leading steps stay dense. The layout of a sample forms there, and errors made there stay.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum WarmUp {
    /// A number of steps.
    Steps(usize),
    /// A share of the run, from 0 up to but not 1, rounded to the nearest step and at least one, so that one schedule fits any number of
    /// steps.
    Fraction(f64),
}

/// Where the cache is refreshed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Anchors {
    /// Once, at the last warm-up step (at step 0 where there is no warm-up).
    EndOfWarmUp,
    /// At the last warm-up step and then every so many steps.
    Every(usize),
    /// At exactly these steps, counted from 0.
    At(Vec<usize>),
    /// Nowhere: the slots come from a file ([`crate::MetaCache::load`]), and every step past warm-up reuses them.
    Loaded,
}

/// What anchors renew.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refresh {
    /// Groups, key lists and residual, at every anchor: the published form.
    #[default]
    All,
    /// All of it at the first anchor of a layer and branch, and the residual alone at those after it: they save grouping and
    /// selection, and cost a dense attention and a sparse one. docs/findings.md has what that is worth. Anchors that follow a
    /// drift bound are of this kind too. A slot from a file counts for none: groups and keys of another run are not kept.
    Residual,
}

/// The recipe for a run of any number of steps; [`Schedule::plan`] turns it into the kinds of one run.
///
/// A step is one evaluation of the model: a sampler that evaluates twice a step counts two.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Dense steps at the start.
    pub warm_up: WarmUp,
    /// Refreshes.
    pub anchors: Anchors,
    /// Refreshes beside these, once attention has moved further than this since the anchor; see
    /// [`Schedule::with_drift_bound`].
    #[serde(default)]
    pub drift_bound: Option<f64>,
    /// What refreshes renew.
    #[serde(default)]
    pub refresh: Refresh,
}

impl Default for Schedule {
    /// A fifth of the steps dense, the last of them the only anchor: the published form.
    fn default() -> Self {
        Self { warm_up: WarmUp::Fraction(0.2), anchors: Anchors::EndOfWarmUp, drift_bound: None, refresh: Refresh::All }
    }
}

impl Schedule {
    /// `steps` dense steps, the last of them an anchor.
    pub fn warm_up(steps: usize) -> Self {
        Self { warm_up: WarmUp::Steps(steps), ..Self::default() }
    }

    /// Replaces the refreshes.
    pub fn with_anchors(mut self, anchors: Anchors) -> Self {
        self.anchors = anchors;
        self
    }

    /// Says what anchors renew.
    pub fn with_refresh(mut self, refresh: Refresh) -> Self {
        self.refresh = refresh;
        self
    }

    /// Makes a reuse step an anchor, beside those that are planned, where the step before it has drifted from the anchor by more
    /// than `bound`: the sparse part of the outputs, in the relative L2 norm over the batch, as a mean over layers and
    /// branches. The whole batch refreshes together.
    ///
    /// The change is measured on 256 rows of each head, on the device; what they were at the anchor stays there beside the cache
    /// (counted by [`crate::MetaCache::size_in_bytes`], not by a placement's budget). [`crate::MetaCache::begin_step`] reads one number back for each
    /// step after a reuse step, and so waits for the device. Under
    /// [`crate::HeadParallel`] every device decides by its own heads. How many anchors a run will have is not known beforehand: plans
    /// and densities that are computed ahead count those that are planned.
    pub fn with_drift_bound(mut self, bound: f64) -> Self {
        self.drift_bound = Some(bound);
        self
    }

    /// Checks what can be checked without the number of steps.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if the warm-up is no fraction from 0 up to but not 1, anchors come every 0 steps, or the drift bound is no
    /// number above 0; or if it or [`Refresh::Residual`] stands beside [`Anchors::Loaded`], whose slots no output of this run belongs to
    /// and no anchor renews.
    pub fn validate(&self) -> Result<(), Error> {
        match self.warm_up {
            WarmUp::Fraction(f) if !(0.0..1.0).contains(&f) => {
                return Err(Error::config("warm_up", "a fraction from 0 up to but not 1", f));
            }
            WarmUp::Fraction(_) | WarmUp::Steps(_) => {}
        }
        if self.anchors == Anchors::Every(0) {
            return Err(Error::config("anchors", "an interval of at least 1 step", 0));
        }
        match self.drift_bound {
            Some(bound) if !(bound > 0.0 && bound.is_finite()) => {
                return Err(Error::config("drift_bound", "a number above 0", bound));
            }
            Some(bound) if self.anchors == Anchors::Loaded => {
                return Err(Error::config("drift_bound", "none where slots are loaded", bound));
            }
            _ => {}
        }
        if self.refresh == Refresh::Residual && self.anchors == Anchors::Loaded {
            return Err(Error::config("refresh", "All where slots are loaded", "Residual"));
        }
        Ok(())
    }

    /// Fixes the kind of each of `steps` steps, at most a million.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] as [`Schedule::validate`], and if the run has no steps, no step is left to reuse the cache (a run that
    /// would be dense without saying so), an anchor lies outside the run, or a step would reuse the cache before any anchor.
    pub fn plan(&self, steps: usize) -> Result<Plan, Error> {
        if !(1..=MAX_STEPS).contains(&steps) {
            return Err(Error::config("steps", format!("1 to {MAX_STEPS}"), steps));
        }
        self.validate()?;
        let warm_up = match self.warm_up {
            WarmUp::Steps(n) => n,
            WarmUp::Fraction(f) => ((f * steps as f64).round() as usize).max(1),
        };
        if warm_up >= steps {
            return Err(Error::config(
                "warm_up",
                format!("fewer than the {steps} steps of the run, so that at least one step is sparse"),
                warm_up,
            ));
        }
        let first = warm_up.saturating_sub(1);
        let anchors = match &self.anchors {
            Anchors::EndOfWarmUp => vec![first],
            Anchors::Every(n) => (first..steps).step_by(*n).collect(),
            Anchors::At(at) => at.clone(),
            Anchors::Loaded => Vec::new(),
        };
        if let Some(outside) = anchors.iter().find(|&&a| a >= steps) {
            return Err(Error::config("anchors", format!("steps below {steps}"), outside));
        }
        let kinds: Vec<_> = (0..steps)
            .map(|step| match step {
                _ if anchors.contains(&step) => StepKind::Anchor,
                _ if step < warm_up => StepKind::Dense,
                _ => StepKind::Reuse,
            })
            .collect();
        let first_anchor = kinds.iter().position(|&k| k == StepKind::Anchor);
        let first_reuse = kinds.iter().position(|&k| k == StepKind::Reuse);
        match (first_anchor, first_reuse) {
            (Some(anchor), Some(reuse)) if anchor < reuse => Ok(Plan { kinds, refresh: self.refresh }),
            (None, Some(_)) if self.anchors == Anchors::Loaded => Ok(Plan { kinds, refresh: self.refresh }),
            (_, None) => Err(Error::config("anchors", "at least one step that is no anchor after warm-up", "none")),
            (anchor, Some(reuse)) => Err(Error::config(
                "anchors",
                format!("one before step {reuse}, the first that reuses the cache"),
                anchor.map_or("none".into(), |a| format!("the first at step {a}")),
            )),
        }
    }
}

/// The kind of every step of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    kinds: Vec<StepKind>,
    refresh: Refresh,
}

impl Plan {
    /// Number of steps.
    pub fn steps(&self) -> usize {
        self.kinds.len()
    }

    /// What step `step` is; `None` past the end.
    pub fn kind(&self, step: usize) -> Option<StepKind> {
        self.kinds.get(step).copied()
    }

    /// How many steps are of `kind`.
    pub fn count(&self, kind: StepKind) -> usize {
        self.kinds.iter().filter(|&&k| k == kind).count()
    }

    /// The latest anchor at or before `step`.
    pub fn anchor_before(&self, step: usize) -> Option<usize> {
        (0..=step.min(self.steps() - 1)).rev().find(|&s| self.kinds[s] == StepKind::Anchor)
    }

    /// Attention work of the whole run as a share of a dense run, for layers that follow this plan with `budget`: a dense
    /// step counts 1, an anchor [`Budget::anchor_density`] or, if it renews the residual alone,
    /// [`Budget::anchor_density_without_scores`], a reuse step [`Budget::reuse_density`].
    pub fn effective_density(&self, budget: &Budget) -> f64 {
        let work = |step: usize| match self.kinds[step] {
            StepKind::Dense => 1.0,
            StepKind::Anchor if self.renews_residual_alone(step) => budget.anchor_density_without_scores(),
            StepKind::Anchor => budget.anchor_density(),
            StepKind::Reuse => budget.reuse_density(),
        };
        (0..self.steps()).map(work).sum::<f64>() / self.steps() as f64
    }

    /// Whether the anchor `step` finds groups and key lists that it keeps, see [`Refresh::Residual`].
    pub fn renews_residual_alone(&self, step: usize) -> bool {
        let first = self.kinds.iter().position(|&kind| kind == StepKind::Anchor);
        self.refresh == Refresh::Residual
            && self.kind(step) == Some(StepKind::Anchor)
            && first.is_some_and(|first| first < step)
    }
}

impl std::fmt::Display for Plan {
    /// One letter a step (`d`ense, `A`nchor, `a`nchor of the residual alone, `r`euse) and the counts.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let letter = |step: usize| match self.kinds[step] {
            StepKind::Dense => 'd',
            StepKind::Anchor if self.renews_residual_alone(step) => 'a',
            StepKind::Anchor => 'A',
            StepKind::Reuse => 'r',
        };
        let letters: String = (0..self.steps()).map(letter).collect();
        let alone = letters.matches('a').count();
        let alone = if alone > 0 { format!(", {alone} of the residual alone") } else { String::new() };
        write!(
            f,
            "{letters} ({} dense, {} anchor{alone}, {} reuse)",
            self.count(StepKind::Dense),
            self.count(StepKind::Anchor),
            self.count(StepKind::Reuse)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_is_a_fifth_dense_with_the_anchor_last() {
        let plan = Schedule::default().plan(50).unwrap();
        assert_eq!(plan.to_string(), format!("{}A{} (9 dense, 1 anchor, 40 reuse)", "d".repeat(9), "r".repeat(40)));
        assert_eq!(plan.anchor_before(30), Some(9));
        assert_eq!(plan.anchor_before(8), None);
        let budget = Budget { tokens: 100, sinks: 0, keys: 15, means: 0 };
        assert!((plan.effective_density(&budget) - (9.0 + 1.65 + 40.0 * 0.15) / 50.0).abs() < 1e-12);
    }

    #[test]
    fn fits_few_steps() {
        for steps in 2..20 {
            let plan = Schedule::default().plan(steps).unwrap();
            assert_eq!(plan.steps(), steps);
            assert!(plan.count(StepKind::Reuse) >= 1);
        }
    }

    #[test]
    fn every_and_explicit_anchors() {
        let every = Schedule::warm_up(3).with_anchors(Anchors::Every(4)).plan(12).unwrap();
        assert!(every.to_string().starts_with("ddArrrArrrAr"));
        let at = Schedule::warm_up(2).with_anchors(Anchors::At(vec![0, 4])).plan(6).unwrap();
        assert!(at.to_string().starts_with("AdrrAr"));
        let none = Schedule::warm_up(0).plan(3).unwrap();
        assert!(none.to_string().starts_with("Arr"));
        let loaded = Schedule::warm_up(1).with_anchors(Anchors::Loaded).plan(3).unwrap();
        assert!(loaded.to_string().starts_with("drr"));
    }

    #[test]
    fn anchors_may_renew_the_residual_alone() {
        let anchors = Anchors::At(vec![1, 3, 5]);
        let plan = Schedule::warm_up(2).with_anchors(anchors).with_refresh(Refresh::Residual).plan(8).unwrap();
        assert_eq!(plan.to_string(), "dArararr (1 dense, 3 anchor, 2 of the residual alone, 4 reuse)");
        let budget = Budget { tokens: 100, sinks: 0, keys: 15, means: 0 };
        let work = 1.0 + 1.65 + 2.0 * 1.15 + 4.0 * 0.15;
        assert!((plan.effective_density(&budget) - work / 8.0).abs() < 1e-12);
        let loaded = Schedule::warm_up(1).with_anchors(Anchors::Loaded).with_refresh(Refresh::Residual);
        let message = loaded.plan(4).unwrap_err().to_string();
        assert_eq!(message, "refresh: expected All where slots are loaded, got Residual");
    }

    #[test]
    fn refusals_name_the_argument() {
        let message = |s: Schedule, n| s.plan(n).unwrap_err().to_string();
        assert!(message(Schedule::default(), 0).starts_with("steps: expected 1 to 1000000, got 0"));
        assert!(message(Schedule::warm_up(10), 4).starts_with("warm_up: expected fewer than the 4 steps"));
        let schedule = |anchors| Schedule::warm_up(2).with_anchors(anchors);
        assert!(message(schedule(Anchors::Every(0)), 9).contains("anchors: expected an interval"));
        assert!(message(schedule(Anchors::At(vec![1, 9])), 9).contains("steps below 9, got 9"));
        assert!(message(schedule(Anchors::At(vec![5])), 9).contains("one before step 2"));
        assert!(message(schedule(Anchors::At(vec![])), 9).contains("got none"));
        for bound in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let schedule = schedule(Anchors::EndOfWarmUp).with_drift_bound(bound);
            assert!(message(schedule, 9).starts_with("drift_bound: expected a number above 0, got"));
        }
        assert!(message(schedule(Anchors::Loaded).with_drift_bound(0.3), 9).starts_with("drift_bound: expected none"));
        let f = Schedule { warm_up: WarmUp::Fraction(1.5), ..Schedule::default() };
        assert!(message(f, 9).contains("got 1.5"));
    }
}
