//! Filling slots and finding them again, wherever they wait.

use super::{
    Call, MetaCache, Placement,
    host::{Header, HostSlot},
    slot::{Slot, SlotKey, SlotShape},
};
use crate::{Error, IndexFormat, ResidualFormat, SlotRecord, StepKind, check::Problem};

impl MetaCache {
    /// The slot that a reuse call reads, filled by the latest anchor or loaded from a file, on the device of
    /// `problem`.
    pub(crate) fn reused_slot(&mut self, call: &Call, shape: &SlotShape, problem: &Problem) -> Result<Slot, Error> {
        match self.slot_step(&call.key) {
            Some(step) => self.check_age(call, step)?,
            None => return Err(self.no_slot(call)),
        }
        Ok(self.kept_slot(call, shape, problem)?.expect("it is there"))
    }

    /// The step of the anchor that the slot of `key` is from, itself `None` if it came from a file; `None` if there is no slot.
    fn slot_step(&self, key: &SlotKey) -> Option<Option<usize>> {
        let on_device = self.slots.iter().find(|slot| slot.key() == key).map(Slot::step);
        on_device.or_else(|| self.host.find(key).map(|slot| slot.step))
    }

    /// Whether an anchor of this run has filled the slot of `key`, so that a later one may renew the residual alone. Groups and
    /// keys from a file are another run's.
    pub(crate) fn is_renewable(&self, key: &SlotKey) -> bool {
        matches!(self.slot_step(key), Some(Some(_)))
    }

    /// The slot of a call from whatever anchor, on the device of `problem`; `None` before the first one.
    pub(crate) fn kept_slot(
        &mut self,
        call: &Call,
        shape: &SlotShape,
        problem: &Problem,
    ) -> Result<Option<Slot>, Error> {
        if let Some(slot) = self.slots.iter().find(|slot| slot.key() == &call.key) {
            slot.shape().check(&call.key, shape, Some(slot.device()), problem)?;
            return Ok(Some(slot.clone()));
        }
        let Some(in_host) = self.host.find(&call.key) else { return Ok(None) };
        in_host.header.shape.check(&call.key, shape, None, problem)?;
        // An anchor that renews the residual makes the new one beside the old: there the next slot of a budget would be.
        let ahead = call.kind == StepKind::Reuse || !matches!(self.placement, Placement::Budget(_));
        let next = self.next_in_host(&call.key).filter(|_| ahead).cloned();
        let (slot, transfer) = self.host.bring(&call.key, next.as_ref(), &problem.device)?;
        self.report.add_transfer(transfer);
        Ok(Some(slot))
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
        let reason = match (self.clock.anchor_before(call.step), others.next()) {
            (_, Some(other)) => format!("only {} was cached for this layer", other.branch),
            (Some(anchor), None) => format!("the anchor was step {anchor}, where this layer did not run"),
            (None, None) => "no anchor came before".into(),
        };
        Self::missing(call, reason)
    }

    /// Refuses a slot that an anchor should have replaced.
    fn check_age(&self, call: &Call, step: Option<usize>) -> Result<(), Error> {
        match (step, self.clock.anchor_before(call.step)) {
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
        slope: bool,
    ) -> Result<(), Error> {
        let Placement::Budget(allowed) = self.placement else { return Ok(()) };
        let header = Header { key: call.key.clone(), shape: shape.clone(), index_format, residual_format, slope };
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
}
