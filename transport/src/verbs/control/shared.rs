//! What the control thread and a port share: devices, seats, the note queue. Control path only.
//!
//! ```text
//!  VerbsGate ─► ControlHandle      (callers)
//!      └──────► Shared ◄─ Lane, control thread
//!                 ├─ devices: Pd, PortCqs, Pool, Borrowed of each device this port has seen
//!                 ├─ seats:   which ConnIds are taken
//!                 └─ notes ─► the port, by its doorbell
//! ```

use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, Weak,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use crossbeam::queue::ArrayQueue;
use gimmal_rdma::{
    id::{CmId, QpRequest},
    verbs::{Context, Cq, DeviceLimits, Pd},
};

use crate::{
    CloseReason, ConnId, PortConfig, PortError, Receives,
    mem::{Account, Loan, MemoryNode},
    sync::{doorbell::Waker, lock::lock},
    verbs::{
        control::{cq_room::CqShare, cqs::PortCqs, ports::KnownPorts},
        data::wr_id::{INDEX_LIMIT, QUEUE_NUMBERS, WrId},
        memory::{
            borrowed::Borrowed,
            exposed::Exposures,
            grant::{GrantPages, GrantPlaces},
            pool::Pool,
            pulse::PulsePage,
            rings::{Rings, Room},
        },
        srq::{
            queue::{Reserve, SharedQueue},
            slots::QUEUES,
        },
    },
};

/// Connections that may be in flight beyond a port's limit. They are refused when they are adopted.
const UNDER_WAY: u32 = 256;

/// More queues of shared receives than a port tells apart.
const TOO_MANY_QUEUES: PortError = PortError::Limit {
    field: "shared receive queues of a port (connections, port.shared.sends, port.shared.guaranteed)",
    value: QUEUES as u64 + 1,
    limit: QUEUES as u64,
};

/// The resources of a port on one device.
#[derive(Debug)]
pub(crate) struct PortDevice {
    pub(crate) pool: Arc<Pool>,
    /// Memory that pulses are read into, and nothing else: on iWARP the peer can write the memory that it is read into.
    pub(crate) sinks: Arc<Pool>,
    pub(crate) borrowed: Arc<Borrowed>,
    pub(crate) exposures: Arc<Exposures>,
    pub(crate) pd: Arc<Pd>,
    cqs: PortCqs,
    grants: Mutex<GrantPages>,
    pulse: Mutex<Weak<PulsePage>>,
    pub(crate) limits: DeviceLimits,
    pub(crate) known_ports: KnownPorts,
    pub(crate) context: Arc<Context>,
    /// The port that they belong to.
    owner: Weak<Shared>,
}

impl PortDevice {
    fn new(context: Arc<Context>, owner: &Arc<Shared>) -> Result<Arc<Self>, PortError> {
        let (config, node) = (&owner.config, owner.node);
        let limits = context.query()?;
        let cq = Cq::new(&context, &limits)?;
        let pd = Pd::new(&context)?;
        Ok(Arc::new(Self {
            pool: Pool::new(Arc::clone(&pd), limits.iwarp, config, node),
            sinks: Pool::new(Arc::clone(&pd), limits.iwarp, config, node),
            borrowed: Borrowed::new(Arc::clone(&pd), config),
            exposures: Exposures::new(Arc::clone(&pd), limits.atomics, config.huge_pages, node),
            pd,
            cqs: PortCqs::new(cq),
            grants: Mutex::default(),
            pulse: Mutex::default(),
            limits,
            known_ports: KnownPorts::default(),
            context,
            owner: Arc::downgrade(owner),
        }))
    }

    /// Returns whether this port's gate made `loan` for this device. Another device's key means nothing here.
    pub(crate) fn has_lent(&self, loan: &Loan) -> bool {
        loan.is_of(&self.pool) || loan.is_of(&self.borrowed)
    }

    /// Returns the key that our own device needs for `loan`.
    pub(crate) fn lkey(&self, loan: &Loan) -> Option<u32> {
        self.pool.lkey(loan).or_else(|| self.borrowed.lkey(loan))
    }

    /// Makes the port forget a device that is being removed. Connections keep what they hold.
    pub(crate) fn forget(&self) {
        let Some(owner) = self.owner.upgrade() else { return };
        lock(&owner.devices).retain(|device| !std::ptr::eq(&**device, self));
        owner.rings.forget(&self.pd);
    }

    /// Deregisters everything on a device that is being removed. No queue pair may be left there.
    pub(crate) fn revoke(&self) {
        self.pool.revoke();
        self.sinks.revoke();
        self.borrowed.revoke();
        self.exposures.revoke();
    }

    /// Returns its shared receives, one set for each completion queue that has any.
    pub(crate) fn queues(&self) -> Vec<Arc<SharedQueue>> {
        self.cqs.shared()
    }

    /// The completion queue at `address`, if it is one of these, reported CQ_ERR.
    pub(crate) fn cq_broke(&self, address: usize) {
        self.cqs.broke(address);
    }

    /// Returns whether a connection that has its seat is to share its receives.
    ///
    /// # Errors
    /// [`PortError::Limit`] when the device has no such queues, and they were asked for by name.
    pub(crate) fn shares(&self, shared: &Shared, receives: Receives) -> Result<bool, PortError> {
        match receives {
            Receives::Own => Ok(false),
            Receives::SharedAbove(count) => Ok(shared.seated() > count && self.limits.srqs > 0),
            Receives::Shared if self.limits.srqs > 0 => Ok(true),
            Receives::Shared => {
                let field = "shared receive queues of the device";
                Err(PortError::Limit { field, value: 1, limit: 0 })
            }
        }
    }

    /// Places a connection with the queue pair `request` on a completion queue with room for it, and reserves shared
    /// receives for it if it `is_sharing`.
    ///
    /// # Errors
    /// [`PortError::Limit`] when the device's queues are too small, and what memory can say.
    pub(crate) fn place(
        &self,
        shared: &Shared,
        request: &QpRequest<'_>,
        is_sharing: bool,
    ) -> Result<(Arc<Cq>, CqShare, Option<Reserve>), PortError> {
        let entries = request.send_entries + request.recv_entries;
        let field = "completions of one connection (arrivals + sends + initiator_depth)";
        // Before the queues are locked: it asks those of all devices.
        let number = if is_sharing { shared.vacant_queue_number() } else { None };
        let config = &shared.config;
        let connections = config.connections.saturating_add(UNDER_WAY);
        let make = || Cq::new(&self.context, &self.limits);
        self.cqs.place(make, |at| {
            let share = at.room.take(entries, field)?;
            if !is_sharing {
                return Ok((Arc::clone(&at.cq), share, None));
            }
            let queue = match &at.shared {
                Some(queue) => Arc::clone(queue),
                None => {
                    let named = (number.ok_or(TOO_MANY_QUEUES)?, shared.node);
                    SharedQueue::new(&self.pd, &self.limits, config.shared, connections, &at.room, named)?
                }
            };
            let reserve = queue.reserve()?;
            at.shared = Some(queue);
            Ok((Arc::clone(&at.cq), share, Some(reserve)))
        })
    }

    /// Returns the memory for the grants of the connection in the seat `index`.
    pub(crate) fn grant_places(&self, index: u32) -> Result<GrantPlaces, PortError> {
        lock(&self.grants).places(&self.pd, index)
    }

    /// Returns the page with the pulse of our process, which peers read.
    pub(crate) fn pulse(&self) -> Result<Arc<PulsePage>, PortError> {
        PulsePage::of(&mut lock(&self.pulse), &self.pd)
    }
}

impl Drop for PortDevice {
    fn drop(&mut self) {
        self.borrowed.close();
    }
}

/// What the control thread reports to the port about a connection.
#[derive(Debug)]
pub(crate) struct Fate {
    shared: Arc<Shared>,
    pub(crate) conn: ConnId,
    pub(crate) account: Arc<Account>,
    /// The first cause, once the connection is down.
    pub(crate) down: OnceLock<CloseReason>,
    /// The queue pair is destroyed: no device touches the connection's memory any more.
    destroyed: AtomicBool,
    /// An event casts doubt on the peer, and the port has not seen it yet.
    suspect: AtomicBool,
    /// The device has used the last shared receive that it took for this queue pair.
    last_receive: AtomicBool,
}

impl Fate {
    /// Reports that the connection is down. The first cause stays.
    pub(crate) fn set_down(&self, reason: CloseReason) {
        if self.down.set(reason).is_ok() {
            self.shared.note(self.conn);
        }
    }

    /// Reports doubt about the peer, once until the port has seen it.
    pub(crate) fn suspect(&self) {
        // One flag, and nothing hangs on its order.
        if !self.suspect.swap(true, Ordering::Relaxed) {
            self.shared.note(self.conn);
        }
    }

    pub(crate) fn take_suspicion(&self) -> bool {
        self.suspect.swap(false, Ordering::Relaxed)
    }

    /// Reports that the device has used the last shared receive, for which a closing port waits.
    pub(crate) fn set_last_receive(&self) {
        // One flag: the completions that it speaks of are in the queue, and the port looks there first.
        self.last_receive.store(true, Ordering::Relaxed);
        self.shared.note(self.conn);
    }

    pub(crate) fn had_last_receive(&self) -> bool {
        self.last_receive.load(Ordering::Relaxed)
    }

    pub(crate) fn is_destroyed(&self) -> bool {
        // SYNC POINT: queue pair destroyed.
        self.destroyed.load(Ordering::Acquire)
    }
}

/// What the control thread and a port share: devices, seats, the note queue.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: PortConfig,
    pub(crate) bell: Waker,
    pub(crate) node: MemoryNode,
    pub(crate) rings: Rings,
    /// Seats that the port is to look at, each at most once.
    notes: ArrayQueue<u32>,
    /// Of each seat, whether it is among them.
    noted: Box<[AtomicBool]>,
    seats: Mutex<Seats>,
    devices: Mutex<Vec<Arc<PortDevice>>>,
    /// The number to try for the next shared queue.
    queues: AtomicU32,
}

impl Shared {
    /// Makes the shared part of a port of the calling thread.
    pub(crate) fn new(config: &PortConfig, bell: Waker) -> Arc<Self> {
        let node = MemoryNode::of_this_thread();
        let seats = config.connections.saturating_add(UNDER_WAY).min(INDEX_LIMIT);
        let notes = ArrayQueue::new(seats.max(1) as usize);
        let noted = (0..seats).map(|_| AtomicBool::new(false)).collect();
        Arc::new(Self {
            config: config.clone(),
            bell,
            node,
            rings: Rings::new(node),
            notes,
            noted,
            seats: Mutex::new(Seats { limit: seats, table: Vec::new(), free: Vec::new() }),
            devices: Mutex::new(Vec::new()),
            queues: AtomicU32::new(0),
        })
    }

    /// Returns the port's resources on the device that `id` is bound to, made with its first use.
    pub(crate) fn device(self: &Arc<Self>, id: &CmId) -> Result<Arc<PortDevice>, PortError> {
        let unbound = || PortError::NoDevice { detail: "the address is on no RDMA device".to_owned() };
        let key = id.info().device.ok_or_else(unbound)?;
        let mut devices = lock(&self.devices);
        if let Some(device) = devices.iter().find(|device| device.context.key() == key) {
            return Ok(Arc::clone(device));
        }
        let context = id.context()?.ok_or_else(unbound)?;
        let device = PortDevice::new(context, self)?;
        devices.push(Arc::clone(&device));
        Ok(device)
    }

    /// Returns the port's resources on all devices.
    pub(crate) fn devices(&self) -> MutexGuard<'_, Vec<Arc<PortDevice>>> {
        lock(&self.devices)
    }

    /// Keeps memory for the next connection. It stays registered unless its device is gone.
    ///
    /// # Safety
    /// As for [`Rings::give_back`].
    pub(crate) unsafe fn give_back(&self, mut room: Room) {
        // Held until it is kept: what `forget` does not find here, it finds there.
        let devices = lock(&self.devices);
        let lost = room.registration.take_if(|known| !devices.iter().any(|device| known.is_of(&device.pd)));
        // SAFETY: the caller's promise.
        unsafe { self.rings.give_back(room) };
        drop(devices);
        drop(lost);
    }

    /// Returns a number that no shared queue has; `None` when there are [`QUEUES`]. The numbers are used in turn.
    fn vacant_queue_number(&self) -> Option<u32> {
        let queues = lock(&self.devices).iter().flat_map(|device| device.queues()).collect::<Vec<_>>();
        if queues.len() >= QUEUES {
            return None;
        }
        loop {
            let number = self.queues.fetch_add(1, Ordering::Relaxed) % QUEUE_NUMBERS;
            if queues.iter().all(|queue| queue.number != number) {
                return Some(number);
            }
        }
    }

    /// Returns the shared queue `number`, if it still exists.
    pub(crate) fn shared_queue(&self, number: u32) -> Option<Arc<SharedQueue>> {
        let devices = lock(&self.devices);
        devices.iter().flat_map(|device| device.queues()).find(|queue| queue.number == number)
    }

    /// Counts the seats that are taken.
    fn seated(&self) -> u32 {
        let seats = lock(&self.seats);
        u32::try_from(seats.table.len() - seats.free.len()).unwrap_or(u32::MAX)
    }

    /// Records that `conn` receives from the shared queue `number` with the queue pair `qp`.
    pub(crate) fn name_seat(&self, conn: ConnId, number: u32, qp: u32) {
        lock(&self.seats).table[conn.index() as usize].shares = Some((number, qp));
    }

    /// Returns whether the connection of the completion `id`, of the queue pair `qp`, still has its seat.
    pub(crate) fn is_seated(&self, id: WrId, qp: u32) -> bool {
        let seats = lock(&self.seats);
        if id.is_shared() {
            return seats.table.iter().any(|entry| entry.shares == Some((id.queue(), qp)));
        }
        let Some(entry) = seats.table.get(id.index()) else { return false };
        let index = u32::try_from(id.index()).unwrap_or(u32::MAX);
        entry.place.is_some() && id.is_of(ConnId::new(index, entry.generation))
    }

    /// Returns the device and the account of a connection that has a seat.
    pub(crate) fn seated_at(&self, conn: ConnId) -> Option<(Arc<PortDevice>, Arc<Account>)> {
        let seats = lock(&self.seats);
        let entry = seats.table.get(conn.index() as usize)?;
        if entry.generation != conn.generation() { None } else { entry.place.clone() }
    }

    /// Takes a seat on `device`.
    pub(crate) fn sit(self: &Arc<Self>, device: &Arc<PortDevice>) -> Result<Seat, PortError> {
        let mut seats = lock(&self.seats);
        let next = u32::try_from(seats.table.len()).ok().filter(|&next| next < seats.limit);
        let index = match (seats.free.pop(), next) {
            (Some(index), _) => index,
            (None, Some(next)) => {
                seats.table.push(SeatEntry { generation: 0, place: None, shares: None });
                next
            }
            (None, None) => {
                return Err(PortError::Limit {
                    field: "connections",
                    value: u64::from(seats.limit) + 1,
                    limit: seats.limit.into(),
                });
            }
        };
        let entry = &mut seats.table[index as usize];
        let account = Account::new(self.config.loan_bytes_max);
        entry.place = Some((Arc::clone(device), Arc::clone(&account)));
        Ok(Seat(Arc::new(Fate {
            shared: Arc::clone(self),
            conn: ConnId::new(index, entry.generation),
            account,
            down: OnceLock::new(),
            destroyed: AtomicBool::new(false),
            suspect: AtomicBool::new(false),
            last_receive: AtomicBool::new(false),
        })))
    }

    /// Asks the port to look at the seat of `conn`, however often it was asked already.
    pub(crate) fn note(&self, conn: ConnId) {
        let index = conn.index();
        // SYNC POINT: seat noted. A port that has not cleared the flag yet looks at the seat later.
        let is_noted = self.noted.get(index as usize).is_none_or(|noted| noted.swap(true, Ordering::AcqRel));
        if !is_noted && self.notes.push(index).is_err() {
            tracing::error!(?conn, "the note queue of a port is full, which its size excludes");
        }
        self.bell.ring();
    }

    /// The next seat to look at.
    pub(crate) fn next_note(&self) -> Option<usize> {
        let index = self.notes.pop()? as usize;
        if let Some(noted) = self.noted.get(index) {
            // SYNC POINT: seat noted. From here on it is pushed again.
            noted.swap(false, Ordering::AcqRel);
        }
        Some(index)
    }

    #[inline]
    pub(crate) fn has_notes(&self) -> bool {
        !self.notes.is_empty()
    }
}

#[derive(Debug)]
struct Seats {
    limit: u32,
    table: Vec<SeatEntry>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct SeatEntry {
    generation: u32,
    place: Option<(Arc<PortDevice>, Arc<Account>)>,
    /// The numbers of its shared queue and its queue pair.
    shares: Option<(u32, u32)>,
}

/// A `ConnId` that is taken from before the queue pair is made until after it is destroyed, because completions carry it.
#[derive(Debug)]
pub(crate) struct Seat(pub(crate) Arc<Fate>);

impl Drop for Seat {
    fn drop(&mut self) {
        let Fate { shared, conn, destroyed, .. } = &*self.0;
        {
            let mut seats = lock(&shared.seats);
            let entry = &mut seats.table[conn.index() as usize];
            entry.generation = entry.generation.wrapping_add(1);
            (entry.place, entry.shares) = (None, None);
            seats.free.push(conn.index());
        }
        // SYNC POINT: queue pair destroyed.
        destroyed.store(true, Ordering::Release);
        shared.note(*conn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::doorbell::Doorbell;

    /// No note is lost, however many there are while the port does not look.
    #[test]
    fn a_seat_is_noted_once_until_the_port_looks() {
        let config = PortConfig { connections: 2, ..PortConfig::default() };
        let shared = Shared::new(&config, Arc::new(Doorbell::new().expect("an eventfd")));
        let seats = 2 + UNDER_WAY;
        for generation in 0..3 {
            (0..seats).for_each(|index| (0..5).for_each(|_| shared.note(ConnId::new(index, generation))));
        }
        for index in 0..seats {
            assert_eq!(shared.next_note(), Some(index as usize));
        }
        assert_eq!((shared.next_note(), shared.has_notes()), (None, false));
        shared.note(ConnId::new(1, 9));
        assert_eq!((shared.next_note(), shared.next_note()), (Some(1), None));
    }
}
