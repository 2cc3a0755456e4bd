//! The state that lives between steps: what anchors computed, the step clock and the report of the run.

mod clock;
mod file;
mod host;
mod placement;
mod slot;
mod stored;

use burn::{module::Module, tensor::Device};

pub use placement::{Placement, Transfers};
pub(crate) use slot::SlotShape;
pub use slot::{Slot, SlotBytes, SlotKey};
pub(crate) use stored::{KeyLists, Residual};

use crate::{
    Branch, Error, IndexFormat, McSparseConfig, Plan, ResidualFormat, RunReport, Schedule, SlotRecord, StepKind,
    check::Problem,
};
use clock::Clock;
use host::{Header, HostSlot};
use placement::HostStore;

/// The cache of one denoising run: a [`Slot`] for each layer, guidance branch and expert, the step clock that says which
/// steps refresh and which reuse them, and the report of what ran.
///
/// It is a Burn module made of tensors, so `to_device` moves it; it has no parameters and stays out of a model's record.
/// Hand it `&mut` to [`crate::McSparseAttention::forward`], as Burn's own attention caches are.
#[derive(Module, Debug)]
pub struct MetaCache {
    slots: Vec<Slot>,
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

    /// Moves the clock to `step`; call it once before each step, from 0 on.
    ///
    /// # Errors
    ///
    /// [`Error::Clock`] if `step` is not the next one or lies past the end of the run.
    pub fn begin_step(&mut self, step: usize) -> Result<(), Error> {
        self.clock.begin_step(step)?;
        self.report.set_step(step);
        Ok(())
    }

    /// Says which branch the following calls of this step belong to.
    ///
    /// # Errors
    ///
    /// [`Error::Branch`] if branches were announced and this is none of them, or no step has begun.
    pub fn begin_branch(&mut self, branch: &Branch) -> Result<(), Error> {
        self.clock.begin_branch(branch)
    }

    /// The report of a run that has taken all its steps.
    ///
    /// # Errors
    ///
    /// [`Error::Clock`] if steps are left: a run that stops early may never have come to its sparse steps.
    pub fn finish(&self) -> Result<&RunReport, Error> {
        self.clock.finished()?;
        Ok(&self.report)
    }

    /// Forgets all slots and the report and sets the clock back, for another run of the same plan.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.host.clear();
        self.sequence.clear();
        self.clock.rewind();
        self.report = RunReport::default();
    }

    /// The kind of every step.
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

    /// Bytes that the cached tensors take, on the device and in host memory.
    pub fn size_in_bytes(&self) -> usize {
        self.device_bytes() + self.host.slots().iter().map(|slot| slot.size_in_bytes()).sum::<usize>()
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
        let kind = self.clock.plan().kind(step).expect("the clock stays inside the plan");
        Ok(Call { key: SlotKey { layer, branch }, step, kind })
    }

    /// Marks a call as done.
    pub(crate) fn leave(&mut self, call: &Call, kind: StepKind) {
        self.clock.leave(call.key.layer);
        self.report.add_call(call.step, &call.key, kind);
    }

    /// The slot that a reuse call reads, filled by the latest anchor of the plan or loaded from a file, on the device of
    /// `problem`.
    pub(crate) fn reused_slot(&mut self, call: &Call, shape: &SlotShape, problem: &Problem) -> Result<Slot, Error> {
        let on_device = self.slots.iter().find(|slot| slot.key() == &call.key);
        let in_host = self.host.find(&call.key);
        let step = match (on_device, in_host) {
            (Some(slot), _) => slot.step(),
            (None, Some(slot)) => slot.step,
            (None, None) => return Err(self.no_slot(call)),
        };
        self.check_age(call, step)?;
        if let Some(slot) = on_device {
            slot.shape().check(&call.key, shape, Some(slot.device()), problem)?;
            return Ok(slot.clone());
        }
        let header = &in_host.expect("one of the two").header;
        header.shape.check(&call.key, shape, None, problem)?;
        let next = self.next_in_host(&call.key).cloned();
        let (slot, transfer) = self.host.bring(&call.key, next.as_ref(), &problem.device)?;
        self.report.add_transfer(transfer);
        Ok(slot)
    }

    /// The slot in host memory that is needed first after that of `key`, if it is another one.
    fn next_in_host(&self, key: &SlotKey) -> Option<&SlotKey> {
        let place = self.sequence.iter().position(|other| other == key)?;
        let (before, after) = self.sequence.split_at(place);
        after[1..].iter().chain(before).find(|key| self.host.find(key).is_some())
    }

    fn missing(call: &Call, reason: String) -> Error {
        Error::NoAnchor { layer: call.key.layer, branch: call.key.branch.to_string(), step: call.step, reason }
    }

    fn no_slot(&self, call: &Call) -> Error {
        let mut others = self.sequence.iter().filter(|key| key.layer == call.key.layer);
        let reason = match (self.clock.plan().anchor_before(call.step), others.next()) {
            (_, Some(other)) => format!("only {} was cached for this layer", other.branch),
            (Some(anchor), None) => format!("the anchor was step {anchor}, where this layer did not run"),
            (None, None) => "no anchor came before".into(),
        };
        Self::missing(call, reason)
    }

    /// Refuses a slot that an anchor of the plan should have replaced.
    fn check_age(&self, call: &Call, step: Option<usize>) -> Result<(), Error> {
        match (step, self.clock.plan().anchor_before(call.step)) {
            (Some(step), Some(anchor)) if step < anchor => Err(Self::missing(
                call,
                format!("the slot is from step {step}, the refresh at step {anchor} was missed"),
            )),
            (None, Some(anchor)) => {
                Err(Self::missing(call, format!("the slot is from a file, the refresh at step {anchor} was missed")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses an anchor whose slot the placement would have no room for.
    pub(crate) fn check_room(
        &self,
        call: &Call,
        shape: &SlotShape,
        (index_format, residual_format): (IndexFormat, ResidualFormat),
    ) -> Result<(), Error> {
        let Placement::Budget(allowed) = self.placement else { return Ok(()) };
        let header = Header { key: call.key.clone(), shape: shape.clone(), index_format, residual_format };
        let bytes = header.size_in_bytes();
        let others = self.slots.iter().filter(|slot| *slot.key() != call.key);
        let beside: usize = others.map(Slot::size_in_bytes).sum();
        if self.host.slots().is_empty() && beside + bytes <= allowed {
            return Ok(());
        }
        let needed = 2 * self.largest_slot().max(bytes);
        if needed <= allowed {
            return Ok(());
        }
        Err(Error::Placement {
            bytes: needed,
            reason: format!(
                "layer {}, {}: a budget of {allowed} bytes does not hold all slots, nor two of them, the one in use and \
                 the next",
                call.key.layer, call.key.branch
            ),
        })
    }

    fn largest_slot(&self) -> usize {
        let host = self.host.slots().iter().map(|slot| slot.size_in_bytes());
        self.slots.iter().map(Slot::size_in_bytes).chain(host).max().unwrap_or(0)
    }

    /// Puts a filled slot in its place.
    pub(crate) fn store(&mut self, slot: Slot) {
        let key = slot.key().clone();
        if !self.sequence.contains(&key) {
            self.sequence.push(key.clone());
        }
        self.report.set_slot(SlotRecord::of(&slot));
        self.host.remove(&key);
        match self.slots.iter_mut().find(|old| *old.key() == key) {
            Some(old) => *old = slot,
            None => self.slots.push(slot),
        }
        match self.placement {
            Placement::Device => {}
            Placement::Host => self.move_to_host(0),
            Placement::Budget(allowed) if self.host.slots().is_empty() && self.device_bytes() <= allowed => {}
            Placement::Budget(allowed) => self.move_to_host(allowed.saturating_sub(2 * self.largest_slot())),
        }
    }

    /// Moves slots to host memory, those filled last first, until the others take at most `allowed` bytes.
    fn move_to_host(&mut self, allowed: usize) {
        while self.device_bytes() > allowed {
            let slot = self.slots.pop().expect("bytes belong to slots");
            self.report.set_slot(SlotRecord { place: "host", ..SlotRecord::of(&slot) });
            self.host.insert(HostSlot::of(&slot));
        }
    }

    pub(crate) fn report_mut(&mut self) -> &mut RunReport {
        &mut self.report
    }

    pub(crate) fn is_timed(&self) -> bool {
        self.timed
    }

    /// Writes all slots in their stored forms to a safetensors file with a version and a checksum. The file appears whole or
    /// not at all: an old one stays until the new one is complete.
    ///
    /// # Errors
    ///
    /// [`Error::CacheFile`] if the file cannot be written.
    pub fn save(&self, path: impl AsRef<std::path::Path>) -> Result<(), Error> {
        let mut slots: Vec<_> = self.slots.iter().map(HostSlot::of).collect();
        slots.extend(self.host.slots().iter().map(|slot| HostSlot::clone(slot)));
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
