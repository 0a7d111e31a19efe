//! The sending half of a connection: the transmit ring, what is staged, and what its completions give back.
//!
//! ```text
//!  completed ◄── in flight ──► posted ◄── staged chains ──► head ◄── reserved ──►
//! ```
//! Ring path: one write-with-immediate for each chain, to the same positions of the peer's ring, immediate =
//! bytes of the chain. Send/recv path: one SEND for each chain, from the same staging ring.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use gimmal_rdma::verbs::{Flags, LocalBytes, Mr, OneRequest, PostError, Qp, RemoteBytes, SendList};

use rustix::param::page_size;

use crate::{
    Chain, ConnId, DataPath, FrameWord, Negotiated, PortConfig, PortCounters, Position, Refused, Tag,
    frame::{FRAME_ALIGN, FRAME_WORD_BYTES, span, without_padding},
    mem::{Region, run::RingPlace},
    verbs::{
        control::lane::sends_for,
        data::wr_id::{Kind, WrId},
        memory::rings::{Room, Shape},
    },
};

/// Signals on their way while a ring of frames leaves, at least.
const SIGNALS_IN_RING: u64 = 8;

/// What a signalled work request gives back when it completes; they complete in the order they were posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signal {
    /// Everything before this position has left.
    position: Position,
    /// Chains that left with it, the unsignalled ones before it included.
    chains: u32,
    /// The slot of a transfer, and the bytes of this piece of it.
    pub(crate) transfer: Option<(u16, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Staged {
    at: Position,
    bytes: u32,
}

/// Where the next frame is written.
pub(crate) struct Blank<'a> {
    word: &'a mut [u8; FRAME_WORD_BYTES],
    pub(crate) payload: &'a mut [u8],
}

impl Blank<'_> {
    /// Says what frame it is, `payload_bytes` long.
    #[inline]
    pub(crate) fn begin(self, payload_bytes: usize, tag: Tag) {
        *self.word = FrameWord::new(payload_bytes, tag).bits().to_le_bytes();
    }
}

/// The sending half of a connection: the transmit ring, what is staged, and what its completions give back.
#[derive(Debug)]
pub(crate) struct Tx {
    /// Where many have one: only from the first frame until all have left.
    ring: Option<Region>,
    /// Where that is.
    place: Option<RingPlace>,
    /// Whether it is like that, since where it was used by us, and up to where somebody may have written into it.
    /// Composers are offered more than they fill, and some give up.
    lends: bool,
    lent_at: Position,
    reached: Position,
    /// Goes back with the ring.
    registration: Option<Arc<Mr>>,
    lkey: u32,
    /// What chains are posted as; and what those are that leave alone, as in most turns.
    chain_id: WrId,
    request: OneRequest,
    ring_bytes: usize,
    path: DataPath,
    /// The peer's ring; known when its grant arrived.
    remote: RemoteBytes,
    frame_bytes_max: usize,
    chain_bytes_max: u32,
    inline_bytes: u32,
    head: Position,
    posted: Position,
    completed: Position,
    /// From here on a chain is signalled: a ring full of frames without a signal would never be given back.
    signal_due: Position,
    /// The chain that was begun last, and those before it; none of them is posted. Most turns have one.
    last: Option<Staged>,
    staged: Vec<Staged>,
    signals: VecDeque<Signal>,
    /// Chains begun and not yet given back by a signal: each has one of the send queue's entries for chains.
    begun: u32,
    entries: u32,
    unsignalled: u32,
    interval: u32,
}

fn place_of(ring: &Region, bytes: usize) -> RingPlace {
    RingPlace { base: ring.at(0, 2 * bytes), mask: bytes as u64 - 1 }
}

impl Tx {
    /// Without `room` it is lent a ring when it has something to send.
    pub(crate) fn new(
        conn: ConnId,
        room: Option<Room>,
        lkey: u32,
        negotiated: &Negotiated,
        config: &PortConfig,
    ) -> Self {
        let entries = u32::from(sends_for(config, room.is_none())).max(2);
        let lends = room.is_none();
        let (ring, registration) = room.map(|room| (room.region, room.registration)).unzip();
        let reads = negotiated.initiator_depth.granted as usize;
        let ring_bytes = negotiated.transmit_bytes(page_size());
        let chain_id = WrId::new(Kind::Chain, conn, 0);
        let mut request = match negotiated.path {
            DataPath::Ring => OneRequest::write_with_imm(chain_id),
            DataPath::SendRecv => OneRequest::send(chain_id),
        };
        request.set_lkey(lkey);
        Self {
            place: ring.as_ref().map(|ring| place_of(ring, ring_bytes)),
            ring,
            lends,
            lent_at: Position(0),
            reached: Position(0),
            registration: registration.flatten(),
            lkey,
            chain_id,
            request,
            ring_bytes,
            path: negotiated.path,
            remote: RemoteBytes { address: 0, rkey: 0 },
            frame_bytes_max: negotiated.frame_bytes_max as usize,
            chain_bytes_max: negotiated.chain_bytes_max,
            inline_bytes: negotiated.inline_bytes.granted,
            head: Position(0),
            posted: Position(0),
            completed: Position(0),
            signal_due: Position(ring_bytes as u64 / SIGNALS_IN_RING),
            last: None,
            staged: Vec::with_capacity(entries as usize),
            // Every chain, every READ, the grant and the goodbye could be signalled.
            signals: VecDeque::with_capacity(entries as usize + reads + 2),
            begun: 0,
            entries,
            unsignalled: 0,
            // At most half the queue, so that a full queue always has a signal on its way.
            interval: u32::from(config.signal_interval).clamp(1, entries / 2),
        }
    }

    pub(crate) fn into_room(self) -> Option<Room> {
        let shape = Shape::Ring { bytes: self.ring_bytes };
        Some(Room { region: self.ring?, shape, registration: self.registration })
    }

    /// What ring to lend it before it can send; `None`: it has one.
    pub(crate) fn wants_ring(&self) -> Option<Shape> {
        self.place.is_none().then_some(Shape::Ring { bytes: self.ring_bytes })
    }

    pub(crate) fn lend_ring(&mut self, room: Room, lkey: u32) {
        self.place = Some(place_of(&room.region, self.ring_bytes));
        (self.ring, self.registration, self.lkey) = (Some(room.region), room.registration, lkey);
        self.request.set_lkey(lkey);
        (self.lent_at, self.reached) = (self.head, self.head);
    }

    /// The ring that it was lent, when everything has left that lay there; nothing of it is left in it.
    pub(crate) fn take_idle_ring(&mut self) -> Option<Room> {
        if !self.lends || self.head != self.completed || self.has_staged() {
            return None;
        }
        let region = self.ring.take()?;
        self.place = None;
        let used =
            usize::try_from(self.reached.since(self.lent_at)).unwrap_or(usize::MAX).min(self.ring_bytes);
        let from = region.at(self.lent_at.offset(self.ring_bytes), used);
        // SAFETY: inside the double mapping; all of it has completed, so the device reads none of it, and nobody here has
        // a slice of it.
        unsafe { from.as_ptr().write_bytes(0, used) };
        let shape = Shape::Ring { bytes: self.ring_bytes };
        Some(Room { region, shape, registration: self.registration.take() })
    }

    pub(crate) fn set_remote(&mut self, remote: RemoteBytes) {
        self.remote = remote;
        self.request.set_rkey(remote.rkey);
    }

    /// Whether the next frame could be posted: a queue entry (if it begins a chain) and its memory.
    #[inline]
    fn has_room(&self, bytes: usize) -> bool {
        let used = self.head.since(self.completed);
        (self.begun < self.entries) & (used + bytes as u64 <= self.ring_bytes as u64)
    }

    /// The next frame, with `payload_bytes`.
    #[inline]
    pub(crate) fn reserve(&mut self, payload_bytes: usize) -> Result<Blank<'_>, Refused> {
        let limit = self.frame_bytes_max - FRAME_WORD_BYTES;
        if payload_bytes > limit {
            return Err(Refused::TooLarge { bytes: payload_bytes, limit });
        }
        if !self.has_room(span(payload_bytes)) {
            return Err(Refused::Full);
        }
        let Some(place) = self.place else { return Err(Refused::Full) };
        self.reached = self.reached.max(self.head.plus(span(payload_bytes) as u64));
        let front = place.at(self.head);
        // SAFETY: inside the double mapping, of which a frame is at most a half (`settle`), and behind `head`. Everything up
        // to there has completed (`has_room`), so the device reads none of it. `&mut self` makes this and the slice behind
        // it the only references.
        let word = unsafe { &mut *front.cast() };
        // SAFETY: as above.
        let payload =
            unsafe { std::slice::from_raw_parts_mut(front.wrapping_add(FRAME_WORD_BYTES), payload_bytes) };
        Ok(Blank { word, payload })
    }

    /// Stages the reserved frame, which is written.
    #[inline(always)]
    pub(crate) fn commit(&mut self, payload_bytes: usize, chain: Chain) -> Position {
        #[expect(clippy::cast_possible_truncation, reason = "a frame is at most a quarter of a 1 GiB ring")]
        let bytes = span(payload_bytes) as u32;
        let at = self.head;
        self.head = at.plus(bytes.into());
        if let Some(place) = self.place {
            let last = place.at(at).wrapping_add(bytes as usize - FRAME_ALIGN).cast::<u128>();
            // SAFETY: the end of the frame that was reserved, inside the double mapping and aligned to 16 as all frames are.
            // Its slices are gone, and the device reads none of it before it is posted.
            let last = unsafe { &mut *last };
            // It travels, and what lay there before must not.
            *last = without_padding(*last, payload_bytes);
        }
        match &mut self.last {
            Some(last) if chain == Chain::Extend && last.bytes + bytes <= self.chain_bytes_max => {
                last.bytes += bytes;
            }
            // An `Extend` with nothing to extend begins a chain: the frame must go somewhere.
            last => {
                if let Some(before) = last.replace(Staged { at, bytes }) {
                    self.staged.push(before);
                }
                self.begun += 1;
            }
        }
        self.head
    }

    pub(crate) fn head(&self) -> Position {
        self.head
    }

    pub(crate) fn completed(&self) -> Position {
        self.completed
    }

    /// Posts what is staged. Full is not an error: the rest stays staged.
    ///
    /// # Errors
    /// errno, when the connection is broken.
    #[inline]
    pub(crate) fn flush(
        &mut self,
        qp: &Qp,
        list: &mut SendList,
        counters: &mut PortCounters,
    ) -> Result<(), i32> {
        let result = match (self.last, self.staged.is_empty()) {
            (Some(last), true) => self.post_alone(last, qp, counters),
            _ => self.flush_many(qp, list, counters),
        };
        match result {
            Err(libc::ENOMEM) => Ok(()),
            result => result,
        }
    }

    /// Posts the last `chain`, which is the only one.
    #[inline]
    fn post_alone(&mut self, chain: Staged, qp: &Qp, counters: &mut PortCounters) -> Result<(), i32> {
        let (from, to, flags) = self.depart(chain, true);
        // SAFETY: `from` is of the ring, whose key is the one that was set.
        let result = unsafe { self.request.post(qp, from, to.address, flags) };
        let last = self.last.take();
        if result.is_ok() {
            self.count(1, counters);
        } else {
            self.staged.extend(last);
            self.refuse(0..1);
        }
        result
    }

    #[inline(never)]
    fn flush_many(&mut self, qp: &Qp, list: &mut SendList, counters: &mut PortCounters) -> Result<(), i32> {
        self.staged.extend(self.last.take());
        let mut done = 0;
        while done < self.staged.len() {
            let first = done;
            while done < self.staged.len() && !list.is_full() {
                let chain = self.staged[done];
                done += 1;
                self.push(chain, done == self.staged.len(), list);
            }
            if let Err(PostError { posted, errno }) = list.post(qp) {
                self.count(posted, counters);
                self.refuse(first + posted..done);
                return Err(errno);
            }
            self.count(done - first, counters);
        }
        self.staged.clear();
        Ok(())
    }

    /// So many `chains` were posted.
    #[inline]
    fn count(&self, chains: usize, counters: &mut PortCounters) {
        let chains = chains as u64;
        counters.doorbells += chains;
        match self.path {
            DataPath::Ring => counters.write_imms += chains,
            DataPath::SendRecv => counters.sends += chains,
        }
    }

    /// `chain` is about to be posted: from where, to where on a ring, and how.
    #[inline(always)]
    fn depart(&mut self, chain: Staged, last: bool) -> (LocalBytes, RemoteBytes, Flags) {
        let place = self.place.expect("what is staged lies in a ring");
        self.posted = chain.at.plus(chain.bytes.into());
        self.unsignalled += 1;
        // One that was lent goes back when all of it has left.
        let signalled =
            (self.unsignalled >= self.interval) | (self.posted >= self.signal_due) | (last & self.lends);
        if signalled {
            self.posted_signal(None);
        }
        let address = place.at(chain.at).addr() as u64;
        // SAFETY: the ring is registered until the queue pair is destroyed, and what is staged is not written again before
        // its chain has left.
        let from = unsafe { LocalBytes::new(address, chain.bytes, self.lkey) };
        let offset = chain.at.offset(self.ring_bytes) as u64;
        let to = RemoteBytes { address: self.remote.address + offset, rkey: self.remote.rkey };
        (from, to, Flags { signalled, inline: chain.bytes <= self.inline_bytes })
    }

    fn push(&mut self, chain: Staged, last: bool, list: &mut SendList) {
        let (from, to, flags) = self.depart(chain, last);
        match self.path {
            DataPath::Ring => list.write_with_imm(self.chain_id, from, to, chain.bytes, flags),
            DataPath::SendRecv => list.send(self.chain_id, from, flags),
        }
    }

    /// Undoes the bookkeeping of staged chains that were pushed and refused. Those before them have left; they and what is
    /// behind them stay staged.
    #[cold]
    fn refuse(&mut self, refused: Range<usize>) {
        if let Some(first) = self.staged.get(refused.start) {
            self.posted = first.at;
            while self.signals.back().is_some_and(|last| last.position > self.posted) {
                self.signals.pop_back();
            }
            let signalled = self.signals.back().map_or(self.completed, |last| last.position);
            self.signal_due = self.due_after(signalled);
            let told: u32 = self.signals.iter().map(|signal| signal.chains).sum();
            let left = u32::try_from(self.staged.len() - refused.start).unwrap_or(u32::MAX);
            self.unsignalled = self.begun.saturating_sub(left + told);
        }
        self.staged.drain(..refused.start);
        // It may still be extended: whoever commits the next frame counts no other receive for it.
        self.last = self.staged.pop();
    }

    /// A signalled work request is posted, a chain or not: it gives back what went before it too.
    pub(crate) fn posted_signal(&mut self, transfer: Option<(u16, u32)>) {
        let signal = Signal { position: self.posted, chains: self.unsignalled, transfer };
        self.signals.push_back(signal);
        (self.unsignalled, self.signal_due) = (0, self.due_after(self.posted));
    }

    fn due_after(&self, signalled: Position) -> Position {
        signalled.plus(self.ring_bytes as u64 / SIGNALS_IN_RING)
    }

    /// The oldest signalled piece of `transfer`, or the oldest that belongs to none, completed.
    ///
    /// Of each they complete in the order of their posting. A SEND or a WRITE may overtake a READ (seen on siw, where they
    /// are complete when TCP has them), so one says nothing of the other.
    pub(crate) fn signalled(&mut self, transfer: Option<u16>) -> Option<Signal> {
        let is_it = |signal: &Signal| signal.transfer.map(|(slot, _)| slot) == transfer;
        let signal = match self.signals.front() {
            // As a rule; to take it out of the middle costs a move.
            Some(first) if is_it(first) => self.signals.pop_front(),
            _ => self.signals.iter().position(is_it).and_then(|oldest| self.signals.remove(oldest)),
        }?;
        self.completed = self.completed.max(signal.position);
        self.begun = self.begun.saturating_sub(signal.chains);
        Some(signal)
    }

    /// Whether everything that was posted is known to have left.
    pub(crate) fn is_drained(&self) -> bool {
        self.signals.is_empty() && self.unsignalled == 0
    }

    /// Whether no completion is waited for.
    pub(crate) fn has_no_signals(&self) -> bool {
        self.signals.is_empty()
    }

    /// The goodbye: a chain of no bytes. Its completion says that everything before it has left; on IB, arrived.
    pub(crate) fn post_goodbye(&mut self, qp: &Qp, conn: ConnId, list: &mut SendList) -> Result<(), i32> {
        let from = LocalBytes::NONE;
        let id = WrId::new(Kind::Goodbye, conn, 0);
        let flags = Flags { signalled: true, inline: false };
        match self.path {
            DataPath::Ring => list.write_with_imm(id, from, self.remote, 0, flags),
            DataPath::SendRecv => list.send(id, from, flags),
        }
        list.post(qp).map_err(|error| error.errno)?;
        self.posted_signal(None);
        Ok(())
    }

    /// Frames that were never flushed are lost.
    pub(crate) fn discard(&mut self) {
        let left = self.staged.len() + usize::from(self.last.is_some());
        self.begun = self.begun.saturating_sub(u32::try_from(left).unwrap_or(u32::MAX));
        self.staged.clear();
        self.last = None;
    }

    #[inline]
    pub(crate) fn has_staged(&self) -> bool {
        self.last.is_some() || !self.staged.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::{mem::Access, verbs::data::rx::tests::terms};

    fn room(bytes: usize) -> Room {
        let fd = rustix::fs::memfd_create("tx", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
        rustix::fs::ftruncate(&fd, bytes as u64).expect("a ring of room");
        let region = Region::ring(fd.as_fd(), 0, bytes, Access::ReadWrite).expect("a ring");
        Room { region, shape: Shape::Ring { bytes }, registration: None }
    }

    fn tx(config: &PortConfig) -> Tx {
        let terms = terms(false, config);
        let room = room(terms.tx_ring_bytes as usize);
        Tx::new(ConnId::new(0, 0), Some(room), 0, &terms, config)
    }

    const PATTERN: u8 = 0xAA;

    fn bytes_of(region: &Region, at: usize, bytes: usize) -> &[u8] {
        let from = region.at(at, bytes);
        // SAFETY: inside the mapping, which nobody writes while the slice is there.
        unsafe { std::slice::from_raw_parts(from.as_ptr(), bytes) }
    }

    /// One connection after the other has the ring, from the first position to far beyond its end. Each composes the largest frame,
    /// of which it sends little or nothing.
    #[test]
    fn a_lent_ring_holds_nothing_of_the_last_connection() {
        let config = PortConfig::default();
        let terms = terms(false, &config);
        let (bytes, most) = (terms.tx_ring_bytes as usize, terms.frame_bytes_max as usize - FRAME_WORD_BYTES);
        let mut tx = Tx::new(ConnId::new(0, 0), None, 0, &terms, &config);
        let mut room = room(bytes);
        while tx.head.0 < 3 * bytes as u64 {
            for sent in [None, Some(0), Some(8), Some(200), Some(most)] {
                tx.lend_ring(room, 0);
                let blank = tx.reserve(most).expect("room");
                blank.payload.fill(PATTERN);
                if let Some(sent) = sent {
                    blank.begin(sent, Tag(7));
                    tx.commit(sent, Chain::Begin);
                    // What is written behind the frame that was sent, and given up.
                    tx.reserve(most).expect("room").payload.fill(PATTERN);
                    let chain = tx.last.take().expect("it is staged");
                    tx.push(chain, true, &mut SendList::new(8));
                    tx.signalled(None).expect("it was signalled");
                }
                room = tx.take_idle_ring().expect("everything has left");
                let left = bytes_of(&room.region, 0, bytes).iter().filter(|byte| **byte != 0).count();
                assert_eq!(left, 0, "bytes that are left of {most}, of which {sent:?} were sent");
            }
        }
    }

    #[test]
    fn what_pads_a_frame_is_zero() {
        let config = PortConfig::default();
        let mut tx = tx(&config);
        let bytes = tx.ring_bytes;
        let ring = tx.ring.as_ref().expect("its own").at(0, bytes);
        // SAFETY: inside the mapping, which nobody else has.
        unsafe { ring.write_bytes(PATTERN, bytes) };
        for sent in 0..=64 {
            let at = tx.head.offset(bytes);
            let blank = tx.reserve(100).expect("room");
            blank.payload.fill(PATTERN);
            blank.begin(sent, Tag(7));
            tx.commit(sent, Chain::Extend);
            let frame = bytes_of(tx.ring.as_ref().expect("its own"), at, span(sent));
            let (word, rest) = frame.split_at(FRAME_WORD_BYTES);
            assert_eq!(word, FrameWord::new(sent, Tag(7)).bits().to_le_bytes());
            assert!(rest[..sent].iter().all(|byte| *byte == PATTERN), "{sent} bytes: {frame:x?}");
            assert!(rest[sent..].iter().all(|byte| *byte == 0), "{sent} bytes: {frame:x?}");
        }
    }

    /// Of a list of which the device takes only the first ones, the rest is as if it had never been pushed.
    #[test]
    fn what_was_refused_is_taken_back() {
        let config = PortConfig { signal_interval: 2, ..PortConfig::default() };
        for taken in 0..=5 {
            let (mut tx, mut list) = (tx(&config), SendList::new(8));
            for _ in 0..5 {
                assert!(tx.reserve(8).is_ok(), "room");
                tx.commit(8, Chain::Begin);
            }
            tx.staged.extend(tx.last.take());
            let state = |tx: &Tx| (tx.posted, tx.unsignalled, tx.signal_due, tx.signals.len());
            let mut as_if = self::tx(&config);
            let mut others = SendList::new(8);
            for (at, chain) in tx.staged.clone().into_iter().enumerate() {
                if at < taken {
                    as_if.push(chain, false, &mut others);
                }
                tx.push(chain, false, &mut list);
            }
            tx.refuse(taken..5);
            assert_eq!(state(&tx), state(&as_if), "{taken} were taken");
            let staged = tx.staged.len() + usize::from(tx.last.is_some());
            assert_eq!((staged, tx.begun), (5 - taken, 5));
            assert!(tx.reserve(8).is_ok(), "room");
            tx.commit(8, Chain::Extend);
            assert_eq!(tx.begun, if taken < 5 { 5 } else { 6 }, "what was refused may still be extended");
        }
    }
}
