//! Where slots wait between their uses: on the device, or in host memory with the next one brought ahead of its use.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use burn::tensor::Device;

use super::{
    host::HostSlot,
    slot::{Slot, SlotKey},
};
use crate::Error;

/// Where cached slots wait between their uses.
///
/// A slot in host memory is copied to the device for each reuse call, by a thread of its own: while one layer computes, the
/// slot of the one that follows it is on its way. Two slots are on the device at a time then, the one in use and the next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Placement {
    /// All on the device.
    #[default]
    Device,
    /// All in host memory.
    Host,
    /// On the device as long as all slots there take at most this many bytes, the two on their way included; the rest in host
    /// memory. Anchors that renew the residual alone bring theirs without the next one, as the new residual takes its place.
    /// What watches the drift ([`crate::Schedule::with_drift_bound`]) and the log-sum-exps that [`crate::Selection::Riding`] keeps
    /// ([`crate::McSparseConfig::log_sum_exp_bytes`]) come on top.
    Budget(usize),
}

/// What was brought from host memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Slots.
    pub slots: usize,
    /// Of these, ahead of their use.
    pub ahead: usize,
    /// Bytes of all.
    pub bytes: usize,
    /// Time that the copies took.
    pub copying: Duration,
    /// Time that calls waited for them.
    pub waiting: Duration,
}

impl Transfers {
    pub(crate) fn add(&mut self, other: Self) {
        self.slots += other.slots;
        self.ahead += other.ahead;
        self.bytes += other.bytes;
        self.copying += other.copying;
        self.waiting += other.waiting;
    }
}

/// The slots in host memory and the thread that brings them.
#[derive(Debug, Default)]
pub(super) struct HostStore {
    slots: Vec<Arc<HostSlot>>,
    carrier: Option<Carrier>,
}

impl Clone for HostStore {
    /// The same slots; what is on its way stays with the original.
    fn clone(&self) -> Self {
        Self { slots: self.slots.clone(), carrier: None }
    }
}

impl HostStore {
    pub fn slots(&self) -> &[Arc<HostSlot>] {
        &self.slots
    }

    pub fn find(&self, key: &SlotKey) -> Option<&Arc<HostSlot>> {
        self.slots.iter().find(|slot| slot.header.key == *key)
    }

    /// Forgets what is held and on its way for `key`.
    pub fn remove(&mut self, key: &SlotKey) {
        self.slots.retain(|slot| slot.header.key != *key);
        if let Some(carrier) = &mut self.carrier
            && carrier.pending.as_ref() == Some(key)
        {
            let _ = carrier.receive();
        }
    }

    pub fn insert(&mut self, slot: HostSlot) {
        self.remove(&slot.header.key);
        self.slots.push(Arc::new(slot));
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// The slot of `key` on `device`, and what it took. The slot of `next` is sent for.
    ///
    /// # Errors
    ///
    /// [`Error::Placement`] with the bytes that could not be brought.
    ///
    /// # Panics
    ///
    /// If there is no such slot.
    pub fn bring(
        &mut self,
        key: &SlotKey,
        next: Option<&SlotKey>,
        device: &Device,
    ) -> Result<(Slot, Transfers), Error> {
        let host = self.find(key).expect("the caller has looked").clone();
        let next = next.and_then(|next| self.find(next)).cloned();
        let bytes = host.size_in_bytes();
        let carrier = self.carrier.get_or_insert_with(Carrier::new);
        let started = Instant::now();
        let mut ahead = 1;
        if carrier.pending.as_ref() != Some(key) {
            if carrier.pending.is_some() {
                // Not what was expected to be next.
                let _ = carrier.receive();
            }
            carrier.send(host, device);
            ahead = 0;
        }
        let (slot, copying) = carrier.receive().map_err(|reason| Error::Placement {
            bytes,
            reason: format!("the slot of layer {}, {} did not reach {device:?}: {reason}", key.layer, key.branch),
        })?;
        if let Some(next) = next {
            carrier.send(next, device);
        }
        Ok((slot, Transfers { slots: 1, ahead, bytes, copying, waiting: started.elapsed() }))
    }
}

type Order = (Arc<HostSlot>, Device);
type Delivery = Result<(Slot, Duration), String>;

/// One thread that copies slots to the device, on a stream of its own where the backend has streams for threads.
struct Carrier {
    orders: Sender<Order>,
    // Behind a lock for the sake of `Sync` alone.
    deliveries: Mutex<Receiver<Delivery>>,
    pending: Option<SlotKey>,
}

impl fmt::Debug for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Carrier").field("pending", &self.pending).finish_non_exhaustive()
    }
}

impl Carrier {
    fn new() -> Self {
        let (orders, received) = channel::<Order>();
        let (sent, deliveries) = channel();
        // It ends with the last order once the sender is gone.
        thread::spawn(move || {
            for (slot, device) in received {
                if sent.send(deliver(&slot, &device)).is_err() {
                    break;
                }
            }
        });
        Self { orders, deliveries: Mutex::new(deliveries), pending: None }
    }

    fn send(&mut self, slot: Arc<HostSlot>, device: &Device) {
        self.pending = Some(slot.header.key.clone());
        // A thread that is gone is noticed where its delivery is missing.
        let _ = self.orders.send((slot, device.clone()));
    }

    fn receive(&mut self) -> Delivery {
        self.pending = None;
        let deliveries = self.deliveries.get_mut().map_err(|error| error.to_string())?;
        deliveries.recv().map_err(|_| "the copying thread is gone".to_string())?
    }
}

/// The slot on the device, complete.
fn deliver(slot: &HostSlot, device: &Device) -> Delivery {
    let started = Instant::now();
    let brought = catch_unwind(AssertUnwindSafe(|| {
        let brought = slot.to_device(device);
        device.sync().map_err(|error| format!("{error:?}"))?;
        Ok(brought)
    }));
    let brought = brought.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Err(text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("the backend panicked").to_string())
    });
    Ok((brought?, started.elapsed()))
}
