//! What this side asks of the peer: pulls and one-sided operations, as many at once as were granted.

use std::{collections::VecDeque, sync::Arc};

use super::{
    allocate::Memory,
    outgoing::{BulkPiece, Outgoing},
    record::{Ask, PIECE_BYTES, Record},
};
use crate::{
    AccessError, BulkError, ConnId, Event, Offer, OneSided, PortCounters, Remote, Violation,
    mem::{Accessed, Bulk, Loan, Region},
};

/// Requests that may wait for their turn.
const WAITING_MAX: usize = 256;

/// A refused request, as an `End` says it.
pub(super) const NOT_EXPOSED: u32 = 1;

/// The requests of one connection.
#[derive(Debug)]
pub(super) struct Requests {
    conn: ConnId,
    memory: Arc<Memory>,
    waiting: VecDeque<Request>,
    /// By their ids, below `depth`. There are places for as many as flew at once so far: a connection at rest may need none.
    flying: Vec<Option<Request>>,
    /// As many as were granted.
    depth: usize,
    /// The write whose bytes go out: nothing is asked behind it before they have.
    writing: Option<u32>,
}

#[derive(Debug)]
struct Request {
    token: u64,
    ask: Ask,
    goal: Goal,
}

#[derive(Debug)]
enum Goal {
    Pull { into: Loan, got: usize },
    Read { into: Loan, got: usize },
    Word { into: [u8; 8], got: usize },
    Write { from: Loan, region: Arc<Region>, begun: usize, left: usize, ended: Option<u32> },
}

impl Goal {
    /// What is still to come.
    fn rest(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Pull { into, got } | Self::Read { into, got } => Some(&mut into[*got..]),
            Self::Word { into, got } => Some(&mut into[*got..]),
            Self::Write { .. } => None,
        }
    }

    fn advance(&mut self, bytes: usize) {
        match self {
            Self::Pull { got, .. } | Self::Read { got, .. } | Self::Word { got, .. } => *got += bytes,
            Self::Write { .. } => {}
        }
    }
}

const UNASKED: Violation = Violation::Malformed { what: "answer that nobody asked for" };

impl Requests {
    pub(super) fn new(conn: ConnId, memory: Arc<Memory>, depth: u32) -> Self {
        let (waiting, flying, depth) = (VecDeque::new(), Vec::new(), depth as usize);
        Self { conn, memory, waiting, flying, depth, writing: None }
    }

    /// The id of the next request, if it may be asked.
    fn free(&self) -> Option<usize> {
        let end = self.flying.len();
        self.flying.iter().position(Option::is_none).or_else(|| (end < self.depth).then_some(end))
    }

    /// Whether no request can be taken.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_MAX
    }

    /// Whether bytes are to come that do not belong in the ring.
    #[inline]
    pub(super) fn expects_bulk(&self) -> bool {
        self.flying.iter().any(Option::is_some)
    }

    /// Whether something is to be asked or written.
    pub(super) fn has_work(&self) -> bool {
        self.writing.is_some() || (!self.waiting.is_empty() && self.free().is_some())
    }

    /// Asks for what `offer` names.
    pub(super) fn pull(&mut self, offer: Offer, token: u64, into: Loan) {
        let ask = Ask::Pull { key: offer.key, at: offer.address, len: offer.len };
        self.waiting.push_back(Request { token, ask, goal: Goal::Pull { into, got: 0 } });
    }

    /// Asks for `op`, which was checked; what cannot be asked for comes back.
    pub(super) fn access(
        &mut self,
        remote: Remote,
        op: OneSided,
        token: u64,
    ) -> Result<(), (AccessError, OneSided)> {
        let key = remote.key();
        let (ask, goal) = match op {
            OneSided::Read { at, into } => {
                (Ask::Read { key, at, len: into.len() as u64 }, Goal::Read { into, got: 0 })
            }
            OneSided::Write { at, from } => {
                let Some(region) = self.memory.region(from.ticket()) else {
                    return Err((AccessError::Foreign, OneSided::Write { at, from }));
                };
                let left = from.len();
                let ask = Ask::Write { key, at, len: left as u64 };
                (ask, Goal::Write { from, region, begun: 0, left, ended: None })
            }
            OneSided::CompareSwap { at, expected, new } => {
                (Ask::Swap { key, at, expected, new }, Goal::Word { into: [0; 8], got: 0 })
            }
            OneSided::FetchAdd { at, add } => {
                (Ask::Add { key, at, add }, Goal::Word { into: [0; 8], got: 0 })
            }
        };
        self.waiting.push_back(Request { token, ask, goal });
        Ok(())
    }

    /// Says what may be asked now, in order.
    pub(super) fn begin(&mut self, out: &mut Outgoing) {
        while self.writing.is_none()
            && !self.waiting.is_empty()
            && let Some(id) = self.free()
            && let Some(request) = self.waiting.pop_front()
        {
            let (what, body) = request.ask.encode();
            // An id is below the depth, which is a byte.
            let name = u32::try_from(id).unwrap_or(u32::MAX);
            out.say(Record::Ask { id: name, what }, &body);
            if matches!(request.goal, Goal::Write { left: 1.., .. }) {
                self.writing = Some(name);
            }
            if id == self.flying.len() {
                self.flying.push(None);
            }
            self.flying[id] = Some(request);
        }
    }

    /// The next piece of the write that goes out.
    pub(super) fn next_piece(&mut self) -> Option<BulkPiece> {
        let id = self.writing?;
        let Some(Request { goal: Goal::Write { from, region, begun, .. }, .. }) =
            self.flying.get_mut(id as usize)?.as_mut()
        else {
            return None;
        };
        let bytes = (from.len() - *begun).min(PIECE_BYTES);
        if bytes == 0 {
            return None;
        }
        let record = Record::Put { id, bytes: u32::try_from(bytes).ok()? };
        let mut piece = BulkPiece::of_region(record, Arc::clone(region), *begun, bytes);
        piece.request = Some(id);
        *begun += bytes;
        Some(piece)
    }

    /// A piece of write `id` has left; the end of the write, if that was all and it ended.
    pub(super) fn left(&mut self, id: u32, bytes: usize) -> Option<Event> {
        let Some(Request { goal: Goal::Write { left, ended, .. }, .. }) =
            self.flying.get_mut(id as usize)?.as_mut()
        else {
            return None;
        };
        *left -= bytes;
        // What is asked next must not go before it.
        self.writing = self.writing.filter(|_| *left > 0);
        let status = ended.filter(|_| *left == 0)?;
        self.finish(id, status)
    }

    /// Where the next `bytes` of request `id` go.
    ///
    /// # Errors
    /// Nobody asked for so much.
    pub(super) fn expect(&mut self, id: u32, bytes: u32) -> Result<(), Violation> {
        let rest = self.sink(id).ok_or(UNASKED)?;
        if rest.len() < bytes as usize { Err(UNASKED) } else { Ok(()) }
    }

    /// What is missing of request `id`.
    pub(super) fn sink(&mut self, id: u32) -> Option<&mut [u8]> {
        self.flying.get_mut(id as usize)?.as_mut()?.goal.rest()
    }

    /// So many bytes of request `id` came.
    pub(super) fn came(&mut self, id: u32, bytes: usize) {
        if let Some(Some(request)) = self.flying.get_mut(id as usize) {
            request.goal.advance(bytes);
        }
    }

    /// A piece of request `id` is whole: the end of the request, if it was the last.
    pub(super) fn piece_came(&mut self, id: u32, counters: &mut PortCounters) -> Option<Event> {
        let slot = self.flying.get_mut(id as usize)?;
        let request = slot.as_mut()?;
        if let Goal::Pull { .. } = request.goal {
            counters.reads += 1;
        }
        if !request.goal.rest()?.is_empty() {
            return None;
        }
        let (conn, request) = (self.conn, slot.take()?);
        let token = request.token;
        let accessed = |result| Event::Accessed { conn, token, result: Ok(result) };
        counters.accesses += u64::from(!matches!(request.goal, Goal::Pull { .. }));
        match request.goal {
            Goal::Pull { into, .. } => {
                counters.read_bytes += into.len() as u64;
                Some(Event::Pulled { conn, token, result: Ok(Bulk::own(into)) })
            }
            Goal::Read { into, .. } => Some(accessed(Accessed::Loan(into))),
            Goal::Word { into, .. } => Some(accessed(Accessed::Word(u64::from_le_bytes(into)))),
            Goal::Write { .. } => None,
        }
    }

    /// The peer says that request `id` ended.
    pub(super) fn ended(
        &mut self,
        id: u32,
        status: u32,
        counters: &mut PortCounters,
    ) -> Result<Option<Event>, Violation> {
        let request = self.flying.get_mut(id as usize).and_then(Option::as_mut).ok_or(UNASKED)?;
        if let Goal::Write { left, ended, .. } = &mut request.goal {
            counters.accesses += u64::from(status == 0);
            if *left > 0 {
                *ended = Some(status);
                return Ok(None);
            }
        } else if status == 0 {
            return Err(UNASKED);
        }
        Ok(self.finish(id, status))
    }

    fn finish(&mut self, id: u32, status: u32) -> Option<Event> {
        let Request { token, goal, .. } = self.flying.get_mut(id as usize)?.take()?;
        let conn = self.conn;
        Some(match goal {
            Goal::Pull { .. } => {
                let offer = Violation::Malformed { what: "bulk offer" };
                Event::Pulled { conn, token, result: Err(BulkError::Offer(offer)) }
            }
            Goal::Write { from, .. } if status == 0 => {
                Event::Accessed { conn, token, result: Ok(Accessed::Loan(from)) }
            }
            _ => Event::Accessed { conn, token, result: Err(AccessError::NotExposed) },
        })
    }

    /// The connection ends, and so does every request.
    pub(super) fn end(&mut self) -> impl Iterator<Item = Event> {
        let conn = self.conn;
        let flying = self.flying.iter_mut().filter_map(Option::take);
        flying.chain(self.waiting.drain(..)).map(move |Request { token, goal, .. }| match goal {
            Goal::Pull { .. } => Event::Pulled { conn, token, result: Err(BulkError::Closed) },
            _ => Event::Accessed { conn, token, result: Err(AccessError::Closed) },
        })
    }
}
