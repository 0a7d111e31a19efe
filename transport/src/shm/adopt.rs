//! How a connection comes to a port, and how it leaves it whole for another.
//!
//! ```text
//!  one port:   let_go ─ ShmLink { both segments, the socket, where it stands } ─► the other:   take_in
//! ```
//! What the peer does meanwhile waits in the segments and on the socket. It may have rung for the old port's last sleep, so
//! the new one's sleeps have higher numbers.

use std::sync::Arc;

use rustix::event::epoll;

use super::{
    link::ShmLink,
    live::Live,
    look::data_of,
    port::ShmPort,
    slot::{Greeting, Slot, Stage},
};
use crate::{ConnId, Event, PortCounters, PortError, Time, kernel::system, sync::wake::withdraw};

impl ShmPort {
    fn take_slot(&mut self) -> Result<u32, PortError> {
        if let Some(index) = self.free.pop() {
            return Ok(index);
        }
        let limit = self.gate.config().connections;
        match u32::try_from(self.slots.len()) {
            Ok(index) if index < limit => {
                self.slots.push(Slot {
                    generation: 0,
                    stage: Stage::Free,
                    counters: PortCounters::default(),
                });
                Ok(index)
            }
            _ => {
                let value = u64::from(limit) + 1;
                Err(PortError::Limit { field: "connections", value, limit: limit.into() })
            }
        }
    }

    /// The steps of [`Port::adopt`](crate::Port::adopt).
    pub(super) fn take_in(&mut self, link: ShmLink, now: Time) -> Result<ConnId, PortError> {
        let index = self.take_slot()?;
        let slot = &mut self.slots[index as usize];
        let conn = ConnId::new(index, slot.generation.wrapping_add(1));
        let data = epoll::EventData::new_u64(data_of(conn));
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        if let Err(errno) = epoll::add(&self.epoll, &link.end.socket, data, flags) {
            self.free.push(index);
            link.end.tell_lack();
            return Err(system("epoll_ctl")(errno));
        }
        slot.generation = conn.generation();
        slot.counters = PortCounters::default();
        let ShmLink { end, peer, negotiated, handshake_timeout, standing } = link;
        if let Some(peer) = peer {
            let mut live = Live::new(conn, end, peer, Arc::clone(&negotiated));
            if let Some(standing) = standing {
                self.epoch = self.epoch.max(standing.epoch);
                slot.counters = standing.counters;
                live.resume(*standing);
                self.active.push(index);
            } else {
                self.news.push_back(Event::Opened { conn, negotiated });
            }
            slot.stage = Stage::Live(Box::new(live));
        } else {
            let until = now.plus(handshake_timeout);
            slot.stage = Stage::Greeting(Box::new(Greeting { index, end, negotiated, until }));
            self.greetings += 1;
            self.pace.greeting_at = self.pace.greeting_at.min(until);
        }
        self.gate.open().insert(conn);
        Ok(conn)
    }

    /// The steps of [`Port::give_up`](crate::Port::give_up).
    pub(super) fn let_go<T>(
        &mut self,
        conn: ConnId,
        may: impl FnOnce() -> Option<T>,
    ) -> Option<(ShmLink, T)> {
        let index = conn.index();
        let epoch = self.epoch;
        if self.credits.contains(&index) || !self.news.is_empty() || !self.live(conn)?.is_whole() {
            return None;
        }
        let told = may()?;
        let slot = self.slots.get_mut(index as usize)?;
        let Stage::Live(live) = std::mem::replace(&mut slot.stage, Stage::Free) else { return None };
        withdraw(live.armed());
        self.parked.count -= usize::from(live.parked);
        self.active.retain(|other| *other != index);
        self.free.push(index);
        self.gate.open().remove(conn);
        let link = live.give_up(epoch, slot.counters)?;
        // It is in nobody's set until it is adopted: what comes meanwhile is still to be read then.
        let _ = epoll::delete(&self.epoll, &link.end.socket);
        Some((link, told))
    }
}
