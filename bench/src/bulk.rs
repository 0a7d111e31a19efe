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
    target::{Counted, Target, total},
};

/// The client's end.
#[derive(Debug)]
pub(crate) struct BulkTarget<P: Provider> {
    inner: InlineTarget<P>,
    gate: P::Gate,
    bytes: usize,
    is_whole: bool,
    /// When the outstanding loans left, and what the server must answer, by their number modulo the window.
    under_way: Vec<(Stamp, u64)>,
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
        let under_way = vec![(Stamp::now(), 0); plan.window];
        Ok(Self { inner, gate, bytes: plan.block.max(8), is_whole, under_way, sent: 0 })
    }

    /// Writes a loan as number `number`: its first word, or all of it. Returns what the reader will find.
    fn fill(&self, loan: &mut Loan, number: u64) -> u64 {
        if self.is_whole {
            let filling = number.to_le_bytes()[0];
            loan.fill(filling);
            return self.total_of(filling);
        }
        if let Some(word) = loan.first_chunk_mut::<8>() {
            *word = number.to_le_bytes();
        }
        number
    }

    /// What [`total`] makes of a loan that has the same byte everywhere.
    fn total_of(&self, filling: u8) -> u64 {
        let words = (self.bytes / 8) as u64;
        let word = u64::from_le_bytes([filling; 8]);
        words.wrapping_mul(word).wrapping_add((self.bytes % 8) as u64 * u64::from(filling))
    }

    /// Sends the next loan; false when there is no room or memory for it now.
    fn send(&mut self, wait_ok: bool) -> Result<bool, BenchError> {
        let mut loan = match self.gate.allocate(self.inner.conn, self.bytes) {
            Ok(loan) => loan,
            // The ones under way come back.
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
                let slot = self.slot(self.sent);
                self.under_way[slot] = (start, wanted);
                self.sent += 1;
                Ok(true)
            }
            Err(refused) if refused.error == SendError::Blocked => {
                self.inner.blocked += 1;
                Ok(false)
            }
            Err(refused) => Err(BenchError::Closed(refused.error.to_string())),
        }
    }

    fn slot(&self, number: u64) -> usize {
        usize::try_from(number % self.under_way.len() as u64).unwrap_or(0)
    }
}

impl<P: Provider> Target for BulkTarget<P> {
    fn run(&mut self, count: u64, recorder: &mut Recorder) -> Result<(), BenchError> {
        let window = self.under_way.len() as u64;
        let (mut done, last) = (self.sent, self.sent + count);
        let first = Stamp::now();
        let mut now = first;
        while done < last {
            while self.sent < last && self.sent - done < window && self.send(self.sent > done)? {}
            if self.sent == done {
                self.inner.wait_for_room()?;
                continue;
            }
            // Answers come in the order of the pulls, which is the order of the loans.
            self.inner.turns(|app| app.answered > done, "waiting for a loan to be read")?;
            now = Stamp::now();
            let answered = self.inner.inline.app().answered;
            for number in done..answered {
                let (start, _) = self.under_way[self.slot(number)];
                recorder.record(now.nanos_since(start));
            }
            done = answered;
            let (_, wanted) = self.under_way[self.slot(done - 1)];
            if self.inner.inline.app().digest != wanted {
                return Err(BenchError::Wrong("another sum of a loan"));
            }
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
