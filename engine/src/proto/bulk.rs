//! Bulk in flight: loans of ours that the peer may read, and pulls of the peer's.

use std::sync::Arc;

use gimmal_transport::{Loan, mem::Release};

/// Loans on offer. Slots are reused; the generation in an id makes a late or doubled answer harmless.
#[derive(Debug, Default)]
pub struct Loans {
    slots: Vec<LoanSlot>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct LoanSlot {
    generation: u16,
    held: Option<(Loan, u64)>,
}

impl Loans {
    /// The id the next loan will have.
    #[must_use]
    pub fn slot(&mut self) -> u32 {
        if self.free.is_empty() {
            self.free.push(u32::try_from(self.slots.len()).unwrap_or(u32::MAX));
            self.slots.push(LoanSlot::default());
        }
        let index = self.free[self.free.len() - 1];
        index << 16 | u32::from(self.slots[index as usize].generation)
    }

    /// Keeps `loan` under the id that [`Loans::slot`] gave; `aux` is what the user knows it by.
    pub fn keep(&mut self, id: u32, loan: Loan, aux: u64) {
        debug_assert_eq!(self.free.last().copied(), Some(id >> 16));
        self.free.pop();
        self.slots[(id >> 16) as usize].held = Some((loan, aux));
    }

    /// The peer is done with `id`: the loan and its aux; `None` for an id that is not on offer.
    pub fn done(&mut self, id: u32) -> Option<(Loan, u64)> {
        let slot = self.slots.get_mut((id >> 16) as usize)?;
        if u32::from(slot.generation) != id & 0xffff {
            return None;
        }
        let held = slot.held.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id >> 16);
        Some(held)
    }

    /// How many are on offer.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The connection is gone, and nobody will say any more that the peer is done.
impl Drop for Loans {
    fn drop(&mut self) {
        for (loan, _) in self.slots.iter_mut().filter_map(|slot| slot.held.take()) {
            loan.set_aside();
        }
    }
}

/// Pulls of this connection, by the slot the port knows them by.
#[derive(Debug, Default)]
pub struct Pulls {
    slots: Vec<Option<Pull>>,
}

/// One pull.
#[derive(Debug)]
pub struct Pull {
    /// The peer's id of the loan.
    pub loan_id: u32,
    /// The sum of its bytes, where sums are agreed on.
    pub sum: u32,
    /// The user's token.
    pub token: u64,
}

impl Pulls {
    /// A slot for a pull of the peer's loan `loan_id`.
    pub fn insert(&mut self, loan_id: u32, sum: u32, token: u64) -> u64 {
        let pull = Some(Pull { loan_id, sum, token });
        if let Some(index) = self.slots.iter().position(Option::is_none) {
            self.slots[index] = pull;
            return index as u64;
        }
        self.slots.push(pull);
        self.slots.len() as u64 - 1
    }

    /// The port refused it after all.
    pub fn forget(&mut self, slot: u64) {
        self.take(slot);
    }

    /// The pull in `slot`.
    pub fn take(&mut self, slot: u64) -> Option<Pull> {
        usize::try_from(slot).ok().and_then(|index| self.slots.get_mut(index)?.take())
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    /// Takes any pull that is left: a closing connection fails them one by one.
    pub fn take_any(&mut self) -> Option<Pull> {
        self.slots.iter_mut().find_map(Option::take)
    }
}

/// In-place bulk that the user still reads; the peer hears when it is dropped.
#[derive(Debug, Default)]
pub struct InPlace {
    reading: Vec<(u32, Arc<Release>)>,
}

impl InPlace {
    /// The peer's loan `loan_id` is read until `release` is set.
    pub fn watch(&mut self, loan_id: u32, release: Arc<Release>) {
        self.reading.push((loan_id, release));
    }

    /// One that was dropped.
    pub fn poll_released(&mut self) -> Option<u32> {
        let index = self.reading.iter().position(|(_, release)| release.is_done())?;
        Some(self.reading.swap_remove(index).0)
    }

    /// How many are being read.
    #[must_use]
    pub fn len(&self) -> usize {
        self.reading.len()
    }

    /// Whether none is.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reading.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use gimmal_transport::mem::LoanHome;

    use super::*;

    #[test]
    fn what_the_peer_was_not_done_with_is_set_aside() {
        #[derive(Default)]
        struct Home(Mutex<Vec<(u64, bool)>>);
        impl LoanHome for Home {
            fn give_back(&self, ticket: u64) {
                self.0.lock().unwrap().push((ticket, false));
            }
            fn set_aside(&self, ticket: u64) {
                self.0.lock().unwrap().push((ticket, true));
            }
        }
        let home = Arc::new(Home::default());
        let mut loans = Loans::default();
        let ids = [1, 2].map(|ticket| {
            let id = loans.slot();
            loans.keep(
                id,
                Loan::anonymous_from(8, ticket, Arc::clone(&home) as Arc<dyn LoanHome>).unwrap(),
                0,
            );
            id
        });
        drop(loans.done(ids[0]));
        drop(loans);
        assert_eq!(*home.0.lock().unwrap(), [(1, false), (2, true)]);
    }

    #[test]
    fn late_and_doubled_answers_are_harmless() {
        let mut loans = Loans::default();
        let first = loans.slot();
        loans.keep(first, Loan::anonymous(8, 0).unwrap(), 11);
        assert_eq!(loans.len(), 1);
        assert_eq!(loans.done(first).unwrap().1, 11);
        assert!(loans.done(first).is_none());
        let second = loans.slot();
        assert_ne!(first, second, "a reused slot has a new generation");
        loans.keep(second, Loan::anonymous(8, 0).unwrap(), 12);
        assert!(loans.done(first).is_none());
        assert!(loans.done(0xffff_0000).is_none());
        assert_eq!(loans.len(), 1);
    }
}
