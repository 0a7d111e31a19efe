//! Registered memory: one registration for each purpose, with no more rights than the purpose needs.

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    Instant, PortError,
    mem::{Region, UserBytes},
    verbs::{device::Pd, sys},
};

static COUNT: AtomicU64 = AtomicU64::new(0);
static NANOSECONDS: AtomicU64 = AtomicU64::new(0);

/// Registrations of this process so far, and the time they took: usually most of what a connection costs.
#[must_use]
pub fn registrations() -> (u64, Duration) {
    (COUNT.load(Ordering::Relaxed), Duration::from_nanos(NANOSECONDS.load(Ordering::Relaxed)))
}

/// What a registration is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// The peer writes here (receive ring).
    ReceiveRing,
    /// Only our own device reads and writes (transmit ring, receive slots, grants).
    Local,
    /// The peer reads a loan, our device writes a pull.
    Bulk {
        /// iWARP: the sink of a READ needs remote write.
        iwarp: bool,
    },
    /// The peer reads user memory, which nobody writes.
    Lent,
    /// The peer reads a word that we move on.
    Pulse,
    /// The peer reads, writes and, where the device can, changes words.
    Exposed { atomics: bool },
    /// What the user of the raw CM lets a peer do.
    Chosen { remote_read: bool, remote_write: bool },
}

/// One of the flags that a device may ignore; above those of every purpose.
const RELAXED_ORDERING: i32 = 1 << 20;
const _: () = assert!(sys::ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0 == 1 << 20);

impl Purpose {
    fn access(self) -> i32 {
        use sys::ibv_access_flags as flags;
        let access = match self {
            Self::ReceiveRing => flags::IBV_ACCESS_LOCAL_WRITE | flags::IBV_ACCESS_REMOTE_WRITE,
            Self::Local => flags::IBV_ACCESS_LOCAL_WRITE,
            Self::Bulk { iwarp: false } => flags::IBV_ACCESS_LOCAL_WRITE | flags::IBV_ACCESS_REMOTE_READ,
            Self::Bulk { iwarp: true } => {
                flags::IBV_ACCESS_LOCAL_WRITE | flags::IBV_ACCESS_REMOTE_READ | flags::IBV_ACCESS_REMOTE_WRITE
            }
            Self::Lent | Self::Pulse => flags::IBV_ACCESS_REMOTE_READ,
            Self::Exposed { atomics } => {
                let mut access = flags::IBV_ACCESS_LOCAL_WRITE
                    | flags::IBV_ACCESS_REMOTE_READ
                    | flags::IBV_ACCESS_REMOTE_WRITE;
                if atomics {
                    access |= flags::IBV_ACCESS_REMOTE_ATOMIC;
                }
                access
            }
            Self::Chosen { remote_read, remote_write } => {
                let mut access = flags::IBV_ACCESS_LOCAL_WRITE;
                if remote_read {
                    access |= flags::IBV_ACCESS_REMOTE_READ;
                }
                if remote_write {
                    access |= flags::IBV_ACCESS_REMOTE_WRITE;
                }
                access
            }
        };
        i32::try_from(access.0).expect("access flags are low bits")
    }
}

/// A registration. It pins the pages by itself: the mapping may go first, and the device still has memory.
#[derive(Debug)]
pub(crate) struct Mr {
    raw: NonNull<sys::ibv_mr>,
    lkey: u32,
    rkey: u32,
    pd: Arc<Pd>,
}

// SAFETY: a registration is only named in calls that libibverbs and the kernel serialise.
unsafe impl Send for Mr {}
// SAFETY: as above; our own fields never change.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers all of `region`.
    pub(crate) fn new(pd: &Arc<Pd>, region: &Region, purpose: Purpose) -> Result<Self, PortError> {
        Self::with(pd, region, purpose.access())
    }

    /// Registers user memory, to be read; whoever uses the keys keeps a clone of `bytes`.
    pub(crate) fn lent(pd: &Arc<Pd>, bytes: &UserBytes) -> Result<Self, PortError> {
        Self::at(pd, NonNull::from(&**bytes).cast(), bytes.len(), Purpose::Lent.access())
    }

    /// The same, and the device may write it in any order; in the usual one, when it refuses that.
    pub(crate) fn relaxed(pd: &Arc<Pd>, region: &Region, purpose: Purpose) -> Result<Self, PortError> {
        let relaxed = purpose.access() | RELAXED_ORDERING;
        Self::with(pd, region, relaxed).or_else(|error| {
            tracing::debug!(%error, "no relaxed ordering");
            Self::new(pd, region, purpose)
        })
    }

    fn with(pd: &Arc<Pd>, region: &Region, access: i32) -> Result<Self, PortError> {
        Self::at(pd, region.base(), region.len(), access)
    }

    fn at(pd: &Arc<Pd>, bytes: NonNull<u8>, len: usize, access: i32) -> Result<Self, PortError> {
        let started = Instant::now();
        // SAFETY: the range is exactly a live mapping, readable and writable, or memory that its owner keeps and that
        // `access` only lets be read; what the device may do with it is the purpose's `access`, and nobody here holds a
        // reference into a range that it lets others write.
        let raw = unsafe { sys::ibv_reg_mr(pd.raw(), bytes.as_ptr().cast(), len, access) };
        let raw = sys::pointer_result(raw).map_err(|errno| registration_error(errno, len))?;
        COUNT.fetch_add(1, Ordering::Relaxed);
        let took = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        NANOSECONDS.fetch_add(took, Ordering::Relaxed);
        // SAFETY: the call succeeded; the keys never change.
        let lkey = unsafe { (*raw.as_ptr()).lkey };
        // SAFETY: as above.
        let rkey = unsafe { (*raw.as_ptr()).rkey };
        Ok(Self { raw, lkey, rkey, pd: Arc::clone(pd) })
    }

    pub(crate) fn is_of(&self, pd: &Arc<Pd>) -> bool {
        Arc::ptr_eq(&self.pd, pd)
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    pub(crate) fn rkey(&self) -> u32 {
        self.rkey
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: owned by us alone; whoever posted work with its keys destroys the queue pair first.
        let returned = unsafe { sys::ibv_dereg_mr(self.raw.as_ptr()) };
        if let Err(errno) = sys::verbs_result(returned) {
            tracing::warn!(errno, "ibv_dereg_mr failed");
        }
    }
}

/// The kernel says ENOMEM (some drivers EPERM) when the limit of locked memory is met: name the limit.
pub(crate) fn registration_error(errno: i32, bytes: usize) -> PortError {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    match limit {
        Some(limit_bytes) if errno == sys::errno::ENOMEM || errno == sys::errno::EPERM => {
            PortError::Memlock { bytes: bytes as u64, limit_bytes }
        }
        _ => PortError::System { step: "ibv_reg_mr", errno },
    }
}
