//! When the worker looks at its connections' heartbeats.

use gimmal_transport::{ConnId, Time};

use crate::proto::Pace;

/// When to look next. One comparison a turn.
#[derive(Debug)]
pub(crate) struct Beats {
    pub(super) pace: Option<Pace>,
    /// A turn at or after this looks.
    pub(super) at: Time,
    /// A sleeping worker wakes for this.
    pub(super) due: Time,
    /// Something arrived since the last look, so the next must not be later than `at`.
    pub(super) unlooked: bool,
    /// Its memory is used again.
    pub(super) ids: Vec<ConnId>,
}

impl Beats {
    pub(crate) fn new(bound_ms: u32) -> Self {
        Self {
            pace: Pace::new(bound_ms),
            at: Time::NEVER,
            due: Time::NEVER,
            unlooked: false,
            ids: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn is_due(&mut self, now: Time, worked: bool) -> bool {
        self.unlooked |= worked;
        now >= self.at
    }

    /// A turn that does not ask [`Beats::is_due`] found something.
    #[inline]
    pub(crate) const fn worked(&mut self) {
        self.unlooked = true;
    }

    pub(crate) fn deadline(&self) -> Time {
        if self.unlooked { self.at } else { self.due }
    }

    /// A connection opened; there are so many now.
    pub(crate) fn opened(&mut self, connections: usize, now: Time) {
        self.ids.reserve(connections);
        if let Some(pace) = &self.pace {
            self.due = self.due.min(now.plus(pace.ask));
            self.at = self.at.min(now.plus(pace.look));
        }
    }
}
