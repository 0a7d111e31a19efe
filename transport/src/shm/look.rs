//! The port's slow half: sockets, handshakes, deaths; and when to look at them.

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
    pace::{GLANCE_POLLS, GREETING_POLLS, LOOK_BUSY_NS, LOOK_POLLS, LOOK_POLLS_MAX, LOOK_QUIET_NS},
    peer,
    port::ShmPort,
    segment::{AttachError, Segment},
    slot::{Slot, Stage},
    socket::{self, Message},
};
use crate::{
    CloseReason, ConnId, Event, PortError, Time, Violation,
    pack::{high_half, join, low_half},
};

/// So late a look was missed because nobody polled; and the time that the peers then get.
const LOOK_AWAY_NS: u64 = 1_000_000;
/// Packets read from one socket in one look: a flood of doorbells costs the others no more than this.
const PACKETS_PER_LOOK: usize = 16;
/// Packets read to find memory that was passed: more than a socket holds (`net.core.wmem_max`, a few hundred by default).
const PACKETS_UNTIL: usize = 4096;
/// Sockets read in one look; the rest keep their turn.
const SOCKETS_PER_LOOK: usize = 32;
/// In the epoll set: the doorbell, which is no slot.
pub(super) const DOORBELL: u64 = u64::MAX;

/// When to look.
#[derive(Debug)]
pub(super) struct Pace {
    polls: u32,
    empty: u32,
    next: u32,
    step: u32,
    was_busy: bool,
    was_away: bool,
    quiet_at: Time,
    busy_at: Time,
    /// When the first handshake runs out.
    pub(super) greeting_at: Time,
}

impl Pace {
    pub(super) const fn new() -> Self {
        Self {
            polls: 0,
            empty: 0,
            next: LOOK_POLLS,
            step: LOOK_POLLS,
            was_busy: false,
            was_away: false,
            quiet_at: Time(0),
            busy_at: Time(0),
            greeting_at: Time::NEVER,
        }
    }

    /// After a poll that brought something. With one connection that proves that its peer lives.
    #[inline]
    fn busy(&mut self, now: Time, alone: bool) -> bool {
        self.empty = 0;
        self.was_busy = true;
        !alone && now >= self.busy_at
    }

    /// After a poll that brought nothing.
    #[inline]
    fn quiet(&mut self, now: Time) -> bool {
        if self.was_busy {
            self.was_busy = false;
            self.was_away = false;
            self.next = LOOK_POLLS;
            self.step = LOOK_POLLS;
            self.quiet_at = Time(now.0.saturating_add(LOOK_QUIET_NS));
        }
        self.empty += 1;
        self.empty >= self.next || (now >= self.quiet_at && self.is_late(now))
    }

    /// Whether the time for a look has really come. When it passed while nobody polled, the quiet was ours and says
    /// nothing about the peers: they get a little more time, once.
    #[cold]
    fn is_late(&mut self, now: Time) -> bool {
        if !self.was_away && now.0 - self.quiet_at.0 > LOOK_AWAY_NS {
            self.was_away = true;
            self.quiet_at = Time(now.0.saturating_add(LOOK_AWAY_NS));
            return false;
        }
        true
    }

    fn looked(&mut self, now: Time) {
        self.was_away = false;
        if self.empty >= self.next {
            self.step = (self.step * 2).min(LOOK_POLLS_MAX);
            self.empty = 0;
            self.next = self.step;
        }
        self.quiet_at = Time(now.0.saturating_add(LOOK_QUIET_NS));
        self.busy_at = Time(now.0.saturating_add(LOOK_BUSY_NS));
    }
}

impl ShmPort {
    /// The end of a poll: looks around when it is time to. True when something changed.
    #[inline]
    pub(super) fn keep_pace(&mut self, now: Time, brought: bool) -> bool {
        self.pace.polls = self.pace.polls.wrapping_add(1);
        let due = if brought {
            let alone = self.active.len() <= 1;
            self.pace.busy(now, alone)
        } else {
            self.pace.quiet(now)
        };
        let greeting = self.greetings > 0
            && (self.pace.polls.is_multiple_of(GREETING_POLLS) || now >= self.pace.greeting_at);
        if due || greeting {
            self.look(now);
            return true;
        }
        if self.parked.is_due(now) {
            self.parked.looked(now);
            self.read_sockets();
            return true;
        }
        if !brought && self.pace.empty.is_multiple_of(GLANCE_POLLS) {
            return self.glance();
        }
        false
    }

    /// Reads the sockets that have something, and ends handshakes that took too long.
    #[cold]
    fn look(&mut self, now: Time) {
        self.pace.looked(now);
        self.glance();
        self.read_sockets();
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

    /// Reads the closing words. True when one is set.
    #[cold]
    fn glance(&mut self) -> bool {
        let mut found = false;
        for &index in &self.active {
            if let Stage::Live(live) = &mut self.slots[index as usize].stage
                && live.ending.is_none()
                && let Some(reason) = live.closed_by_peer()
            {
                live.end(reason);
                found = true;
            }
        }
        found
    }

    /// Reads the sockets that have something.
    pub(super) fn read_sockets(&mut self) {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); SOCKETS_PER_LOOK];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An error here (EINTR) is another chance later.
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events[..], Some(&now)) else { return };
        for event in ready {
            let data = event.data.u64();
            if data != DOORBELL {
                self.read_socket(id_of(data));
            }
        }
    }

    /// Reads what waits on one connection's socket.
    pub(super) fn read_socket(&mut self, conn: ConnId) {
        for _ in 0..PACKETS_PER_LOOK {
            if !self.read_packet(conn) {
                return;
            }
        }
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
        let Some(slot) = self.slots.get(index).filter(|slot| slot.is_of(conn)) else {
            return false;
        };
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
                Ok(Message::Grant { fd }) => self.granted(index, &fd),
                Ok(Message::Pool { id, bytes, fd }) => {
                    self.passed(index, |live| live.take_segment(id, bytes, fd.as_fd()))
                }
                Ok(Message::Exposed { id, bytes, fd }) => {
                    self.passed(index, |live| live.take_exposed(id, bytes, fd.as_fd()))
                }
                Err(violation) => self.finish(index, violation.into()),
            },
            Err(Errno::AGAIN) => return false,
            // It closed with our doorbells unread; what it sent before is still to be read.
            Err(Errno::CONNRESET) => {}
            Err(errno) => {
                let errno = errno.raw_os_error();
                self.lacking(index, CloseReason::System { step: "recvmsg", errno });
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

    fn passed(&mut self, index: usize, take: impl FnOnce(&mut Live) -> Result<(), AttachError>) {
        let Slot { stage: Stage::Live(live), counters, .. } = &mut self.slots[index] else {
            return self.finish(index, Violation::Malformed { what: "memory before the grant" }.into());
        };
        match take(live) {
            Ok(()) => (counters.passed_pieces, counters.passed_bytes) = live.mapped(),
            Err(error) => self.untaken(index, error),
        }
    }

    /// Ends a connection whose segment was not taken.
    #[cold]
    fn untaken(&mut self, index: usize, error: AttachError) {
        match error {
            AttachError::Peer(violation) => self.finish(index, violation.into()),
            AttachError::Port(PortError::System { step, errno }) => {
                self.lacking(index, CloseReason::System { step, errno });
            }
            AttachError::Port(error) => self.lacking(index, CloseReason::Port(Box::new(error))),
        }
    }

    /// Ends a connection by a fault of this side, and tells the peer that it was none of its own.
    #[cold]
    fn lacking(&mut self, index: usize, reason: CloseReason) {
        let end = match &self.slots[index].stage {
            Stage::Greeting(greeting) => &greeting.end,
            Stage::Live(live) => &live.end,
            Stage::Free | Stage::Ended => return,
        };
        end.tell_lack();
        let peer = peer::describe(peer::of(&end.socket).ok().as_ref());
        tracing::warn!(peer, %reason, "a connection ends: this process could not take what its peer passed");
        self.finish(index, reason);
    }
}

/// A connection as it stands in the epoll set.
pub(super) fn data_of(conn: ConnId) -> u64 {
    join(conn.index(), conn.generation())
}

fn id_of(data: u64) -> ConnId {
    ConnId::new(low_half(data), high_half(data))
}
