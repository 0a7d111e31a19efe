//! A word of ours that peers may READ, and that a thread moves on as long as this process lives.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, Ordering},
};

use gimmal_rdma::verbs::{Mr, Pd, RemoteBytes};

use crate::{PortError, kernel::system_io, mem::Region, pulse, verbs::memory::purpose::Purpose};

const PAGE_BYTES: usize = 4096;
/// Bytes of the word.
pub(crate) const WORD_BYTES: usize = size_of::<u64>();

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
        let region = Arc::new(Region::anonymous(PAGE_BYTES).map_err(|error| system_io("mmap", &error))?);
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

#[cfg(test)]
mod tests {
    use super::*;

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
