//! What we owe the peer: ring bytes, given back only over a contiguous run, and receives posted again.
//!
//! ```text
//!           told          freed                         arrived
//!  given back │ free again  │ held │ free, but behind it │ may still be written
//!                           ◄──── pinned: at most the hold budget ────►
//! ```
//! Frames arrive in order and are free after their turn, unless they are held; then they come back in any order. A byte
//! behind a held frame is never given back, however much there is free: the peer would write over that frame.

use std::collections::VecDeque;

use gimmal_transport::{Credit, DataPath, Negotiated, Position, Violation};

/// The receiver's half of a connection.
#[derive(Debug, Clone)]
pub struct RxLedger {
    arrived: Position,
    freed: Position,
    /// Frames that outlive their turn.
    held: VecDeque<Held>,
    /// On the send/recv path: how many there are; each keeps a receive.
    held_receives: u64,
    hold_bytes: u64,
    hold_receives: u64,
    posted: u64,
    told: Credit,
    /// The peer may have written up to here, by what it was told; 0 without a ring, where it is receives that limit it.
    limit: Position,
    /// The position from which credit is checked: a quarter of the ring. 0 once enough receives are owed.
    worth: Position,
    /// Frames since the peer was last told: at least as many as the receives that they took.
    untold: u64,
    /// Those of this turn: their receives are posted again when it ends.
    fresh: u64,
    /// So many are worth a look: with a quarter of the receives, where they are counted, posted again. See [`worth_a_look`].
    worth_untold: u64,
    ring_bytes: u64,
    window: u64,
    ring: bool,
    arrivals_count: bool,
}

/// A held frame in a ring.
#[derive(Debug, Clone)]
struct Held {
    start: Position,
    end: Position,
    released: bool,
}

/// Receives that held frames may keep.
pub(crate) fn hold_receives(arrivals: u64, hold_percent: u8) -> u64 {
    // Told of every single receive, two sides would answer credit with credit for ever.
    (arrivals * u64::from(hold_percent) / 100).min((arrivals / 2).saturating_sub(2))
}

/// From how many frames on a quarter of `arrivals` may be there to give back. A port posts an eighth at a time. A
/// check at a quarter would find less, repeatedly, and every answer meanwhile would take the longer path.
fn worth_a_look(arrivals: u64) -> u64 {
    arrivals.div_ceil(4) + arrivals / 8
}

/// How urgently credit should go.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Owed {
    /// Not worth a word.
    Little,
    /// A quarter of a budget: with the next frame that goes anyway.
    Ride,
    /// Half of a budget: now.
    Now,
}

impl RxLedger {
    /// The ledger of a connection that has just opened. Held frames may keep `hold_percent` of the ring, or of the
    /// receives, from the peer.
    #[must_use]
    pub fn new(negotiated: &Negotiated, hold_percent: u8) -> Self {
        let arrivals = negotiated.rx_arrivals.into();
        let ring_bytes = negotiated.rx_ring_bytes.into();
        let mut ledger = Self {
            arrived: Position(0),
            freed: Position(0),
            held: VecDeque::new(),
            held_receives: 0,
            hold_bytes: ring_bytes * u64::from(hold_percent) / 100,
            // A slot that is everybody's is kept by nobody.
            hold_receives: if negotiated.rx_shared { 0 } else { hold_receives(arrivals, hold_percent) },
            posted: arrivals,
            told: Credit { bytes: Position(0), arrivals },
            limit: Position(0),
            worth: Position(0),
            untold: 0,
            fresh: 0,
            worth_untold: if negotiated.arrivals_count { worth_a_look(arrivals) } else { u64::MAX },
            ring_bytes,
            window: arrivals,
            ring: negotiated.path == DataPath::Ring,
            arrivals_count: negotiated.arrivals_count,
        };
        ledger.told();
        ledger
    }

    /// Lets positions begin at `first` instead of 0.
    #[must_use]
    pub fn beginning_at(mut self, first: Position) -> Self {
        (self.arrived, self.freed, self.told.bytes) = (first, first, first);
        self.told();
        self
    }

    /// A receive was used up, or part of one, by frames that [`RxLedger::handle_run`] accounts for.
    #[inline]
    pub fn handle_receive(&mut self) {
        self.untold += 1;
        self.fresh += 1;
        self.look_at_receives();
    }

    #[inline]
    fn look_at_receives(&mut self) {
        if self.untold + self.held_receives >= self.worth_untold {
            self.worth = Position(0);
        }
    }

    /// Frames arrived one behind the other, up to `end`. They are free when the turn ends, unless [`RxLedger::handle_hold`] says
    /// otherwise before. May be said again, for none. Without a ring `end` says nothing.
    ///
    /// # Errors
    /// [`Violation::Overrun`] when the peer wrote beyond what it was given.
    #[inline]
    pub fn handle_run(&mut self, end: Position) -> Result<(), Violation> {
        if end > self.limit || end < self.arrived {
            return self.handle_off_ring(end);
        }
        self.arrived = end;
        if self.held.is_empty() {
            self.freed = end;
        }
        Ok(())
    }

    /// An end that is nowhere in what the peer was given.
    #[inline(never)]
    fn handle_off_ring(&mut self, end: Position) -> Result<(), Violation> {
        if self.ring {
            return Err(Violation::Overrun { bytes: end.since(self.limit) });
        }
        self.handle_life();
        Ok(())
    }

    /// Frames arrived that have no positions: a sign of life.
    #[inline]
    pub const fn handle_life(&mut self) {
        self.arrived.0 += 1;
    }

    /// Whether the frame that has just arrived, `bytes` long with all that belongs to it, may be held where it is.
    #[must_use]
    pub fn may_hold(&self, bytes: u64) -> bool {
        if self.ring {
            let pinned = self.held.front().map_or(bytes, |held| self.arrived.since(held.start));
            pinned <= self.hold_bytes
        } else {
            self.held_receives < self.hold_receives
        }
    }

    /// The frame that has just arrived is held.
    pub fn handle_hold(&mut self, bytes: u64) {
        if !self.ring {
            self.held_receives += 1;
            return self.look_at_receives();
        }
        let start = Position(self.arrived.0.saturating_sub(bytes));
        if self.held.is_empty() {
            self.freed = start;
        }
        self.held.push_back(Held { start, end: self.arrived, released: false });
    }

    /// The held frame that ends at `end` was released.
    pub fn handle_release(&mut self, end: Position) {
        if !self.ring {
            self.held_receives = self.held_receives.saturating_sub(1);
            return;
        }
        if let Some(held) = self.held.iter_mut().find(|held| held.end == end) {
            held.released = true;
        }
        while self.held.front().is_some_and(|held| held.released) {
            self.held.pop_front();
        }
        self.freed = self.held.front().map_or(self.arrived, |held| held.start);
    }

    /// Whether held frames keep more of the ring from the peer than they may: they must be moved out.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.arrived.since(self.freed) > self.hold_bytes && !self.held.is_empty()
    }

    /// Whether receives are counted at all; otherwise [`RxLedger::handle_posted`] need not be told.
    #[inline]
    #[must_use]
    pub fn counts_arrivals(&self) -> bool {
        self.arrivals_count
    }

    /// Receives posted since the connection opened. Fewer than before: the port has closed it, and does not count any
    /// more.
    #[inline]
    pub fn handle_posted(&mut self, posted: u64) {
        self.posted = self.posted.max(posted);
    }

    /// Begins a turn. Receives of earlier frames are posted again.
    #[inline]
    pub const fn begin_turn(&mut self) {
        self.fresh = 0;
    }

    /// Whether so much came in this turn that it must be asked again in the next one.
    #[inline]
    #[must_use]
    pub const fn is_fresh(&self) -> bool {
        self.fresh > 0 && self.untold >= self.worth_untold
    }

    /// Whether anything is owed: the short way of [`RxLedger::owed`], `true` in doubt.
    #[inline]
    #[must_use]
    pub fn may_owe(&self) -> bool {
        self.arrived >= self.worth
    }

    /// How much is owed.
    #[inline]
    #[must_use]
    pub fn owed(&self) -> Owed {
        // What is held is not owed, but it is as little use to the peer: it counts, as long as there is anything to tell.
        let bytes = if self.ring { self.arrived.since(self.told.bytes) } else { 0 };
        let arrivals =
            if self.arrivals_count { self.posted - self.told.arrivals + self.held_receives } else { 0 };
        // Most of the time it is little; this is asked after every frame.
        if bytes * 4 < self.ring_bytes && arrivals * 4 < self.window {
            return Owed::Little;
        }
        if self.is_over() {
            return Owed::Now;
        }
        let bytes = if self.freed > self.told.bytes { bytes } else { 0 };
        let arrivals = if self.posted > self.told.arrivals { arrivals } else { 0 };
        Self::parts_owed(bytes, self.ring_bytes, arrivals, self.window)
    }

    fn parts_owed(bytes: u64, ring_bytes: u64, arrivals: u64, window: u64) -> Owed {
        let part = |owed: u64, budget: u64, of: u64| budget > 0 && owed > 0 && owed * of >= budget;
        if part(bytes, ring_bytes, 2) || part(arrivals, window, 2) {
            Owed::Now
        } else if part(bytes, ring_bytes, 4) || part(arrivals, window, 4) {
            Owed::Ride
        } else {
            Owed::Little
        }
    }

    /// Returns the credit to send now. It counts as told only with [`RxLedger::handle_told`].
    #[must_use]
    pub fn credit(&self) -> Credit {
        Credit { bytes: self.freed, arrivals: self.posted }
    }

    /// Records that `credit` has been sent. From here on the peer may use it.
    pub fn handle_told(&mut self, credit: Credit) {
        self.told = credit;
        self.untold = self.fresh;
        self.told();
    }

    /// The peer was told something.
    fn told(&mut self) {
        let behind = |bytes: u64| self.told.bytes.plus(bytes);
        (self.limit, self.worth) = if self.ring {
            (behind(self.ring_bytes), behind(self.ring_bytes.div_ceil(4)))
        } else {
            (Position(0), Position(u64::MAX))
        };
        self.look_at_receives();
    }

    /// Changes with every arrival.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.arrived.0
    }
}
