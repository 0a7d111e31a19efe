//! The data path of the world: chains, receives, the modelled ring, completions.

use std::time::Duration;

use super::{
    config::{FaultKind, Misuse, Step},
    conn::{Inbound, Life, Side},
    halves::Posted,
    world::{Happening, World},
};
use gimmal_transport::{
    CloseReason, Credit, DataPath, FrameWord, Violation,
    frame::{FRAME_WORD_BYTES, span},
    id::Position,
};

/// Where the tag lies in a frame.
const TAG_AT: usize = 4;
/// `IBV_WC_LOC_LEN_ERR`.
const LOCAL_LENGTH_ERROR: u32 = 1;
/// `IBV_WC_REM_INV_REQ_ERR`.
const REMOTE_INVALID_REQUEST: u32 = 9;

impl World {
    /// Posts a chain; decides whether it is signalled: by number, and by bytes so that the ring cannot run dry.
    pub(super) fn post(&mut self, id: u64, side: Side, mut chain: Posted) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let end = &mut conn.ends[side];
        let Some(negotiated) = end.negotiated.clone() else { return };
        if end.life != Life::Open {
            return;
        }
        end.counters.doorbells += 1;
        end.counters.frames_sent += u64::from(chain.frames);
        match negotiated.path {
            DataPath::Ring => end.counters.write_imms += 1,
            DataPath::SendRecv => end.counters.sends += 1,
        }
        let tx = &mut end.tx;
        tx.outstanding += 1;
        tx.unsignalled += 1;
        tx.unsignalled_bytes += chain.bytes.len() as u64;
        if tx.unsignalled >= u64::from(end.config.signal_interval)
            || tx.unsignalled_bytes >= u64::from(negotiated.tx_ring_bytes / 4)
        {
            chain.signals = Some(tx.unsignalled);
            (tx.unsignalled, tx.unsignalled_bytes) = (0, 0);
        }
        let early = end.device.completes_early;
        self.log("post", &[id, side as u64, chain.start, chain.bytes.len() as u64]);
        self.digest.bytes(&chain.bytes);
        if early {
            self.complete(id, side, &chain);
        }
        self.travel(id, side, Duration::ZERO, Happening::Arrive { conn: id, from: side, chain });
    }

    fn complete(&mut self, id: u64, side: Side, chain: &Posted) {
        if let Some(chains) = chain.signals {
            let position = chain.start + chain.bytes.len() as u64;
            let back = Happening::Complete { conn: id, side, chains, position };
            self.come_back(id, side, Duration::ZERO, back);
        }
    }

    pub(super) fn on_complete(&mut self, id: u64, side: Side, chains: u64, position: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.completions += 1;
        let step = Step::Completion(conn.completions);
        if let Some(kind) = self.fault(id, step) {
            return self.strike(id, kind, side, "SEND");
        }
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let end = &mut conn.ends[side];
        end.tx.outstanding = end.tx.outstanding.saturating_sub(chains);
        end.tx.completed = position;
        end.counters.signals += 1;
        self.log("complete", &[id, side as u64, position]);
        self.nudge(id, side);
    }

    pub(super) fn on_arrive(&mut self, id: u64, from: Side, chain: Posted) {
        let to = 1 - from;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.ends[from].failed {
            return;
        }
        let rx = &mut conn.ends[to].rx;
        if !rx.blocked.is_empty() {
            rx.blocked.push_back(chain);
        } else if let Some(chain) = self.deliver(id, to, chain) {
            self.not_ready(id, to, chain);
        }
    }

    fn not_ready(&mut self, id: u64, to: Side, chain: Posted) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let kills = conn.ends[1 - to].device.rnr_kills;
        conn.ends[to].rx.blocked.push_front(chain);
        self.findings.rnr += 1;
        self.log("rnr", &[id]);
        if kills {
            // As seen on siw: the receiver finds no receive and terminates, the sender hears of it late.
            let no_receive = CloseReason::Event { event: "IW_CM_EVENT_TERMINATE", status: 0 };
            self.close_end(id, to, no_receive);
            self.travel(id, to, Duration::ZERO, Happening::Goodbye { conn: id, from: to });
        } else {
            let at = self.now.plus(self.config.rnr_delay.max(Duration::from_micros(1)));
            self.schedule(at, Happening::RnrRetry { conn: id, to });
        }
    }

    pub(super) fn on_rnr_retry(&mut self, id: u64, to: Side) {
        while let Some(chain) = self.conns.get_mut(&id).and_then(|conn| conn.ends[to].rx.blocked.pop_front())
        {
            if let Some(chain) = self.deliver(id, to, chain) {
                return self.not_ready(id, to, chain);
            }
        }
    }

    /// Delivers a chain, or gives it back when no receive is posted.
    fn deliver(&mut self, id: u64, to: Side, mut chain: Posted) -> Option<Posted> {
        let conn = self.conns.get_mut(&id)?;
        if conn.ends[1 - to].failed {
            return None;
        }
        let end = &mut conn.ends[to];
        if end.life == Life::Closed {
            return None;
        }
        if end.device.arrivals {
            if end.rx.posted == 0 {
                return Some(chain);
            }
            end.rx.posted -= 1;
        }
        let mut times = 1;
        match self.frame_fault(id, chain.frames) {
            None => {}
            Some((at, FaultKind::Corrupt)) => corrupt(&mut chain.bytes, at),
            Some((_, FaultKind::Doubled)) => times = 2,
            Some((at, FaultKind::Flipped)) => flip_frame(&mut chain.bytes, at, self.rng.next()),
            Some((_, kind)) => {
                self.strike(id, kind, 1 - to, "SEND");
                return None;
            }
        }
        self.findings.chains += 1;
        if !self.conns.get(&id)?.ends[1 - to].device.completes_early {
            self.complete(id, 1 - to, &chain);
        }
        for _ in 0..times {
            self.land(id, to, &chain);
        }
        None
    }

    /// The fault that hits one of the next `frames` frames, and which of them.
    fn frame_fault(&mut self, id: u64, frames: u32) -> Option<(u32, FaultKind)> {
        let before = {
            let conn = self.conns.get_mut(&id)?;
            conn.frames += u64::from(frames);
            conn.frames - u64::from(frames)
        };
        self.findings.frames += u64::from(frames);
        for at in 0..frames {
            if let Some(kind) = self.fault(id, Step::Frame(before + u64::from(at) + 1)) {
                return Some((at, kind));
            }
        }
        let ppm = u64::from(self.config.lost_ppm);
        if ppm > 0 && self.rng.below(1_000_000) < ppm {
            let number = self.conns.get(&id)?.number;
            self.injected(FaultKind::Lost, number);
            return Some((0, FaultKind::Lost));
        }
        None
    }

    /// Puts a chain where it belongs and its frames into the inbox.
    fn land(&mut self, id: u64, to: Side, chain: &Posted) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let end = &mut conn.ends[to];
        let Some(negotiated) = end.negotiated.clone() else { return };
        let len = chain.bytes.len() as u64;
        let slot = end.rx.next_slot;
        let ring = negotiated.path == DataPath::Ring;
        if ring {
            end.counters.receives_with_imm += 1;
            let over =
                (chain.start + len).saturating_sub(end.rx.released + u64::from(negotiated.rx_ring_bytes));
            write_wrapped(&mut end.rx.ring, chain.start, &chain.bytes);
            if over > 0 {
                self.misuse(Misuse::Overwrite { bytes: over });
            }
        } else {
            end.counters.receives += 1;
            end.rx.next_slot = slot.wrapping_add(1);
            if len > u64::from(negotiated.rx_slot_bytes) {
                let (status, vendor) = (LOCAL_LENGTH_ERROR, 0);
                self.close_end(id, to, CloseReason::Work { operation: "RECV", status, vendor });
                let status = REMOTE_INVALID_REQUEST;
                return self.close_end(id, 1 - to, CloseReason::Work { operation: "SEND", status, vendor });
            }
        }
        let mut at = 0;
        while at < chain.bytes.len() {
            let (word, next) = match parse(&chain.bytes, at, negotiated.rx_frame_bytes_max as usize) {
                Ok(parsed) => parsed,
                Err(violation) => {
                    self.close_end(id, to, violation.into());
                    self.travel(id, to, Duration::ZERO, Happening::Goodbye { conn: id, from: to });
                    return;
                }
            };
            let body = at + FRAME_WORD_BYTES;
            let payload = Box::from(&chain.bytes[body..body + word.payload_bytes()]);
            let end = Position(if ring { chain.start + next as u64 } else { 0 });
            let chain_end = next == chain.bytes.len();
            if let Some(conn) = self.conns.get_mut(&id) {
                let rx = &mut conn.ends[to].rx;
                *rx.lent.entry(if ring { end.0 } else { u64::from(slot) }).or_default() += 1;
            }
            self.put(id, to, Inbound::Frame { payload, tag: word.tag(), end, slot, chain_end });
            at = next;
        }
    }

    /// A port took a frame out. In a ring the receive holds no bytes and is owed with the chain's last.
    pub(super) fn frame_taken(&mut self, id: u64, side: Side, to: Position, slot: u32, chain_end: bool) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let end = &mut conn.ends[side];
        let port = end.port.and_then(|port| self.ports.get(&port));
        if let Err(violation) = end.rx.share_used(slot, port.map(|port| &port.common)) {
            return self.close_end(id, side, violation.into());
        }
        end.counters.frames_received += 1;
        let ring = end.negotiated.as_ref().is_some_and(|negotiated| negotiated.path == DataPath::Ring);
        end.rx.owed += u64::from(ring && chain_end);
        end.rx.read = to;
    }

    /// Posts what is owed.
    pub(super) fn repost(&mut self, id: u64, side: Side) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let rx = &mut conn.ends[side].rx;
        let owed = std::mem::take(&mut rx.owed);
        (rx.posted, rx.arrivals) = (rx.posted + owed, rx.arrivals + owed);
    }

    /// The peer of this end will not use `receives`: nor may it, from now on.
    pub(super) fn take_back(&mut self, id: u64, side: Side, receives: u64) -> Result<(), Violation> {
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        let end = &mut conn.ends[side];
        let port = end.port.and_then(|port| self.ports.get(&port));
        let (Some(share), Some(port)) = (&mut end.rx.share, port) else {
            return Err(Violation::NOT_SHARED);
        };
        let new = share.take_back(receives, &port.common)?;
        end.rx.posted -= u64::from(new);
        Ok(())
    }

    /// The frame that ends at `to`, or lies in `slot`, was released, with these bytes.
    pub(super) fn release(&mut self, id: u64, side: Side, (to, slot): (Position, u32), bytes: &[u8]) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let end = &mut conn.ends[side];
        let Some(negotiated) = end.negotiated.clone() else { return };
        let ring = negotiated.path == DataPath::Ring;
        let key = if ring { to.0 } else { u64::from(slot) };
        let rx = &mut end.rx;
        let Some(left) = rx.lent.get_mut(&key) else { return self.misuse(Misuse::BadRelease) };
        *left -= 1;
        let last = *left == 0;
        if last {
            rx.lent.remove(&key);
        }
        if !ring {
            if last {
                rx.slot_came_back();
            }
            return;
        }
        let start = to.0 - span(bytes.len()) as u64;
        let same =
            read_wrapped(&rx.ring, start + FRAME_WORD_BYTES as u64, bytes.len()).eq(bytes.iter().copied());
        rx.ahead.insert(start, to.0);
        while let Some(end) = rx.ahead.remove(&rx.released) {
            rx.released = end;
        }
        if !same {
            self.misuse(Misuse::FrameChanged);
        }
    }

    /// Grants the shared receives of an end again that came back.
    pub(super) fn grant_again(&mut self, id: u64, side: Side) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let end = &mut conn.ends[side];
        if let Some(port) = end.port.and_then(|port| self.ports.get(&port)) {
            end.rx.grant_again(&port.common);
        }
    }

    /// The connection is gone at this end: what it had of the shared receives is the others'.
    pub(super) fn leave_shared(&mut self, id: u64, side: Side) {
        let Some(end) = self.conns.get_mut(&id).map(|conn| &mut conn.ends[side]) else { return };
        let port = end.port.and_then(|port| self.ports.get(&port));
        if let (Some(mut share), Some(port)) = (end.rx.share.take(), port) {
            share.end(&port.common);
            port.common.give(u32::try_from(end.rx.lent.len()).unwrap_or(u32::MAX));
        }
    }

    /// Publishes credit where it lies in words, after holding it against what was really released.
    pub(super) fn return_credit(&mut self, id: u64, side: Side, credit: Credit) {
        let Some(conn) = self.conns.get(&id) else { return };
        let end = &conn.ends[side];
        if !end.device.credit_words || end.life == Life::Closed {
            return;
        }
        let ring = end.negotiated.as_ref().is_some_and(|negotiated| negotiated.path == DataPath::Ring);
        if (ring && credit.bytes.0 > end.rx.released)
            || (end.device.arrivals && credit.arrivals > end.rx.arrivals)
        {
            self.misuse(Misuse::FalseCredit);
        }
        self.travel(id, side, Duration::ZERO, Happening::Credit { conn: id, from: side, credit });
    }

    pub(super) fn on_credit(&mut self, id: u64, from: Side, credit: Credit) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.ends[1 - from].peer_credit = credit;
            self.nudge(id, 1 - from);
        }
    }
}

/// The frame at `at` and where the next one starts.
fn parse(bytes: &[u8], at: usize, frame_bytes_max: usize) -> Result<(FrameWord, usize), Violation> {
    let torn = Violation::Chain { bytes: bytes.len() };
    let word = bytes.get(at..at + FRAME_WORD_BYTES).and_then(|word| word.try_into().ok()).ok_or(torn)?;
    let word = FrameWord::parse(u64::from_le_bytes(word), frame_bytes_max)?.ok_or(torn)?;
    let next = at + span(word.payload_bytes());
    if next > bytes.len() { Err(torn) } else { Ok((word, next)) }
}

/// Makes the length of frame number `frame` one that cannot be.
fn corrupt(bytes: &mut [u8], frame: u32) {
    let mut at = 0;
    for _ in 0..frame {
        at = parse(bytes, at, usize::MAX).map_or(0, |(_, next)| next);
    }
    bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
}

/// Changes a bit of frame number `frame`: of its tag or payload.
fn flip_frame(bytes: &mut [u8], frame: u32, random: u64) {
    let mut at = 0;
    for _ in 0..frame {
        at = parse(bytes, at, usize::MAX).map_or(0, |(_, next)| next);
    }
    let end = parse(bytes, at, usize::MAX)
        .map_or(bytes.len(), |(word, _)| at + FRAME_WORD_BYTES + word.payload_bytes());
    flip(&mut bytes[at + TAG_AT..end], random);
}

/// Changes one bit.
pub(super) fn flip(bytes: &mut [u8], random: u64) {
    let at = usize::try_from(random % (bytes.len() as u64 * 8).max(1)).unwrap_or(0);
    if let Some(byte) = bytes.get_mut(at / 8) {
        *byte ^= 1 << (at % 8);
    }
}

fn write_wrapped(ring: &mut [u8], start: u64, bytes: &[u8]) {
    let at = Position(start).offset(ring.len());
    let first = bytes.len().min(ring.len() - at);
    ring[at..at + first].copy_from_slice(&bytes[..first]);
    let rest = (bytes.len() - first).min(ring.len());
    ring[..rest].copy_from_slice(&bytes[first..first + rest]);
}

fn read_wrapped(ring: &[u8], start: u64, len: usize) -> impl Iterator<Item = u8> {
    (0..len as u64).map(move |at| ring[Position(start + at).offset(ring.len())])
}
