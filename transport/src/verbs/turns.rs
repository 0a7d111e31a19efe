//! How many attempts to connect run at once: the others wait for their turn, in order, until their deadline.
//!
//! Each step of an attempt is work for the one control thread. With a thousand at once every one of them would still be
//! making its queue pair when the kernel gives up on the first (siw waits 10 s for the answer to its MPA request), and
//! none would connect.

use std::{collections::VecDeque, time::Instant};

use crate::verbs::{connect::Attempt, control::Control, entry::Role};

/// At most so many. As many handshakes as a listener takes on by default.
const AT_ONCE: usize = 128;

/// Attempts whose target is known and that did not begin.
#[derive(Debug, Default)]
pub(crate) struct Turns(VecDeque<Box<Attempt>>);

impl Turns {
    pub(crate) fn push(&mut self, attempt: Box<Attempt>) {
        self.0.push_back(attempt);
    }

    pub(crate) fn deadlines(&self) -> impl Iterator<Item = Instant> {
        self.0.iter().map(|attempt| attempt.deadline)
    }

    /// Nobody wants it any more.
    pub(crate) fn remove(&mut self, ticket: u64) {
        self.0.retain(|attempt| attempt.ticket != ticket);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn expire(&mut self, now: Instant) {
        self.0.retain(|attempt| {
            if attempt.deadline <= now {
                attempt.finish(Err(attempt.timeout("waiting for its turn: others connect")));
            }
            attempt.deadline > now
        });
    }

    /// The next one, if fewer than [`AT_ONCE`] run.
    fn next(&mut self, running: usize) -> Option<Box<Attempt>> {
        if running < AT_ONCE { self.0.pop_front() } else { None }
    }
}

impl Control {
    /// Begins as many as may run.
    pub(crate) fn begin_waiting(&mut self) {
        if self.turns.0.is_empty() {
            return;
        }
        loop {
            let running = self.ids.values().filter(|entry| matches!(entry.role, Role::Active(_))).count();
            let Some(attempt) = self.turns.next(running) else { return };
            self.try_address(attempt, None);
        }
    }
}
