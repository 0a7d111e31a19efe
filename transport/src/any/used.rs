//! Which sub-ports are used: those with connections. The others cost a load and a branch.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::epoll;

use super::have::{PROVIDERS, outer};
use crate::{Batch, ConnId, Event, Port, PortError, Time};

/// Which sub-ports are used: those with connections.
#[derive(Debug)]
pub(super) struct Used {
    /// Connections of each provider, until their `Closed` was polled.
    live: [u32; PROVIDERS],
    /// The only one that is used; `PROVIDERS` when there are none or several.
    pub(super) sole: usize,
    pub(super) epoll: OwnedFd,
}

impl Used {
    pub(super) fn new(epoll: OwnedFd) -> Self {
        Self { live: [0; PROVIDERS], sole: PROVIDERS, epoll }
    }

    /// Of all providers.
    pub(super) fn connections(&self) -> u32 {
        self.live.iter().sum()
    }

    pub(super) const fn is_used(&self, number: usize) -> bool {
        self.live[number] > 0
    }

    /// Polls one sub-port; numbers its connections as the caller knows them, and notices those that are over.
    #[inline]
    pub(super) fn poll(&mut self, number: usize, port: &mut impl Port, now: Time, batch: &mut Batch) {
        let first = batch.len();
        port.poll(now, batch);
        for event in batch.events_from(first) {
            // Shared memory's ids are ours as they are: a store here would stall the load of the whole event.
            if number != 0 {
                match event {
                    Event::Opened { conn, .. }
                    | Event::Pulled { conn, .. }
                    | Event::Accessed { conn, .. }
                    | Event::Suspect { conn }
                    | Event::Closed { conn, .. } => *conn = outer(number, *conn),
                }
            }
            if matches!(event, Event::Closed { .. }) {
                self.left(number, port);
            }
        }
    }

    /// After a change of what is used.
    fn find_sole(&mut self) {
        let mut used = (0..PROVIDERS).filter(|number| self.is_used(*number));
        self.sole = match (used.next(), used.next()) {
            (Some(sole), None) => sole,
            _ => PROVIDERS,
        };
    }

    #[cold]
    pub(super) fn left(&mut self, number: usize, port: &impl Port) {
        self.live[number] = self.live[number].saturating_sub(1);
        self.find_sole();
        if self.live[number] == 0
            && let Err(errno) = epoll::delete(&self.epoll, port.wait_fd())
        {
            tracing::debug!(%errno, "a descriptor could not leave the epoll");
        }
    }

    /// Puts a sub-port's descriptor into the epoll when it gets its first connection.
    fn watch(&self, number: usize, port: &impl Port) -> Result<(), PortError> {
        if self.is_used(number) {
            return Ok(());
        }
        watch(&self.epoll, port.wait_fd())
    }

    pub(super) fn adopt<P: Port>(
        &mut self,
        number: usize,
        port: Option<&mut P>,
        link: P::Link,
        now: Time,
    ) -> Result<ConnId, PortError> {
        let port = port.ok_or(PortError::NotOpened { provider: "of this link" })?;
        self.watch(number, port)?;
        self.live[number] += 1;
        self.find_sole();
        match port.adopt(link, now) {
            Ok(conn) => Ok(outer(number, conn)),
            Err(error) => {
                self.left(number, port);
                Err(error)
            }
        }
    }
}

/// Adds `fd` to the epoll that the owner waits for.
pub(super) fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> Result<(), PortError> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
        .map_err(|errno| PortError::System { step: "epoll_ctl", errno: errno.raw_os_error() })
}
