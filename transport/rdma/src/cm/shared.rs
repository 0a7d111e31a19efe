//! Receives that several connections take from.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{
    cm::{
        device::Device,
        error::{CmError, above, call},
        memory::{Access, Blocks, Buffer, Span, Work},
        operation::Operation,
    },
    id::{address::CmAddress, channel::EventChannel, cm_id::CmId, space::PortSpace, srq::IdSrq},
    verbs::{context::Pd, gather},
};

/// Marks the requests of a shared queue among those that complete on a connection.
const SHARED: u64 = 1 << 63;

/// A shared receive queue (`rdma_create_srq(3)`) with its memory. Clones name the same queue; it is destroyed when the
/// last clone and the last connection on it are gone.
#[derive(Clone, Debug)]
pub struct SharedReceives(Arc<Mutex<Shared>>);

/// Fields are dropped in this order, which is the only safe one.
#[derive(Debug)]
struct Shared {
    queue: IdSrq,
    memory: Blocks,
    pd: Arc<Pd>,
    device: Device,
    posted: u32,
    entries: u32,
}

impl SharedReceives {
    /// A queue for `entries` receives of one piece each, on the device that has the address `local`.
    ///
    /// # Errors
    /// [`CmError::Device`] for an address of no device, and for more entries than the device has.
    pub fn new(local: impl Into<CmAddress>, entries: u32) -> Result<Self, CmError> {
        let channel = EventChannel::new()?;
        let id = CmId::new(&channel, PortSpace::Tcp).map_err(call("rdma_create_id"))?;
        let local: CmAddress = local.into();
        let anywhere = local.ip().map_or(local, |ip| CmAddress::Ip((ip.ip(), 0).into()));
        id.bind(anywhere).map_err(call("rdma_bind_addr"))?;
        let device = Device::of(&id)?;
        if entries == 0 || entries > device.limits.srq_entries {
            return Err(above("entries", entries.into(), device.limits.srq_entries.into()));
        }
        let pd = Pd::new(&device.context)?;
        let queue = IdSrq::new(id, &pd, entries, 1).map_err(call("rdma_create_srq"))?;
        let shared = Shared { queue, memory: Blocks::new(), pd, device, posted: 0, entries };
        Ok(Self(Arc::new(Mutex::new(shared))))
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // A panic while it is changed leaves numbers.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registered memory of `bytes`, zeroed, for receives; it lives as long as the queue.
    ///
    /// # Errors
    /// [`CmError::Device`] when memory cannot be mapped or locked.
    pub fn add_buffer(&self, bytes: usize) -> Result<Buffer, CmError> {
        let shared = &mut *self.lock();
        shared.memory.add(&shared.pd, bytes, Access::Local, shared.device.limits.iwarp)
    }

    /// Posts a receive for whichever connection gets a message first.
    ///
    /// # Errors
    /// [`CmError::Full`], [`CmError::Posted`], [`CmError::Device`].
    pub fn post_receive(&self, span: Span, token: u64) -> Result<(), CmError> {
        let shared = &mut *self.lock();
        if shared.posted == shared.entries {
            return Err(CmError::Full);
        }
        let work = Work::new(Operation::Receive, token, &[span]);
        let (id, pieces) = shared.memory.post(work)?;
        if let Err(errno) = gather::post_shared(shared.queue.srq(), id | SHARED, &pieces) {
            shared.memory.end(id);
            return Err(call("ibv_post_srq_recv")(errno));
        }
        shared.posted += 1;
        Ok(())
    }

    /// Copies the start of `span` out.
    ///
    /// # Errors
    /// [`CmError::Posted`] while the device may write it, [`CmError::Device`] when it has fewer bytes.
    pub fn read(&self, span: Span, into: &mut [u8]) -> Result<(), CmError> {
        self.lock().memory.read(span, into)
    }

    /// Asks for one event `SrqLimit` of the device, when fewer than `limit` receives are left.
    ///
    /// # Errors
    /// [`CmError::Device`].
    pub fn arm(&self, limit: u32) -> Result<(), CmError> {
        self.lock().queue.srq().arm(limit).map_err(call("ibv_modify_srq"))
    }

    pub(crate) fn with<R>(&self, make: impl FnOnce(&IdSrq, &Arc<Pd>, &Device) -> R) -> R {
        let shared = self.lock();
        make(&shared.queue, &shared.pd, &shared.device)
    }

    /// As many receives as can complete on one connection.
    pub(crate) fn entries(&self) -> u32 {
        self.lock().entries
    }

    /// Whether `wr_id` is a receive of such a queue.
    pub(crate) const fn has(wr_id: u64) -> bool {
        wr_id & SHARED != 0
    }

    /// The device is done with a receive.
    pub(crate) fn end(&self, wr_id: u64) -> Option<Work> {
        let shared = &mut *self.lock();
        let work = shared.memory.end(wr_id & !SHARED)?;
        shared.posted = shared.posted.saturating_sub(1);
        Some(work)
    }
}
