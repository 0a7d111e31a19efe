//! Loans that the server pulls and reads: bandwidth, and the cost of a large message.

use std::time::Duration;

use gimmal_engine::{
    SendError,
    transport::{Address, Gate as _, Loan, Provider},
};

use crate::{
    clock::Stamp,
    error::BenchError,
    inline::InlineTarget,
    plan::{Plan, TOUCH, WHOLE, head},
    recorder::Recorder,
    target::{Counted, Target, total, total_of},
};

/// The client's end.
#[derive(Debug)]
pub(crate) struct BulkTarget<P: Provider> {
    inner: InlineTarget<P>,
    gate: P::Gate,
    bytes: usize,
    is_whole: bool,
    window: usize,
    /// Loans that were not answered: their numbers, when they left, and what the server must find.
    under_way: Vec<(u64, Stamp, u64)>,
    sent: u64,
}

impl<P: Provider> BulkTarget<P> {
    /// Connects on the calling thread and tells the server the plan.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub(crate) fn connect(
        provider: &P,
        address: &Address,
        plan: &Plan,
        ring_bytes: u32,
        is_whole: bool,
    ) -> Result<Self, BenchError> {
        let inner = InlineTarget::connect(provider, address, plan, ring_bytes)?;
        let gate = inner.inline.handle().gate().clone();
        let (window, under_way) = (plan.window, Vec::with_capacity(plan.window));
        Ok(Self { inner, gate, bytes: plan.block.max(8), is_whole, window, under_way, sent: 0 })
    }

    /// Writes a loan as number `number`: its first word, or all of it. Returns what the reader will find.
    fn fill(&self, loan: &mut Loan, number: u64) -> u64 {
        if self.is_whole {
            let filling = number.to_le_bytes()[0];
            loan.fill(filling);
            return total_of(filling, self.bytes);
        }
        if let Some(word) = loan.first_chunk_mut::<8>() {
            *word = number.to_le_bytes();
        }
        number
    }

    /// Sends the next loan; false when there is no room or memory for it now.
    fn send(&mut self, wait_ok: bool) -> Result<bool, BenchError> {
        let mut loan = match self.gate.allocate(self.inner.conn, self.bytes) {
            Ok(loan) => loan,
            // The ones in flight come back.
            Err(_) if wait_ok => return Ok(false),
            Err(error) => return Err(BenchError::Closed(error.to_string())),
        };
        let number = self.sent + 1;
        let start = Stamp::now();
        let wanted = self.fill(&mut loan, number);
        let kind = if self.is_whole { WHOLE } else { TOUCH };
        let conn = self.inner.conn;
        let sent =
            self.inner.inline.with(|_, io| io.send_with_loan(conn, head(kind, number), loan, 0, |_| Some(0)));
        match sent {
            Ok(()) => {
                self.under_way.push((number, start, wanted));
                self.sent = number;
                Ok(true)
            }
            Err(refused) if refused.error == SendError::Blocked => {
                self.inner.blocked += 1;
                Ok(false)
            }
            Err(refused) => Err(BenchError::Closed(refused.error.to_string())),
        }
    }

    /// Checks and records what was answered until `now`, in any order: short pieces may overtake.
    fn answered(&mut self, now: Stamp, recorder: &mut Recorder) -> Result<(), BenchError> {
        for (number, found) in self.inner.inline.app_mut().loans_read.drain(..) {
            let at = self.under_way.iter().position(|(other, ..)| *other == number);
            let (_, start, wanted) =
                at.map(|at| self.under_way.swap_remove(at)).ok_or(BenchError::Wrong("a loan nobody lent"))?;
            if found != wanted {
                return Err(BenchError::Wrong("another sum of a loan"));
            }
            recorder.record(now.nanos_since(start));
        }
        Ok(())
    }
}

impl<P: Provider> Target for BulkTarget<P> {
    fn run(&mut self, count: u64, recorder: &mut Recorder) -> Result<(), BenchError> {
        let last = self.sent + count;
        let first = Stamp::now();
        let mut now = first;
        while self.sent < last || !self.under_way.is_empty() {
            while self.sent < last
                && self.under_way.len() < self.window
                && self.send(!self.under_way.is_empty())?
            {}
            if self.under_way.is_empty() {
                self.inner.wait_for_room()?;
                continue;
            }
            self.inner.turns(|app| !app.loans_read.is_empty(), "waiting for a loan to be read")?;
            now = Stamp::now();
            self.answered(now, recorder)?;
        }
        recorder.busy(now.nanos_since(first));
        Ok(())
    }

    fn counted(&mut self) -> Counted {
        let mut counted = self.inner.counted();
        if let Some(text) = &mut counted.negotiated {
            for piece in self.gate.memory() {
                text.push_str(&format!("\nloans                {piece}"));
            }
            text.push_str(&format!("\nmemory               {}", self.gate.memory_node()));
        }
        counted
    }

    fn close(self: Box<Self>) {
        self.inner.inline.close(Duration::from_secs(1));
    }
}

/// What a server reads of a loan of this kind.
#[inline]
#[must_use]
pub(crate) fn read(kind: u16, bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        _ if kind == WHOLE => total(bytes),
        Some(word) => u64::from_le_bytes(*word),
        None => 0,
    }
}
