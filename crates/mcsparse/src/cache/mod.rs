//! The state that lives between steps: what anchors computed, the step clock and the report of the run.

mod clock;
mod drift;
mod earlier;
mod file;
mod host;
mod placement;
mod predicted;
mod slot;
mod slots;
mod stored;

use burn::{module::Module, tensor::Device};

pub use placement::{Placement, Transfers};
pub(crate) use slot::SlotShape;
pub use slot::{Slot, SlotBytes, SlotKey};
pub(crate) use stored::{KeyLists, Residual};

use crate::{Branch, Error, McSparseConfig, Plan, RunReport, Schedule, StepKind, report::DriftRecord};
use clock::Clock;
pub(crate) use drift::Drift;
use earlier::Earlier;
use host::HostSlot;
use placement::HostStore;

/// The cache of one denoising run: a [`Slot`] for each layer, guidance branch and expert, the step clock that says which
/// steps refresh and which reuse them, and the report of what ran.
///
/// It is a Burn module made of tensors, so `to_device` moves it; it has no parameters and stays out of a model's record.
/// Hand it `&mut` to [`crate::McSparseAttention::forward`], as Burn's own attention caches are.
#[derive(Module, Debug)]
pub struct MetaCache {
    slots: Vec<Slot>,
    drift: Drift,
    earlier: Earlier,
    #[module(skip)]
    clock: Clock,
    #[module(skip)]
    schedule: Schedule,
    #[module(skip)]
    report: RunReport,
    #[module(skip)]
    timed: bool,
    #[module(skip)]
    model: Option<String>,
    #[module(skip)]
    placement: Placement,
    #[module(skip)]
    host: HostStore,
    /// Every slot, in the order in which they were first filled: the order of the model's calls.
    #[module(skip)]
    sequence: Vec<SlotKey>,
}

/// Where in the run a call stands, as [`MetaCache::enter`] found it.
pub(crate) struct Call {
    pub key: SlotKey,
    pub step: usize,
    pub kind: StepKind,
}

impl MetaCache {
    /// An empty cache for a run of `steps` steps (evaluations of the model) under the schedule of `config`. That is all it
    /// takes from there: budget, groups and scale are those of the attention that is called, layer by layer, but its
    /// schedule must be the same.
    ///
    /// # Errors
    ///
    /// See [`McSparseConfig::validate`] and [`crate::Schedule::plan`].
    pub fn new(config: &McSparseConfig, steps: usize) -> Result<Self, Error> {
        config.validate()?;
        let clock = Clock::new(config.schedule.plan(steps)?);
        let schedule = config.schedule.clone();
        Ok(Self {
            slots: Vec::new(),
            drift: Drift::default(),
            earlier: Earlier::default(),
            clock,
            schedule,
            report: RunReport::default(),
            timed: false,
            model: None,
            placement: Placement::Device,
            host: HostStore::default(),
            sequence: Vec::new(),
        })
    }

    /// Announces the branches of the run, so that every call must stand in one of them. Without this the run has the
    /// branches that [`MetaCache::begin_branch`] names as it goes, and [`Branch::conditional`] where it names none.
    pub fn with_branches(mut self, branches: impl IntoIterator<Item = Branch>) -> Self {
        self.clock.announce(branches.into_iter().collect());
        self
    }

    /// Times each stage in the report. Waits for the device around every stage, which slows a GPU down.
    pub fn with_stage_times(mut self, timed: bool) -> Self {
        self.timed = timed;
        self
    }

    /// Says where slots wait between their uses.
    pub fn with_placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// Names the model, so that files say whose cache they hold and [`MetaCache::load`] refuses those of another one. Slots of
    /// another shape are refused by the first call that meets them, whatever the name.
    pub fn with_model(mut self, name: impl Into<String>) -> Self {
        self.model = Some(name.into());
        self
    }

    /// Moves the clock to `step`; call it once before each step, from 0 on. Under a drift bound
    /// ([`Schedule::with_drift_bound`]) it reads one number back from the device where the step before was a reuse step.
    ///
    /// # Errors
    ///
    /// [`Error::Clock`] if `step` is not the next one or lies past the end of the run.
    pub fn begin_step(&mut self, step: usize) -> Result<(), Error> {
        self.clock.begin_step(step)?;
        self.report.set_step(step);
        if let Some(anchor) = step.checked_sub(1).and_then(|before| self.clock.anchor_before(before)) {
            self.earlier.forget_before(anchor);
        }
        let Some(bound) = self.schedule.drift_bound else { return Ok(()) };
        if self.clock.kind(step) == Some(StepKind::Reuse)
            && let Some(change) = self.drift.take()
        {
            // NaN has drifted too.
            let refreshed = change > bound || change.is_nan();
            if refreshed {
                self.clock.refresh();
            }
            self.report.add_drift(DriftRecord { step, change, refreshed });
        }
        self.drift.forget();
        Ok(())
    }

    /// Says which branch the following calls of this step belong to.
    ///
    /// # Errors
    ///
    /// [`Error::Branch`] if branches were announced and this is none of them, [`Error::Clock`] if no step has begun.
    pub fn begin_branch(&mut self, branch: &Branch) -> Result<(), Error> {
        self.clock.begin_branch(branch)
    }

    /// The report of a run that has begun all its steps.
    ///
    /// # Errors
    ///
    /// [`Error::Clock`] if steps are left: a run that stops early may never have come to its sparse steps.
    pub fn finish(&self) -> Result<&RunReport, Error> {
        self.clock.finished()?;
        Ok(&self.report)
    }

    /// Forgets all slots and the report and sets the clock back, for another run of the same plan. Announced branches, placement, model and
    /// timing stay.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.drift = Drift::default();
        self.earlier = Earlier::default();
        self.host.clear();
        self.sequence.clear();
        self.clock.rewind();
        self.report = RunReport::default();
    }

    /// The kind of every step as planned; [`RunReport::drift`] lists the anchors that came on top.
    pub fn plan(&self) -> &Plan {
        self.clock.plan()
    }

    /// What ran so far, and what is cached: printed, it ends with a table of the layers' bytes, places and ages.
    pub fn report(&self) -> &RunReport {
        &self.report
    }

    /// The filled slots on the device; those in host memory are in the report.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Bytes that the cached tensors take, on the device and in host memory, those that watch the drift, and log-sum-exps that wait for
    /// an anchor.
    pub fn size_in_bytes(&self) -> usize {
        self.drift.size_in_bytes()
            + self.earlier.size_in_bytes()
            + self.device_bytes()
            + self.host.slots().iter().map(|slot| slot.size_in_bytes()).sum::<usize>()
    }

    /// Bytes of the slots that stay on the device.
    pub fn device_bytes(&self) -> usize {
        self.slots.iter().map(Slot::size_in_bytes).sum()
    }

    /// Checks the clock and the branch for a call of `layer` without changing anything.
    pub(crate) fn enter(&self, layer: usize, schedule: &Schedule) -> Result<Call, Error> {
        if *schedule != self.schedule {
            return Err(Error::config(
                "schedule",
                format!("that of the cache, {:?}", self.schedule),
                format!("{schedule:?}"),
            ));
        }
        let (step, branch) = self.clock.enter(layer)?;
        let kind = self.clock.kind(step).expect("the clock stays inside the plan");
        Ok(Call { key: SlotKey { layer, branch }, step, kind })
    }

    /// Marks a call as done.
    pub(crate) fn leave(&mut self, call: &Call, kind: StepKind) {
        self.clock.leave(call.key.layer);
        self.report.add_call(call.step, &call.key, kind);
    }

    /// What watches the drift, if the schedule asks for it.
    pub(crate) fn drift_mut(&mut self) -> Option<&mut Drift> {
        self.schedule.drift_bound.map(|_| &mut self.drift)
    }

    /// Log-sum-exps of the slots' last dense passes.
    pub(crate) fn earlier_mut(&mut self) -> &mut Earlier {
        &mut self.earlier
    }

    /// Whether the next dense pass after that of `step` is an anchor, as far as is known.
    pub(crate) fn anchor_follows(&self, step: usize) -> bool {
        let plan = self.clock.plan();
        let next = (step + 1..plan.steps()).find(|&later| plan.kind(later) != Some(StepKind::Reuse));
        match next {
            Some(next) => plan.kind(next) == Some(StepKind::Anchor),
            None => self.schedule.drift_bound.is_some() && step + 1 < plan.steps(),
        }
    }

    pub(crate) fn report_mut(&mut self) -> &mut RunReport {
        &mut self.report
    }

    pub(crate) fn is_timed(&self) -> bool {
        self.timed
    }

    /// Writes all slots in their stored forms, but for slopes of residuals, to a safetensors file with a version and a checksum. The file appears whole or
    /// not at all: an old one stays until the new one is complete.
    ///
    /// # Errors
    ///
    /// [`Error::CacheFile`] if the file cannot be written.
    pub fn save(&self, path: impl AsRef<std::path::Path>) -> Result<(), Error> {
        let mut slots: Vec<_> = self.slots.iter().map(HostSlot::of).collect();
        slots.extend(self.host.slots().iter().map(|slot| HostSlot::clone(slot)));
        let slots: Vec<_> = slots.into_iter().map(HostSlot::without_slope).collect();
        file::save(&slots, self.model.as_deref(), path.as_ref())
    }

    /// Fills the slots from a file that [`MetaCache::save`] wrote, onto `device`, and sets the clock back. A run without
    /// anchors of its own ([`crate::Anchors::Loaded`]) reuses them from its first step past warm-up.
    ///
    /// # Errors
    ///
    /// [`Error::CacheFile`] if the file cannot be read, is of another version or model, or is damaged; this cache is unchanged
    /// then.
    pub fn load(&mut self, path: impl AsRef<std::path::Path>, device: &Device) -> Result<(), Error> {
        let slots = file::load(path.as_ref(), self.model.as_deref(), device)?;
        self.clear();
        slots.into_iter().for_each(|slot| self.store(slot));
        Ok(())
    }
}
