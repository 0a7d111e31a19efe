//! The connections of a port: their slots, and which of them are looked at.

use std::{collections::VecDeque, mem::MaybeUninit, os::fd::OwnedFd, time::Duration};

use rustix::event::{Timespec, epoll};

use super::{
    gate::TcpGate,
    leaving::Leaving,
    link::TcpLink,
    live::{Found, Live},
};
use crate::{
    Batch, CloseReason, ConnId, Event, PortCounters, PortError, Time,
    kernel::system,
    pack::{high_half, join, low_half},
};

/// What the epoll set says of one look.
const EVENTS_PER_LOOK: usize = 64;
/// Connections that have ended here and still leave: at most so many.
pub(super) const LEAVING_MAX: usize = 64;
/// Credit that is worth no call of its own is told after this.
const CREDIT_AGE: Duration = Duration::from_millis(5);
/// A connection that did not move for so long, or for up to twice as long, gives the pages of its rings back; so many at once.
/// Heartbeats are seconds apart: between them most connections at rest have no pages.
pub(super) const REST_AFTER: Duration = Duration::from_millis(250);
const RESTS_PER_LOOK: usize = 64;

#[cfg(test)]
thread_local! {
    /// Searches of all slots for late handshakes, on this thread.
    pub(super) static SEARCHES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// A place for a connection; used again under another generation.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) generation: u32,
    pub(super) live: Option<Box<Live>>,
    pub(super) counters: PortCounters,
}

/// The slots, and lists of their indices.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) gate: TcpGate,
    pub(super) epoll: OwnedFd,
    pub(super) slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots that every round looks at.
    pub(super) active: Vec<u32>,
    /// Connections that are not.
    pub(super) parked: usize,
    /// Slots with something to send.
    pub(super) listed: Vec<u32>,
    /// Events that are not about frames.
    pub(super) news: VecDeque<Event>,
    pub(super) leaving: VecDeque<Leaving>,
    /// Connections that may give their pages back, and when to see to it; each at most once.
    resting: VecDeque<(Time, ConnId)>,
    /// Handshakes that wait for the peer's grant, and when one of them is late, at the earliest.
    greetings: usize,
    greeting_at: Time,
    /// The last look at the epoll set took as many events as it asks for: there may be more, of which an event loop was told once.
    pub(super) has_more: bool,
    /// The time of the last poll.
    pub(super) now: Time,
}

impl Table {
    pub(super) fn new(gate: TcpGate, epoll: OwnedFd) -> Self {
        // Room for what grows with connections, so that the data path finds it.
        let room = gate.shared.config.connections.min(1024) as usize;
        Self {
            gate,
            epoll,
            slots: Vec::with_capacity(room),
            free: Vec::with_capacity(room),
            active: Vec::with_capacity(room),
            parked: 0,
            listed: Vec::with_capacity(room),
            news: VecDeque::with_capacity(room),
            leaving: VecDeque::new(),
            resting: VecDeque::with_capacity(room),
            greetings: 0,
            greeting_at: Time::NEVER,
            has_more: false,
            now: Time::default(),
        }
    }

    /// The slot of `conn`, as long as the connection lives or its end was not told.
    #[inline]
    pub(super) fn slot(&self, conn: ConnId) -> Option<&Slot> {
        self.slots.get(conn.index() as usize).filter(|slot| slot.generation == conn.generation())
    }

    /// The connection that `conn` names, if it is open, and what is counted of it.
    #[inline]
    pub(super) fn open(&mut self, conn: ConnId) -> Option<(&mut Live, &mut PortCounters)> {
        let slot = self.slots.get_mut(conn.index() as usize)?;
        let live = slot.live.as_deref_mut().filter(|live| live.is_open() && live.id == conn)?;
        Some((live, &mut slot.counters))
    }

    fn take_slot(&mut self) -> Result<u32, PortError> {
        if let Some(index) = self.free.pop() {
            return Ok(index);
        }
        let limit = self.gate.shared.config.connections;
        match u32::try_from(self.slots.len()) {
            Ok(index) if index < limit => {
                self.slots.push(Slot::default());
                Ok(index)
            }
            _ => {
                let value = u64::from(limit) + 1;
                Err(PortError::Limit { field: "connections", value, limit: limit.into() })
            }
        }
    }

    /// Takes over a connection; see [`Port::adopt`](crate::Port::adopt).
    pub(super) fn adopt(&mut self, link: TcpLink, now: Time) -> Result<ConnId, PortError> {
        let index = match self.take_slot() {
            Ok(index) => index,
            Err(error) => {
                link.tell_lack();
                return Err(error);
            }
        };
        let slot = &mut self.slots[index as usize];
        let conn = ConnId::new(index, slot.generation.wrapping_add(1));
        let data = epoll::EventData::new_u64(join(index, conn.generation()));
        if let Err(errno) = epoll::add(&self.epoll, link.wire.socket(), data, epoll::EventFlags::IN) {
            self.free.push(index);
            link.tell_lack();
            return Err(system("epoll_ctl")(errno));
        }
        slot.generation = conn.generation();
        slot.counters = PortCounters::default();
        let live = Box::new(Live::new(conn, link, &self.gate.shared, now));
        if live.is_open() {
            let negotiated = std::sync::Arc::clone(&live.negotiated);
            self.news.push_back(Event::Opened { conn, negotiated });
        }
        if let Some(until) = live.greeting_until {
            self.greeting_at = if self.greetings == 0 { until } else { self.greeting_at.min(until) };
            self.greetings += 1;
        }
        slot.live = Some(live);
        self.activate(index);
        self.gate.shared.accounts.open(conn, &self.gate.shared.config);
        Ok(conn)
    }

    /// Looks at one connection: whether a frame may be lent. One that has ended is finished.
    #[inline]
    pub(super) fn look(&mut self, index: u32) -> bool {
        let Self { slots, news, gate, .. } = self;
        let Some(Slot { live: Some(live), counters, .. }) = slots.get_mut(index as usize) else {
            return false;
        };
        let was_open = live.is_open();
        let outcome = live.look(&mut Found { shared: &gate.shared, counters, news });
        let (opened, has_out) = (live.is_open() && !was_open, live.has_out());
        self.greetings -= usize::from(opened);
        match outcome {
            Ok(has_frame) => {
                let is_told = live.is_told;
                let is_idle =
                    !has_frame && !has_out && live.is_idle(self.active.len()) && !live.rx.has_untold();
                if has_out {
                    self.list(index);
                }
                if is_idle && self.active.len() > 1 {
                    self.park(index);
                }
                has_frame && is_told
            }
            Err(reason) => {
                self.finish(index, reason);
                false
            }
        }
    }

    fn park(&mut self, index: u32) {
        self.deactivate(index);
        if let Some(live) = &mut self.slots[index as usize].live {
            live.is_parked = true;
            live.forget_unread();
            self.parked += 1;
        }
        self.ask_for_rest(index);
    }

    /// Asks later whether a connection that has moved still does.
    fn ask_for_rest(&mut self, index: u32) {
        if let Some(live) = &mut self.slots[index as usize].live
            && !live.may_rest
            && std::mem::take(&mut live.has_moved)
        {
            live.may_rest = true;
            self.resting.push_back((self.now.plus(REST_AFTER), live.id));
        }
    }

    /// Nobody looks at any connection until something happens: nor do those that were looked at in vain for too short a time. The next
    /// look asks every socket. An event loop tells once that bytes arrived: a look that asks nothing would leave them there.
    pub(super) fn let_all_rest(&mut self) {
        for at in 0..self.active.len() {
            let index = self.active[at];
            self.ask_for_rest(index);
            if let Some(live) = &mut self.slots[index as usize].live {
                live.forget_unread();
            }
        }
    }

    /// Every round looks at it.
    fn activate(&mut self, index: u32) {
        if let Some(live) = &mut self.slots[index as usize].live {
            live.turn = self.active.len();
            self.active.push(index);
        }
    }

    /// No round does.
    fn deactivate(&mut self, index: u32) {
        let Some(live) = &self.slots[index as usize].live else { return };
        let turn = live.turn;
        self.active.swap_remove(turn);
        if let Some(moved) = self.active.get(turn)
            && let Some(live) = &mut self.slots[*moved as usize].live
        {
            live.turn = turn;
        }
    }

    /// Those that did not move for long enough give the pages of their rings back.
    fn let_rest(&mut self, now: Time) {
        for _ in 0..RESTS_PER_LOOK {
            let Some(&(_, conn)) = self.resting.front().filter(|(due, _)| *due <= now) else { return };
            self.resting.pop_front();
            let Some((live, _)) = self.open(conn) else {
                self.forget_rest(conn);
                continue;
            };
            live.may_rest = std::mem::take(&mut live.has_moved);
            if !live.may_rest {
                live.rest();
                // As long as its peer does not take all.
                live.may_rest = live.bear(now);
            }
            if live.may_rest {
                self.resting.push_back((now.plus(REST_AFTER), conn));
            }
        }
    }

    /// A connection whose peer has not granted has nothing to give back; the grant moves it, and it is asked again.
    fn forget_rest(&mut self, conn: ConnId) {
        if let Some(live) = &mut self.slots[conn.index() as usize].live
            && live.id == conn
        {
            live.may_rest = false;
        }
    }

    /// Looks at a connection again.
    pub(super) fn unpark(&mut self, index: u32) {
        if let Some(live) = &mut self.slots[index as usize].live {
            live.stir();
            if std::mem::take(&mut live.is_parked) {
                self.parked -= 1;
                self.activate(index);
            }
        }
    }

    /// The next flush or poll sends what a connection has.
    #[inline]
    pub(super) fn list(&mut self, index: u32) {
        if let Some(live) = &mut self.slots[index as usize].live
            && !std::mem::replace(&mut live.is_listed, true)
        {
            self.listed.push(index);
        }
    }

    /// Sends what the listed connections have; to those that are blocked only if it `retries`.
    pub(super) fn push(&mut self, retries: bool) {
        let Self { listed, slots, news, .. } = self;
        listed.retain(|index| {
            let Slot { live: Some(live), counters, .. } = &mut slots[*index as usize] else { return false };
            live.is_listed = (!retries && live.is_blocked) || live.push(counters, news);
            live.is_listed
        });
    }

    /// Ends what is in a slot; its `Closed` comes by a poll.
    #[cold]
    pub(super) fn finish(&mut self, index: u32, reason: CloseReason) {
        if self.slots[index as usize].live.as_ref().is_some_and(|live| !live.is_parked) {
            self.deactivate(index);
        }
        let Some(mut live) = self.slots[index as usize].live.take() else { return };
        self.parked -= usize::from(live.is_parked);
        self.greetings -= usize::from(!live.is_open());
        if live.is_listed {
            self.listed.retain(|other| *other != index);
        }
        let conn = live.id;
        self.news.extend(live.requests.end());
        self.gate.shared.accounts.close(conn);
        self.gate.shared.exposures.forget(conn);
        tracing::debug!(?conn, %reason, "closed");
        live.say_goodbye(&reason);
        let is_out = live.push_last();
        let is_gone = matches!(reason, CloseReason::Peer | CloseReason::PeerGone { .. });
        let has_closed = live.wire.drain();
        // What was flushed before an orderly end is still to arrive.
        let untold = (reason == CloseReason::Local && !is_out && !has_closed).then(|| reason.clone());
        if untold.is_none() {
            self.news.push_back(Event::Closed { conn, reason });
        }
        if !is_gone && !has_closed {
            self.leave(live, is_out, untold);
        }
    }

    fn leave(&mut self, live: Box<Live>, is_out: bool, untold: Option<CloseReason>) {
        if self.leaving.len() == LEAVING_MAX {
            let oldest = self.leaving.pop_front();
            self.news.extend(oldest.and_then(|mut oldest| oldest.end()));
        }
        if !is_out {
            // It is told each time that room comes, however little was sent into it.
            self.watch(&live, epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET);
        }
        self.leaving.push_back(Leaving::new(live, is_out, untold, self.now));
    }

    /// Hands out the news, as far as there is room.
    #[cold]
    pub(super) fn tell(&mut self, batch: &mut Batch) {
        while batch.room() > 0
            && let Some(event) = self.news.pop_front()
        {
            match &event {
                Event::Opened { conn, .. } => {
                    if let Some((live, _)) = self.open(*conn) {
                        live.is_told = true;
                    }
                }
                Event::Closed { conn, .. } => self.free.push(conn.index()),
                _ => {}
            }
            batch.push(event);
        }
    }

    /// Whether there is something that no round looks at.
    pub(super) fn has_others(&self) -> bool {
        self.parked > 0 || self.greetings > 0 || !self.leaving.is_empty()
    }

    /// Looks where no round looks: at parked connections, at those that leave, at deadlines and old credit.
    pub(super) fn look_around(&mut self, now: Time) {
        self.has_more = self.parked > 0 && self.wake_parked();
        self.let_rest(now);
        let Self { leaving, news, .. } = self;
        leaving.retain_mut(|leaving| {
            let (event, stays) = leaving.step(now);
            news.extend(event);
            stays
        });
        if self.greetings > 0 && self.greeting_at <= now {
            self.end_late_greetings(now);
        }
    }

    fn end_late_greetings(&mut self, now: Time) {
        self.greeting_at = Time::NEVER;
        #[cfg(test)]
        SEARCHES.set(SEARCHES.get() + 1);
        for index in 0..self.slots.len() {
            match self.slots[index].live.as_ref().and_then(|live| live.greeting_until) {
                Some(until) if until <= now => {
                    self.finish(u32::try_from(index).unwrap_or(u32::MAX), CloseReason::Handshake);
                }
                until => self.greeting_at = self.greeting_at.min(until.unwrap_or(Time::NEVER)),
            }
        }
    }

    /// Tells credit that has waited for long enough.
    pub(super) fn tell_old_credit(&mut self, now: Time) {
        for at in 0..self.active.len() {
            let index = self.active[at];
            let Some(live) = &mut self.slots[index as usize].live else { continue };
            if !live.rx.has_untold() {
                continue;
            }
            let since = *live.untold_since.get_or_insert(now);
            if now.since(since) >= CREDIT_AGE {
                live.tell_credit();
                self.list(index);
            }
        }
    }

    /// Whether the epoll set may have more to say.
    fn wake_parked(&mut self) -> bool {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_PER_LOOK];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Self { epoll, .. } = self;
        // An error here (EINTR) is another chance later.
        let Ok((ready, _)) = epoll::wait(&*epoll, &mut events[..], Some(&now)) else {
            return self.has_more;
        };
        let mut woken = [0; EVENTS_PER_LOOK];
        let mut count = 0;
        for event in ready {
            let data = event.data.u64();
            let conn = ConnId::new(low_half(data), high_half(data));
            woken[count] = conn.index();
            count += 1;
        }
        for index in &woken[..count] {
            // The doorbell's data name no slot.
            if (*index as usize) < self.slots.len() {
                self.unpark(*index);
                if let Some(live) = &mut self.slots[*index as usize].live {
                    live.told();
                }
            }
        }
        count == EVENTS_PER_LOOK
    }

    /// Asks the epoll set to tell when blocked connections can be written, or to stop that.
    pub(super) fn watch_blocked(&self, is_wanted: bool) {
        for index in &self.listed {
            if let Some(live) = &self.slots[*index as usize].live
                && live.is_blocked
            {
                let out = if is_wanted { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
                self.watch(live, epoll::EventFlags::IN | out);
            }
        }
    }

    fn watch(&self, live: &Live, flags: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(join(live.id.index(), live.id.generation()));
        // What was added once can be changed.
        let _ = epoll::modify(&self.epoll, live.wire.socket(), data, flags);
    }

    /// When something has to be done although nothing arrives: [`Table::look_around`] does it. While that has passed, the owner
    /// of the port does not sleep.
    pub(super) fn deadline(&self) -> Time {
        let resting = self.resting.front().map_or(Time::NEVER, |(due, _)| *due);
        let leaving = self.leaving.iter().map(Leaving::until).min().unwrap_or(Time::NEVER);
        let greeting = if self.greetings == 0 { Time::NEVER } else { self.greeting_at };
        resting.min(leaving).min(greeting)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        for slot in &mut self.slots {
            if let Some(live) = &mut slot.live {
                live.say_goodbye(&CloseReason::Local);
                live.push_last();
                live.wire.drain();
            }
        }
        for leaving in &mut self.leaving {
            leaving.step(self.now);
        }
    }
}
