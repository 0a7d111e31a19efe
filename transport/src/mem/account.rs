//! What a connection has of its port's memory for bulk. So much of it waits for a peer that reads nothing, and no more.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::{PortCounters, PortError, mem::LoanHome};

/// The bytes that a connection has of its port's memory for bulk: its loans, and what was pulled for it.
#[derive(Debug)]
pub struct Account {
    limit: u64,
    bytes: AtomicU64,
    refused: AtomicU64,
}

impl Account {
    /// An account for at most `limit` bytes: [`loan_bytes_max`](crate::PortConfig::loan_bytes_max).
    #[must_use]
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, bytes: AtomicU64::new(0), refused: AtomicU64::new(0) })
    }

    /// Counts `bytes` more, until the debit is dropped.
    ///
    /// # Errors
    /// [`PortError::Limit`] when they would be too many.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Result<Debit, PortError> {
        let add = |now: u64| now.checked_add(bytes).filter(|sum| *sum <= self.limit);
        // Counts guard nothing but themselves.
        match self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => Ok(Debit { account: Arc::clone(self), bytes }),
            Err(now) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                let value = now.saturating_add(bytes);
                Err(PortError::Limit { field: "port.loan_bytes_max", value, limit: self.limit })
            }
        }
    }

    /// `counters` of the connection, with those of its account.
    #[must_use]
    pub fn counted(&self, counters: PortCounters) -> PortCounters {
        let [loan_bytes, loans_refused] =
            [&self.bytes, &self.refused].map(|count| count.load(Ordering::Relaxed));
        PortCounters { loan_bytes, loans_refused, ..counters }
    }
}

/// Bytes that an account counts until this is dropped, on whatever thread.
#[derive(Debug)]
pub struct Debit {
    account: Arc<Account>,
    bytes: u64,
}

impl Drop for Debit {
    fn drop(&mut self) {
        self.account.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The home of a loan that is counted and belongs nowhere.
impl LoanHome for Debit {
    fn give_back(&self, _: u64) {}
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_connection_has_so_much_lent_and_no_more() {
        let (account, other) = (Account::new(3000), Account::new(3000));
        let (first, second) = (account.take(1024).unwrap(), account.take(1024).unwrap());
        let lack = |value| PortError::Limit { field: "port.loan_bytes_max", value, limit: 3000 };
        assert_eq!(account.take(1000).map(|_| ()), Err(lack(3048)));
        assert_eq!(account.take(u64::MAX).map(|_| ()), Err(lack(u64::MAX)));
        let kept = other.take(2048).unwrap();
        drop(first);
        let third = account.take(1976).unwrap();
        assert!(account.take(1).is_err());
        let shown = |account: &Account| {
            let PortCounters { loan_bytes, loans_refused, .. } = account.counted(PortCounters::default());
            (loan_bytes, loans_refused)
        };
        assert_eq!((shown(&account), shown(&other)), ((3000, 3), (2048, 0)));
        std::thread::spawn(move || drop((second, third, kept))).join().unwrap();
        assert_eq!((shown(&account), shown(&other)), ((0, 3), (0, 0)));
    }
}
