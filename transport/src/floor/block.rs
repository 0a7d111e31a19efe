//! The block floor: one core writes a block, the other one reads all of it.

use std::{io, rc::Rc, sync::atomic::AtomicU64};

use super::{Area, Side, wait};
use crate::sync::publish::{observe, publish};

/// One end of the exchange.
#[derive(Debug)]
pub struct Block {
    area: Rc<Area>,
    bytes: usize,
    last: u64,
}

impl Block {
    /// This process's end, for blocks of exactly `bytes`.
    ///
    /// # Errors
    /// `InvalidInput` when such a block does not fit in a ring.
    pub fn new(area: &Rc<Area>, bytes: usize) -> io::Result<Self> {
        if bytes > area.ring_bytes() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self { area: Rc::clone(area), bytes, last: 0 })
    }

    /// The caller's half: `fill` writes the block, the other side reads it. What it made of it, or `None` when `go_on`
    /// said no before.
    #[inline]
    pub fn call(&mut self, fill: impl FnOnce(&mut [u8]), go_on: impl FnMut() -> bool) -> Option<u64> {
        debug_assert_eq!(self.area.side(), Side::Caller);
        self.last += 1;
        let (sent, area) = (self.last, &*self.area);
        let (region, base) = area.ring(Side::Caller);
        let block = region.at(base, self.bytes);
        // SAFETY: inside the mapping by `Region::at`, initialised as a file's bytes are. Only the caller writes this ring,
        // `&mut self` makes the slice exclusive here, and the echo reads between our ping and its pong only.
        fill(unsafe { std::slice::from_raw_parts_mut(block.as_ptr(), self.bytes) });
        publish(area.block_ping(), sent);
        wait(|| (observe(area.block_pong()) == sent).then_some(()), go_on)?;
        Some(self.result().load(std::sync::atomic::Ordering::Relaxed))
    }

    /// The echo's half: gives `read` each block and answers with its result, until `go_on` returns false.
    pub fn echo(&mut self, read: impl Fn(&[u8]) -> u64, mut go_on: impl FnMut() -> bool) {
        debug_assert_eq!(self.area.side(), Side::Echo);
        let look = |last| {
            let seen = observe(self.area.block_ping());
            (seen != last).then_some(seen)
        };
        while let Some(seen) = wait(|| look(self.last), &mut go_on) {
            self.last = seen;
            let (region, base) = self.area.ring(Side::Caller);
            let block = region.at(base, self.bytes);
            // SAFETY: inside the mapping by `Region::at`; the caller, which is this same code, leaves the block alone
            // until our pong.
            let result = read(unsafe { std::slice::from_raw_parts(block.as_ptr(), self.bytes) });
            self.result().store(result, std::sync::atomic::Ordering::Relaxed);
            publish(self.area.block_pong(), seen);
        }
    }

    /// Where the echo leaves what it made of a block, before its pong.
    fn result(&self) -> &AtomicU64 {
        let (region, base) = self.area.ring(Side::Echo);
        let word = region.at(base, size_of::<u64>());
        // SAFETY: mapped as long as the area lives and aligned to a page; nothing else uses this ring while blocks are
        // exchanged, and these bytes are touched as an atomic only.
        unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) }
    }
}

#[cfg(test)]
mod tests {
    use std::{os::fd::AsFd, sync::atomic::AtomicBool, sync::atomic::Ordering};

    use super::*;

    #[test]
    fn every_byte_of_a_block_is_read() {
        let (area, fd) = Area::create(100_000, 1, 0).unwrap();
        let area = Rc::new(area);
        let stop = AtomicBool::new(false);
        let sum = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let area = Rc::new(Area::attach(fd.as_fd()).unwrap());
                Block::new(&area, 100_000).unwrap().echo(sum, || {
                    std::thread::yield_now();
                    !stop.load(Ordering::Relaxed)
                });
            });
            let mut block = Block::new(&area, 100_000).unwrap();
            for round in 0..200u8 {
                let go_on = || {
                    std::thread::yield_now();
                    true
                };
                assert_eq!(block.call(|bytes| bytes.fill(round), go_on), Some(u64::from(round) * 100_000));
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(Block::new(&area, 1 << 30).is_err());
    }
}
