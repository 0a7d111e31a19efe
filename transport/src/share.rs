//! What one connection may use of the receives that it shares: a guarantee, and more while it uses that up.
//!
//! ```text
//!  used ─────────────────► granted              granted and unused receives are posted, in any order of use
//!    └ in use ─► released     └ grows with each slot that comes back, by one more when all data receives were in use
//! ```
//! Granted receives can't be taken back, so a share shrinks by not granting returned receives again, and by what its idle peer says that it
//! will not use.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use crate::{Violation, config::CONTROL_RECEIVES};

/// Slots of a queue that are nobody's guarantee.
#[derive(Debug, Default)]
pub struct Common {
    /// Below zero while connections that ended left more in use than that.
    free: AtomicI64,
    all: AtomicU32,
}

impl Common {
    /// So many.
    pub fn of(slots: u32) -> Self {
        let common = Self::default();
        common.add(slots);
        common
    }

    /// More of them are posted.
    pub fn add(&self, slots: u32) {
        // Plain counters: what is posted is the queue's to know.
        self.all.fetch_add(slots, Ordering::Relaxed);
        self.give(slots);
    }

    /// How many there are, free or not.
    pub fn all(&self) -> u32 {
        self.all.load(Ordering::Relaxed)
    }

    /// How many are free.
    pub fn free(&self) -> u32 {
        u32::try_from(self.free.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Half are never promised. They make up for slots that a connection left in use when it ended, and for peers that
    /// send more than they were granted, until these are closed.
    fn floor(&self) -> u32 {
        self.all() / 2
    }

    /// One of them, if enough are left. The port's own thread alone takes any.
    fn take(&self) -> bool {
        let can = self.free() > self.floor();
        if can {
            self.free.fetch_sub(1, Ordering::Relaxed);
        }
        can
    }

    /// So many came back.
    pub fn give(&self, slots: u32) {
        self.free.fetch_add(slots.into(), Ordering::Relaxed);
    }

    /// Whether connections should give back what they have beyond their guarantee.
    fn is_low(&self) -> bool {
        self.free() <= self.floor() + self.all() / 8
    }
}

/// What one connection may use of the receives that it shares: a guarantee, and more while it uses that up.
#[derive(Debug)]
pub struct Share {
    granted: u64,
    used: u64,
    /// Of those granted, what the peer will not use.
    unused: u64,
    /// Slots of chains that are not posted again yet.
    out: u32,
    /// Those that are, and are not granted again yet.
    back: u32,
    extra: u32,
    extra_max: u32,
}

impl Share {
    /// Of a connection that was granted `arrivals`, control's included, and may have `extra_max` more.
    pub fn new(arrivals: u32, extra_max: u32) -> Self {
        Self { granted: arrivals.into(), used: 0, unused: 0, out: 0, back: 0, extra: 0, extra_max }
    }

    /// Receives that the peer was granted since the start.
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// A chain arrived.
    ///
    /// # Errors
    /// The peer was not granted it.
    pub fn arrived(&mut self, common: &Common) -> Result<(), Violation> {
        self.used += 1;
        if self.used + self.unused > self.granted {
            return Err(Violation::Malformed { what: "number of chains: more than receives were granted" });
        }
        self.out += 1;
        // Only a peer that has none left for data is held up by how few there are.
        let is_short = self.granted - self.unused - self.used <= CONTROL_RECEIVES.into();
        if is_short && self.extra < self.extra_max && common.take() {
            self.extra += 1;
            self.granted += 1;
        }
        Ok(())
    }

    /// The slot of a chain is posted again.
    pub fn came_back(&mut self) {
        self.out = self.out.saturating_sub(1);
        self.back += 1;
    }

    /// Grants receives again that came back. Not one by one: chains of one turn are in use together, and only so does a
    /// peer that uses all it has get more.
    pub fn grant_again(&mut self, common: &Common) {
        for _ in 0..std::mem::take(&mut self.back) {
            if self.extra > 0 && common.is_low() {
                self.extra -= 1;
                common.give(1);
            } else {
                self.granted += 1;
            }
        }
    }

    /// The peer will not use `unused`, of all that was granted: how many of these are new, and everybody's again.
    ///
    /// # Errors
    /// It has not as many beyond its guarantee.
    pub fn take_back(&mut self, unused: u64, common: &Common) -> Result<u32, Violation> {
        let new = unused.checked_sub(self.unused).and_then(|new| u32::try_from(new).ok());
        let new = new.filter(|new| *new <= self.extra && self.used + unused <= self.granted);
        let new = new.ok_or(Violation::Malformed { what: "number of unused receives" })?;
        self.extra -= new;
        self.unused = unused;
        common.give(new);
        Ok(new)
    }

    /// The connection is gone, and its queue pair. What is still out comes back to all.
    pub fn end(&mut self, common: &Common) {
        common.give(std::mem::take(&mut self.extra));
        common.free.fetch_sub(std::mem::take(&mut self.out).into(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R51: who is greedy gets up to its cap and leaves the floor; who is quiet takes nothing; what ends gives back.
    #[test]
    fn r51_a_greedy_connection_has_a_cap_and_the_rest_a_floor() {
        let common = Common::of(64);
        let mut shares: Vec<Share> = (0..4).map(|_| Share::new(4, 12)).collect();
        for greedy in &mut shares {
            while greedy.granted > greedy.used + 2 {
                greedy.arrived(&common).unwrap();
            }
            assert!(greedy.arrived(&common).is_ok(), "control's receives are granted too");
        }
        assert_eq!(shares[0].extra, 12, "the cap");
        assert_eq!(common.free(), 32, "the floor");
        let granted: u32 = shares.iter().map(|share| share.extra).sum();
        assert_eq!(granted, 32);
        let mut quiet = Share::new(4, 12);
        for _ in 0..1000 {
            quiet.arrived(&common).unwrap();
            quiet.came_back();
            quiet.grant_again(&common);
        }
        assert_eq!((quiet.extra, quiet.granted - quiet.used), (0, 4));
        let out: u32 = shares.iter().map(|share| share.out).sum();
        shares.iter_mut().for_each(|share| share.end(&common));
        common.give(out);
        assert_eq!(common.free(), 64);
    }

    /// When little is left, returned receives are not granted again, down to the guarantee.
    #[test]
    fn a_share_shrinks_to_its_guarantee_while_little_is_left() {
        let common = Common::of(16);
        let mut busy = Share::new(4, 100);
        for _ in 0..6 {
            busy.arrived(&common).unwrap();
        }
        let extra = busy.extra;
        assert!(extra > 0 && busy.granted == 4 + u64::from(extra));
        while common.take() {}
        for _ in 0..6 {
            busy.came_back();
        }
        busy.grant_again(&common);
        assert!(busy.extra < extra);
        assert!(busy.granted - busy.used >= 4, "the guarantee is whole again");
    }

    #[test]
    fn what_is_not_used_is_everybodys_again() {
        let common = Common::of(64);
        let mut share = Share::new(4, 12);
        for _ in 0..8 {
            share.arrived(&common).unwrap();
        }
        for _ in 0..8 {
            share.came_back();
        }
        share.grant_again(&common);
        let extra = share.extra;
        assert!(extra > 0 && share.granted - share.used == 4 + u64::from(extra));
        assert!(share.take_back(u64::from(extra) + 1, &common).is_err(), "the guarantee stays");
        assert_eq!(share.take_back(1, &common).unwrap(), 1);
        assert!(share.take_back(0, &common).is_err(), "since the start, so never fewer");
        assert_eq!(share.take_back(extra.into(), &common).unwrap(), extra - 1);
        assert_eq!((share.extra, common.free()), (0, 64));
        // What was given up is not there any more; more is granted as before.
        for _ in 0..4 {
            share.arrived(&common).unwrap();
        }
        assert!(share.extra > 0 && share.granted - share.unused - share.used >= 2);
        let left = share.granted - share.unused - share.used;
        for _ in 0..left {
            share.used += 1;
        }
        assert!(share.used + share.unused == share.granted && share.arrived(&Common::of(0)).is_err());
    }

    /// Each chain is read, and its slot posted again, before the next one is looked at.
    #[test]
    fn chains_of_one_turn_use_up_a_guarantee_together() {
        let common = Common::of(64);
        let mut share = Share::new(4, 12);
        for _ in 0..4 {
            share.arrived(&common).unwrap();
            share.came_back();
        }
        share.grant_again(&common);
        assert_eq!((share.extra, share.granted - share.used), (3, 7));
    }

    #[test]
    fn more_than_was_granted_is_a_violation() {
        let common = Common::of(0);
        let mut share = Share::new(4, 0);
        for _ in 0..4 {
            share.arrived(&common).unwrap();
        }
        assert!(share.arrived(&common).is_err());
    }
}
