//! The ids of the control thread, and the notifications that are pending for them.

use std::{
    collections::HashMap,
    sync::{Arc, mpsc::SendError},
};

use gimmal_rdma::{
    id::{CmId, EventChannel, IdKey},
    verbs::{AsyncEvent, DeviceKey},
};

use crate::{
    AcceptError, Refusal,
    verbs::control::{
        attempt::{Active, Attempt},
        entry::{Entry, Role},
        lane::{Handle, Holdings, Lane, LinkParts},
        mailbox::Then,
        watches::{Watches, names_qp},
    },
};

/// The largest batch of notifications: the first of them waits for the last.
const TOGETHER: usize = 16;

/// The ids of the control thread. Notifications are delivered in batches, so that a sleeping thread is woken once per
/// batch.
pub(crate) struct Ids {
    pub(crate) channel: Arc<EventChannel>,
    pub(crate) watches: Watches,
    table: HashMap<IdKey, Entry>,
    /// Ids by the addresses of their queue pairs, as events of devices name them.
    qps: HashMap<usize, IdKey>,
    serial: u64,
    pub(crate) connected: Vec<(Box<Attempt>, LinkParts)>,
    pub(crate) accepted: Vec<(Then, Result<LinkParts, AcceptError>)>,
    /// What destroyed queue pairs used.
    destroyed: Vec<Holdings>,
}

impl Ids {
    pub(crate) fn new(channel: Arc<EventChannel>, watches: Watches) -> Self {
        Self {
            channel,
            watches,
            table: HashMap::new(),
            qps: HashMap::new(),
            serial: 0,
            connected: Vec::new(),
            accepted: Vec::new(),
            destroyed: Vec::new(),
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Entry> {
        self.table.values()
    }

    /// Returns the ids of attempts.
    pub(crate) fn actives(&self) -> impl Iterator<Item = (IdKey, &Active)> {
        self.table.iter().filter_map(|(&key, entry)| match &entry.role {
            Role::Active(active) => Some((key, active)),
            _ => None,
        })
    }

    /// Returns the ids on `device`.
    pub(crate) fn on(&self, device: DeviceKey) -> impl Iterator<Item = &Entry> {
        self.all().filter(move |entry| entry.id.info().device == Some(device))
    }

    /// Returns the ids that `event` may concern: one where it names a queue pair, since there may be as many events as ids.
    pub(crate) fn concerned(&self, event: &AsyncEvent) -> impl Iterator<Item = &Entry> {
        let is_one = names_qp(event.kind);
        let one = self.qps.get(&event.element).filter(|_| is_one).and_then(|&key| self.get(key));
        let all = (!is_one).then(|| self.all());
        one.into_iter().chain(all.into_iter().flatten())
    }

    /// Remembers the queue pair of an id that may have one now.
    pub(crate) fn know_qp(&mut self, key: IdKey) {
        let qp = self.table.get(&key).map_or(0, |entry| entry.id.info().qp);
        if qp != 0 {
            self.qps.insert(qp, key);
        }
    }

    pub(crate) fn get(&self, key: IdKey) -> Option<&Entry> {
        self.table.get(&key)
    }

    pub(crate) fn get_mut(&mut self, key: IdKey) -> Option<&mut Entry> {
        self.table.get_mut(&key)
    }

    /// Returns the id that `handle` names, if it still exists.
    pub(crate) fn current(&mut self, handle: Handle) -> Option<&mut Entry> {
        self.table.get_mut(&handle.key).filter(|entry| entry.serial == handle.serial)
    }

    /// Adds an id. Returns its handle.
    pub(crate) fn keep(&mut self, id: CmId, role: Role) -> Handle {
        self.serial += 1;
        let held = Vec::new();
        let entry = Entry { id, serial: self.serial, busy: false, held, unanswered: false, role };
        let handle = entry.handle();
        self.table.insert(handle.key, entry);
        handle
    }

    /// Destroys an id now, or when its helper thread has returned and the kernel would not block. Returns the attempt that
    /// it was for.
    pub(crate) fn bury(&mut self, key: IdKey) -> Option<Box<Attempt>> {
        let mut entry = self.table.remove(&key)?;
        let (attempt, lane) = std::mem::replace(&mut entry.role, Role::Dying(None)).split();
        if entry.busy || entry.unanswered {
            entry.role = Role::Dying(lane);
            self.table.insert(key, entry);
        } else {
            self.qps.remove(&entry.id.info().qp);
            self.destroyed.extend(entry.destroy(lane));
        }
        attempt
    }

    /// Destroys a connection whose owner has given back its lane.
    pub(crate) fn destroy(&mut self, handle: Handle, lane: Lane) {
        let Some(entry) = self.current(handle) else {
            // Its id was leaked, with a queue pair that could be posted on. So is what that uses.
            return;
        };
        if lane.iwarp() {
            // So that the peer hears of an end and not of a reset; EINVAL: it is down already. On IB the destruction of
            // the id asks for the same.
            let _ = entry.id.disconnect();
        }
        entry.role = Role::Dying(Some(lane));
        self.bury(handle.key);
    }

    /// Refuses a request.
    pub(crate) fn reject(&mut self, handle: Handle, refusal: &Refusal) {
        if let Some(entry) = self.current(handle) {
            // The client may be gone already.
            let _ = entry.id.reject(&refusal.encode());
            self.bury(handle.key);
        }
    }

    /// Frees the seats of destroyed connections. Deregistering takes long, so it is done before any port is woken.
    pub(crate) fn scatter(&mut self) {
        self.destroyed.iter_mut().for_each(Holdings::deregister);
        self.destroyed.clear();
    }

    /// Delivers the notifications if a batch is full.
    pub(crate) fn tell_of_many(&mut self) {
        if self.connected.len() + self.accepted.len() + self.destroyed.len() >= TOGETHER {
            self.tell();
        }
    }

    /// Delivers the notifications.
    pub(crate) fn tell(&mut self) {
        for (then, outcome) in std::mem::take(&mut self.accepted) {
            then(outcome);
        }
        for (attempt, parts) in std::mem::take(&mut self.connected) {
            if let Err(SendError(Ok(parts))) = attempt.outcome.send(Ok(parts)) {
                self.destroy(parts.handle, parts.lane);
            }
        }
        self.scatter();
    }
}
