//! One connection's hot half: writing frames into our ring, reading them from the peer's.
//!
//! ```text
//!  our ring     │ consumed by the peer │ published │ 0 (the next word) │ words cleared │ free …
//!                                                   tx                              clear_to          tx_limit
//!  peer's ring  │ given back │ lent to the engine │ 0 or a word
//!                                                 rx                    rx_limit
//! ```

use std::{ptr::NonNull, rc::Rc, sync::Arc};

use super::{
    bulk::Passed,
    exposed::Shown,
    link::End,
    pace::{CLEAR_BYTES_MAX, CLEAR_BYTES_MIN, RUN_MAX},
    segment::Segment,
    socket,
};
use crate::{
    CloseReason, ConnId, Credit, FrameWord, Negotiated, Position, Refused, Tag, Violation,
    frame::{FRAME_ALIGN, FRAME_WORD_BYTES, span},
    goodbye::closed_by_peer,
    mem::{Region, Run, RxMemory},
    sync::{
        atomic::Ordering,
        prefetch::{LINE_BYTES, prefetch_to_read},
        publish::{consume, consumed, observe, publish},
        wake::Ringer,
        word::Word,
    },
};

/// What `arrivals` says where receives are not counted: half of everything, so that sums do not wrap.
pub(super) const ARRIVALS: u64 = u64::MAX / 2;
/// The word behind the last frame must be clear, so these bytes are never credit.
const KEPT_FREE: u64 = FRAME_ALIGN as u64;
/// Of positions.
const LINE: u64 = LINE_BYTES as u64;

/// A connection whose two segments are mapped.
#[derive(Debug)]
pub(super) struct Live {
    peer: Segment<Rc<RxMemory>>,
    /// What is read instead, when the peer is not trusted.
    mirror: Option<Segment<Rc<RxMemory>>>,
    /// Where the ring begins that is read: runs of others begin elsewhere.
    run_base: NonNull<u8>,
    /// Position of the next word to read.
    rx: u64,
    /// The peer may not write beyond this.
    rx_limit: u64,
    rx_ring_bytes: u64,
    rx_frame_bytes_max: usize,
    pub(super) id: ConnId,
    /// The reason to close with as soon as what was published is read.
    pub(super) ending: Option<CloseReason>,
    /// Position after the last committed frame.
    tx: u64,
    /// We may not commit beyond this, as far as is known.
    tx_limit: u64,
    tx_ring_bytes: u64,
    /// Lines that begin before this were cleared ahead.
    clear_to: u64,
    /// Of a frame of ours.
    payload_bytes_max: usize,
    /// Where `tx` was at the last flush.
    flushed: u64,
    /// The peer's credit when somebody last looked.
    credit_seen: u64,
    ringer: Ringer,
    /// Not polled until its peer rings, or we send.
    pub(super) parked: bool,
    /// Where both rings stood when somebody last asked whether it is idle.
    stood: (u64, u64),
    pub(super) end: End,
    pub(super) negotiated: Arc<Negotiated>,
    pub(super) passed: Passed,
    pub(super) shown: Shown,
}

impl Live {
    pub(super) fn new(id: ConnId, mut end: End, peer: Segment<Region>, negotiated: Arc<Negotiated>) -> Self {
        let (tx_ring_bytes, rx_ring_bytes) =
            (negotiated.tx_ring_bytes.into(), negotiated.rx_ring_bytes.into());
        let (peer, mirror) = (peer.share(), end.mirror.take().map(|mirror| mirror.share()));
        let run_base = mirror.as_ref().unwrap_or(&peer).place().base;
        Self {
            peer,
            mirror,
            run_base,
            rx: 0,
            rx_limit: rx_ring_bytes,
            rx_ring_bytes,
            rx_frame_bytes_max: negotiated.rx_frame_bytes_max as usize,
            id,
            ending: None,
            tx: 0,
            tx_limit: tx_ring_bytes - KEPT_FREE,
            tx_ring_bytes,
            clear_to: 0,
            payload_bytes_max: negotiated.frame_bytes_max as usize - FRAME_WORD_BYTES,
            flushed: 0,
            credit_seen: 0,
            ringer: Ringer::default(),
            parked: false,
            stood: (0, 0),
            end,
            negotiated,
            passed: Passed::default(),
            shown: Shown::default(),
        }
    }

    /// Lends the frames that were published, at most [`RUN_MAX`] and at most `limit`; see [`Live::has_frame`]. `None`: a run is out.
    #[inline]
    pub(super) fn run(&self, limit: usize) -> Option<Run> {
        if RxMemory::has_run(self.memory(), 1) {
            return None;
        }
        let left = RUN_MAX.min(u32::try_from(limit).unwrap_or(RUN_MAX));
        let (span, bytes_max) = ((self.rx, self.rx_limit), self.rx_frame_bytes_max);
        let (ring, left) = match &self.mirror {
            None => (&self.peer, left),
            Some(mirror) => (mirror, mirror.copy_frames(&self.peer, span, bytes_max, left)),
        };
        // SAFETY: the peer's ring, mapped twice by its region, its mask made for frames. This process never writes it, it
        // is mapped read-only. The peer, of the same user, is trusted not to write a frame that it has published until we
        // give the credit back. Or the mirror, of the same shape, which nobody else has and which is left alone until then.
        Some(unsafe { Run::new(self.id, Rc::clone(ring.memory()), ring.place(), span, bytes_max, left) })
    }

    /// Of the ring that is read.
    #[inline]
    fn memory(&self) -> &Rc<RxMemory> {
        self.mirror.as_ref().unwrap_or(&self.peer).memory()
    }

    /// Whether a frame is there to be read.
    ///
    /// A cache line that both sides look at takes as long to change hands as a message takes to arrive. A caller that
    /// `watches` nothing else therefore asks for the frame's next two lines early, and they come with its first.
    #[inline]
    pub(super) fn has_frame(&self, watches: bool) -> bool {
        let is_drained = self.is_drained();
        if is_drained {
            // ledger: prefetch_watched
            if watches {
                prefetch_to_read(self.peer.payload(self.rx + LINE));
                prefetch_to_read(self.peer.payload(self.rx + 2 * LINE));
            }
        }
        !is_drained
    }

    /// Ends the run: what was taken of it is read. How many frames that was, and what the peer did wrong in it. `None`: it is
    /// another connection's.
    #[inline(always)]
    pub(super) fn end_run(&mut self, run: &mut Run) -> Option<(u32, Option<Violation>)> {
        if !run.is_in(self.run_base) {
            return None;
        }
        self.rx = run.end().0;
        let outcome = (run.taken(), run.broken(self.rx_limit));
        run.end_here();
        Some(outcome)
    }

    /// Whether everything that was published is read.
    #[inline]
    pub(super) fn is_drained(&self) -> bool {
        observe(self.peer.word(self.rx)) == 0
    }

    /// The payload of the next frame, as far as is known: a waiting caller has just looked. It calls nothing, so
    /// that a sender's state stays in registers. Stores retire in order, and dozens per frame would wait behind one
    /// that needs the peer's cache line.
    #[expect(clippy::needless_pass_by_ref_mut, reason = "what it lends is written")]
    #[inline(always)]
    pub(super) fn place(&mut self, payload_bytes: usize) -> Result<&mut [u8], Refused> {
        if payload_bytes > self.payload_bytes_max || self.tx + span(payload_bytes) as u64 > self.tx_limit {
            return Err(self.refused(payload_bytes));
        }
        let payload = self.end.own.payload(self.tx);
        // SAFETY: in our own ring, contiguous by its second view, initialised since its creation. Nobody else writes it,
        // and by the limit above the peer has given these bytes back; it reads no frame before its word is published.
        Ok(unsafe { std::slice::from_raw_parts_mut(payload.as_ptr(), payload_bytes) })
    }

    /// Why a frame of `payload_bytes` cannot be.
    #[cold]
    #[inline(never)]
    fn refused(&self, payload_bytes: usize) -> Refused {
        let limit = self.payload_bytes_max;
        if payload_bytes > limit {
            Refused::TooLarge { bytes: payload_bytes, limit }
        } else if self.ending.is_some() {
            Refused::Closed
        } else {
            Refused::Full
        }
    }

    /// It ends with `reason` when what the peer published is read; nothing more is sent.
    pub(super) fn end(&mut self, reason: CloseReason) {
        self.ending = Some(reason);
        self.tx_limit = 0;
    }

    /// Publishes the frame whose payload was lent: where it ends, and whether it is the first since the last flush.
    ///
    /// The peer works on it while the next is written.
    #[inline(always)]
    pub(super) fn commit(&mut self, payload_bytes: usize, tag: Tag) -> (Position, bool) {
        let word = FrameWord::new(payload_bytes, tag).bits().to_le();
        let next = self.tx + span(payload_bytes) as u64;
        // Cleared ahead where it begins a line; but whoever filled a frame had more room than it took.
        let behind = self.end.own.word(next);
        if !next.is_multiple_of(LINE) || behind.load(Ordering::Relaxed) != 0 {
            behind.store(0, Ordering::Relaxed);
        }
        let begins = !self.is_unflushed();
        publish(self.end.own.word(self.tx), word);
        self.tx = next;
        (Position(next), begins)
    }

    /// Whether frames were committed since the last flush.
    #[inline]
    fn is_unflushed(&self) -> bool {
        self.flushed != self.tx
    }

    /// What was committed is all the peer will see for now, and it was rung: gets the ring ready for more.
    #[inline]
    pub(super) fn flushed(&mut self) {
        self.clear_ahead(self.tx - self.flushed);
        self.flushed = self.tx;
    }

    /// Clears the words that begin the next lines, for `bytes` more, as far as the peer has given them back; nothing is lent
    /// there.
    ///
    /// A frame is published behind the word after it. Where that word begins a line, the frame itself does not need the
    /// line, which the peer may have: then the frame waits as long as a message takes. Done early, nobody waits for it. Done too
    /// early, the peer's prefetcher takes the lines back before they are used.
    #[inline]
    fn clear_ahead(&mut self, bytes: u64) {
        let end = (self.tx + bytes.clamp(CLEAR_BYTES_MIN, CLEAR_BYTES_MAX)).min(self.tx_limit);
        let mut at = self.clear_to.max((self.tx | (LINE - 1)) + 1);
        while at < end {
            self.end.own.word(at).store(0, Ordering::Relaxed);
            at += LINE;
        }
        self.clear_to = at;
    }

    /// Wakes the peer if it sleeps; [`settle`](crate::sync::wake::settle) came before. `false`: it must be rung again.
    #[inline]
    pub(super) fn ring(&mut self) -> bool {
        if !self.ringer.must_ring(self.peer.armed()) || socket::send_doorbell(&self.end.socket) {
            return true;
        }
        self.ringer.forget();
        false
    }

    /// Whether what it sends is copied before it is looked at.
    pub(super) fn is_mirrored(&self) -> bool {
        self.mirror.is_some()
    }

    /// See [`Port::pulse`](crate::Port::pulse).
    pub(super) fn beat(&self) -> Option<u64> {
        Some(self.peer.pulse().load(Ordering::Relaxed)).filter(|beat| *beat != 0)
    }

    /// Its name in the port.
    pub(super) fn id(&self) -> ConnId {
        self.id
    }

    /// Position after the last committed frame.
    pub(super) fn committed(&self) -> Position {
        Position(self.tx)
    }

    /// The peer's credit, as it is.
    #[inline]
    pub(super) fn peer_credit(&mut self) -> Credit {
        self.credit_seen = self.look_at_credit();
        Credit { bytes: Position(self.credit_seen), arrivals: ARRIVALS }
    }

    /// Reads the peer's credit. Our own limit follows if the value is possible; otherwise the engine reports it.
    fn look_at_credit(&mut self) -> u64 {
        let bytes = consumed(self.peer.consumed());
        let limit = bytes.saturating_add(self.tx_ring_bytes - KEPT_FREE);
        if bytes <= self.tx && limit > self.tx_limit && self.ending.is_none() {
            self.tx_limit = limit;
        }
        bytes
    }

    /// Gives the peer's bytes before `position` back, unless somebody may still read some of them.
    #[inline]
    pub(super) fn return_credit(&mut self, position: Position) {
        let is_read =
            position.0 <= self.rx && self.memory().kept_from().is_none_or(|kept| position.0 <= kept);
        if is_read && self.ending.is_none() {
            self.rx_limit = position.0.saturating_add(self.rx_ring_bytes);
            consume(self.end.own.consumed(), position.0);
        }
    }

    /// Why the peer has closed, if it has; everything it published before can be read now.
    #[inline]
    pub(super) fn closed_by_peer(&self) -> Option<CloseReason> {
        // SYNC POINT: end closed. Pairs with the drop of the peer's end.
        match observe(self.peer.closing()) {
            0 => None,
            how => Some(closed_by_peer(how)),
        }
    }

    /// Whether the engine has something to do here; said once for a change of credit.
    pub(super) fn has_work(&mut self) -> bool {
        let credit = consumed(self.peer.consumed());
        let more_credit = std::mem::replace(&mut self.credit_seen, credit) != credit;
        more_credit || self.ending.is_some() || self.has_news()
    }

    /// Whether nothing came, went, or ended since this was last asked.
    pub(super) fn is_idle(&mut self) -> bool {
        let stands = (self.rx, self.tx);
        let stood = std::mem::replace(&mut self.stood, stands);
        stood == stands && !self.is_unflushed() && self.ending.is_none()
    }

    /// Whether a frame came, or the peer has closed.
    pub(super) fn has_news(&self) -> bool {
        !self.is_drained() || self.closed_by_peer().is_some()
    }

    /// The peer's word at `position`.
    #[cfg(all(test, not(loom)))]
    pub(super) fn peer_word(&self, position: u64) -> u64 {
        observe(self.peer.word(position))
    }

    /// Our sleep's word.
    pub(super) fn armed(&self) -> &impl Word {
        self.end.own.armed()
    }
}
