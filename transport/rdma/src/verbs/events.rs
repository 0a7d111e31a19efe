//! Asynchronous events of devices (`ibv_get_async_event(3)`). A context has one reader.

use std::mem::{MaybeUninit, offset_of};

use rustix::fs::OFlags;

use crate::{sys, verbs::context::Context};

/// `ibv_event_type`, open ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceEvent {
    /// A completion queue has overrun.
    CqErr,
    /// A queue pair cannot report a completion.
    QpFatal,
    /// A queue pair met an invalid request.
    QpReqErr,
    /// A queue pair met a forbidden access.
    QpAccessErr,
    /// Data came before the CM's last message.
    CommEst,
    /// A send queue is drained.
    SqDrained,
    /// A connection has moved to its other path.
    PathMig,
    /// A connection could not move to its other path.
    PathMigErr,
    /// The device is broken.
    DeviceFatal,
    /// A port is active.
    PortActive,
    /// A port's link is down.
    PortErr,
    /// A port's LID has changed.
    LidChange,
    /// A port's table of partitions has changed.
    PkeyChange,
    /// Another subnet manager has taken over.
    SmChange,
    /// A shared receive queue is broken.
    SrqErr,
    /// A shared receive queue has fewer receives than its limit.
    SrqLimit,
    /// A queue pair has taken its last shared receive.
    LastWqe,
    /// The subnet manager asks clients to register again.
    ClientReregister,
    /// A port's table of GIDs has changed.
    GidChange,
    /// A work queue is broken.
    WqFatal,
    /// Newer than this program.
    Other(u32),
}

impl DeviceEvent {
    /// Every kind this program knows, in the header's order from 0, and one that it does not.
    pub const ALL: [Self; 21] = [
        Self::CqErr,
        Self::QpFatal,
        Self::QpReqErr,
        Self::QpAccessErr,
        Self::CommEst,
        Self::SqDrained,
        Self::PathMig,
        Self::PathMigErr,
        Self::DeviceFatal,
        Self::PortActive,
        Self::PortErr,
        Self::LidChange,
        Self::PkeyChange,
        Self::SmChange,
        Self::SrqErr,
        Self::SrqLimit,
        Self::LastWqe,
        Self::ClientReregister,
        Self::GidChange,
        Self::WqFatal,
        Self::Other(99),
    ];

    fn from_raw(kind: u32) -> Self {
        let known = usize::try_from(kind).ok().filter(|&at| at + 1 < Self::ALL.len());
        known.map_or(Self::Other(kind), |at| Self::ALL[at])
    }

    /// As the header spells it, without its prefix.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CqErr => "CQ_ERR",
            Self::QpFatal => "QP_FATAL",
            Self::QpReqErr => "QP_REQ_ERR",
            Self::QpAccessErr => "QP_ACCESS_ERR",
            Self::CommEst => "COMM_EST",
            Self::SqDrained => "SQ_DRAINED",
            Self::PathMig => "PATH_MIG",
            Self::PathMigErr => "PATH_MIG_ERR",
            Self::DeviceFatal => "DEVICE_FATAL",
            Self::PortActive => "PORT_ACTIVE",
            Self::PortErr => "PORT_ERR",
            Self::LidChange => "LID_CHANGE",
            Self::PkeyChange => "PKEY_CHANGE",
            Self::SmChange => "SM_CHANGE",
            Self::SrqErr => "SRQ_ERR",
            Self::SrqLimit => "SRQ_LIMIT_REACHED",
            Self::LastWqe => "QP_LAST_WQE_REACHED",
            Self::ClientReregister => "CLIENT_REREGISTER",
            Self::GidChange => "GID_CHANGE",
            Self::WqFatal => "WQ_FATAL",
            Self::Other(_) => "UNKNOWN",
        }
    }
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
        let event = AsyncEvent { kind: DeviceEvent::from_raw(kind), element };
        tracing::debug!(kind, name = event.kind.name(), device = self.name(), "asynchronous event");
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_the_headers() {
        assert_eq!(DeviceEvent::from_raw(0), DeviceEvent::CqErr);
        assert_eq!(DeviceEvent::from_raw(8), DeviceEvent::DeviceFatal);
        assert_eq!(DeviceEvent::from_raw(16), DeviceEvent::LastWqe);
        assert_eq!(DeviceEvent::from_raw(19), DeviceEvent::WqFatal);
        for kind in [20, 99, u32::MAX] {
            assert_eq!(DeviceEvent::from_raw(kind), DeviceEvent::Other(kind));
        }
    }
}
