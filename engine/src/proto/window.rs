//! What may be sent: three budgets, none of which replaces another.
//!
//! ```text
//!   ring bytes at the peer    head ≤ credit.bytes + ring     given back over a contiguous run
//!   ring bytes at our end     head ≤ completed + ring        our device has read them
//!   receives at the peer      used ≤ credit.arrivals - unused   one for each chain
//! ```
//! Where the peer's connections share receives, one that is busy is given more than its guarantee. When it is idle again it says
//! that it will not use them: nobody else can take them back.
//!
//! Control frames have slots that data never takes, so that credit can always return: with them neither side can wait
//! for the other's credit while it owes some.

use gimmal_transport::{
    Chain, Credit, DataPath, Negotiated, Position, Violation,
    frame::{FRAME_ALIGN, FRAME_WORD_BYTES, span},
};

use super::wire::CONTROL_BYTES;

/// Which slots a frame may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// Messages.
    Data,
    /// Credit, bulk answers, goodbye, ping.
    Control,
}

/// Receives that only control frames may use: an explicit credit, and one of goodbye, bulk answer or ping.
pub const CONTROL_ARRIVALS: u64 = 2;
/// Ring bytes that only control frames may use: one frame for each of those receives.
pub const CONTROL_SPAN: u64 = CONTROL_ARRIVALS * span(CONTROL_BYTES) as u64;
/// Ring bytes that are never used: the place of the next frame's word, so that full and empty differ.
pub const NEXT_WORD: u64 = FRAME_ALIGN as u64;

/// The sender's half of a connection.
#[derive(Debug, Clone)]
pub struct TxWindow {
    head: Position,
    completed: Position,
    credit: Credit,
    arrivals_used: u64,
    /// Receives that the peer was told will not be used.
    unused: u64,
    /// Chains may use so many, of all since the start.
    arrivals_max: u64,
    /// As many as the connection opened with.
    guaranteed: u64,
    /// `arrivals_used` when somebody last asked whether it is idle.
    stood: u64,
    chain_bytes: u64,
    ring_bytes: u64,
    frame_bytes_max: u64,
    chain_bytes_max: u64,
    arrivals_count: bool,
    ring: bool,
    unlimited: bool,
    /// Every frame has a sum behind it, so none goes the short way.
    sealed: bool,
    /// No data goes any more.
    shut: bool,
    /// As long as the head is not beyond it, a data frame of any size fits, without a closer look.
    open_until: Position,
    /// The limit of positions where receives are counted.
    counted_until: Position,
}

impl TxWindow {
    /// The window of a connection that has just opened. `enforce` false ignores the peer's credit: only for the test
    /// that shows what happens then.
    #[must_use]
    pub fn new(negotiated: &Negotiated, enforce: bool) -> Self {
        let mut window = Self {
            head: Position(0),
            completed: Position(0),
            credit: Credit { bytes: Position(0), arrivals: negotiated.tx_arrivals.into() },
            arrivals_used: 0,
            unused: 0,
            arrivals_max: 0,
            guaranteed: negotiated.tx_arrivals.into(),
            stood: 0,
            chain_bytes: 0,
            ring_bytes: negotiated.tx_ring_bytes.into(),
            frame_bytes_max: negotiated.frame_bytes_max.into(),
            chain_bytes_max: negotiated.chain_bytes_max.into(),
            arrivals_count: negotiated.arrivals_count,
            ring: negotiated.path == DataPath::Ring,
            unlimited: !enforce,
            sealed: negotiated.checksum,
            shut: false,
            open_until: Position(0),
            counted_until: Position(0),
        };
        window.look();
        window
    }

    /// Lets positions begin at `first` instead of 0.
    #[must_use]
    pub fn beginning_at(mut self, first: Position) -> Self {
        (self.head, self.completed, self.credit.bytes) = (first, first, first);
        self.look();
        self
    }

    /// Credit, or our own device's progress, has changed.
    fn look(&mut self) {
        self.arrivals_max = self.credit.arrivals - self.unused;
        let kept = NEXT_WORD + CONTROL_SPAN + self.frame_bytes_max;
        let open = !self.shut && !self.sealed && self.ring_bytes >= kept;
        let until = if open { self.floor().plus(self.ring_bytes - kept) } else { Position(0) };
        (self.open_until, self.counted_until) =
            if self.arrivals_count { (Position(0), until) } else { (until, Position(0)) };
    }

    /// No more data: only control frames have room.
    pub fn shut(&mut self) {
        self.shut = true;
        self.look();
    }

    /// What lies before may be written over.
    fn floor(&self) -> Position {
        if self.ring && !self.unlimited { self.credit.bytes.min(self.completed) } else { self.completed }
    }

    /// Whether a data frame of any size may go, each a chain of its own because chains cost nothing here: the short way
    /// of [`TxWindow::room`], `false` in doubt.
    #[inline]
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.head < self.open_until
    }

    /// Whether there is a receive for another chain, where chains cost receives.
    #[inline]
    #[must_use]
    pub fn has_receives(&self) -> bool {
        (self.head < self.counted_until) & (self.arrivals_used + CONTROL_ARRIVALS < self.arrivals_max)
    }

    /// The largest payload of a frame, bytes.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "a ring is at most 1 GiB")]
    pub fn payload_bytes_max(&self) -> usize {
        self.frame_bytes_max as usize - FRAME_WORD_BYTES
    }

    /// Payload bytes that a frame may have now; `None` when it is fewer than `min_bytes`.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "at most a ring, which is at most 1 GiB")]
    pub fn room(&self, min_bytes: usize, lane: Lane) -> Option<usize> {
        let (kept_bytes, kept_arrivals) = match lane {
            Lane::Data => (CONTROL_SPAN, CONTROL_ARRIVALS),
            Lane::Control => (0, 0),
        };
        let free = self.ring_bytes.saturating_sub(self.head.since(self.floor()) + NEXT_WORD + kept_bytes);
        let mut room = free.min(self.frame_bytes_max);
        if !self.has_arrivals(1 + kept_arrivals) {
            // No receive for another chain, but this one can still grow.
            room = room.min(if self.chain_bytes == 0 { 0 } else { self.chain_bytes_max - self.chain_bytes });
        }
        let room = (room & !(FRAME_ALIGN as u64 - 1)).min(self.frame_bytes_max);
        let payload = (room as usize).checked_sub(FRAME_WORD_BYTES)?;
        (payload >= min_bytes).then_some(payload)
    }

    #[inline]
    fn has_arrivals(&self, wanted: u64) -> bool {
        !self.arrivals_count || self.unlimited || self.arrivals_used + wanted <= self.arrivals_max
    }

    /// Whether a frame of `payload_bytes` rides on the open chain; none does where receives are not counted. The
    /// caller that commits it also calls [`TxWindow::committed`].
    #[inline]
    #[must_use]
    pub fn chain(&self, payload_bytes: usize) -> Chain {
        let fits = self.chain_bytes + span(payload_bytes) as u64 <= self.chain_bytes_max;
        if self.arrivals_count && self.chain_bytes > 0 && fits { Chain::Extend } else { Chain::Begin }
    }

    /// A frame was committed on the `chain` that [`TxWindow::chain`] said, and the ring's head is at `end`.
    #[inline]
    pub fn committed(&mut self, end: Position, chain: Chain) {
        if chain == Chain::Begin {
            self.arrivals_used += u64::from(self.arrivals_count);
            self.chain_bytes = 0;
        }
        self.chain_bytes += end.0 - self.head.0;
        self.head = end;
    }

    /// As [`TxWindow::committed`], after [`TxWindow::is_open`].
    #[inline]
    pub const fn advanced(&mut self, end: Position) {
        self.head = end;
    }

    /// Everything committed was flushed: no chain is open. Returns whether one was.
    #[inline]
    pub fn flushed(&mut self) -> bool {
        std::mem::take(&mut self.chain_bytes) > 0
    }

    /// Our device is done with the ring up to `completed`.
    pub fn handle_completed(&mut self, completed: Position) {
        self.completed = self.completed.max(completed);
        self.look();
    }

    /// What the peer says it gave back, since the start.
    ///
    /// # Errors
    /// [`Violation::Credit`] when a counter runs backwards, or ahead of what was sent.
    pub fn handle_credit(&mut self, credit: Credit) -> Result<(), Violation> {
        let (low, high) = (self.credit.bytes.0, self.head.0);
        if self.ring && !(low..=high).contains(&credit.bytes.0) {
            return Err(Violation::Credit { value: credit.bytes.0, low, high });
        }
        let (low, high) = (self.credit.arrivals, self.arrivals_used + self.unused + u64::from(u16::MAX) + 1);
        if self.arrivals_count && !(low..=high).contains(&credit.arrivals) {
            return Err(Violation::Credit { value: credit.arrivals, low, high });
        }
        self.credit = credit;
        self.look();
        Ok(())
    }

    /// Gives up the receives beyond the guarantee, if none was used since this was last asked: how many that makes since the
    /// start, for the peer to be told.
    pub fn poll_unused(&mut self) -> Option<u64> {
        let is_idle = std::mem::replace(&mut self.stood, self.arrivals_used) == self.arrivals_used;
        let unused = self.arrivals_max.saturating_sub(self.arrivals_used + self.guaranteed);
        if !self.arrivals_count || !is_idle || unused == 0 {
            return None;
        }
        self.unused += unused;
        self.look();
        Some(self.unused)
    }

    /// Whether every byte sent was given back: nothing of ours is unread at the peer.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.head == self.completed && (!self.ring || self.head == self.credit.bytes)
    }
}
