//! Asynchronous events of devices (`ibv_get_async_event(3)`). A context has one reader.

use std::mem::{MaybeUninit, offset_of};

use rustix::fs::OFlags;

use crate::{sys, verbs::context::Context};

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

/// An event and what it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AsyncEvent {
    /// What happened.
    pub kind: DeviceEvent,
    /// The `address` of the queue pair or the queue; a port number where it is about a port.
    pub element: usize,
}

impl Context {
    /// From here on [`Context::next_event`] never blocks.
    ///
    /// # Errors
    /// What fcntl says.
    pub fn set_nonblocking(&self) -> Result<(), rustix::io::Errno> {
        rustix::fs::fcntl_setfl(self.event_fd(), OFlags::NONBLOCK)
    }

    /// The next asynchronous event of the device, already acked; `None` when none waits.
    pub fn next_event(&self) -> Option<AsyncEvent> {
        let mut event = MaybeUninit::<sys::ibv_async_event>::zeroed();
        // SAFETY: the context is open while we hold it, the place is ours.
        if unsafe { sys::ibv_get_async_event(self.raw(), event.as_mut_ptr()) } != 0 {
            return None;
        }
        // Read as an integer: the binding's enum has no room for kinds that are newer than it.
        let place = event.as_ptr().cast::<u8>();
        let kind_place = place.wrapping_add(offset_of!(sys::ibv_async_event, event_type)).cast::<u32>();
        let element_place = place.wrapping_add(offset_of!(sys::ibv_async_event, element)).cast::<usize>();
        // SAFETY: the field was filled by the call and has the size and alignment of a C enum, a u32.
        let kind = unsafe { kind_place.read() };
        // SAFETY: zeroed, then filled by the call: read as the pointer-sized integer that it is at most.
        let element = unsafe { element_place.read() };
        // SAFETY: got above and acked once; destroying what it names would wait for this.
        unsafe { sys::ibv_ack_async_event(event.as_mut_ptr()) };
        let event = AsyncEvent { kind: DeviceEvent::from(kind), element };
        tracing::debug!(kind, name = event.kind.name(), device = self.name(), "asynchronous event");
        Some(event)
    }
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
