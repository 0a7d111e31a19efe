//! Two ports, a listener, and connections between them; credit is obeyed here as an engine would.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use super::outcome::{Outcome, ensure};
use gimmal_transport::{
    Address, Batch, Chain, ConnId, Credit, DataPath, Negotiated, Offer, Port, Position, Provider, Refused,
    RxFrame, Staged, Tag, Time, Transfer,
    frame::span,
    testing::{Came, next_frames},
};

/// Side 0 connects, side 1 listens.
pub(super) type Side = usize;

/// Two ports and a listener.
pub(super) struct Rig<P: Provider> {
    pub(super) providers: [P; 2],
    pub(super) ports: [P::Port; 2],
    pub(super) listener: P::Listener,
    pub(super) address: Address,
    pub(super) inbox: [VecDeque<Came>; 2],
    pub(super) batch: Batch,
    pub(super) polls: [u64; 2],
}

impl<P: Provider> Rig<P> {
    /// Polls one port into its inbox.
    pub(super) fn poll_side(&mut self, side: Side, now: Time) -> usize {
        self.polls[side] += 1;
        // Frames take turns with events.
        if self.polls[side].is_multiple_of(2)
            && let Some(frames) = next_frames(&mut self.ports[side], self.batch.room())
        {
            let count = frames.len();
            self.inbox[side].extend(frames);
            return count;
        }
        self.ports[side].poll(now, &mut self.batch);
        let count = self.batch.len();
        self.inbox[side].extend(self.batch.drain().map(Came::from));
        count
    }

    /// Takes all frames that lie open at one side, and the events of one poll; how many.
    pub(super) fn turn(&mut self, side: Side, now: Time) -> usize {
        let before = self.inbox[side].len();
        while let Some(frames) = next_frames(&mut self.ports[side], usize::MAX) {
            self.inbox[side].extend(frames);
        }
        self.ports[side].poll(now, &mut self.batch);
        self.inbox[side].extend(self.batch.drain().map(Came::from));
        self.inbox[side].len() - before
    }

    /// Polls both.
    pub(super) fn poll(&mut self, now: Time) -> usize {
        self.poll_side(0, now) + self.poll_side(1, now)
    }

    /// Pulls; what is over at once is an event of the inbox.
    pub(super) fn pull(&mut self, side: Side, conn: ConnId, offer: Offer, token: u64) -> Result<(), Refused> {
        let over = self.ports[side].pull(conn, offer, token)?;
        self.inbox[side].extend(over.map(|result| Came::Pulled { conn, token, result }));
        Ok(())
    }

    /// Takes the first event of a side that is wanted.
    pub(super) fn take(&mut self, side: Side, want: impl Fn(&Came) -> bool) -> Option<Came> {
        let at = self.inbox[side].iter().position(want)?;
        self.inbox[side].remove(at)
    }
}

/// One direction's book-keeping, at its sender and its receiver.
#[derive(Default)]
pub(super) struct Flow {
    /// After the last frame that was committed.
    pub(super) sent: Position,
    /// Chains that were begun.
    pub(super) chains: u64,
    /// Contiguously released by the receiver.
    pub(super) released: Position,
    ahead: BTreeMap<u64, u64>,
    chain_bytes: u64,
}

/// One connection: both ids, both views of the terms, and the credit of both directions.
pub(super) struct Duo {
    pub(super) ids: [ConnId; 2],
    pub(super) terms: [Arc<Negotiated>; 2],
    /// By the side that sends.
    pub(super) flows: [Flow; 2],
}

impl Duo {
    /// Whether credit lets `side` begin (or extend) a chain by a frame with `payload_bytes`.
    pub(super) fn has_credit<P: Provider>(
        &self,
        rig: &mut Rig<P>,
        side: Side,
        payload_bytes: usize,
        chain: Chain,
    ) -> bool {
        let (terms, flow) = (&self.terms[side], &self.flows[side]);
        let end = flow.sent.plus(span(payload_bytes) as u64);
        let ring = u64::from(terms.tx_ring_bytes);
        // Where an engine would send its credit in frames, the receiver's own numbers stand in for them.
        let credit = rig.ports[side].credit(self.ids[side]).peer.unwrap_or_else(|| Credit {
            bytes: flow.released,
            arrivals: rig.ports[1 - side].credit(self.ids[1 - side]).arrivals,
        });
        (!terms.arrivals_count || chain == Chain::Extend || flow.chains < credit.arrivals)
            && (terms.path == DataPath::SendRecv || end.since(credit.bytes) <= ring)
            && end.since(rig.ports[side].credit(self.ids[side]).completed) <= ring
    }

    /// Commits a frame if credit and the port allow it: `Ok(None)` when they do not yet.
    pub(super) fn commit<P: Provider>(
        &mut self,
        rig: &mut Rig<P>,
        side: Side,
        payload: &[u8],
        tag: Tag,
        chain: Chain,
    ) -> Outcome<Option<Position>> {
        if !self.has_credit(rig, side, payload.len(), chain) {
            return Ok(None);
        }
        let port = &mut rig.ports[side];
        let mut lent = 0;
        let fill = |bytes: &mut [u8]| {
            lent = bytes.len();
            bytes.get_mut(..payload.len())?.copy_from_slice(payload);
            Some(Staged { payload_bytes: payload.len(), tag, chain })
        };
        let end = match port.compose(self.ids[side], payload.len(), fill) {
            Ok(Some(end)) => end,
            Ok(None) => return Err(format!("{lent} bytes lent for {}", payload.len()).into()),
            Err(Refused::Full) => return Ok(None),
            Err(refused) => return Err(refused.into()),
        };
        let flow = &mut self.flows[side];
        let bytes = span(payload.len()) as u64;
        ensure!(end == flow.sent.plus(bytes), "{bytes} bytes after {:?} end at {end:?}", flow.sent);
        flow.sent = end;
        if chain == Chain::Begin {
            flow.chains += 1;
            flow.chain_bytes = 0;
        }
        flow.chain_bytes += bytes;
        Ok(Some(end))
    }

    /// Has `side` write `byte` over all of a frame with `payload_bytes`, which is given up then.
    pub(super) fn scribble<P: Provider>(
        &self,
        rig: &mut Rig<P>,
        side: Side,
        payload_bytes: usize,
        byte: u8,
    ) -> Outcome {
        let given_up = rig.ports[side].compose(self.ids[side], payload_bytes, |room| {
            room.fill(byte);
            None
        })?;
        ensure!(given_up.is_none(), "what was given up ends at {given_up:?}");
        Ok(())
    }

    /// Whether the last chain of `side` may grow by a frame with `payload_bytes`.
    pub(super) fn may_extend(&self, side: Side, payload_bytes: usize) -> bool {
        let flow = &self.flows[side];
        flow.chain_bytes + span(payload_bytes) as u64 <= u64::from(self.terms[side].chain_bytes_max)
    }

    /// Hands a frame back at the receiving `side`, and counts its credit.
    pub(super) fn release<P: Provider>(&mut self, rig: &mut Rig<P>, side: Side, frame: RxFrame) {
        let flow = &mut self.flows[1 - side];
        if self.terms[side].path == DataPath::Ring {
            flow.ahead.insert(frame.end().0 - span(frame.len()) as u64, frame.end().0);
            while let Some(end) = flow.ahead.remove(&flow.released.0) {
                flow.released = Position(end);
            }
        }
        let bytes = flow.released;
        let port = &mut rig.ports[side];
        port.release(self.ids[side], frame);
        let arrivals = port.credit(self.ids[side]).arrivals;
        port.return_credit(self.ids[side], Credit { bytes, arrivals });
    }
}

/// Bytes that depend on `seed` and on the place.
pub(super) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let mut word = seed as u64 ^ 0x9e37_79b9_7f4a_7c15;
    (0..len)
        .map(|_| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word.to_be_bytes()[0]
        })
        .collect()
}
