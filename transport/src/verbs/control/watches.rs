//! Asynchronous events of devices. The control thread is the one reader of each device.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, Weak},
};

use gimmal_rdma::verbs::{AsyncEvent, DeviceEvent, DeviceKey};
use rustix::{event::epoll, io::Errno};

use crate::verbs::control::shared::PortDevice;

/// The devices whose events are read, each once for each port. The references are weak: watching keeps no device.
pub(crate) struct Watches {
    epoll: OwnedFd,
    devices: Vec<Weak<PortDevice>>,
}

/// An asynchronous event and its subject.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DeviceNews {
    pub(crate) event: DeviceEvent,
    /// The device's context.
    pub(crate) context: DeviceKey,
    /// The address of the queue pair or the queue, or the number of a device's port.
    pub(crate) element: usize,
}

impl DeviceNews {
    /// Returns whether the event concerns an id with this device, queue pair and queues.
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

/// Returns the number of a device in `epoll`. All contexts of a device have one descriptor.
fn watch_of(device: &PortDevice) -> u64 {
    u64::try_from(device.context.event_fd().as_raw_fd()).unwrap_or(0) + Watches::FIRST
}

impl Watches {
    /// The smallest number that names a device in `epoll`.
    pub(crate) const FIRST: u64 = 2;

    pub(crate) fn new(epoll: OwnedFd) -> Self {
        Self { epoll, devices: Vec::new() }
    }

    pub(crate) fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Reads the events of `device` from now on. Returns whether it is new and can be read.
    pub(crate) fn add(&mut self, device: &Arc<PortDevice>) -> bool {
        if self.devices.iter().any(|known| known.as_ptr() == Arc::as_ptr(device)) {
            return false;
        }
        self.devices.retain(|known| known.strong_count() > 0);
        let (context, data) = (&device.context, epoll::EventData::new_u64(watch_of(device)));
        let watched = context
            .set_nonblocking()
            .and_then(|()| epoll::add(&self.epoll, context.event_fd(), data, epoll::EventFlags::IN));
        match watched {
            // EXIST: for another port.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => {
                tracing::warn!(%error, "the device's asynchronous events are not read before its next connection");
                return false;
            }
        }
        self.devices.push(Arc::downgrade(device));
        true
    }

    /// Stops reading `device`. Returns the resources of all ports on it.
    pub(crate) fn forget(&mut self, device: DeviceKey) -> Vec<Arc<PortDevice>> {
        let of_ports: Vec<_> = self.on(|known| known.context.key() == device).collect();
        self.devices.retain(|known| !of_ports.iter().any(|gone| known.as_ptr() == Arc::as_ptr(gone)));
        if let Some(any) = of_ports.first() {
            let _ = epoll::delete(&self.epoll, any.context.event_fd());
        }
        of_ports
    }

    fn on(&self, is_it: impl Fn(&PortDevice) -> bool) -> impl Iterator<Item = Arc<PortDevice>> {
        self.devices.iter().filter_map(Weak::upgrade).filter(move |device| is_it(device))
    }

    /// Takes the events that one device has pending.
    pub(crate) fn read(&self, watch: u64) -> Vec<DeviceNews> {
        let of_ports: Vec<_> = self.on(|known| watch_of(known) == watch).collect();
        let Some(any) = of_ports.first() else { return Vec::new() };
        let mut news = Vec::new();
        while let Some(AsyncEvent { kind, element }) = any.context.next_event() {
            if kind == DeviceEvent::GidChange {
                of_ports.iter().for_each(|device| device.known_ports.forget());
            }
            news.push(DeviceNews { event: kind, context: any.context.key(), element });
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
