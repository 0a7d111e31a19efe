//! Asynchronous events of devices (`ibv_get_async_event(3)`): one reader for each context, the control thread.

use std::{
    collections::HashMap,
    mem::{MaybeUninit, offset_of},
    os::fd::{BorrowedFd, OwnedFd},
    sync::{Arc, Weak},
};

use rustix::{event::epoll, fs::OFlags};

use crate::verbs::{device::Context, sys};

/// The contexts that are read. Weak: watching keeps no device.
pub(crate) struct Watches {
    epoll: OwnedFd,
    contexts: HashMap<u64, Weak<Context>>,
    next: u64,
    /// Something was added since [`Watches::take_fresh`].
    fresh: bool,
}

/// `ibv_event_type`, open ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeviceEvent {
    CqErr,
    QpFatal,
    QpReqErr,
    QpAccessErr,
    CommEst,
    SqDrained,
    PathMig,
    PathMigErr,
    DeviceFatal,
    PortActive,
    PortErr,
    LidChange,
    PkeyChange,
    SmChange,
    SrqErr,
    SrqLimit,
    LastWqe,
    ClientReregister,
    GidChange,
    WqFatal,
    /// Newer than this program.
    Other(u32),
}

impl DeviceEvent {
    /// Every kind this program knows, in the header's order from 0, and one that it does not.
    pub(crate) const ALL: [Self; 21] = [
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
    pub(crate) const fn name(self) -> &'static str {
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
pub(crate) struct DeviceNews {
    pub(crate) event: DeviceEvent,
    /// The device's context.
    pub(crate) context: usize,
    /// The queue pair or the queue; a port number where it is about a port.
    pub(crate) element: usize,
}

impl DeviceNews {
    /// Whether it is about an id with this queue pair, or about a connection's queue.
    pub(crate) fn concerns(&self, context: usize, qp: usize, cq: Option<usize>, srq: Option<usize>) -> bool {
        use DeviceEvent as D;
        match self.event {
            D::QpFatal
            | D::QpReqErr
            | D::QpAccessErr
            | D::CommEst
            | D::SqDrained
            | D::PathMig
            | D::PathMigErr
            | D::LastWqe => qp != 0 && qp == self.element,
            // An attempt has no queue of its own to compare.
            D::CqErr => context == self.context && cq.is_none_or(|cq| cq == self.element),
            D::SrqErr | D::SrqLimit => srq == Some(self.element),
            // There is no work queue of ours.
            D::WqFatal => false,
            _ => context == self.context,
        }
    }
}

impl Watches {
    pub(crate) fn new(epoll: OwnedFd) -> Self {
        // 0 and 1 are the event channel and the command bell.
        Self { epoll, contexts: HashMap::new(), next: 2, fresh: false }
    }

    pub(crate) fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Reads `context` from now on.
    pub(crate) fn add(&mut self, context: &Arc<Context>) {
        self.contexts.retain(|_, known| known.strong_count() > 0);
        if self.contexts.values().any(|known| known.as_ptr() == Arc::as_ptr(context)) {
            return;
        }
        // SAFETY: the context is open while we hold it, and so is its descriptor.
        let fd = unsafe { BorrowedFd::borrow_raw(context.async_fd()) };
        let watched = rustix::fs::fcntl_setfl(fd, OFlags::NONBLOCK).and_then(|()| {
            epoll::add(&self.epoll, fd, epoll::EventData::new_u64(self.next), epoll::EventFlags::IN)
        });
        match watched {
            // EXIST: the same descriptor under an older number, whose context object is gone: renew it.
            Err(rustix::io::Errno::EXIST) => {
                let data = epoll::EventData::new_u64(self.next);
                if let Err(error) = epoll::modify(&self.epoll, fd, data, epoll::EventFlags::IN) {
                    tracing::warn!(%error, "the device's asynchronous events are not read");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the device's asynchronous events are not read before its next connection");
                return;
            }
            Ok(()) => {}
        }
        self.contexts.insert(self.next, Arc::downgrade(context));
        self.next += 1;
        self.fresh = true;
    }

    /// Whether a context was added since this was asked last.
    pub(crate) fn take_fresh(&mut self) -> bool {
        std::mem::take(&mut self.fresh)
    }

    /// The context of a watch.
    pub(crate) fn context(&self, watch: u64) -> Option<Arc<Context>> {
        self.contexts.get(&watch).and_then(Weak::upgrade)
    }

    /// Every context that is in use.
    pub(crate) fn contexts(&self) -> impl Iterator<Item = Arc<Context>> {
        self.contexts.values().filter_map(Weak::upgrade)
    }

    /// Reads those of the device at `raw` no more.
    pub(crate) fn forget(&mut self, raw: usize) {
        let epoll = &self.epoll;
        self.contexts.retain(|_, known| {
            let Some(known) = known.upgrade() else { return false };
            if known.raw().addr() == raw {
                // SAFETY: the context is open while we hold it, and so is its descriptor.
                let fd = unsafe { BorrowedFd::borrow_raw(known.async_fd()) };
                // Several contexts have one descriptor, which is in the set once.
                let _ = epoll::delete(epoll, fd);
            }
            known.raw().addr() != raw
        });
    }

    /// What waits on one context.
    pub(crate) fn read(&self, watch: u64) -> Vec<DeviceNews> {
        let mut news = Vec::new();
        let Some(context) = self.contexts.get(&watch).and_then(Weak::upgrade) else { return news };
        loop {
            let mut event = MaybeUninit::<sys::ibv_async_event>::zeroed();
            // SAFETY: the context is open while we hold it, its descriptor does not block, the place is ours.
            if unsafe { sys::ibv_get_async_event(context.raw(), event.as_mut_ptr()) } != 0 {
                break;
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
            let event = DeviceEvent::from_raw(kind);
            tracing::debug!(kind, name = event.name(), device = context.name(), "asynchronous event");
            if event == DeviceEvent::GidChange {
                context.known_ports.forget();
            }
            news.push(DeviceNews { event, context: context.raw().addr(), element });
        }
        news
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

    /// R43: an event of one queue pair is nobody else's.
    #[test]
    fn r43_events_concern_what_they_name() {
        let news = |event, element| DeviceNews { event, context: 1, element };
        let fatal = news(DeviceEvent::QpFatal, 7);
        assert!(
            fatal.concerns(1, 7, Some(9), None)
                && !fatal.concerns(1, 8, Some(9), None)
                && !fatal.concerns(1, 0, None, None)
        );
        let overrun = news(DeviceEvent::CqErr, 9);
        assert!(overrun.concerns(1, 7, Some(9), None) && !overrun.concerns(1, 7, Some(10), None));
        assert!(overrun.concerns(1, 7, None, None) && !overrun.concerns(2, 7, None, None));
        let low = news(DeviceEvent::SrqLimit, 5);
        assert!(low.concerns(1, 7, None, Some(5)) && !low.concerns(1, 7, None, Some(6)));
        assert!(!low.concerns(1, 7, None, None), "it shares nothing");
        let port = news(DeviceEvent::PortErr, 1);
        assert!(port.concerns(1, 7, None, None) && !port.concerns(2, 7, None, None));
    }
}
