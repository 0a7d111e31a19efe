//! Asynchronous events of devices (`ibv_get_async_event(3)`): one reader for each context, the control thread.

use std::{
    collections::HashMap,
    mem::{MaybeUninit, offset_of},
    os::fd::{BorrowedFd, OwnedFd},
    sync::{Arc, Weak},
};

use rustix::{event::epoll, fs::OFlags};

use crate::{
    CloseReason,
    verbs::{device::Context, entry::Live, qp::QpName, sys},
};

/// The contexts that are read. Weak: watching keeps no device.
pub(crate) struct Watches {
    epoll: OwnedFd,
    contexts: HashMap<u64, Weak<Context>>,
    next: u64,
}

/// An event that ends connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    /// One queue pair.
    QueuePair(QpName, &'static str),
    /// A completion queue overran or broke: every connection on the device may miss completions.
    Completions,
    /// The device itself.
    Device,
}

impl Trouble {
    pub(crate) fn concerns(self, live: &Live, context: usize) -> bool {
        match self {
            Self::QueuePair(name, _) => live.qp == name,
            Self::Completions | Self::Device => live.context == context,
        }
    }

    pub(crate) fn reason(self) -> CloseReason {
        match self {
            Self::QueuePair(_, event) => CloseReason::Event { event, status: 0 },
            Self::Completions => CloseReason::Event { event: "CQ_ERR", status: 0 },
            Self::Device => CloseReason::DeviceGone,
        }
    }
}

impl Watches {
    pub(crate) fn new(epoll: OwnedFd) -> Self {
        // 0 and 1 are the event channel and the command bell.
        Self { epoll, contexts: HashMap::new(), next: 2 }
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
            Err(error) => tracing::warn!(%error, "the device's asynchronous events are not read"),
            Ok(()) => {}
        }
        self.contexts.insert(self.next, Arc::downgrade(context));
        self.next += 1;
    }

    /// What waits on one context: its address, and each trouble.
    pub(crate) fn read(&self, watch: u64) -> Vec<(usize, Trouble)> {
        let mut troubles = Vec::new();
        let Some(context) = self.contexts.get(&watch).and_then(Weak::upgrade) else { return troubles };
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
            tracing::debug!(kind, device = context.name(), "asynchronous event");
            troubles.extend(trouble(kind, element).map(|trouble| (context.raw().addr(), trouble)));
        }
        troubles
    }
}

/// `ibv_event_type`, as far as it ends something.
fn trouble(kind: u32, element: usize) -> Option<Trouble> {
    match kind {
        0 => Some(Trouble::Completions),
        1 => Some(Trouble::QueuePair(QpName(element), "QP_FATAL")),
        2 => Some(Trouble::QueuePair(QpName(element), "QP_REQ_ERR")),
        3 => Some(Trouble::QueuePair(QpName(element), "QP_ACCESS_ERR")),
        8 => Some(Trouble::Device),
        // COMM_EST, ports, paths, keys: nothing of ours ends by them.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_fatal_events_end_something() {
        assert_eq!(trouble(1, 7), Some(Trouble::QueuePair(QpName(7), "QP_FATAL")));
        assert_eq!(trouble(8, 0).map(Trouble::reason), Some(CloseReason::DeviceGone));
        for kind in [4, 5, 6, 7, 9, 10, 11, 12, 13, 16, 17, 18, 99] {
            assert_eq!(trouble(kind, 1), None, "event {kind}");
        }
    }
}
