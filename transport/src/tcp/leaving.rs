//! A connection that has ended on this side, whose peer has not closed, or has not taken all.

use std::time::Duration;

use super::live::Live;
use crate::{CloseReason, Event, Time};

/// How long its socket stays after the last byte that left.
const STAYS: Duration = Duration::from_secs(1);
/// How long its socket stays in all.
const STAYS_MAX: Duration = Duration::from_secs(10);

/// A connection that leaves.
#[derive(Debug)]
pub(super) struct Leaving {
    live: Box<Live>,
    began: Time,
    until: Time,
    /// The kernel has all.
    is_out: bool,
    /// What the kernel had not taken when it was last asked.
    unsent_bytes: u64,
    /// Its end, which is told when the kernel has all: until then its port is in use.
    untold: Option<CloseReason>,
}

impl Leaving {
    /// `is_out`: the kernel has all. If not, an orderly end is told only when it has.
    pub(super) fn new(live: Box<Live>, is_out: bool, untold: Option<CloseReason>, now: Time) -> Self {
        let unsent_bytes = live.out.unsent_bytes();
        Self { live, began: now, until: now.plus(STAYS), is_out, unsent_bytes, untold }
    }

    /// When it is over, if nothing leaves any more.
    pub(super) const fn until(&self) -> Time {
        self.until
    }

    /// Sends what is left, and reads until the peer closes. What is to be told, and whether it stays.
    pub(super) fn step(&mut self, now: Time) -> (Option<Event>, bool) {
        if !self.is_out {
            self.is_out = self.live.push_last();
            let unsent_bytes = self.live.out.unsent_bytes();
            if std::mem::replace(&mut self.unsent_bytes, unsent_bytes) > unsent_bytes {
                self.until = now.plus(STAYS).min(self.began.plus(STAYS_MAX));
            }
        }
        let stays = !self.live.wire.drain() && now < self.until;
        (if self.is_out || !stays { self.end() } else { None }, stays)
    }

    /// Its end, if that was not told.
    pub(super) fn end(&mut self) -> Option<Event> {
        let reason = self.untold.take()?;
        Some(Event::Closed { conn: self.live.id, reason })
    }
}
