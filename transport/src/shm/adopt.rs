//! How a connection comes to a port.

use std::sync::Arc;

use rustix::event::epoll;

use super::{
    link::ShmLink,
    live::Live,
    look::data_of,
    port::ShmPort,
    slot::{Greeting, Slot, Stage},
};
use crate::{ConnId, Event, PortCounters, PortError, Time, kernel::system};

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
        let ShmLink { end, peer, negotiated, handshake_timeout } = link;
        if let Some(peer) = peer {
            let live = Live::new(conn, end, peer, Arc::clone(&negotiated));
            slot.stage = Stage::Live(Box::new(live));
            self.news.push_back(Event::Opened { conn, negotiated });
        } else {
            let until = now.plus(handshake_timeout);
            slot.stage = Stage::Greeting(Box::new(Greeting { index, end, negotiated, until }));
            self.greetings += 1;
            self.pace.greeting_at = self.pace.greeting_at.min(until);
        }
        self.gate.open().insert(conn);
        Ok(conn)
    }
}
