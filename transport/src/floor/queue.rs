//! The bare ring: messages copied into slots and out of them, one by one, with an index for each end.
//!
//! ```text
//!  slot    length (8) │ aux (8) │ payload │ padding to lines
//!  words   put: messages that the sender put in │ taken: those that the receiver took out; each on a line of its own
//! ```
//! This is what one writes without an engine: flow control by two counters, and each looks at the other's only when the one
//! that it knows says that there is nothing, or no room. Every message is published, and given back, by itself.

use std::{
    io,
    ptr::NonNull,
    rc::Rc,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{Area, Echoes, Side, wait};
use crate::sync::publish::{consume, consumed, observe, publish};

/// What a slot begins at a multiple of.
const SLOT_ALIGN: usize = 64;
/// Length and aux.
const HEAD_BYTES: usize = 16;

/// One end of two bare rings.
#[derive(Debug)]
pub struct Queue {
    tx: Slots,
    rx: Slots,
    /// What was copied out last.
    body: Vec<u8>,
    window: usize,
    under_way: usize,
}

/// One end of one direction.
#[derive(Debug)]
struct Slots {
    /// The first slot.
    base: NonNull<u8>,
    /// Of one slot, and of all that are used.
    slot_bytes: usize,
    bytes: usize,
    /// Where the next slot is, and its number since the start.
    at: usize,
    number: u64,
    /// The other end's counter, as it was read last.
    seen: u64,
    sender: Side,
    /// Keeps the mapping.
    area: Rc<Area>,
}

impl Slots {
    fn new(area: &Rc<Area>, sender: Side, body_bytes: usize) -> Self {
        let slot_bytes = (HEAD_BYTES + body_bytes).next_multiple_of(SLOT_ALIGN);
        let (region, first, room) = area.slots(sender);
        let base = region.at(first, room);
        let bytes = room / slot_bytes * slot_bytes;
        Self { base, slot_bytes, bytes, at: 0, number: 0, seen: 0, sender, area: Rc::clone(area) }
    }

    fn count(&self) -> u64 {
        (self.bytes / self.slot_bytes) as u64
    }

    /// Whether the next slot is free, for the sender.
    #[inline]
    fn has_room(&mut self) -> bool {
        if self.number - self.seen == self.count() {
            self.seen = consumed(self.area.taken(self.sender));
        }
        self.number - self.seen < self.count()
    }

    /// Whether the next slot is full, for the receiver.
    #[inline]
    fn has_message(&mut self) -> bool {
        if self.number == self.seen {
            self.seen = observe(self.area.put(self.sender));
        }
        self.number != self.seen
    }

    /// The length of the message in the next slot.
    #[inline]
    fn length(&self) -> &AtomicU64 {
        // SAFETY: `at` is below the size of the mapped slots, by `advance`.
        let length = unsafe { self.base.add(self.at) };
        // SAFETY: mapped while `area` lives; `at` is a multiple of a slot's size, itself one of 64, from a page on; these
        // eight bytes are touched as an atomic only.
        unsafe { AtomicU64::from_ptr(length.as_ptr().cast()) }
    }

    /// Aux and `bytes` of payload of the next slot.
    #[inline]
    fn body(&self, bytes: usize) -> NonNull<[u8]> {
        assert!(bytes <= self.slot_bytes - HEAD_BYTES, "no longer than a slot");
        // SAFETY: inside the slot, by the check.
        let aux = unsafe { self.base.add(self.at + size_of::<u64>()) };
        NonNull::slice_from_raw_parts(aux, HEAD_BYTES - size_of::<u64>() + bytes)
    }

    #[inline]
    fn advance(&mut self) {
        self.number += 1;
        self.at += self.slot_bytes;
        if self.at == self.bytes {
            self.at = 0;
        }
    }

    /// Copies a message into the next slot, which is free, and publishes it.
    #[inline]
    fn put(&mut self, aux: u64, payload: &[u8]) {
        let mut body = self.body(payload.len());
        // SAFETY: mapped, and initialised as a file's bytes are. The slot is free, and this process alone writes it: nobody
        // else looks at it before it is published.
        let body = unsafe { body.as_mut() };
        body[size_of::<u64>()..].copy_from_slice(payload);
        body[..size_of::<u64>()].copy_from_slice(&aux.to_le_bytes());
        self.length().store(payload.len() as u64, Ordering::Relaxed);
        self.advance();
        publish(self.area.put(self.sender), self.number);
    }

    /// Copies the message of the next slot, which is full, to `out`, and gives the slot back. What came with it.
    #[inline]
    fn take(&mut self, out: &mut Vec<u8>) -> u64 {
        let bytes = usize::try_from(self.length().load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        let body = self.body(bytes);
        // SAFETY: mapped and initialised; its sender, which is this same code, leaves it alone until we give it back.
        let body = unsafe { body.as_ref() };
        let (aux, payload) = body.split_first_chunk().expect("the slot has an aux");
        let aux = u64::from_le_bytes(*aux);
        out.clear();
        out.extend_from_slice(payload);
        self.advance();
        consume(self.area.taken(self.sender), self.number);
        aux
    }
}

impl Queue {
    /// This process's end, for payloads of up to `payload_bytes`, `window` of them in flight.
    ///
    /// # Errors
    /// `InvalidInput` when a window of them does not fit in a ring.
    pub fn new(area: &Rc<Area>, payload_bytes: usize, window: usize) -> io::Result<Self> {
        let (ours, theirs) = match area.side() {
            Side::Caller => (Side::Caller, Side::Echo),
            Side::Echo => (Side::Echo, Side::Caller),
        };
        let (tx, rx) = (Slots::new(area, ours, payload_bytes), Slots::new(area, theirs, payload_bytes));
        if tx.count() < window as u64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self { tx, rx, body: Vec::with_capacity(payload_bytes), window, under_way: 0 })
    }
}

impl Echoes for Queue {
    #[inline]
    fn post(&mut self, aux: u64, payload: &[u8]) -> bool {
        if self.under_way == self.window || !self.tx.has_room() {
            return false;
        }
        self.under_way += 1;
        self.tx.put(aux, payload);
        true
    }

    #[inline]
    fn take<R>(&mut self, read: impl FnOnce(&[u8]) -> R, go_on: impl FnMut() -> bool) -> Option<R> {
        let Self { rx, body, .. } = self;
        wait(|| rx.has_message().then_some(()), go_on)?;
        rx.take(body);
        self.under_way = self.under_way.saturating_sub(1);
        Some(read(body))
    }

    fn echo(&mut self, mut go_on: impl FnMut() -> bool) {
        let Self { tx, rx, body, .. } = self;
        while wait(|| rx.has_message().then_some(()), &mut go_on).is_some() {
            let aux = rx.take(body);
            if wait(|| tx.has_room().then_some(()), &mut go_on).is_none() {
                return;
            }
            tx.put(aux, body);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{os::fd::AsFd, sync::atomic::AtomicBool};

    use super::*;

    #[test]
    fn messages_go_round_in_order() {
        let (area, fd) = Area::create(100, 8, 100).unwrap();
        let (area, stop) = (Rc::new(area), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let area = Rc::new(Area::attach(fd.as_fd()).unwrap());
                Queue::new(&area, 100, 8).unwrap().echo(|| {
                    std::thread::yield_now();
                    !stop.load(Ordering::Relaxed)
                });
            });
            let mut queue = Queue::new(&area, 100, 8).unwrap();
            let (mut sent, mut read) = (0u64, 0u64);
            // Several times around the ring.
            while read < 5000 {
                while sent < 5000 && queue.post(sent, &[sent.to_le_bytes()[0]; 100][..(sent % 101) as usize])
                {
                    sent += 1;
                }
                assert!(sent - read <= 8);
                let wait = || {
                    std::thread::yield_now();
                    true
                };
                let wanted = vec![read.to_le_bytes()[0]; (read % 101) as usize];
                assert_eq!(queue.take(|body| body == wanted, wait), Some(true), "message {read}");
                read += 1;
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(Queue::new(&area, 60_000, 8).is_err());
    }
}
