//! How many attempts to connect run at once: the others wait for their turn, in order, until their deadline.
//!
//! Each step of an attempt is work for the one control thread. With a thousand at once every one of them would still be
//! making its queue pair when the kernel gives up on the first (siw waits 10 s for the answer to its MPA request), and
//! none would connect.

use std::{collections::VecDeque, sync::Arc};

use crate::Instant;
use crate::verbs::control::{connect::Attempt, thread::Control};

/// At most so many. As many handshakes as a listener takes on by default.
const AT_ONCE: usize = 128;

/// That an attempt runs, until it is dropped.
pub(crate) type Running = Arc<()>;

/// Attempts whose target is known and that did not begin.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    waiting: VecDeque<Box<Attempt>>,
    /// Shared with each that runs: to look for them among all ids with every event would cost a server with thousands
    /// of connections more than the connecting.
    running: Running,
}

impl Turns {
    pub(crate) fn push(&mut self, attempt: Box<Attempt>) {
        self.waiting.push_back(attempt);
    }

    pub(crate) fn deadlines(&self) -> impl Iterator<Item = Instant> {
        self.waiting.iter().map(|attempt| attempt.deadline)
    }

    /// Nobody wants it any more.
    pub(crate) fn remove(&mut self, ticket: u64) {
        self.waiting.retain(|attempt| attempt.ticket != ticket);
    }

    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }

    pub(crate) fn expire(&mut self, now: Instant) {
        self.waiting.retain(|attempt| {
            if attempt.deadline <= now {
                attempt.finish(Err(attempt.timeout("waiting for its turn: others connect")));
            }
            attempt.deadline > now
        });
    }

    /// The next one, if fewer than [`AT_ONCE`] run.
    fn next(&mut self) -> Option<Box<Attempt>> {
        if Arc::strong_count(&self.running) > AT_ONCE {
            return None;
        }
        let mut attempt = self.waiting.pop_front()?;
        attempt.running = Some(Arc::clone(&self.running));
        Some(attempt)
    }
}

impl Control {
    /// Begins as many as may run.
    pub(crate) fn begin_waiting(&mut self) {
        while let Some(attempt) = self.turns.next() {
            self.try_address(attempt, None);
        }
    }
}
