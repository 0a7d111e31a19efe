//! Asynchronous events of devices (`ibv_get_async_event(3)`), and what is told of them.

use std::{
    collections::VecDeque,
    mem::{MaybeUninit, offset_of},
    os::fd::OwnedFd,
    ptr::NonNull,
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::event::{EventfdFlags, eventfd};

use crate::{
    error::{DeviceError, system},
    sys,
    verbs::key::DeviceKey,
};

kinds! {
    /// What a device reports (`ibv_event_type`).
    DeviceEvent, 21 of sys::ibv_event_type, "IBV_EVENT_";
    /// A completion queue has overrun.
    CqErr = IBV_EVENT_CQ_ERR,
    /// A queue pair cannot report a completion.
    QpFatal = IBV_EVENT_QP_FATAL,
    /// A queue pair met an invalid request.
    QpReqErr = IBV_EVENT_QP_REQ_ERR,
    /// A queue pair met a forbidden access.
    QpAccessErr = IBV_EVENT_QP_ACCESS_ERR,
    /// Data came before the CM's last message.
    CommEst = IBV_EVENT_COMM_EST,
    /// A send queue is drained.
    SqDrained = IBV_EVENT_SQ_DRAINED,
    /// A connection has moved to its other path.
    PathMig = IBV_EVENT_PATH_MIG,
    /// A connection could not move to its other path.
    PathMigErr = IBV_EVENT_PATH_MIG_ERR,
    /// The device is broken.
    DeviceFatal = IBV_EVENT_DEVICE_FATAL,
    /// A port is active.
    PortActive = IBV_EVENT_PORT_ACTIVE,
    /// A port's link is down.
    PortErr = IBV_EVENT_PORT_ERR,
    /// A port's LID has changed.
    LidChange = IBV_EVENT_LID_CHANGE,
    /// A port's table of partitions has changed.
    PkeyChange = IBV_EVENT_PKEY_CHANGE,
    /// Another subnet manager has taken over.
    SmChange = IBV_EVENT_SM_CHANGE,
    /// A shared receive queue is broken.
    SrqErr = IBV_EVENT_SRQ_ERR,
    /// A shared receive queue has fewer receives than its limit.
    SrqLimit = IBV_EVENT_SRQ_LIMIT_REACHED,
    /// A queue pair has taken its last shared receive.
    LastWqe = IBV_EVENT_QP_LAST_WQE_REACHED,
    /// The subnet manager asks clients to register again.
    ClientReregister = IBV_EVENT_CLIENT_REREGISTER,
    /// A port's table of GIDs has changed.
    GidChange = IBV_EVENT_GID_CHANGE,
    /// A work queue is broken.
    WqFatal = IBV_EVENT_WQ_FATAL,
}

/// An asynchronous event of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AsyncEvent {
    /// The device.
    pub device: DeviceKey,
    /// What happened.
    pub kind: DeviceEvent,
    /// The `address` of the queue pair or the queue; a port number where it is about a port.
    pub element: usize,
}

/// What a program is told of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceNews {
    /// The device reported something.
    Event(AsyncEvent),
    /// The device is being removed: destroy everything on it.
    Removed(DeviceKey),
}

/// News that wait for one receiver. A receiver that reads none loses those above this number.
pub(super) const INBOX_NEWS: usize = 4096;

/// The queue between the reader of devices and one receiver.
#[derive(Debug)]
pub(super) struct Inbox {
    queue: Mutex<VecDeque<DeviceNews>>,
    /// An `eventfd(2)`, readable while the queue has news: both change under the lock.
    pub(super) bell: OwnedFd,
}

impl Inbox {
    pub(super) fn new() -> Result<Self, DeviceError> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|errno| system("eventfd")(errno.raw_os_error()))?;
        Ok(Self { queue: Mutex::default(), bell })
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<DeviceNews>> {
        // A panic while it is changed leaves a queue.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, news: DeviceNews) {
        let mut queue = self.queue();
        if queue.len() >= INBOX_NEWS {
            tracing::warn!(?news, "news of a device are lost: their receiver reads none");
            return;
        }
        queue.push_back(news);
        // With more it has rung already.
        if queue.len() == 1 {
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    pub(super) fn pop(&self) -> Option<DeviceNews> {
        let mut queue = self.queue();
        let news = queue.pop_front()?;
        if queue.is_empty() {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
        Some(news)
    }
}

/// Reads one event of the device, gives it to `tell`, and acks it then. `None` when none waits.
///
/// # Errors
/// errno: the descriptor tells nothing any more.
///
/// # Safety
/// The context is open, and its descriptor does not block.
pub(super) unsafe fn read_one(
    context: NonNull<sys::ibv_context>,
    tell: impl FnOnce(AsyncEvent),
) -> Result<Option<()>, i32> {
    let mut event = MaybeUninit::<sys::ibv_async_event>::zeroed();
    // SAFETY: the context is open by the caller's promise, the place is ours.
    if unsafe { sys::ibv_get_async_event(context.as_ptr(), event.as_mut_ptr()) } != 0 {
        return match sys::last_errno() {
            libc::EAGAIN | libc::EINTR => Ok(None),
            errno => Err(errno),
        };
    }
    // Read as an integer: the binding's enum has no room for kinds that are newer than it.
    let place = event.as_ptr().cast::<u8>();
    let kind_place = place.wrapping_add(offset_of!(sys::ibv_async_event, event_type)).cast::<u32>();
    let element_place = place.wrapping_add(offset_of!(sys::ibv_async_event, element)).cast::<usize>();
    // SAFETY: the field was filled by the call and has the size and alignment of a C enum, a u32.
    let kind = DeviceEvent::from(unsafe { kind_place.read() });
    // SAFETY: zeroed, then filled by the call: read as the pointer-sized integer that it is at most.
    let element = unsafe { element_place.read() };
    tracing::debug!(?kind, element, "asynchronous event");
    // Before the ack: destroying what it names waits for the ack, so nothing new has this address yet.
    tell(AsyncEvent { device: DeviceKey::of(context), kind, element });
    // SAFETY: got above and acked once; destroying what it names would wait for this.
    unsafe { sys::ibv_ack_async_event(event.as_mut_ptr()) };
    Ok(Some(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_the_headers() {
        assert_eq!(DeviceEvent::from(0), DeviceEvent::CqErr);
        assert_eq!(DeviceEvent::from(8), DeviceEvent::DeviceFatal);
        assert_eq!(DeviceEvent::from(16), DeviceEvent::LastWqe);
        assert_eq!(DeviceEvent::from(19), DeviceEvent::WqFatal);
        for kind in [20, 99, u32::MAX] {
            assert_eq!(DeviceEvent::from(kind), DeviceEvent::Other(kind));
        }
    }
}
