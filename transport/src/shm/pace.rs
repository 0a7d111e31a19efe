//! When a port looks at its sockets, and the tuned constants of the shared-memory data path. `bench/ledger.toml` says what
//! each constant is worth.

use crate::Time;

/// The writer clears the first words of the lines ahead of its last frame: as far as it wrote since its last flush, but at least
/// and at most this many bytes.
pub(super) const CLEAR_BYTES_MIN: u64 = 256; // ledger: clear_ahead
pub(super) const CLEAR_BYTES_MAX: u64 = 576; // ledger: clear_ahead

/// Frames taken from one connection in one turn, at most. A longer run delays the next request of a caller.
pub(super) const RUN_MAX: u32 = 8; // ledger: run_max

/// Empty polls between two looks at the sockets, at first and at most: about 1 ms and 10 ms of spinning.
const LOOK_POLLS: u32 = 1 << 16; // ledger: socket_looks
const LOOK_POLLS_MAX: u32 = 1 << 19; // ledger: socket_looks
/// Time between two looks at the sockets while nothing arrives, for callers that poll seldom, ns.
const LOOK_QUIET_NS: u64 = 10_000_000; // ledger: socket_looks
/// A look this late was missed because nobody polled; and the time that the peers get then, ns.
const LOOK_AWAY_NS: u64 = 1_000_000; // ledger: socket_looks
/// Time between two looks at the sockets while frames arrive, but perhaps not from every peer, ns.
const LOOK_BUSY_NS: u64 = 50_000_000; // ledger: socket_looks

/// Polls between two looks at the sockets during a handshake.
const GREETING_POLLS: u32 = 32; // ledger: greeting_looks

/// Connections that stay polled although they are idle: polling them costs less than a system call.
pub(super) const POLLED_MIN: usize = 2; // ledger: parking
/// Time between two looks at the sockets of parked connections, ns: the delay of their first message.
const LOOK_PARKED_NS: u64 = 50_000; // ledger: parking

/// When to look.
#[derive(Debug)]
pub(super) struct Pace {
    polls: u32,
    empty: u32,
    next: u32,
    step: u32,
    was_busy: bool,
    was_away: bool,
    quiet_at: Time,
    busy_at: Time,
    /// When the first handshake runs out.
    pub(super) greeting_at: Time,
    /// When to look at the sockets of parked connections.
    parked_at: Time,
}

impl Pace {
    pub(super) const fn new() -> Self {
        Self {
            polls: 0,
            empty: 0,
            next: LOOK_POLLS,
            step: LOOK_POLLS,
            was_busy: false,
            was_away: false,
            quiet_at: Time(0),
            busy_at: Time(0),
            greeting_at: Time::NEVER,
            parked_at: Time(0),
        }
    }

    /// Counts a poll, which `brought` something or not. Whether it is time for a look at the sockets of polled connections. Where
    /// only one connection is polled (`alone`), something that it brought proves that its peer lives.
    #[inline]
    pub(super) fn is_due(&mut self, now: Time, brought: bool, alone: bool) -> bool {
        self.polls = self.polls.wrapping_add(1);
        if brought { self.busy(now, alone) } else { self.quiet(now) }
    }

    /// Whether it is time for a look at the handshakes.
    #[inline]
    pub(super) fn is_greeting_due(&self, now: Time) -> bool {
        self.polls.is_multiple_of(GREETING_POLLS) || now >= self.greeting_at
    }

    /// Whether it is time for a look at the sockets of parked connections; the next one comes later.
    #[inline]
    pub(super) fn is_parked_due(&mut self, now: Time) -> bool {
        let is_due = now >= self.parked_at;
        if is_due {
            self.parked_at = Time(now.0.saturating_add(LOOK_PARKED_NS));
        }
        is_due
    }

    #[inline]
    fn busy(&mut self, now: Time, alone: bool) -> bool {
        self.empty = 0;
        self.was_busy = true;
        !alone && now >= self.busy_at
    }

    #[inline]
    fn quiet(&mut self, now: Time) -> bool {
        if self.was_busy {
            self.was_busy = false;
            self.was_away = false;
            self.next = LOOK_POLLS;
            self.step = LOOK_POLLS;
            self.quiet_at = Time(now.0.saturating_add(LOOK_QUIET_NS));
        }
        self.empty += 1;
        self.empty >= self.next || (now >= self.quiet_at && self.is_late(now))
    }

    /// Whether the time for a look has really come. When it passed while nobody polled, the quiet was ours and says
    /// nothing about the peers: they get a little more time, once.
    #[cold]
    fn is_late(&mut self, now: Time) -> bool {
        if !self.was_away && now.0 - self.quiet_at.0 > LOOK_AWAY_NS {
            self.was_away = true;
            self.quiet_at = Time(now.0.saturating_add(LOOK_AWAY_NS));
            return false;
        }
        true
    }

    pub(super) fn looked(&mut self, now: Time) {
        self.was_away = false;
        if self.empty >= self.next {
            self.step = (self.step * 2).min(LOOK_POLLS_MAX);
            self.empty = 0;
            self.next = self.step;
        }
        self.quiet_at = Time(now.0.saturating_add(LOOK_QUIET_NS));
        self.busy_at = Time(now.0.saturating_add(LOOK_BUSY_NS));
    }
}
