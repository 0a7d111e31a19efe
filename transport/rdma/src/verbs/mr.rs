//! Registered memory: one registration for each purpose, with no more rights than the purpose needs.

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{error::DeviceError, memory::Memory, sys, verbs::context::Pd, wait::Stopwatch};

static COUNT: AtomicU64 = AtomicU64::new(0);
static NANOSECONDS: AtomicU64 = AtomicU64::new(0);

/// Registrations of this process so far, and the time they took: usually most of what a connection costs.
#[must_use]
pub fn registrations() -> (u64, Duration) {
    (COUNT.load(Ordering::Relaxed), Duration::from_nanos(NANOSECONDS.load(Ordering::Relaxed)))
}

/// What may be done with a registration, in addition to reads by our own device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rights {
    /// Our own device writes: receives, and what READs bring.
    pub local_write: bool,
    /// Peers READ.
    pub remote_read: bool,
    /// Peers WRITE. On iWARP also needed for what our own READs bring.
    pub remote_write: bool,
    /// Peers change words by atomic operations.
    pub remote_atomic: bool,
    /// The device may write in any order (`IBV_ACCESS_RELAXED_ORDERING`); one that cannot does without.
    pub relaxed_ordering: bool,
}

/// One of the flags that a device may ignore; above those of every right.
const RELAXED_ORDERING: i32 = 1 << 20;
const _: () = assert!(sys::ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0 == 1 << 20);

impl Rights {
    /// Reads by our own device alone.
    pub const READ: Self = Self {
        local_write: false,
        remote_read: false,
        remote_write: false,
        remote_atomic: false,
        relaxed_ordering: false,
    };
    /// Reads and writes by our own device.
    pub const LOCAL: Self = Self { local_write: true, ..Self::READ };

    fn flags(self) -> i32 {
        use sys::ibv_access_flags as flags;
        let rights = [
            (self.local_write, flags::IBV_ACCESS_LOCAL_WRITE),
            (self.remote_read, flags::IBV_ACCESS_REMOTE_READ),
            (self.remote_write, flags::IBV_ACCESS_REMOTE_WRITE),
            (self.remote_atomic, flags::IBV_ACCESS_REMOTE_ATOMIC),
        ];
        let bits = rights.iter().filter(|(given, _)| *given).fold(0, |bits, (_, flag)| bits | flag.0);
        i32::try_from(bits).expect("access flags are low bits")
    }
}

/// A registration. It pins the pages by itself: the mapping may go first, and the device still has memory.
#[derive(Debug)]
pub struct Mr {
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
    /// Registers all of `memory` (`ibv_reg_mr(3)`).
    ///
    /// # Errors
    /// [`DeviceError::Memlock`] above the limit of locked memory.
    pub fn new(pd: &Arc<Pd>, memory: &impl Memory, rights: Rights) -> Result<Self, DeviceError> {
        // SAFETY: a live mapping, into which nobody has a reference while a device or a peer may write there: the promise of
        // `Memory`. It may go first: the registration pins its pages by itself.
        unsafe { Self::register(pd, memory.base(), memory.bytes(), rights) }
    }

    /// Registers `len` bytes from `bytes` on.
    ///
    /// # Errors
    /// As [`Mr::new`].
    ///
    /// # Safety
    /// They are mapped. As long as the registration lives, nobody has a reference into what `rights` lets a device or a peer
    /// write, and what they let be read is kept.
    pub unsafe fn register(
        pd: &Arc<Pd>,
        bytes: NonNull<u8>,
        len: usize,
        rights: Rights,
    ) -> Result<Self, DeviceError> {
        if !rights.relaxed_ordering {
            // SAFETY: the caller's promise.
            return unsafe { Self::with_flags(pd, bytes, len, rights.flags()) };
        }
        // SAFETY: the caller's promise.
        unsafe { Self::with_flags(pd, bytes, len, rights.flags() | RELAXED_ORDERING) }.or_else(|error| {
            tracing::debug!(%error, "no relaxed ordering");
            // SAFETY: as above.
            unsafe { Self::with_flags(pd, bytes, len, rights.flags()) }
        })
    }

    /// # Safety
    /// As for [`Mr::register`], with these `ibv_access_flags`.
    unsafe fn with_flags(
        pd: &Arc<Pd>,
        bytes: NonNull<u8>,
        len: usize,
        flags: i32,
    ) -> Result<Self, DeviceError> {
        let started = Stopwatch::start();
        // SAFETY: the domain is live while we hold it; for the range, the caller's promise.
        let raw = unsafe { sys::ibv_reg_mr(pd.raw(), bytes.as_ptr().cast(), len, flags) };
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

    /// Whether it is of this protection domain.
    pub fn is_of(&self, pd: &Arc<Pd>) -> bool {
        Arc::ptr_eq(&self.pd, pd)
    }

    /// The key for work requests of our own device.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key for peers.
    pub fn rkey(&self) -> u32 {
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
fn registration_error(errno: i32, bytes: usize) -> DeviceError {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    match limit {
        Some(limit_bytes) if errno == libc::ENOMEM || errno == libc::EPERM => {
            DeviceError::Memlock { bytes: bytes as u64, limit_bytes }
        }
        _ => DeviceError::System { step: "ibv_reg_mr", errno },
    }
}
