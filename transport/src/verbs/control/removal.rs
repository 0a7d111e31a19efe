//! Removal of a device, and listeners that listen again when it returns.
//!
//! ```text
//!  DEVICE_REMOVAL (every id on the device has one), or news of it
//!   ids: connections ─► their ports ─► queue pair, id │ attempts fail │ requests go │ listeners are lost, to be found again
//!   then registrations of bulk and exposed memory ─► the ports' completion queues and protection domains ─► their contexts
//! ```
//! The kernel's removal (`rdma link delete`, an unplugged adapter) waits for all of it.

use std::{
    net::SocketAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use gimmal_rdma::{
    id::IdKey,
    verbs::{Context, DeviceKey},
};

use crate::{
    Instant,
    verbs::control::{entry::Role, ids::Ids, request::Listening, shared::PortDevice},
};

/// How often a removal is checked. The kernel waits meanwhile.
const LOOK: Duration = Duration::from_millis(10);
/// How often a lost listener tries to listen again.
const RETRY: Duration = Duration::from_millis(200);
/// When to log what delays a removal.
const LATE: Duration = Duration::from_secs(3);

/// The removal of one device.
#[derive(Debug)]
struct Removal {
    device: DeviceKey,
    name: String,
    contexts: Vec<Weak<Context>>,
    /// The resources of ports on the device, until they are revoked.
    of_ports: Vec<Arc<PortDevice>>,
    since: Instant,
    said: bool,
}

/// Removals in progress, and listeners that wait for their device to return.
#[derive(Debug, Default)]
pub(crate) struct Removals {
    going: Vec<Removal>,
    /// Listeners whose device went, and where they listened.
    lost: Vec<(SocketAddr, Listening)>,
    retry_at: Option<Instant>,
}

impl Removals {
    /// Returns when the next check is due.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        let look = (!self.going.is_empty()).then(|| Instant::now() + LOOK);
        look.into_iter().chain(self.retry_at).min()
    }

    /// Forgets the lost listeners.
    pub(crate) fn stop(&mut self) {
        self.lost.clear();
        self.retry_at = None;
    }

    /// Begins the removal of `device`, unless it has begun. Releases everything that no id uses.
    pub(crate) fn begin(&mut self, ids: &Ids, device: DeviceKey) {
        if self.going.iter().any(|going| going.device == device) {
            return;
        }
        let of_ports = ids.watches.on(device);
        // Nothing of it is ours, and the last of it went before.
        if of_ports.is_empty() && ids.on(device).next().is_none() {
            return;
        }
        let contexts = of_ports.iter().map(|known| Arc::downgrade(&known.context)).collect();
        // Where only listeners were on it, no port has anything of it.
        let name =
            of_ports.first().map_or_else(|| "an unused device".to_owned(), |known| known.context.name());
        tracing::warn!(device = name, "a device is being removed");
        of_ports.iter().for_each(|known| known.forget());
        let since = Instant::now();
        self.going.push(Removal { device, name, contexts, of_ports, since, said: false });
    }

    /// Destroys a listening id with its device. It is tried again until it can listen.
    pub(crate) fn lose_listener(&mut self, ids: &mut Ids, key: IdKey) {
        let Some(entry) = ids.get(key) else { return };
        if let (Role::Listener(listening), Some(address)) = (&entry.role, entry.id.info().local_ip()) {
            self.lost.push((address, listening.clone()));
            self.retry_at = Some(Instant::now() + RETRY);
        }
        ids.bury(key);
    }

    /// Ends the listener `ticket`, lost or not.
    pub(crate) fn unlisten(&mut self, ids: &mut Ids, ticket: u64) {
        self.lost.retain(|(_, listening)| listening.ticket != ticket);
        ids.unlisten(ticket);
    }

    /// Advances removals, and listens again where that is due.
    pub(crate) fn step(&mut self, ids: &mut Ids, now: Instant) {
        if self.retry_at.is_some_and(|at| now >= at) {
            self.lost.retain(|(address, listening)| match ids.listen_on(*address, listening) {
                Ok(_) => {
                    tracing::info!(%address, "listening again");
                    false
                }
                Err(error) => {
                    tracing::trace!(%error, "not listening yet");
                    true
                }
            });
            self.retry_at = (!self.lost.is_empty()).then(|| now + RETRY);
        }
        self.going.retain_mut(|removal| !removal.step(ids, now));
    }
}

impl Removal {
    /// Advances the removal. Returns whether it is over.
    fn step(&mut self, ids: &Ids, now: Instant) -> bool {
        let left = ids.on(self.device).count();
        if left == 0 {
            // No queue pair is left that could use them.
            self.of_ports.drain(..).for_each(|known| known.revoke());
        }
        let users: usize = self.contexts.iter().map(Weak::strong_count).sum();
        if left > 0 || users > 0 {
            if now - self.since > LATE && !self.said {
                self.said = true;
                tracing::warn!(
                    device = self.name,
                    ids = left,
                    users,
                    "its removal waits: a port does not turn"
                );
            }
            return false;
        }
        // The last context of the process lets the device go.
        tracing::info!(device = self.name, "everything on it was let go");
        true
    }
}
