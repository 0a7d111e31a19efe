//! The pulse over verbs: a word of ours that peers may READ, and what we READ of theirs.
//!
//! ```text
//!  Port::pulse ─► one READ among the pulls, of 8 bytes ─► kept ─► the next Port::pulse
//! ```
//! Nothing is posted but when the heartbeat asks, which is while the peer owes a sign. A READ counts within the granted
//! `initiator_depth` and has its turn among the pulls. One that fails closes the connection, as any failed work does.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, Ordering},
};

use gimmal_rdma::verbs::{Mr, Pd, RemoteBytes};

use crate::{
    ConnId, PortError, Pulse, Time,
    mem::Region,
    pulse,
    verbs::{
        data::{
            port::{VerbsPort, open_in},
            pulls::What,
        },
        memory::{purpose::Purpose, rings::system},
    },
};

const PAGE_BYTES: usize = 4096;
const WORD_BYTES: usize = size_of::<u64>();

/// A page of its own that begins with the word, registered for as long as the port has connections on the device.
#[derive(Debug)]
pub(crate) struct PulsePage {
    /// Gone before the memory.
    registration: Mr,
    region: Arc<Region>,
}

impl PulsePage {
    /// That of `page`, made anew after all that used it are gone.
    pub(crate) fn of(page: &mut Weak<Self>, pd: &Arc<Pd>) -> Result<Arc<Self>, PortError> {
        if let Some(page) = page.upgrade() {
            return Ok(page);
        }
        let region = Arc::new(Region::anonymous(PAGE_BYTES).map_err(|error| system("mmap", &error))?);
        let new = Arc::new(Self { registration: Mr::new(pd, &*region, Purpose::Pulse.rights())?, region });
        pulse::keep(&new.region, bump);
        *page = Arc::downgrade(&new);
        Ok(new)
    }

    /// For the grant.
    pub(crate) fn place(&self) -> RemoteBytes {
        let address = self.region.at(0, WORD_BYTES).addr().get() as u64;
        RemoteBytes { address, rkey: self.registration.rkey() }
    }
}

fn bump(region: &Region, beat: u64) {
    let word = region.at(0, WORD_BYTES);
    // SAFETY: inside the page, mapped writable while `region` lives, aligned to it, and only ever touched as an atomic.
    unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) }.store(beat, Ordering::Relaxed);
}

/// What a connection knows of its peer's.
#[derive(Debug)]
pub(crate) struct PeerPulse {
    place: RemoteBytes,
    /// As it was read last; beat 0 before. `None`: nothing tells, and nothing is read.
    last: Option<Pulse>,
    is_asked: bool,
}

impl PeerPulse {
    /// Before the grant, or where no READ is granted.
    pub(crate) const UNKNOWN: Self =
        Self { place: RemoteBytes { address: 0, rkey: 0 }, last: None, is_asked: false };

    /// As the grant says.
    pub(crate) const fn at(place: RemoteBytes) -> Self {
        Self { place, last: Some(Pulse { beat: 0, at: Time(0) }), is_asked: false }
    }

    /// A READ brought it. A word that is 0 has nothing that moves it.
    pub(crate) fn arrived(&mut self, seen: Pulse) {
        self.last = Some(seen).filter(|seen| seen.beat != 0);
        self.is_asked = false;
    }
}

impl VerbsPort {
    /// The steps of [`Port::pulse`](crate::Port::pulse): a READ is posted by a poll, one at a time.
    pub(crate) fn look_at_pulse(&mut self, conn: ConnId, now: Time) -> Option<Pulse> {
        let open = open_in(&mut self.slots, conn).ok()?;
        let last = open.pulse.last?;
        if open.pulse.is_asked {
            return Some(last);
        }
        if open.pulls.is_full() {
            return None;
        }
        let sink = open.belongings.as_ref()?.holdings.sinks().allocate(WORD_BYTES).ok()?;
        open.pulls.add_access(now.0, What::Pulse, sink.loan, sink.lkey, open.pulse.place);
        open.pulse.is_asked = true;
        if !std::mem::replace(&mut open.is_pulling, true) {
            self.pulling.push(conn.index() as usize);
        }
        Some(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pulse_is_what_was_read_last_and_nothing_where_nothing_moves_it() {
        assert_eq!(PeerPulse::UNKNOWN.last, None);
        let mut pulse = PeerPulse::at(RemoteBytes { address: 8192, rkey: 2 });
        assert_eq!(pulse.last, Some(Pulse { beat: 0, at: Time(0) }), "before the first READ");
        pulse.is_asked = true;
        let seen = Pulse { beat: 7, at: Time(100) };
        pulse.arrived(seen);
        assert_eq!((pulse.last, pulse.is_asked), (Some(seen), false));
        pulse.arrived(Pulse { beat: 0, at: Time(200) });
        assert_eq!(pulse.last, None);
    }

    #[test]
    fn the_word_moves_while_its_page_is_kept() {
        let region = Arc::new(Region::anonymous(PAGE_BYTES).unwrap());
        // SAFETY: inside the page, which `region` keeps, and touched as an atomic by everybody.
        let word = unsafe { AtomicU64::from_ptr(region.at(0, WORD_BYTES).as_ptr().cast()) };
        pulse::keep(&region, bump);
        let mut seen = std::collections::BTreeSet::new();
        let began = crate::Instant::now();
        while seen.len() < 3 && began.elapsed().as_secs() < 20 {
            seen.insert(word.load(Ordering::Relaxed));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(seen.len() >= 3 && !seen.contains(&0), "{seen:?}");
    }
}
