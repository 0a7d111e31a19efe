//! What the control thread hears of devices, and whose business it is.

use std::{
    os::fd::BorrowedFd,
    sync::{Arc, Weak},
};

use gimmal_rdma::verbs::{AsyncEvent, DeviceEvent, DeviceEvents, DeviceKey, DeviceNews};

use crate::{
    PortError,
    verbs::{
        control::shared::{PortDevice, Shared},
        srq::queue::SharedQueue,
    },
};

/// News of devices, and the ports that may use these. What a port has of a device is known from the port itself: it may have
/// been made for a connection that never came about. The references are weak: watching keeps nothing.
pub(crate) struct Watches {
    events: DeviceEvents,
    ports: Vec<Weak<Shared>>,
}

/// Returns whether an event names the queue pair that it concerns.
pub(crate) const fn names_qp(kind: DeviceEvent) -> bool {
    use DeviceEvent as D;
    matches!(
        kind,
        D::QpFatal
            | D::QpReqErr
            | D::QpAccessErr
            | D::CommEst
            | D::SqDrained
            | D::PathMig
            | D::PathMigErr
            | D::LastWqe
    )
}

/// Returns whether an event concerns an id with this device, queue pair and queues.
pub(crate) fn concerns(
    event: &AsyncEvent,
    device: DeviceKey,
    qp: usize,
    cq: Option<usize>,
    srq: Option<usize>,
) -> bool {
    use DeviceEvent as D;
    match event.kind {
        kind if names_qp(kind) => qp != 0 && qp == event.element,
        D::CqErr => cq == Some(event.element),
        D::SrqErr | D::SrqLimit => srq == Some(event.element),
        // There is no work queue of ours.
        D::WqFatal => false,
        _ => device == event.device,
    }
}

impl Watches {
    pub(crate) fn new() -> Result<Self, PortError> {
        Ok(Self { events: DeviceEvents::new()?, ports: Vec::new() })
    }

    /// Readable while there are news.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }

    /// Remembers a port, before it uses any device.
    pub(crate) fn add(&mut self, port: &Arc<Shared>) {
        if !self.ports.iter().any(|known| known.as_ptr() == Arc::as_ptr(port)) {
            self.ports.retain(|known| known.strong_count() > 0);
            self.ports.push(Arc::downgrade(port));
        }
    }

    /// Returns what all ports have of `device`.
    pub(crate) fn on(&self, device: DeviceKey) -> Vec<Arc<PortDevice>> {
        let mut of_ports = Vec::new();
        for port in self.ports.iter().filter_map(Weak::upgrade) {
            of_ports.extend(port.devices().iter().filter(|known| known.context.key() == device).cloned());
        }
        of_ports
    }

    /// Returns the shared receives of a port on `device` whose queue is at `address`.
    pub(crate) fn queue(&self, device: DeviceKey, address: usize) -> Option<Arc<SharedQueue>> {
        self.on(device).iter().flat_map(|known| known.queues()).find(|queue| queue.address() == address)
    }

    /// Returns the next news of a device, if there are any.
    pub(crate) fn next(&self) -> Option<DeviceNews> {
        let news = self.events.next();
        if let Some(DeviceNews::Event(AsyncEvent { device, kind: DeviceEvent::GidChange, .. })) = news {
            self.on(device).iter().for_each(|device| device.known_ports.forget());
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
        let news = |kind, element| AsyncEvent { device: DeviceKey::made_up(1), kind, element };
        let fatal = news(DeviceEvent::QpFatal, 7);
        assert!(
            concerns(&fatal, DeviceKey::made_up(1), 7, Some(9), None)
                && !concerns(&fatal, DeviceKey::made_up(1), 8, Some(9), None)
                && !concerns(&fatal, DeviceKey::made_up(1), 0, None, None)
        );
        let overrun = news(DeviceEvent::CqErr, 9);
        assert!(
            concerns(&overrun, DeviceKey::made_up(1), 7, Some(9), None)
                && !concerns(&overrun, DeviceKey::made_up(1), 7, Some(10), None)
        );
        assert!(!concerns(&overrun, DeviceKey::made_up(1), 7, None, None), "it has no queue pair yet");
        let low = news(DeviceEvent::SrqLimit, 5);
        assert!(
            concerns(&low, DeviceKey::made_up(1), 7, None, Some(5))
                && !concerns(&low, DeviceKey::made_up(1), 7, None, Some(6))
        );
        assert!(!concerns(&low, DeviceKey::made_up(1), 7, None, None), "it shares nothing");
        let port = news(DeviceEvent::PortErr, 1);
        assert!(
            concerns(&port, DeviceKey::made_up(1), 7, None, None)
                && !concerns(&port, DeviceKey::made_up(2), 7, None, None)
        );
    }
}
