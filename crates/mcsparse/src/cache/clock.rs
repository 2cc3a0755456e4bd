//! The step clock: which step and branch a call stands in, and every way to use it wrongly as an error.

use crate::{Branch, Error, Plan, StepKind};

#[derive(Debug, Clone)]
pub(crate) struct Clock {
    plan: Plan,
    step: Option<usize>,
    announced: Vec<Branch>,
    branch: Option<Branch>,
    /// What already ran in the present step.
    done: Vec<(usize, Branch)>,
    /// Anchors that were not planned.
    drifted: Vec<usize>,
}

impl Clock {
    pub fn new(plan: Plan) -> Self {
        Self { plan, step: None, announced: Vec::new(), branch: None, done: Vec::new(), drifted: Vec::new() }
    }

    pub fn announce(&mut self, branches: Vec<Branch>) {
        self.announced = branches;
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn rewind(&mut self) {
        self.step = None;
        self.branch = None;
        self.done.clear();
        self.drifted.clear();
    }

    /// The kind of `step`, anchors that were not planned included.
    pub fn kind(&self, step: usize) -> Option<StepKind> {
        if self.drifted.contains(&step) { Some(StepKind::Anchor) } else { self.plan.kind(step) }
    }

    /// Makes the present step an anchor.
    pub fn refresh(&mut self) {
        self.drifted.extend(self.step);
    }

    /// The latest anchor at or before `step`.
    pub fn anchor_before(&self, step: usize) -> Option<usize> {
        let drifted = self.drifted.iter().copied().filter(|&anchor| anchor <= step).max();
        self.plan.anchor_before(step).max(drifted)
    }

    pub fn begin_step(&mut self, step: usize) -> Result<(), Error> {
        let next = self.step.map_or(0, |s| s + 1);
        if step >= self.plan.steps() {
            return Err(Error::Clock(format!(
                "begin_step({step}) runs past the end of the run of {} steps; clear the cache to start another run",
                self.plan.steps()
            )));
        }
        if step != next {
            return Err(Error::Clock(format!("begin_step: expected step {next}, got {step}")));
        }
        self.step = Some(step);
        self.branch = None;
        self.done.clear();
        Ok(())
    }

    pub fn finished(&self) -> Result<(), Error> {
        let (begun, steps) = (self.step.map_or(0, |s| s + 1), self.plan.steps());
        if begun == steps {
            return Ok(());
        }
        let reused = (0..begun).filter(|&s| self.kind(s) == Some(StepKind::Reuse)).count();
        Err(Error::Clock(format!("the run of {steps} steps stopped after {begun}, of which {reused} reused the cache")))
    }

    pub fn begin_branch(&mut self, branch: &Branch) -> Result<(), Error> {
        if self.step.is_none() {
            return Err(Error::Clock(format!("begin_branch({branch}) came before begin_step(0)")));
        }
        if !self.announced.is_empty() && !self.announced.contains(branch) {
            let names: Vec<_> = self.announced.iter().map(Branch::to_string).collect();
            return Err(Error::Branch(format!("expected one of [{}], got {branch}", names.join(", "))));
        }
        self.branch = Some(branch.clone());
        Ok(())
    }

    /// The step and branch of a call of `layer`.
    pub fn enter(&self, layer: usize) -> Result<(usize, Branch), Error> {
        let step = self.step.ok_or_else(|| Error::Clock("forward came before begin_step(0)".into()))?;
        let branch = match (&self.branch, self.announced.as_slice()) {
            (Some(branch), _) => branch.clone(),
            (None, []) => Branch::default(),
            (None, [only]) => only.clone(),
            (None, several) => {
                let names: Vec<_> = several.iter().map(Branch::to_string).collect();
                return Err(Error::Branch(format!(
                    "step {step} has the branches [{}]; begin_branch must say which one layer {layer} belongs to",
                    names.join(", ")
                )));
            }
        };
        if self.done.iter().any(|(l, b)| *l == layer && *b == branch) {
            return Err(Error::Clock(format!(
                "layer {layer} of {branch} has already run at step {step}; begin_step({}) or another branch must come first",
                step + 1
            )));
        }
        Ok((step, branch))
    }

    pub fn leave(&mut self, layer: usize) {
        if let Ok((_, branch)) = self.enter(layer) {
            self.done.push((layer, branch));
        }
    }
}
