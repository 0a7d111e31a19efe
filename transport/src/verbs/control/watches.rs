//! Asynchronous events of devices: one reader for each context, the control thread.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::{Arc, Weak},
};

use gimmal_rdma::verbs::{AsyncEvent, Context, DeviceEvent, DeviceKey};
use rustix::event::epoll;

use crate::verbs::control::gate::Shared;

/// The contexts that are read. Weak: watching keeps no device.
pub(crate) struct Watches {
    epoll: OwnedFd,
    contexts: HashMap<u64, Watched>,
    next: u64,
    /// Something was added since [`Watches::take_fresh`].
    fresh: bool,
}

#[derive(Clone)]
struct Watched {
    context: Weak<Context>,
    /// The port that it was opened for.
    owner: Weak<Shared>,
}

/// An event and what it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DeviceNews {
    pub(crate) event: DeviceEvent,
    /// The device's context.
    pub(crate) context: DeviceKey,
    /// The queue pair or the queue; a port number where it is about a port.
    pub(crate) element: usize,
}

impl DeviceNews {
    /// Whether it is about an id with this queue pair, or about a connection's queue.
    pub(crate) fn concerns(
        &self,
        context: DeviceKey,
        qp: usize,
        cq: Option<usize>,
        srq: Option<usize>,
    ) -> bool {
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

    /// Reads `context` of `owner` from now on.
    pub(crate) fn add(&mut self, context: &Arc<Context>, owner: &Arc<Shared>) {
        self.contexts.retain(|_, known| known.context.strong_count() > 0);
        if self.contexts.values().any(|known| known.context.as_ptr() == Arc::as_ptr(context)) {
            return;
        }
        let fd = context.event_fd();
        let watched = context.set_nonblocking().and_then(|()| {
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
        let watched = Watched { context: Arc::downgrade(context), owner: Arc::downgrade(owner) };
        self.contexts.insert(self.next, watched);
        self.next += 1;
        self.fresh = true;
    }

    /// Whether a context was added since this was asked last.
    pub(crate) fn take_fresh(&mut self) -> bool {
        std::mem::take(&mut self.fresh)
    }

    /// The port of a watch.
    pub(crate) fn owner(&self, watch: u64) -> Option<Arc<Shared>> {
        self.contexts.get(&watch)?.owner.upgrade()
    }

    /// Devices that are in use, each once for each of its ports.
    pub(crate) fn devices(&self) -> impl Iterator<Item = DeviceKey> {
        self.contexts.values().filter_map(|known| Some(known.context.upgrade()?.key()))
    }

    /// Reads those of `device` no more; which contexts that were, and of which ports.
    pub(crate) fn forget(&mut self, device: DeviceKey) -> Vec<(Arc<Context>, Weak<Shared>)> {
        let (epoll, mut forgotten) = (&self.epoll, Vec::new());
        self.contexts.retain(|_, known| {
            let Some(context) = known.context.upgrade() else { return false };
            if context.key() != device {
                return true;
            }
            // Several contexts have one descriptor, which is in the set once.
            let _ = epoll::delete(epoll, context.event_fd());
            forgotten.push((context, known.owner.clone()));
            false
        });
        forgotten
    }

    /// What waits on one context.
    pub(crate) fn read(&self, watch: u64) -> Vec<DeviceNews> {
        let Some(watched) = self.contexts.get(&watch) else { return Vec::new() };
        let Some(context) = watched.context.upgrade() else { return Vec::new() };
        let mut news = Vec::new();
        while let Some(AsyncEvent { kind, element }) = context.next_event() {
            if kind == DeviceEvent::GidChange
                && let Some(owner) = watched.owner.upgrade()
            {
                owner.forget_gids(context.key());
            }
            news.push(DeviceNews { event: kind, context: context.key(), element });
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R43: an event of one queue pair is nobody else's.
    #[test]
    fn r43_events_concern_what_they_name() {
        let news = |event, element| DeviceNews { event, context: DeviceKey::made_up(1), element };
        let fatal = news(DeviceEvent::QpFatal, 7);
        assert!(
            fatal.concerns(DeviceKey::made_up(1), 7, Some(9), None)
                && !fatal.concerns(DeviceKey::made_up(1), 8, Some(9), None)
                && !fatal.concerns(DeviceKey::made_up(1), 0, None, None)
        );
        let overrun = news(DeviceEvent::CqErr, 9);
        assert!(
            overrun.concerns(DeviceKey::made_up(1), 7, Some(9), None)
                && !overrun.concerns(DeviceKey::made_up(1), 7, Some(10), None)
        );
        assert!(
            overrun.concerns(DeviceKey::made_up(1), 7, None, None)
                && !overrun.concerns(DeviceKey::made_up(2), 7, None, None)
        );
        let low = news(DeviceEvent::SrqLimit, 5);
        assert!(
            low.concerns(DeviceKey::made_up(1), 7, None, Some(5))
                && !low.concerns(DeviceKey::made_up(1), 7, None, Some(6))
        );
        assert!(!low.concerns(DeviceKey::made_up(1), 7, None, None), "it shares nothing");
        let port = news(DeviceEvent::PortErr, 1);
        assert!(
            port.concerns(DeviceKey::made_up(1), 7, None, None)
                && !port.concerns(DeviceKey::made_up(2), 7, None, None)
        );
    }
}
