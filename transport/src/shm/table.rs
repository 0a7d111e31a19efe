//! The connections of a port: their slots, and which of them are polled.

use std::{collections::VecDeque, os::fd::OwnedFd, sync::Arc};

use rustix::event::epoll;

use super::{
    gate::ShmGate,
    link::{End, ShmLink},
    live::Live,
    pace::Pace,
};
use crate::{
    Batch, CloseReason, ConnId, Event, Negotiated, PortCounters, PortError, Time,
    kernel::system,
    mem::departing,
    pack::{high_half, join, low_half},
};

/// A place for a connection; used again under another generation.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) generation: u32,
    pub(super) stage: Stage,
    pub(super) counters: PortCounters,
}

/// What is in a slot.
#[derive(Debug)]
pub(super) enum Stage {
    Free,
    /// The peer's segment has not come.
    Greeting(Box<Greeting>),
    Live(Box<Live>),
    /// Gone, but its `Closed` was not fetched.
    Ended,
}

/// The passive side between its accept and the peer's grant.
#[derive(Debug)]
pub(super) struct Greeting {
    pub(super) index: u32,
    pub(super) end: End,
    pub(super) negotiated: Arc<Negotiated>,
    pub(super) until: Time,
}

/// The slots, and lists of their indices.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) gate: ShmGate,
    pub(super) epoll: OwnedFd,
    pub(super) slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots that are polled.
    pub(super) active: Vec<u32>,
    /// Connections that are not polled until their peer rings or we send.
    pub(super) parked: usize,
    /// Slots with frames that were committed since the last flush.
    pub(super) unflushed: Vec<u32>,
    /// Slots whose peer may sleep and wait for the credit that we gave.
    pub(super) credits: Vec<u32>,
    /// Events that are not about frames.
    pub(super) news: VecDeque<Event>,
    /// Handshakes that wait for the peer's grant.
    pub(super) greetings: usize,
    /// The last look at the sockets did not take all: an event loop was told once of what is left.
    pub(super) has_more: bool,
    pub(super) pace: Pace,
    /// When memory that no loan used was last given back.
    pub(super) swept: Time,
    /// Pool segments that were gone when connections were last told of them.
    pub(super) told_gone: u64,
    /// The number of the last sleep, of the port or of a parked connection.
    pub(super) epoch: u64,
}

impl Table {
    pub(super) fn new(gate: ShmGate, epoll: OwnedFd) -> Self {
        // Room for what grows with connections, so that the data path finds it.
        let room = gate.shared.config.connections.min(1024) as usize;
        Self {
            gate,
            epoll,
            slots: Vec::with_capacity(room),
            free: Vec::with_capacity(room),
            active: Vec::with_capacity(room),
            parked: 0,
            unflushed: Vec::with_capacity(room),
            credits: Vec::with_capacity(room),
            news: VecDeque::with_capacity(room),
            greetings: 0,
            has_more: false,
            pace: Pace::new(),
            swept: Time(0),
            told_gone: 0,
            epoch: 0,
        }
    }

    /// The slot of `conn`, as long as the connection lives or its end was not told.
    #[inline]
    pub(super) fn slot(&self, conn: ConnId) -> Option<&Slot> {
        self.slots.get(conn.index() as usize).filter(|slot| slot.generation == conn.generation())
    }

    #[inline]
    pub(super) fn live(&mut self, conn: ConnId) -> Option<&mut Live> {
        live(&mut self.slots, conn).map(|(live, _)| live)
    }

    fn take_slot(&mut self) -> Result<u32, PortError> {
        if let Some(index) = self.free.pop() {
            return Ok(index);
        }
        let limit = self.gate.shared.config.connections;
        match u32::try_from(self.slots.len()) {
            Ok(index) if index < limit => {
                let counters = PortCounters::default();
                self.slots.push(Slot { generation: 0, stage: Stage::Free, counters });
                Ok(index)
            }
            _ => {
                let value = u64::from(limit) + 1;
                Err(PortError::Limit { field: "connections", value, limit: limit.into() })
            }
        }
    }

    /// Takes over a connection; see [`Port::adopt`](crate::Port::adopt).
    pub(super) fn adopt(&mut self, link: ShmLink, now: Time) -> Result<ConnId, PortError> {
        let index = self.take_slot()?;
        let slot = &mut self.slots[index as usize];
        let conn = ConnId::new(index, slot.generation.wrapping_add(1));
        let data = epoll::EventData::new_u64(join(index, conn.generation()));
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        if let Err(errno) = epoll::add(&self.epoll, &link.end.socket, data, flags) {
            self.free.push(index);
            link.end.tell_lack();
            return Err(system("epoll_ctl")(errno));
        }
        slot.generation = conn.generation();
        slot.counters = PortCounters::default();
        let ShmLink { end, peer, negotiated, handshake_timeout } = link;
        if let Some(peer) = peer {
            slot.stage = Stage::Live(Box::new(Live::new(conn, end, peer, Arc::clone(&negotiated))));
            self.news.push_back(Event::Opened { conn, negotiated });
        } else {
            let until = now.plus(handshake_timeout);
            slot.stage = Stage::Greeting(Box::new(Greeting { index, end, negotiated, until }));
            self.greetings += 1;
            self.pace.greeting_at = self.pace.greeting_at.min(until);
        }
        self.gate.shared.accounts.open(conn, &self.gate.shared.config);
        Ok(conn)
    }

    /// Ends what is in a slot; its `Closed` comes by a poll.
    #[cold]
    pub(super) fn finish(&mut self, index: usize, reason: CloseReason) {
        let slot = &mut self.slots[index];
        let (index, end) = match std::mem::replace(&mut slot.stage, Stage::Ended) {
            Stage::Live(live) => {
                self.parked -= usize::from(live.parked);
                let Live { id, end, passed, shown, .. } = *live;
                // The worker does not wait for the kernel to unmap it.
                let bytes = usize::try_from(passed.size().1.saturating_add(shown.size().1));
                departing::drop_large(bytes.unwrap_or(usize::MAX), (passed, shown));
                (id.index(), end)
            }
            Stage::Greeting(greeting) => {
                self.greetings -= 1;
                (greeting.index, greeting.end)
            }
            other => {
                slot.stage = other;
                return;
            }
        };
        let conn = ConnId::new(index, slot.generation);
        if reason == CloseReason::WorkerPanicked {
            end.tell_panic();
        }
        // Already gone from the set when the peer has hung up.
        let _ = epoll::delete(&self.epoll, &end.socket);
        drop(end);
        for list in [&mut self.active, &mut self.unflushed, &mut self.credits] {
            list.retain(|other| *other != index);
        }
        self.gate.shared.accounts.close(conn);
        self.news.push_back(Event::Closed { conn, reason });
    }

    /// Hands out the news, as far as there is room.
    #[cold]
    pub(super) fn tell(&mut self, batch: &mut Batch) {
        while batch.room() > 0
            && let Some(event) = self.news.pop_front()
        {
            match &event {
                Event::Opened { conn, .. } if self.live(*conn).is_some() => self.active.push(conn.index()),
                Event::Closed { conn, .. } => {
                    self.slots[conn.index() as usize].stage = Stage::Free;
                    self.free.push(conn.index());
                }
                _ => {}
            }
            batch.push(event);
        }
    }
}

/// The connection that an event of the epoll set is about.
pub(super) fn conn_of(event: &epoll::Event) -> ConnId {
    let data = event.data.u64();
    ConnId::new(low_half(data), high_half(data))
}

/// The connection that `conn` names, if it lives, and what is counted of it.
#[inline]
pub(super) fn live(slots: &mut [Slot], conn: ConnId) -> Option<(&mut Live, &mut PortCounters)> {
    let slot = slots.get_mut(conn.index() as usize)?;
    match &mut slot.stage {
        Stage::Live(live) if slot.generation == conn.generation() => Some((live, &mut slot.counters)),
        _ => None,
    }
}
