//! Windows in bytes: what a reader lets its sender have in flight, within a budget of the connection.

use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicUsize, Ordering},
};

use gimmal_engine::transport::{Bulk, Loan};

/// Least window, whatever the budget: a stream that has come late goes on, slowly.
pub(crate) const WINDOW_MIN: u32 = 4 << 10;
/// A stream begins with at most this part of what its connection's windows may still come to.
const SHARE: i64 = 1 << SHARE_BITS;
const SHARE_BITS: u32 = 6;
/// Largest window of a stream.
pub(crate) const WINDOW_MAX: u32 = 4 << 20;

/// What the windows of a connection's streams may come to.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Of a new stream.
    first: u32,
    /// Below zero while more streams are open than it was made for.
    left: AtomicI64,
    /// Most bytes of an item that travels in parts.
    pub(crate) item_bytes_max: usize,
    /// Bytes of bulk that users keep which was read, and how many they may be.
    kept: AtomicUsize,
    kept_max: usize,
    /// Bytes of loans that wait to be sent, and how many they may be.
    ahead: AtomicUsize,
    ahead_max: usize,
}

impl Budget {
    #[cfg(test)]
    pub(crate) fn new(first: u32, bytes: usize, item_bytes_max: usize) -> Arc<Self> {
        Arc::new(Self::of(first, bytes, item_bytes_max))
    }

    pub(crate) fn of(first: u32, bytes: usize, item_bytes_max: usize) -> Self {
        let left = AtomicI64::new(i64::try_from(bytes).unwrap_or(i64::MAX));
        let (kept, ahead) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { first, left, item_bytes_max, kept, kept_max: bytes, ahead, ahead_max: bytes }
    }

    /// With so many bytes that users keep, at most.
    pub(crate) fn keeping(self, kept_max: usize) -> Self {
        Self { kept_max: self.kept_max.min(kept_max), ..self }
    }

    /// What a stream begins with: a 64th of what is left at most, so that those which come late find some. It is a power of two
    /// then, because requests that say the same number are shorter.
    fn beginning(&self, left: i64) -> u32 {
        let share = left.max(0) / SHARE;
        match u32::try_from(share) {
            Ok(share) if share < self.first => (1 << share.max(1).ilog2()).max(WINDOW_MIN),
            _ => self.first,
        }
    }

    /// The window of a stream that may never be, beside so many calls: it is taken when the stream is there. Half for each further
    /// half of [`SHARE`] calls, so that the offers of all calls together come to no more than is left.
    pub(crate) fn offer(&self, calls: usize) -> u32 {
        let halves = (calls >> (SHARE_BITS - 1)).min(63);
        self.beginning(self.left.load(Ordering::Relaxed) >> halves)
    }

    /// Takes up to `bytes` of what is left.
    fn take(&self, bytes: u32) -> u32 {
        let left = self.left.load(Ordering::Relaxed);
        let bytes = u32::try_from(left.max(0)).map_or(bytes, |left| left.min(bytes));
        self.left.fetch_sub(bytes.into(), Ordering::Relaxed);
        bytes
    }

    fn give(&self, bytes: u32) {
        self.left.fetch_add(bytes.into(), Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn left(&self) -> i64 {
        self.left.load(Ordering::Relaxed)
    }
}

/// A loan that waits to be sent. Connections have as many bytes of them as their windows may come to.
#[derive(Debug)]
pub(crate) struct Ahead {
    loan: Option<Loan>,
    budget: Arc<Budget>,
    bytes: usize,
}

impl Ahead {
    /// A loan from `lend`, of `bytes`, if there is one and not too much waits.
    pub(super) fn new(
        budget: &Arc<Budget>,
        bytes: usize,
        lend: impl FnOnce() -> Option<Loan>,
    ) -> Option<Self> {
        let ahead = Self { loan: None, budget: Arc::clone(budget), bytes };
        let before = budget.ahead.fetch_add(bytes, Ordering::Relaxed);
        let may = before.saturating_add(bytes) <= budget.ahead_max;
        may.then(lend).flatten().map(|loan| ahead.with(loan))
    }

    fn with(mut self, loan: Loan) -> Self {
        self.loan = Some(loan);
        self
    }

    /// Shortens it.
    pub(super) fn truncate(mut self, bytes: usize) -> Self {
        self.loan = self.loan.take().map(|loan| loan.truncate(bytes));
        self
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.loan.as_deref().unwrap_or_default()
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.loan.as_deref_mut().unwrap_or_default()
    }

    /// It is sent.
    pub(crate) fn take(&mut self) -> Option<Loan> {
        self.loan.take()
    }

    /// It was not sent after all.
    pub(crate) fn put(&mut self, loan: Loan) {
        self.loan = Some(loan);
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.budget.ahead.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Bulk that was read and that a user keeps. Connections have little of it, and copies beyond that.
#[derive(Debug)]
pub struct Kept {
    bulk: Bulk,
    budget: Option<Arc<Budget>>,
}

impl Kept {
    /// Keeps `bulk`, if there is not too much kept.
    ///
    /// # Errors
    /// It, to be copied.
    pub(super) fn new(bulk: Bulk, budget: Option<&Arc<Budget>>) -> Result<Self, Bulk> {
        if let Some(budget) = budget {
            let kept = budget.kept.fetch_add(bulk.len(), Ordering::Relaxed);
            if kept.saturating_add(bulk.len()) > budget.kept_max {
                budget.kept.fetch_sub(bulk.len(), Ordering::Relaxed);
                return Err(bulk);
            }
        }
        Ok(Self { bulk, budget: budget.map(Arc::clone) })
    }
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bulk
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.kept.fetch_sub(self.bulk.len(), Ordering::Relaxed);
        }
    }
}

/// A reader's window. It gives its bytes back to the budget when it is dropped.
#[derive(Debug)]
pub(super) struct Window {
    bytes: u32,
    budget: Arc<Budget>,
}

impl Window {
    pub(super) fn open(budget: &Arc<Budget>) -> Self {
        Self::offered(budget, budget.beginning(budget.left.load(Ordering::Relaxed)))
    }

    /// One of so many bytes, which [`Budget::offer`] has said.
    pub(super) fn offered(budget: &Arc<Budget>, bytes: u32) -> Self {
        budget.left.fetch_sub(bytes.into(), Ordering::Relaxed);
        Self { bytes, budget: Arc::clone(budget) }
    }

    pub(super) const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Doubles it, as far as the budget goes; by how much.
    pub(super) fn grow(&mut self) -> u32 {
        let more = self.budget.take(self.bytes.min(WINDOW_MAX.saturating_sub(self.bytes)));
        self.bytes += more;
        more
    }

    /// It did not grow after all.
    pub(super) fn shrink(&mut self, bytes: u32) {
        self.bytes -= bytes;
        self.budget.give(bytes);
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.budget.give(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_share_a_budget_and_give_it_back() {
        let budget = Budget::new(64 << 10, 4 << 20, 0);
        let mut first = Window::open(&budget);
        assert_eq!((first.bytes(), first.grow(), first.grow()), (64 << 10, 64 << 10, 128 << 10));
        let late = Window::open(&budget);
        assert_eq!(late.bytes(), 32 << 10, "a 64th of what is left, as a power of two");
        let taken: u32 = std::iter::from_fn(|| Some(first.grow()).filter(|more| *more > 0)).sum();
        assert_eq!((first.bytes(), budget.left()), ((256 << 10) + taken, 0), "nothing is left");
        let last = Window::open(&budget);
        assert_eq!((last.bytes(), budget.left()), (WINDOW_MIN, -i64::from(WINDOW_MIN)));
        first.shrink(128 << 10);
        drop((first, late, last));
        assert_eq!(budget.left(), 4 << 20);
        let budget = Budget::new(64 << 10, 1 << 30, 0);
        let mut large = Window::open(&budget);
        while large.grow() > 0 {}
        assert_eq!(large.bytes(), WINDOW_MAX);
    }

    #[test]
    fn streams_that_come_late_begin_with_less_and_none_with_next_to_nothing() {
        // The defaults, with as many calls as are served at once.
        let budget = Budget::new(5 << 18, 128 << 20, 0);
        let mut open: Vec<Window> = (0..256).map(|_| Window::open(&budget)).collect();
        let bytes: Vec<u32> = open.iter().map(Window::bytes).collect();
        assert!(bytes.is_sorted_by(|earlier, later| earlier >= later));
        assert_eq!((bytes[32], bytes[128], bytes[255]), (5 << 18, 256 << 10, 64 << 10));
        assert!(budget.left() >= 0, "no more than the budget");
        // Each opens after another has gone.
        for _ in 0..10 * open.len() {
            open.remove(0);
            open.push(Window::open(&budget));
        }
        let least = open.iter().map(Window::bytes).min();
        assert!(least >= Some(128 << 10), "{least:?}");
    }

    #[test]
    fn offers_of_all_calls_come_to_no_more_than_is_left() {
        let budget = Budget::new(5 << 18, 128 << 20, 0);
        let offers: Vec<u32> = (0..256).map(|calls| budget.offer(calls)).collect();
        assert_eq!((offers[0], offers[31], offers[32], offers[255]), (5 << 18, 5 << 18, 1 << 20, 16 << 10));
        assert_eq!(budget.left(), 128 << 20, "nothing is taken");
        assert!(offers.iter().map(|bytes| i64::from(*bytes)).sum::<i64>() <= budget.left());
        let open: Vec<Window> = offers.iter().map(|bytes| Window::offered(&budget, *bytes)).collect();
        assert!(budget.left() >= 0 && open.iter().map(Window::bytes).eq(offers));
        drop(open);
        assert_eq!((budget.left(), budget.offer(usize::MAX)), (128 << 20, WINDOW_MIN));
    }
}
