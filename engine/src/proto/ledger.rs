//! What we owe the peer: ring bytes, given back only over a contiguous run, and receives posted again.
//!
//! Frames arrive in order and may be released in any order; a byte that lies before an unreleased frame's end is
//! never given back, however much behind it is free. Otherwise the peer would write over a frame still in use.

use std::collections::VecDeque;

use gimmal_transport::{Credit, DataPath, Negotiated, Position, Violation};

use crate::planted::{self, Bug};

/// The receiver's half of a connection.
#[derive(Debug, Clone)]
pub struct RxLedger {
    arrived: Position,
    freed: Position,
    /// The end of the only frame that is not released: so it stays while each is released before the next arrives.
    only: Option<Position>,
    /// Otherwise those not released yet, and released ones behind them: (end, released).
    held: VecDeque<(Position, bool)>,
    posted: u64,
    told: Credit,
    /// The peer may have written up to here, by what it was told.
    limit: Position,
    /// From here on the bytes that were freed are worth a word: a quarter of the ring.
    worth: Position,
    ring_bytes: u64,
    window: u64,
    ring: bool,
    arrivals_count: bool,
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
    /// Frames that may be held at once before the ledger grows; the engine holds none beyond a turn yet.
    const HELD: usize = 64;

    /// The ledger of a connection that has just opened.
    #[must_use]
    pub fn new(negotiated: &Negotiated) -> Self {
        let arrivals = negotiated.rx_arrivals.into();
        Self {
            arrived: Position(0),
            freed: Position(0),
            only: None,
            held: VecDeque::with_capacity(Self::HELD),
            posted: arrivals,
            told: Credit { bytes: Position(0), arrivals },
            limit: Position(negotiated.rx_ring_bytes.into()),
            worth: Position(u64::from(negotiated.rx_ring_bytes).div_ceil(4)),
            ring_bytes: negotiated.rx_ring_bytes.into(),
            window: arrivals,
            ring: negotiated.path == DataPath::Ring,
            arrivals_count: negotiated.arrivals_count,
        }
    }

    /// A frame that ends at `end` arrived.
    ///
    /// # Errors
    /// [`Violation::Overrun`] when the peer wrote beyond what it was given.
    #[inline]
    pub fn handle_arrival(&mut self, end: Position) -> Result<(), Violation> {
        if !self.ring {
            // No position, but a sign of life.
            self.arrived.0 += 1;
            return Ok(());
        }
        if end > self.limit || end <= self.arrived {
            return Err(Violation::Overrun { bytes: end.since(self.limit) });
        }
        self.arrived = end;
        if self.only.is_none() && self.held.is_empty() {
            self.only = Some(end);
        } else {
            self.hold(end);
        }
        Ok(())
    }

    /// Frames arrived one behind the other, up to `end`, and each was released. May be said again, for none.
    ///
    /// # Errors
    /// As [`RxLedger::handle_arrival`].
    #[inline]
    pub fn handle_run(&mut self, end: Position) -> Result<(), Violation> {
        if end > self.limit || end < self.arrived {
            return Err(Violation::Overrun { bytes: end.since(self.limit) });
        }
        self.arrived = end;
        if self.only.is_none() && self.held.is_empty() {
            self.freed = end;
        } else {
            self.hold(end);
            self.release_held(end);
        }
        Ok(())
    }

    fn hold(&mut self, end: Position) {
        if let Some(only) = self.only.take() {
            self.held.push_back((only, false));
        }
        self.held.push_back((end, false));
    }

    /// The frame that ends at `end` was released.
    #[inline]
    pub fn handle_release(&mut self, end: Position) {
        if self.only == Some(end) {
            self.only = None;
            self.freed = end;
        } else if self.ring {
            self.release_held(end);
        }
    }

    fn release_held(&mut self, end: Position) {
        if let Some(entry) = self.held.iter_mut().find(|(held, _)| *held == end) {
            entry.1 = true;
        }
        while let Some(&(end, true)) = self.held.front() {
            self.freed = end;
            self.held.pop_front();
        }
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

    /// Whether anything is owed: the short way of [`RxLedger::owed`], `true` in doubt.
    #[inline]
    #[must_use]
    pub fn may_owe(&self) -> bool {
        self.arrivals_count || self.freed >= self.worth
    }

    /// How much is owed.
    #[inline]
    #[must_use]
    pub fn owed(&self) -> Owed {
        let bytes = self.freed.since(self.told.bytes);
        let arrivals = if self.arrivals_count { self.posted - self.told.arrivals } else { 0 };
        // Most of the time it is little; this is asked after every frame.
        if bytes * 4 < self.ring_bytes && arrivals * 4 < self.window {
            return Owed::Little;
        }
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

    /// The credit to send; from here on the peer may use it.
    pub fn poll_credit(&mut self) -> Credit {
        self.told = Credit { bytes: self.freed, arrivals: self.posted };
        if planted::is(Bug::HeldBytesGivenBack) {
            self.told.bytes = self.arrived;
        }
        if planted::is(Bug::InventedReceives) {
            self.told.arrivals += 1;
        }
        self.limit = self.told.bytes.plus(self.ring_bytes);
        self.worth = self.told.bytes.plus(self.ring_bytes.div_ceil(4));
        self.told
    }

    /// Changes with every arrival.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.arrived.0
    }

    /// Frames not released.
    #[must_use]
    pub fn held(&self) -> usize {
        usize::from(self.only.is_some()) + self.held.iter().filter(|(_, released)| !released).count()
    }
}
