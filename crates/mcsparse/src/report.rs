//! What a run really did: calls by kind, and for each stage the kernel that ran, or why none did.

use std::{collections::BTreeMap, fmt, time::Duration};

mod slots;

use crate::{
    SlotKey, StepKind, Transfers,
    ops::{Route, Stage},
};
pub use slots::SlotRecord;

/// One call of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallRecord {
    /// The denoising step.
    pub step: usize,
    /// Layer and branch.
    pub slot: SlotKey,
    /// What ran; [`StepKind::Dense`] for dense layers at every step.
    pub kind: StepKind,
}

/// How often a stage took one route, and how long if timing was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StageRecord {
    /// Number of runs.
    pub runs: usize,
    /// Time of all runs; zero unless stages are timed.
    pub time: Duration,
    /// The most temporary memory that a run took, in bytes, beside inputs and outputs. `None` where it is not known: tensor
    /// operations take what the backend gives them, CPU kernels keep scratch in their threads.
    pub workspace_bytes: Option<usize>,
    /// The limit that the configuration sets; a single group may need more.
    pub workspace_limit: usize,
}

/// One look at the drift, see [`crate::Schedule::with_drift_bound`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DriftRecord {
    /// The step that was about to begin.
    pub step: usize,
    /// Mean relative change of the sparse outputs since the anchor, as of the step before.
    pub change: f64,
    /// Whether the step became an anchor for it.
    pub refreshed: bool,
}

/// The report of one run; see [`crate::MetaCache::report`].
#[derive(Debug, Clone, Default)]
pub struct RunReport {
    calls: Vec<CallRecord>,
    stages: BTreeMap<(Stage, Route), StageRecord>,
    pairs: f64,
    dense_pairs: f64,
    untracked: bool,
    slots: Vec<SlotRecord>,
    step: Option<usize>,
    transfers: Transfers,
    drift: Vec<DriftRecord>,
    /// The smallest and largest factor that was on a residual.
    gains: Option<(f32, f32)>,
    tail_block: usize,
    /// Calls whose residual was extrapolated.
    extrapolated: usize,
    /// Why column sums did not ride, where they were asked to, and how often.
    separate: BTreeMap<String, usize>,
}

impl RunReport {
    /// Every call in order.
    pub fn calls(&self) -> &[CallRecord] {
        &self.calls
    }

    /// How many calls were of `kind`.
    pub fn count(&self, kind: StepKind) -> usize {
        self.calls.iter().filter(|call| call.kind == kind).count()
    }

    /// Each stage with the route that it took.
    pub fn stages(&self) -> impl Iterator<Item = (Stage, &Route, StageRecord)> {
        self.stages.iter().map(|((stage, route), record)| (*stage, route, *record))
    }

    /// Time of one stage over all routes; zero unless stages are timed.
    pub fn stage_time(&self, stage: Stage) -> Duration {
        self.stages().filter(|(s, ..)| *s == stage).map(|(.., record)| record.time).sum()
    }

    /// The most temporary memory that a run of `stage` took, in bytes; see [`StageRecord::workspace_bytes`].
    pub fn workspace_bytes(&self, stage: Stage) -> Option<usize> {
        self.stages().filter(|(s, ..)| *s == stage).filter_map(|(.., record)| record.workspace_bytes).max()
    }

    /// Attention work of all calls as a share of dense attention, counted as [`crate::Plan::effective_density`] does, but
    /// from what really ran. 0 before the first call.
    pub fn effective_density(&self) -> f64 {
        if self.dense_pairs == 0.0 { 0.0 } else { self.pairs / self.dense_pairs }
    }

    /// Whether inputs on an autodiff device were run without gradient.
    pub fn dropped_gradient(&self) -> bool {
        self.untracked
    }

    /// What is cached, slot by slot, in the order in which they were first filled.
    pub fn slots(&self) -> &[SlotRecord] {
        &self.slots
    }

    /// What was brought from host memory.
    pub fn transfers(&self) -> Transfers {
        self.transfers
    }

    /// Every look at the drift, in order; none unless the schedule has a bound.
    pub fn drift(&self) -> &[DriftRecord] {
        &self.drift
    }

    /// The steps at which a layer refreshed its cache, in order.
    pub fn anchors(&self) -> Vec<usize> {
        let mut steps: Vec<usize> =
            self.calls.iter().filter(|call| call.kind == StepKind::Anchor).map(|call| call.step).collect();
        steps.dedup();
        steps
    }

    pub(crate) fn add_drift(&mut self, record: DriftRecord) {
        self.drift.push(record);
    }

    /// The smallest and largest factor that was on a residual so far; `None` before the first reuse step.
    pub fn residual_gains(&self) -> Option<(f32, f32)> {
        self.gains
    }

    pub(crate) fn note_gain(&mut self, gain: f32) {
        let (least, most) = self.gains.unwrap_or((gain, gain));
        self.gains = Some((least.min(gain), most.max(gain)));
    }

    /// Reuse calls whose residual was extrapolated, see [`crate::McSparseConfig::residual_forecast`].
    pub fn extrapolated_residuals(&self) -> usize {
        self.extrapolated
    }

    pub(crate) fn note_extrapolation(&mut self, extrapolated: bool) {
        self.extrapolated += usize::from(extrapolated);
    }

    /// Keys in the blocks whose means stood in for the keys that are not kept; 0 if none did.
    pub(crate) fn note_tail(&mut self, block: usize) {
        self.tail_block = block;
    }

    /// Why anchors selected in a pass of its own although [`crate::Selection::Riding`] was asked for, and how many calls did: layers and
    /// branches count one by one.
    pub fn separate_selections(&self) -> impl Iterator<Item = (&str, usize)> {
        self.separate.iter().map(|(reason, times)| (reason.as_str(), *times))
    }

    pub(crate) fn note_separate_selection(&mut self, reason: &str) {
        *self.separate.entry(reason.to_owned()).or_default() += 1;
    }

    pub(crate) fn add_transfer(&mut self, transfer: Transfers) {
        self.transfers.add(transfer);
    }

    /// The step that was begun last.
    pub fn step(&self) -> Option<usize> {
        self.step
    }

    pub(crate) fn set_step(&mut self, step: usize) {
        self.step = Some(step);
    }

    pub(crate) fn set_slot(&mut self, slot: SlotRecord) {
        match self.slots.iter_mut().find(|old| old.key == slot.key) {
            Some(old) => *old = slot,
            None => self.slots.push(slot),
        }
    }

    /// Sets the workspace of a stage whose route does not say it.
    pub(crate) fn note_workspace(&mut self, stage: Stage, bytes: usize) {
        for (_, record) in self.stages.iter_mut().filter(|((s, _), _)| *s == stage) {
            record.workspace_bytes = record.workspace_bytes.max(Some(bytes));
        }
    }

    pub(crate) fn add_call(&mut self, step: usize, slot: &SlotKey, kind: StepKind) {
        self.calls.push(CallRecord { step, slot: slot.clone(), kind });
    }

    pub(crate) fn add_stage(&mut self, stage: Stage, route: Route, run: StageRecord) {
        let record = self.stages.entry((stage, route)).or_default();
        record.runs += run.runs;
        record.time += run.time;
        record.workspace_bytes = record.workspace_bytes.max(run.workspace_bytes);
        record.workspace_limit = record.workspace_limit.max(run.workspace_limit);
    }

    pub(crate) fn add_pairs(&mut self, pairs: f64, dense: f64) {
        self.pairs += pairs;
        self.dense_pairs += dense;
    }

    pub(crate) fn note_dropped_gradient(&mut self) {
        self.untracked = true;
    }
}

impl fmt::Display for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} calls: {} dense, {} anchor, {} reuse; effective density {:.3}",
            self.calls.len(),
            self.count(StepKind::Dense),
            self.count(StepKind::Anchor),
            self.count(StepKind::Reuse),
            self.effective_density()
        )?;
        for (stage, route, record) in self.stages() {
            write!(f, "  {stage}: {} runs by {route}", record.runs)?;
            if let Route::Kernel { declined, .. } = route
                && !declined.is_empty()
            {
                write!(f, " (no faster kernel: {})", declined.join("; "))?;
            }
            if record.time > Duration::ZERO {
                write!(f, ", {:.3} s", record.time.as_secs_f64())?;
            }
            match record.workspace_bytes {
                None => {}
                Some(0) => write!(f, ", no workspace")?,
                Some(bytes) => write!(f, ", workspace {} of {} MiB", mib(bytes), mib(record.workspace_limit))?,
            }
            writeln!(f)?;
        }
        for (reason, times) in self.separate_selections() {
            writeln!(f, "  selection in a pass of its own in {times} calls: {reason}")?;
        }
        if self.tail_block > 0 {
            writeln!(f, "  keys that are not kept stand in as means of {} keys", self.tail_block)?;
        }
        match self.gains {
            Some((least, most)) if (least, most) != (1.0, 1.0) => writeln!(f, "  residuals times {least} to {most}")?,
            _ => {}
        }
        if self.extrapolated > 0 {
            writeln!(f, "  residuals extrapolated in {} calls", self.extrapolated)?;
        }
        if !self.drift.is_empty() {
            let refreshed = self.drift.iter().filter(|look| look.refreshed);
            let steps: Vec<String> = refreshed.map(|look| look.step.to_string()).collect();
            let most = self
                .drift
                .iter()
                .map(|look| look.change)
                .fold(0.0, |a: f64, b| if b > a || b.is_nan() { b } else { a });
            writeln!(
                f,
                "  drift: {} looks, at most {most:.3}; anchors for it at steps [{}]",
                self.drift.len(),
                steps.join(", ")
            )?;
        }
        if self.untracked {
            writeln!(f, "  inputs came from an autodiff device: no gradient passes through this attention")?;
        }
        let Transfers { slots, ahead, bytes, copying, waiting } = self.transfers;
        if slots > 0 {
            writeln!(
                f,
                "  from host memory: {slots} slots, {} MiB, {ahead} of them ahead of their use; copied in {:.3} s, waited for \
                 {:.3} s",
                mib(bytes),
                copying.as_secs_f64(),
                waiting.as_secs_f64()
            )?;
        }
        slots::table(f, &self.slots, self.step)
    }
}

/// Mebibytes to two digits or more.
fn mib(bytes: usize) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    format!("{mib:.*}", usize::from(mib < 10.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspace_is_the_largest_of_all_runs() {
        let mut report = RunReport::default();
        for (stage, bytes) in [(Stage::Select, 3 << 20), (Stage::Select, 327_155_712), (Stage::Sparse, 0)] {
            let run =
                StageRecord { runs: 1, workspace_bytes: Some(bytes), workspace_limit: 512 << 20, ..Default::default() };
            report.add_stage(stage, Route::kernel("a kernel"), run);
        }
        report.add_stage(
            Stage::Group,
            Route::Reference { reason: "no kernel".into() },
            StageRecord { runs: 1, ..Default::default() },
        );
        let declined = vec!["no matrix units".to_string(), "no planes".to_string()];
        let run = StageRecord { runs: 1, ..Default::default() };
        report.add_stage(Stage::Dense, Route::Kernel { name: "slow tiles", declined }, run);
        let workspace = [Stage::Select, Stage::Sparse, Stage::Group].map(|stage| report.workspace_bytes(stage));
        assert_eq!(workspace, [Some(327_155_712), Some(0), None]);
        let text = report.to_string();
        for line in [
            "dense attention: 1 runs by slow tiles (no faster kernel: no matrix units; no planes)\n",
            "grouping: 1 runs by tensor operations (no kernel)\n",
            "selection: 2 runs by a kernel, workspace 312 of 512 MiB\n",
            "sparse attention: 1 runs by a kernel, no workspace\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in {text}");
        }
        assert_eq!(mib(3 << 19), "1.5");
    }
}
