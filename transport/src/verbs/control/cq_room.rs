//! What a completion queue has room for, in shares that are taken before work is posted: a full queue drops completions.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use crate::PortError;

/// What a completion queue has room for.
#[derive(Debug)]
pub(crate) struct CqRoom {
    entries: u32,
    promised: AtomicU32,
}

impl CqRoom {
    /// Of a queue with so many.
    pub(crate) fn new(entries: u32) -> Arc<Self> {
        Arc::new(Self { entries, promised: AtomicU32::new(0) })
    }

    /// Completions that the queue holds.
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// Takes room for `entries` completions of `field`.
    ///
    /// # Errors
    /// [`PortError::Limit`], which names `field`, when that many are not left.
    pub(crate) fn take(self: &Arc<Self>, entries: u32, field: &'static str) -> Result<CqShare, PortError> {
        let take = |promised: u32| promised.checked_add(entries).filter(|&sum| sum <= self.entries);
        match self.promised.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(CqShare { room: Arc::clone(self), entries }),
            Err(_) => Err(PortError::Limit { field, value: entries.into(), limit: self.entries.into() }),
        }
    }
}

/// A share of a completion queue, given back when it is dropped: when what it was taken for is destroyed.
#[derive(Debug)]
pub(crate) struct CqShare {
    room: Arc<CqRoom>,
    entries: u32,
}

impl CqShare {
    /// Takes `entries` out of it, or what there is.
    pub(crate) fn part(&mut self, entries: u32) -> Self {
        let entries = entries.min(self.entries);
        self.entries -= entries;
        Self { room: Arc::clone(&self.room), entries }
    }
}

impl Drop for CqShare {
    fn drop(&mut self) {
        self.room.promised.fetch_sub(self.entries, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_promises_what_it_holds_and_names_what_it_refuses() {
        let room = CqRoom::new(100);
        let first = room.take(60, "a").unwrap();
        let refused = room.take(41, "b").unwrap_err();
        assert_eq!(refused, PortError::Limit { field: "b", value: 41, limit: 100 });
        let second = room.take(40, "c").unwrap();
        assert!(room.take(1, "d").is_err() && room.take(u32::MAX, "e").is_err());
        drop(first);
        assert!(room.take(60, "f").is_ok() && room.take(60, "g").is_ok(), "each is given back");
        drop(second);
        assert!(room.take(100, "h").is_ok());
    }

    #[test]
    fn the_parts_of_a_share_are_all_of_it() {
        let room = CqRoom::new(100);
        let mut whole = room.take(90, "whole").unwrap();
        let parts = [60, 60].map(|entries| whole.part(entries));
        assert_eq!((parts.each_ref().map(|part| part.entries), whole.entries), ([60, 30], 0));
        drop(whole);
        assert!(room.take(11, "more").is_err());
        drop(parts);
        assert!(room.take(100, "all").is_ok());
    }
}
