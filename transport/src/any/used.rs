//! Which sub-ports are used: those with connections, or with something to end. The others cost a load and a branch.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::epoll;

use super::have::{PROVIDERS, SHM, outer};
use crate::{Batch, ConnId, Event, Port, PortError, Time};

/// Looks in vain, after which a provider is idle.
pub(super) const IDLE_LOOKS: u32 = 256;
/// An idle one is looked at every so many times: every 64 turns, as a turn looks again behind what it found.
pub(super) const IDLE_EVERY: u32 = 128;

/// Which sub-ports are used: those with connections, or with something to end.
#[derive(Debug)]
pub(super) struct Used {
    /// Connections of each provider, until their `Closed` was polled.
    live: [u32; PROVIDERS],
    /// Those that are polled. One without connections is until it has no deadline: what its connections left behind ends by then.
    used: [bool; PROVIDERS],
    /// Some are used and have no connections.
    pub(super) has_leavers: bool,
    /// The only one that is used; `PROVIDERS` when there are none or several, or it has no connections.
    pub(super) sole: usize,
    pub(super) epoll: OwnedFd,
    /// Looks in vain at each since it moved something last.
    vain: [u32; PROVIDERS],
    /// While all others are idle: the one that is not, and how many looks are at it alone.
    busy: usize,
    alone: u32,
    polls: u32,
    /// Those that were made.
    #[cfg(test)]
    pub(super) made: [u32; PROVIDERS],
}

impl Used {
    pub(super) fn new(epoll: OwnedFd) -> Self {
        Self {
            live: [0; PROVIDERS],
            used: [false; PROVIDERS],
            has_leavers: false,
            sole: PROVIDERS,
            epoll,
            vain: [0; PROVIDERS],
            busy: PROVIDERS,
            alone: 0,
            polls: 0,
            #[cfg(test)]
            made: [0; PROVIDERS],
        }
    }

    /// Of all providers.
    pub(super) fn connections(&self) -> u32 {
        self.live.iter().sum()
    }

    pub(super) const fn is_used(&self, number: usize) -> bool {
        self.used[number]
    }

    /// The only one that is to be flushed; `PROVIDERS` when all are.
    #[inline]
    pub(super) const fn attended(&self) -> usize {
        if self.alone > 0 { self.busy } else { self.sole }
    }

    /// The only one that this look is at; `PROVIDERS` when it is at all. To ask the kernel or a device costs as much as a turn,
    /// so idle ones wait for their time.
    #[inline]
    pub(super) fn next(&mut self) -> usize {
        let attended = self.attended();
        self.alone = self.alone.saturating_sub(1);
        #[cfg(test)]
        self.made.iter_mut().enumerate().for_each(|(number, made)| {
            *made += u32::from(self.used[number] && (attended == number || attended == PROVIDERS));
        });
        attended
    }

    /// A look found nothing there.
    pub(super) const fn in_vain(&mut self, number: usize) {
        self.vain[number] = self.vain[number].saturating_add(1);
    }

    /// Something moves: it is looked at again.
    #[inline]
    pub(super) const fn stir(&mut self, number: usize) {
        (self.vain[number], self.alone) = (0, 0);
    }

    /// So many were looked at. If it is all, and one alone is not idle, the next looks are at that one.
    pub(super) fn looked_at(&mut self, count: usize) {
        if count < (0..PROVIDERS).filter(|number| self.is_used(*number)).count() {
            return;
        }
        let mut awake = (0..PROVIDERS).filter(|number| self.is_awake(*number));
        if let (Some(busy), None) = (awake.next(), awake.next())
            && self.sole == PROVIDERS
        {
            (self.busy, self.alone) = (busy, IDLE_EVERY);
        }
    }

    /// Shared memory is never idle: a look costs a few loads.
    const fn is_awake(&self, number: usize) -> bool {
        self.used[number] && (number == SHM || self.vain[number] <= IDLE_LOOKS)
    }

    /// After a sleep the next look is at all of them.
    pub(super) const fn woke(&mut self) {
        self.alone = 0;
    }

    /// The next polls are of one round.
    pub(super) const fn begin_poll(&mut self) {
        self.polls = self.polls.wrapping_add(1);
    }

    /// Whether it is polled in this round.
    pub(super) const fn wants_poll(&self, number: usize) -> bool {
        number == self.sole || self.is_awake(number) || self.polls.is_multiple_of(IDLE_EVERY)
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
        self.alone = 0;
        let mut used = (0..PROVIDERS).filter(|number| self.is_used(*number));
        self.sole = match (used.next(), used.next()) {
            (Some(sole), None) if self.live[sole] > 0 => sole,
            _ => PROVIDERS,
        };
        self.has_leavers = (0..PROVIDERS).any(|number| self.is_used(number) && self.live[number] == 0);
    }

    #[cold]
    fn left(&mut self, number: usize, port: &impl Port) {
        self.live[number] = self.live[number].saturating_sub(1);
        self.forget(number, port);
        self.find_sole();
    }

    /// A sub-port without connections is used no more, once nothing of them is left to end.
    #[cold]
    pub(super) fn forget(&mut self, number: usize, port: &impl Port) {
        if !self.used[number] || self.live[number] > 0 || port.deadline() != Time::NEVER {
            return;
        }
        self.used[number] = false;
        self.find_sole();
        if let Err(errno) = epoll::delete(&self.epoll, port.wait_fd()) {
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
        tell_lack: impl FnOnce(P::Link),
    ) -> Result<ConnId, PortError> {
        let port = port.ok_or(PortError::NotOpened { provider: "of this link" })?;
        if let Err(error) = self.watch(number, port) {
            tell_lack(link);
            return Err(error);
        }
        self.used[number] = true;
        self.live[number] += 1;
        self.stir(number);
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
