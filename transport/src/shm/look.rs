//! The slow half of a port: sockets, handshakes and deaths.

use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    event::{Timespec, epoll},
    io::Errno,
};

use super::{
    live::Live,
    segment::{AttachError, Segment},
    socket::{self, Message},
    table::{Slot, Stage, Table, conn_of},
};
use crate::{CloseReason, ConnId, Event, PortError, Time, Violation, kernel::system};

/// Packets read from one socket in one look: a flood of doorbells costs the others no more than this.
const PACKETS_PER_LOOK: usize = 16;
/// Packets read to find memory that was passed: more than a socket holds (`net.core.wmem_max`, a few hundred by default).
const PACKETS_UNTIL: usize = 4096;
/// Sockets read in one look; the rest keep their turn.
const SOCKETS_PER_LOOK: usize = 32;

impl Table {
    /// Ends a poll, which `brought` something or not: looks around when it is time to.
    #[inline]
    pub(super) fn keep_pace(&mut self, now: Time, brought: bool) {
        // Also where traffic on the only connection is never quiet for long enough: memory is given back by a look.
        let sweeps = now >= self.gate.shared.pool.sweep_at(self.swept);
        let is_due = self.pace.is_due(now, brought, self.active.len() <= 1) || sweeps;
        if is_due || (self.greetings > 0 && self.pace.is_greeting_due(now)) {
            self.look(now);
        } else if self.has_more || (self.parked > 0 && self.pace.is_parked_due(now)) {
            self.read_sockets();
        } else if !brought {
            self.glance();
        }
    }

    /// Reads the sockets that have something, and ends handshakes that took too long.
    #[cold]
    pub(super) fn look(&mut self, now: Time) {
        self.pace.looked(now);
        self.glance();
        self.read_sockets();
        self.sweep(now);
        self.park_idle();
        if self.greetings == 0 {
            return;
        }
        self.pace.greeting_at = Time::NEVER;
        for index in 0..self.slots.len() {
            let Stage::Greeting(greeting) = &self.slots[index].stage else { continue };
            let until = greeting.until;
            if until <= now {
                self.finish(index, CloseReason::Handshake);
            } else {
                self.pace.greeting_at = self.pace.greeting_at.min(until);
            }
        }
    }

    /// Gives memory back that no loan used for a while, and tells peers of what is gone.
    fn sweep(&mut self, now: Time) {
        let pool = &self.gate.shared.pool;
        if now >= pool.sweep_at(self.swept) {
            pool.sweep();
            self.swept = now;
        }
        let gone = pool.gone();
        if gone == self.told_gone {
            return;
        }
        // Where a socket is full, the next look tries again.
        let mut are_told = true;
        for slot in &mut self.slots {
            if let Stage::Live(live) = &mut slot.stage {
                are_told &= live.passed.tell_gone(&live.end.socket, pool);
            }
        }
        if are_told {
            self.told_gone = gone;
        }
    }

    /// Reads the closing words.
    #[cold]
    fn glance(&mut self) {
        for &index in &self.active {
            if let Stage::Live(live) = &mut self.slots[index as usize].stage
                && live.ending.is_none()
                && let Some(reason) = live.closed_by_peer()
            {
                live.end(reason);
            }
        }
    }

    /// Reads the sockets that have something.
    pub(super) fn read_sockets(&mut self) {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); SOCKETS_PER_LOOK];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An error here (EINTR) is another chance later.
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events[..], Some(&now)) else { return };
        self.has_more = ready.len() == SOCKETS_PER_LOOK;
        for event in ready {
            // The doorbell's data name no slot.
            self.has_more |= self.read_socket(conn_of(event));
        }
    }

    /// Reads what waits on one connection's socket. Whether more may be there.
    fn read_socket(&mut self, conn: ConnId) -> bool {
        (0..PACKETS_PER_LOOK).all(|_| self.read_packet(conn))
    }

    /// Reads one connection's socket until it `has` what was sent there, or nothing more waits.
    #[cold]
    pub(super) fn read_socket_until(&mut self, conn: ConnId, has: impl Fn(&Live) -> bool) {
        for _ in 0..PACKETS_UNTIL {
            if self.live(conn).is_none_or(|live| has(live)) || !self.read_packet(conn) {
                return;
            }
        }
    }

    /// Reads one packet of one connection. Whether another may wait.
    fn read_packet(&mut self, conn: ConnId) -> bool {
        let index = conn.index() as usize;
        let Some(slot) = self.slot(conn) else { return false };
        let end = match &slot.stage {
            Stage::Greeting(greeting) => &greeting.end,
            Stage::Live(live) => &live.end,
            Stage::Free | Stage::Ended => return false,
        };
        match socket::receive(&end.socket) {
            Ok(packet) if packet.is_end() => {
                self.hung_up(index);
                return false;
            }
            Ok(packet) => match packet.parse() {
                Ok(Message::Doorbell) => self.unpark(index),
                Ok(Message::Grant(fd)) => self.granted(index, &fd),
                Ok(Message::Pool(name, bytes, fd)) => {
                    self.passed(index, |live| live.passed.take((name, bytes, fd.as_fd())));
                }
                Ok(Message::Gone(name)) => self.passed(index, |live| live.passed.forget(name)),
                Ok(Message::Exposed(key, bytes, fd)) => {
                    self.passed(index, |live| live.shown.take((key, bytes, fd.as_fd())));
                }
                Err(violation) => self.finish(index, violation.into()),
            },
            Err(Errno::AGAIN) => return false,
            // It closed with our doorbells unread; what it sent before is still to be read.
            Err(Errno::CONNRESET) => {}
            Err(errno) => {
                self.lacking(index, system("recvmsg")(errno));
                return false;
            }
        }
        true
    }

    /// The peer's socket is closed: orderly, if it said so in its control page.
    fn hung_up(&mut self, index: usize) {
        let gone = CloseReason::PeerGone { how: "socket closed" };
        match &mut self.slots[index].stage {
            Stage::Live(live) => {
                // Otherwise `wait_fd` stays readable until the frames before are read.
                let _ = epoll::delete(&self.epoll, &live.end.socket);
                if live.ending.is_none() {
                    live.end(live.closed_by_peer().unwrap_or(gone));
                }
                self.unpark(index);
            }
            Stage::Greeting(_) => self.finish(index, gone),
            Stage::Free | Stage::Ended => {}
        }
    }

    /// The active side's segment came.
    fn granted(&mut self, index: usize, fd: &OwnedFd) {
        let slot = &mut self.slots[index];
        let Stage::Greeting(greeting) = &slot.stage else {
            return self.finish(index, Violation::Malformed { what: "second grant" }.into());
        };
        let peer = match Segment::attach(fd.as_fd(), greeting.negotiated.rx_ring_bytes) {
            Ok(peer) => peer,
            Err(error) => return self.untaken(index, error),
        };
        if let Stage::Greeting(greeting) = std::mem::replace(&mut slot.stage, Stage::Ended) {
            let conn = ConnId::new(greeting.index, slot.generation);
            let negotiated = greeting.negotiated;
            let live = Live::new(conn, greeting.end, peer, negotiated.clone());
            slot.stage = Stage::Live(Box::new(live));
            self.greetings -= 1;
            self.news.push_back(Event::Opened { conn, negotiated });
        }
    }

    /// Takes memory that the peer passed, where bulk and one-sided operations were agreed on.
    fn passed(&mut self, index: usize, take: impl FnOnce(&mut Live) -> Result<(), AttachError>) {
        let Slot { stage: Stage::Live(live), counters, .. } = &mut self.slots[index] else {
            return self.finish(index, Violation::Malformed { what: "memory before the grant" }.into());
        };
        if live.negotiated.initiator_depth.granted == 0 {
            let what = "memory where no reads were granted";
            return self.finish(index, Violation::Malformed { what }.into());
        }
        match take(live) {
            Ok(()) => {
                let (segments, exposed) = (live.passed.size(), live.shown.size());
                counters.passed_pieces = segments.0 + exposed.0;
                counters.passed_bytes = segments.1 + exposed.1;
            }
            Err(error) => self.untaken(index, error),
        }
    }

    /// Ends a connection whose segment was not taken.
    #[cold]
    fn untaken(&mut self, index: usize, error: AttachError) {
        match error {
            AttachError::Peer(violation) => self.finish(index, violation.into()),
            AttachError::Port(error) => self.lacking(index, error),
        }
    }

    /// Ends a connection by a fault of this side, and tells the peer that it was none of its own.
    #[cold]
    fn lacking(&mut self, index: usize, error: PortError) {
        let end = match &self.slots[index].stage {
            Stage::Greeting(greeting) => &greeting.end,
            Stage::Live(live) => &live.end,
            Stage::Free | Stage::Ended => return,
        };
        end.tell_lack();
        self.finish(index, CloseReason::Port(Box::new(error)));
    }
}
