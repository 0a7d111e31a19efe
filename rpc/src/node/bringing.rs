//! Items of streams that one side has in memory of its own and the other one brings.

use std::{collections::VecDeque, sync::Arc};

use gimmal_engine::{
    Io, RemoteBulk,
    transport::{ConnId, Port, Time},
};

use crate::{
    reach::Reach,
    stream::{Budget, Home, Lane, Lending},
};

/// Items of as many bytes and more lie in memory of their own, which a peer in shared memory reads where they are.
const LENT_FROM: usize = 16 << 10;
/// As many, where the peer brings them over a device: a message then holds less than this.
const LENT_OVER_DEVICE_FROM: usize = 64 << 10;

/// Items that nobody reads any more which may wait, beyond as many as are still read.
const UNREAD: usize = 64;

/// An item that is brought, for a lane that knows it by the number.
#[derive(Debug)]
pub(super) struct Item {
    /// Until it has come.
    pub(super) lane: Option<Arc<Lane>>,
    pub(super) number: u64,
}

impl Item {
    pub(super) fn is_unread(&self) -> bool {
        self.lane.as_ref().is_none_or(|lane| lane.is_unread())
    }
}

/// What was not brought is lost: its stream ends.
impl Drop for Item {
    fn drop(&mut self) {
        if let Some(lane) = &self.lane {
            lane.lose(self.number);
        }
    }
}

/// The items of a connection's streams that are on their way.
#[derive(Debug)]
pub(super) struct Bringing {
    /// By the tokens of their pulls.
    items: Vec<Option<Item>>,
    free: Vec<usize>,
    /// Those for which there was no room, in order.
    pub(super) waiting: VecDeque<(usize, RemoteBulk)>,
    /// When so many wait, those that nobody reads any more are declined.
    pub(super) waiting_max: usize,
    /// When to look for room, where nobody tells.
    pub(super) again_at: Time,
}

impl Default for Bringing {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            waiting_max: UNREAD,
            again_at: Time::NEVER,
        }
    }
}

impl Bringing {
    pub(super) fn insert(&mut self, item: Item) -> usize {
        let Some(at) = self.free.pop() else {
            self.items.push(Some(item));
            return self.items.len() - 1;
        };
        self.items[at] = Some(item);
        at
    }

    /// Whether nothing is on its way.
    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.items.len()
    }

    pub(super) fn take(&mut self, at: usize) -> Option<Item> {
        let item = self.items.get_mut(at)?.take()?;
        self.free.push(at);
        Some(item)
    }

    /// Whether nobody reads the item in place `at`.
    pub(super) fn is_unread(&self, at: usize) -> bool {
        self.items[at].as_ref().is_none_or(Item::is_unread)
    }

    /// Takes out of those that wait what nobody reads any more, for a peer that brings no room and cancels its calls. The others stay
    /// in order.
    #[cold]
    pub(super) fn take_unread(&mut self) -> Vec<RemoteBulk> {
        let (mut unread, mut read) = (Vec::new(), VecDeque::new());
        for (at, bulk) in std::mem::take(&mut self.waiting) {
            if self.is_unread(at) {
                drop(self.take(at));
                unread.push(bulk);
            } else {
                read.push_back((at, bulk));
            }
        }
        self.waiting_max = 2 * read.len() + UNREAD;
        self.waiting = read;
        unread
    }
}

/// What the lanes of a connection know of it.
pub(super) fn home<P: Port>(io: &Io<'_, P>, reach: &Arc<Reach>, conn: ConnId, budget: Budget) -> Arc<Home> {
    let message = io.body_bytes_max(conn);
    let in_place = io.negotiated(conn).is_some_and(|negotiated| negotiated.bulk_in_place);
    let from = message.min(if in_place { LENT_FROM } else { LENT_OVER_DEVICE_FROM });
    let from = if may_offer(io, conn) && message > 0 { from } else { usize::MAX };
    let lending = Lending { from, to: message.max(budget.item_bytes_max) };
    Arc::new(Home { mover: Arc::<Reach>::clone(reach), conn, lending, budget: Arc::new(budget) })
}

/// Whether the peer may READ from us.
pub(super) fn may_offer<P: Port>(io: &Io<'_, P>, conn: ConnId) -> bool {
    io.negotiated(conn).is_none_or(|negotiated| negotiated.responder_resources.granted > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_on_its_way_when_all_were_taken() {
        let mut bringing = Bringing::default();
        assert!(bringing.is_empty());
        let places: Vec<_> = (0..3).map(|number| bringing.insert(Item { lane: None, number })).collect();
        for (taken, at) in places.iter().enumerate() {
            assert!(!bringing.is_empty(), "{taken} of 3 were taken");
            assert!(bringing.take(*at).is_some() && bringing.take(*at).is_none());
        }
        assert!(bringing.is_empty());
        assert_eq!(bringing.insert(Item { lane: None, number: 3 }), places[2], "a place is used again");
        assert!(!bringing.is_empty());
    }
}
