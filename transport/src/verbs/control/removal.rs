//! A device that goes away, and listeners that come back with it.
//!
//! ```text
//!  DEVICE_REMOVAL (every id on the device has one, the sentinel at least)
//!   ids: connections ─► their ports ─► queue pair, id │ attempts fail │ requests go │ listeners are lost, to be found again
//!   then registrations of bulk and exposed memory ─► the ports' completion queues and protection domains ─► the device list once more
//! ```
//! The kernel's removal (`rdma link delete`, an unplugged adapter) waits for all of it. A *sentinel* is an id that is only
//! bound: without one, a device whose connections are all closed would go unnoticed, and be held for ever.

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use gimmal_rdma::{
    id::{CmId, IdKey},
    verbs::{Context, DeviceKey, Presence, presence, set_leaving},
};

use crate::Instant;
use crate::verbs::control::{
    entry::{Handle, Role},
    gate::Lent,
    listen::Listening,
    thread::Control,
};

/// How often a removal is looked at. The kernel waits meanwhile.
const LOOK: Duration = Duration::from_millis(10);
/// How often a lost listener tries to listen again.
const RETRY: Duration = Duration::from_millis(200);
/// After this, what holds a removal up is said.
const LATE: Duration = Duration::from_secs(3);

/// A device that is going.
#[derive(Debug)]
struct Removal {
    device: DeviceKey,
    name: String,
    contexts: Vec<Arc<Context>>,
    /// Of its ports, until they were revoked.
    lent: Vec<Lent>,
    since: Instant,
    said: bool,
}

/// A listener whose device went.
#[derive(Debug)]
struct Lost {
    /// As its owner knows it.
    origin: Handle,
    address: SocketAddr,
    listening: Listening,
}

/// A device that goes away, and listeners that come back with it.
#[derive(Debug, Default)]
pub(crate) struct Removals {
    going: Vec<Removal>,
    lost: Vec<Lost>,
    retry_at: Option<Instant>,
    /// Listeners that came back under another id.
    renamed: HashMap<Handle, Handle>,
}

impl Removals {
    /// When something is to be done although nothing happens.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        let look = (!self.going.is_empty()).then(|| Instant::now() + LOOK);
        look.into_iter().chain(self.retry_at).min()
    }

    /// Nobody listens any more.
    pub(crate) fn stop(&mut self) {
        self.lost.clear();
        self.retry_at = None;
    }
}

impl Control {
    /// Sees to it that every device in use has a sentinel.
    pub(crate) fn attend(&mut self) {
        if !self.watches.take_fresh() {
            return;
        }
        let devices: Vec<DeviceKey> = self.watches.devices().collect();
        for device in devices {
            let on_it = |role: fn(&Role) -> bool| {
                self.ids.values().filter(move |entry| entry.device() == Some(device) && role(&entry.role))
            };
            if on_it(|role| matches!(role, Role::Sentinel)).next().is_some() {
                continue;
            }
            let address = on_it(|role| !matches!(role, Role::Sentinel))
                .filter_map(|entry| entry.id.local())
                .find(|address| !address.ip().is_unspecified());
            let Some(address) = address else { continue };
            let sentinel = CmId::new(&self.channel).and_then(|id| {
                id.bind(SocketAddr::new(address.ip(), 0))?;
                Ok(id)
            });
            match sentinel {
                Ok(id) if id.device() == Some(device) => {
                    self.keep(id, Role::Sentinel);
                }
                Ok(_) => tracing::debug!(%address, "no sentinel: the address is on another device too"),
                Err(errno) => tracing::debug!(errno, %address, "no sentinel"),
            }
        }
    }

    /// The device goes: lets go of everything that no id stands for. Once for each removal.
    pub(crate) fn begin_removal(&mut self, key: IdKey) {
        let Some(id) = self.ids.get(&key).map(|entry| &entry.id) else { return };
        let Some(device) = id.device() else { return };
        if self.removals.going.iter().any(|going| going.device == device) {
            return;
        }
        let (mut contexts, owners): (Vec<_>, Vec<_>) = self.watches.forget(device).into_iter().unzip();
        if contexts.is_empty() {
            // Only listeners were on it.
            contexts.extend(id.context().ok().flatten());
        }
        let name = contexts.first().map_or_else(|| "an unused device".to_owned(), |context| context.name());
        tracing::warn!(device = name, "a device is being removed");
        set_leaving(device);
        let lent = owners.iter().filter_map(|owner| owner.upgrade()?.forget(device)).collect();
        self.removals.going.push(Removal {
            device,
            name,
            contexts,
            lent,
            since: Instant::now(),
            said: false,
        });
    }

    /// The listener goes with its device; it is tried again until it can listen.
    pub(crate) fn lose_listener(&mut self, key: IdKey) {
        let Some(entry) = self.ids.remove(&key) else { return };
        if let (Role::Listener(listening), Some(address)) = (&entry.role, entry.id.local()) {
            let handle = entry.handle();
            let origin =
                self.removals.renamed.iter().find(|(_, now)| **now == handle).map(|(&origin, _)| origin);
            let origin = origin.unwrap_or(handle);
            self.removals.lost.push(Lost { origin, address, listening: listening.clone() });
            self.removals.retry_at = Some(Instant::now() + RETRY);
        }
        self.bury(entry, None);
    }

    /// Ends listening, wherever the listener is by now.
    pub(crate) fn unlisten(&mut self, origin: Handle) {
        self.removals.lost.retain(|lost| lost.origin != origin);
        let now = self.removals.renamed.remove(&origin).unwrap_or(origin);
        if let Some(entry) = self.take(now) {
            self.bury(entry, None);
        }
    }

    /// Goes on with removals and with listening again.
    pub(crate) fn step_removals(&mut self, now: Instant) {
        if self.removals.retry_at.is_some_and(|at| now >= at) {
            self.listen_again(now);
        }
        let mut going = std::mem::take(&mut self.removals.going);
        going.retain_mut(|removal| !self.step_removal(removal, now));
        self.removals.going.append(&mut going);
    }

    fn listen_again(&mut self, now: Instant) {
        for lost in std::mem::take(&mut self.removals.lost) {
            match self.listen_on(lost.address, &lost.listening) {
                Ok((handle, _)) => {
                    tracing::info!(address = %lost.address, "listening again");
                    self.removals.renamed.insert(lost.origin, handle);
                }
                Err(error) => {
                    tracing::trace!(%error, "not listening yet");
                    self.removals.lost.push(lost);
                }
            }
        }
        self.removals.retry_at = (!self.removals.lost.is_empty()).then(|| now + RETRY);
    }

    /// `true`: it is over.
    fn step_removal(&self, removal: &mut Removal, now: Instant) -> bool {
        let device = removal.device;
        let ids = self.ids.values().filter(|entry| entry.device() == Some(device)).count();
        if ids == 0 {
            // No queue pair is left that could use them.
            removal.lent.drain(..).for_each(|lent| lent.revoke());
        }
        let users: usize = removal.contexts.iter().map(|context| Arc::strong_count(context) - 1).sum();
        if ids > 0 || users > 0 {
            if now - removal.since > LATE && !removal.said {
                removal.said = true;
                tracing::warn!(device = removal.name, ids, users, "its removal waits: a port does not turn");
            }
            return false;
        }
        // The kernel is not that far yet.
        if presence(device) == Presence::Listed {
            return false;
        }
        // The last context of the process takes the device with it.
        removal.contexts.clear();
        tracing::info!(device = removal.name, "everything on it was let go");
        true
    }
}
