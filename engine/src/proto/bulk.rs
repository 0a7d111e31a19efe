//! Bulk in flight: loans of ours that the peer may read, and pulls of the peer's.

use gimmal_transport::{
    Loan,
    mem::{Release, Releases},
    pack::{Field, low_half},
};

/// Names a loan on offer: a slot of the side that lends, and which use of the slot this is. The other side only says it again.
///
/// A slot is used again when the peer is done with what was in it, so the generation only makes a late or doubled answer
/// harmless. It goes round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoanId(u32);

type Generation = Field<0, 16>;
type Index = Field<{ Generation::END }, 16>;
const _: () = assert!(Index::END == u32::BITS);

/// Loans that a connection can have on offer at once: as many as there are ids.
pub const LOANS_MAX: usize = 1 << (Index::END - Generation::END);

impl LoanId {
    /// `None` for a slot that no id can name.
    fn new(slot: u32, generation: u16) -> Option<Self> {
        let slot = Index::put(slot.into())?;
        Some(Self(low_half(slot | Generation::turn(generation.into()))))
    }

    /// As it travels.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Reads it back; a peer may have written anything.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    const fn slot(self) -> u32 {
        Index::get_u32(self.0 as u64)
    }

    const fn generation(self) -> u16 {
        Generation::get_u16(self.0 as u64)
    }
}

/// Loans on offer, at most [`LOANS_MAX`].
#[derive(Debug, Default)]
pub struct Loans {
    slots: Vec<LoanSlot>,
    free: Vec<u32>,
    is_wanted: bool,
}

#[derive(Debug, Default)]
struct LoanSlot {
    generation: u16,
    held: Option<(Loan, u64)>,
}

impl Loans {
    /// The id that the next loan will have; `None` when [`LOANS_MAX`] are on offer.
    #[must_use]
    pub fn next_id(&mut self) -> Option<LoanId> {
        let slot = self.free.last().copied().or_else(|| self.grow())?;
        LoanId::new(slot, self.slots[slot as usize].generation)
    }

    #[cold]
    fn grow(&mut self) -> Option<u32> {
        if self.slots.len() == LOANS_MAX {
            self.is_wanted = true;
            return None;
        }
        let slot = u32::try_from(self.slots.len()).ok()?;
        self.slots.push(LoanSlot::default());
        self.free.push(slot);
        Some(slot)
    }

    /// Keeps `loan` under the id that [`Loans::next_id`] gave; `aux` is what the user knows it by.
    pub fn keep(&mut self, loan: Loan, aux: u64) {
        let Some(slot) = self.free.pop() else { return loan.set_aside() };
        self.slots[slot as usize].held = Some((loan, aux));
    }

    /// The peer is done with `id`: the loan and its aux; `None` for an id that is not on offer.
    pub fn done(&mut self, id: LoanId) -> Option<(Loan, u64)> {
        let slot = self.slots.get_mut(id.slot() as usize)?;
        if slot.generation != id.generation() {
            return None;
        }
        let held = slot.held.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.slot());
        Some(held)
    }

    /// Whether a loan was refused an id since this was asked last.
    #[inline]
    #[must_use]
    pub fn poll_wanted(&mut self) -> bool {
        self.is_wanted && std::mem::take(&mut self.is_wanted)
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
    pub loan_id: LoanId,
    /// The sum of its bytes, where sums are agreed on.
    pub sum: u32,
    /// The user's token.
    pub token: u64,
}

impl Pulls {
    /// A slot for a pull of the peer's loan `loan_id`.
    pub fn insert(&mut self, loan_id: LoanId, sum: u32, token: u64) -> u64 {
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
    releases: Releases,
    /// What is read, by the place of its release.
    loans: Vec<LoanId>,
    len: usize,
}

impl InPlace {
    /// The peer's loan `loan_id` is read until `release` is set.
    pub fn watch(&mut self, loan_id: LoanId, release: &Release) {
        let place = self.releases.watch(release) as usize;
        if place >= self.loans.len() {
            self.loans.resize(place + 1, loan_id);
        }
        self.loans[place] = loan_id;
        self.len += 1;
    }

    /// Calls `each` with the loan of every bulk that was dropped since the last time.
    #[inline]
    pub fn take_released(&mut self, mut each: impl FnMut(LoanId)) {
        let Self { releases, loans, len } = self;
        releases.take(|place| {
            *len -= 1;
            each(loans[place as usize]);
        });
    }

    /// How many are being read.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether none is.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, Mutex},
        time::Duration,
    };

    use gimmal_transport::{Bulk, Instant, mem::LoanHome, sync::doorbell::Doorbell};

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
            let home = Arc::clone(&home) as Arc<dyn LoanHome>;
            offer(&mut loans, Loan::anonymous_from(8, ticket, home).unwrap(), 0).unwrap()
        });
        drop(loans.done(ids[0]));
        drop(loans);
        assert_eq!(*home.0.lock().unwrap(), [(1, false), (2, true)]);
    }

    fn offer(loans: &mut Loans, loan: Loan, aux: u64) -> Option<LoanId> {
        let id = loans.next_id()?;
        loans.keep(loan, aux);
        Some(id)
    }

    /// Without memory of its own, so that there can be very many.
    fn empty() -> Loan {
        Loan::anonymous(0, 0).unwrap()
    }

    #[test]
    fn bulk_that_is_kept_costs_a_look_nothing() {
        let waker = Arc::new(Doorbell::new().unwrap());
        let mut in_place = InPlace::default();
        let mut kept: Vec<_> = (0..65_536)
            .map(|id| {
                let release = Release::new(Arc::clone(&waker));
                in_place.watch(LoanId::from_bits(id), &release);
                Some(Bulk::held(empty(), release))
            })
            .collect();
        let began = Instant::now();
        for _ in 0..10_000 {
            in_place.take_released(|id| panic!("{id:?} is still read"));
        }
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "each look went through all: {:?}",
            began.elapsed()
        );
        let dropped = [0, 63, 64, 40_000, 65_535];
        dropped.iter().for_each(|index| kept[*index] = None);
        let mut told = Vec::new();
        in_place.take_released(|id| told.push(id.bits() as usize));
        assert_eq!((told, in_place.len()), (dropped.to_vec(), 65_531));
        // A place that is used again tells its new loan.
        let release = Release::new(waker);
        in_place.watch(LoanId::from_bits(70_000), &release);
        drop(Bulk::held(empty(), release));
        in_place.take_released(|id| assert_eq!(id.bits(), 70_000));
        assert_eq!(in_place.len(), 65_531);
        kept.clear();
        in_place.take_released(|_| ());
        assert!(in_place.is_empty());
    }

    #[test]
    fn late_and_doubled_answers_are_harmless() {
        let mut loans = Loans::default();
        let first = offer(&mut loans, empty(), 11).unwrap();
        assert_eq!(loans.len(), 1);
        assert_eq!(loans.done(first).unwrap().1, 11);
        assert!(loans.done(first).is_none());
        let second = offer(&mut loans, empty(), 12).unwrap();
        assert_ne!(first, second, "a reused slot has a new generation");
        assert!(loans.done(first).is_none());
        assert!(loans.done(LoanId::from_bits(0xffff_0000)).is_none());
        assert_eq!(loans.len(), 1);
    }

    #[test]
    fn one_loan_more_than_there_are_ids_is_refused_until_one_is_done() {
        let mut loans = Loans::default();
        let ids: Vec<_> = (0..65_536).map(|aux| offer(&mut loans, empty(), aux).unwrap()).collect();
        let unlike: std::collections::HashSet<_> = ids.iter().map(|id| id.bits()).collect();
        assert_eq!((unlike.len(), loans.len()), (65_536, 65_536), "two loans have one id");
        assert!(!loans.poll_wanted());
        for _ in 0..3 {
            assert_eq!(offer(&mut loans, empty(), 65_536), None);
        }
        assert!(loans.poll_wanted() && !loans.poll_wanted());
        assert_eq!(loans.done(ids[40_000]).unwrap().1, 40_000, "each is found under its own id");
        let next = offer(&mut loans, empty(), 65_536).unwrap();
        assert!(next != ids[40_000] && loans.done(ids[40_000]).is_none());
        assert_eq!(offer(&mut loans, empty(), 65_537), None);
        assert_eq!(loans.done(next).unwrap().1, 65_536);
        for (aux, id) in (0..).zip(ids).filter(|(aux, _)| *aux != 40_000) {
            assert_eq!(loans.done(id).unwrap().1, aux);
        }
        assert!(loans.is_empty());
    }

    #[test]
    fn ids_at_the_edges_are_read_back_whole() {
        for (slot, generation) in [(0, 0), (0, u16::MAX), (65_535, 0), (65_535, u16::MAX)] {
            let id = LoanId::from_bits(LoanId::new(slot, generation).unwrap().bits());
            assert_eq!((id.slot(), id.generation()), (slot, generation));
        }
        assert_eq!((LoanId::new(65_536, 0), LoanId::new(u32::MAX, 0)), (None, None));
    }

    #[test]
    fn the_generation_of_a_loan_goes_round_and_names_no_other_slot() {
        let mut loans = Loans::default();
        let held = offer(&mut loans, empty(), 1).unwrap();
        let first = offer(&mut loans, empty(), 2).unwrap();
        let mut id = first;
        for _ in 0..65_536 {
            assert!(loans.done(id).is_some() && loans.done(id).is_none());
            id = offer(&mut loans, empty(), 2).unwrap();
        }
        assert_eq!((id, loans.len()), (first, 2), "65,536 uses later");
        assert_eq!(loans.done(held).unwrap().1, 1);
    }
}
