//! The frame floor: a header and a payload each way through two rings, and nothing else.
//!
//! ```text
//!  frame   word (8): length and tag, stored last │ aux (8) │ payload │ padding to 16
//! ```
//! The words and fences are those of the shared-memory provider: the payload, then the header before it, in the line that the
//! reader looks at; the word behind the frame is cleared, then the frame's own is stored. There is no credit: the rings hold
//! more frames than are ever in flight, so nothing unread is written over. Nothing is batched, asked for early or
//! cleared
//! ahead: every frame is published by itself, and a provider that does these things can be faster.

use std::{
    io,
    ptr::NonNull,
    rc::Rc,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{
    Echoes,
    area::{AUX_BYTES, Area, Side, window_bytes},
    wait,
};
use crate::{
    FrameWord, Tag,
    frame::{FRAME_ALIGN, FRAME_WORD_BYTES, span},
    sync::publish::{observe, publish},
};

/// One end of the two rings.
#[derive(Debug)]
pub struct Frames {
    tx: Ring,
    rx: Ring,
    payload_bytes: usize,
    /// Frames in flight, at most.
    window: usize,
    under_way: usize,
}

/// One direction.
#[derive(Debug)]
struct Ring {
    /// The ring's first byte; it is mapped twice from here on.
    base: NonNull<u8>,
    /// Of a position; clears what is no multiple of a frame's alignment.
    mask: usize,
    /// Position of the next frame.
    at: usize,
    /// Keeps the mapping.
    _area: Rc<Area>,
}

impl Ring {
    fn new(area: &Rc<Area>, side: Side) -> Self {
        let (region, base) = area.ring(side);
        let base = region.at(base, 2 * area.ring_bytes());
        Self { base, mask: (area.ring_bytes() - 1) & !(FRAME_ALIGN - 1), at: 0, _area: Rc::clone(area) }
    }

    #[inline]
    fn word(&self, position: usize) -> &AtomicU64 {
        // SAFETY: the mask keeps it inside the ring, at least 16 bytes before its end.
        let word = unsafe { self.base.add(position & self.mask) };
        // SAFETY: mapped while `_area` lives, aligned to 16 by the mask. Where a payload covers these bytes they are not
        // shared at that moment: it is written before it is published.
        unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) }
    }

    /// Where the `bytes` behind the word here are; they end inside the second view.
    #[inline]
    fn body(&self, bytes: usize) -> NonNull<u8> {
        debug_assert!(bytes <= self.mask, "frames are at most half of a ring");
        // SAFETY: an offset below the ring's size, and eight bytes more, in a mapping of twice its size.
        unsafe { self.base.add((self.at & self.mask) + FRAME_WORD_BYTES) }
    }

    /// Header and payload of the frame here, for its writer.
    #[inline]
    #[expect(clippy::needless_pass_by_ref_mut, reason = "the exclusive borrow makes the slice exclusive")]
    fn compose(&mut self, bytes: usize) -> &mut [u8] {
        let body = self.body(bytes);
        // SAFETY: `bytes` is at most half of a ring, by the callers, so it ends inside the second view; initialised as a
        // file's bytes are. This process alone writes this ring, and the window, which fits into it (`Frames::new`),
        // says that the other one has read what was here.
        unsafe { std::slice::from_raw_parts_mut(body.as_ptr(), bytes) }
    }

    /// Header and payload of the frame here, which was published.
    #[inline]
    fn read(&self, bytes: usize) -> &[u8] {
        let body = self.body(bytes);
        // SAFETY: `bytes` was checked to be at most half of a ring, so it ends inside the second view. The writer, which
        // is this same code, leaves a published frame alone until it was answered or, being the one that answers, until
        // we posted a whole window after it; neither happens while this borrow lives.
        unsafe { std::slice::from_raw_parts(body.as_ptr(), bytes) }
    }
}

impl Frames {
    /// This process's end, for frames of exactly `payload_bytes`, `window` of them in flight.
    ///
    /// # Errors
    /// `InvalidInput` when a window of such frames does not fit in a ring.
    pub fn new(area: &Rc<Area>, payload_bytes: usize, window: usize) -> io::Result<Self> {
        if window_bytes(payload_bytes, window).is_none_or(|bytes| bytes > area.ring_bytes()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (ours, theirs) = match area.side() {
            Side::Caller => (Side::Caller, Side::Echo),
            Side::Echo => (Side::Echo, Side::Caller),
        };
        let (tx, rx) = (Ring::new(area, ours), Ring::new(area, theirs));
        Ok(Self { tx, rx, payload_bytes, window, under_way: 0 })
    }
}

impl Echoes for Frames {
    #[inline]
    fn post(&mut self, aux: u64, payload: &[u8]) -> bool {
        if self.under_way == self.window {
            return false;
        }
        self.under_way += 1;
        let payload = &payload[..self.payload_bytes];
        let frame = self.tx.compose(AUX_BYTES + payload.len());
        frame[AUX_BYTES..].copy_from_slice(payload);
        frame[..AUX_BYTES].copy_from_slice(&aux.to_le_bytes());
        send(&mut self.tx, AUX_BYTES + payload.len());
        true
    }

    #[inline]
    fn take<R>(&mut self, read: impl FnOnce(&[u8]) -> R, go_on: impl FnMut() -> bool) -> Option<R> {
        let bytes = wait(|| arrived(&self.rx, self.payload_bytes), go_on)?;
        let result = read(&self.rx.read(bytes)[AUX_BYTES..]);
        self.rx.at += span(bytes);
        self.under_way = self.under_way.saturating_sub(1);
        Some(result)
    }

    fn echo(&mut self, mut go_on: impl FnMut() -> bool) {
        while let Some(bytes) = wait(|| arrived(&self.rx, self.payload_bytes), &mut go_on) {
            let (from, to) = (self.rx.read(bytes), self.tx.compose(bytes));
            to[AUX_BYTES..].copy_from_slice(&from[AUX_BYTES..]);
            to[..AUX_BYTES].copy_from_slice(&from[..AUX_BYTES]);
            self.rx.at += span(bytes);
            send(&mut self.tx, bytes);
        }
    }
}

/// Publishes what was composed.
#[inline]
fn send(ring: &mut Ring, bytes: usize) {
    let next = ring.at + span(bytes);
    ring.word(next).store(0, Ordering::Relaxed);
    publish(ring.word(ring.at), FrameWord::new(bytes, Tag(1)).bits());
    ring.at = next;
}

/// Bytes of aux and payload of the frame here, once it is published.
#[inline]
fn arrived(ring: &Ring, payload_bytes: usize) -> Option<usize> {
    let bits = observe(ring.word(ring.at));
    let word = FrameWord::parse(bits, FRAME_WORD_BYTES + AUX_BYTES + payload_bytes).ok()??;
    (word.payload_bytes() >= AUX_BYTES).then(|| word.payload_bytes())
}

#[cfg(test)]
mod tests {
    use std::{
        os::fd::{AsFd, OwnedFd},
        sync::atomic::AtomicBool,
        time::Duration,
    };

    use super::*;
    use crate::Instant;
    use crate::floor::Line;

    fn in_time() -> impl FnMut() -> bool {
        let started = Instant::now();
        move || {
            std::thread::yield_now();
            started.elapsed() < Duration::from_secs(20)
        }
    }

    /// Runs `echo` on another thread while `call` runs here.
    fn pair(fd: &OwnedFd, echo: impl Fn(Rc<Area>, &dyn Fn() -> bool) + Sync, call: impl FnOnce()) {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let area = Rc::new(Area::attach(fd.as_fd()).unwrap());
                echo(area, &|| {
                    std::thread::yield_now();
                    !stop.load(Ordering::Relaxed)
                });
            });
            call();
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn frames_come_back_whole_over_many_laps() {
        for bytes in [0, 1, 64, 3000] {
            let (area, fd) = Area::create(bytes, 1, 0).unwrap();
            let area = Rc::new(area);
            let echo = |area: Rc<Area>, go_on: &dyn Fn() -> bool| {
                Frames::new(&area, bytes, 1).unwrap().echo(go_on);
            };
            pair(&fd, echo, || {
                let mut frames = Frames::new(&area, bytes, 1).unwrap();
                for round in 0..1500u64 {
                    let payload = vec![round.to_le_bytes()[0]; bytes];
                    assert!(frames.post(round, &payload) && !frames.post(round, &payload));
                    let same = frames.take(|back| back == payload, in_time());
                    assert_eq!(same, Some(true), "{bytes} bytes, round {round}");
                }
            });
        }
    }

    #[test]
    fn lines_come_back_and_a_silent_peer_is_given_up() {
        let (area, fd) = Area::create(0, 1, 0).unwrap();
        let area = Rc::new(area);
        let mut line = Line::new(&area);
        pair(
            &fd,
            |area, go_on| Line::new(&area).echo(go_on),
            || {
                for _ in 0..2000 {
                    assert!(line.call(in_time()));
                }
            },
        );
        assert!(!line.call(|| false));
        let mut frames = Frames::new(&area, 0, 1).unwrap();
        assert!(frames.post(0, &[]) && frames.take(|_| (), || false).is_none());
    }

    #[test]
    fn a_frame_that_does_not_fit_is_refused() {
        let (area, _fd) = Area::create(64, 1, 0).unwrap();
        let area = Rc::new(area);
        for (bytes, window) in [(40 << 10, 1), (64, 1 << 10), (usize::MAX, 1), (64, usize::MAX)] {
            let refused = Frames::new(&area, bytes, window).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn a_window_of_frames_comes_back_in_order() {
        let (area, fd) = Area::create(64, 700, 0).unwrap();
        let area = Rc::new(area);
        let echo = |area: Rc<Area>, go_on: &dyn Fn() -> bool| {
            Frames::new(&area, 64, 700).unwrap().echo(go_on);
        };
        pair(&fd, echo, || {
            let mut frames = Frames::new(&area, 64, 700).unwrap();
            let payload = |number: u64| [number.to_le_bytes()[0]; 64];
            let (mut sent, mut done) = (0, 0);
            while done < 20_000u64 {
                while frames.post(sent, &payload(sent)) {
                    sent += 1;
                }
                assert_eq!(sent - done, 700);
                assert_eq!(frames.take(|back| back == payload(done), in_time()), Some(true), "{done}");
                done += 1;
            }
        });
    }
}
