//! One connection: its socket, its rings, its requests.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use rustix::io::Errno;

use super::{
    bulk::Serving,
    gate::Shared,
    link::TcpLink,
    outgoing::{BulkPiece, Outgoing, Went},
    receive::{Head, Receiver},
    record::{ASK_BYTES, Ask, Record},
    requests::Requests,
    socket::{self, Seen},
    wire::Wire,
};
use crate::{
    CloseReason, ConnId, Event, Negotiated, PortCounters, Pulse, Time, Violation,
    goodbye::{CLOSED, LACKS, PANICKED, closed_by_peer},
};

/// Calls that a look receives by.
const RECEIVES_PER_LOOK: u32 = 2;
/// Looks that found nothing, after which a connection is idle: at one of few, and shared out among many, so that a round of
/// all stays short.
const IDLE_LOOKS: u32 = 256;
const IDLE_LOOKS_OF_ALL: usize = 2048;
/// A host delays an acknowledgement by at most 200 ms (`TCP_DELACK_MAX` of Linux), and the way takes some more.
const ACKNOWLEDGED_AFTER: Duration = Duration::from_millis(250);

/// A connection of a port.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) id: ConnId,
    pub(super) wire: Wire,
    pub(super) negotiated: Arc<Negotiated>,
    pub(super) rx: Receiver,
    pub(super) out: Outgoing,
    pub(super) requests: Requests,
    serving: Serving,
    /// The next piece of bulk is one that the peer asked for, if there is one.
    serves_next: bool,
    body: Body,
    /// Until when the peer's grant has to come; `None`: it has.
    pub(super) greeting_until: Option<Time>,
    /// Its `Opened` was fetched, so frames may be.
    pub(super) is_told: bool,
    /// Nothing more comes from the socket, and why.
    over: Option<CloseReason>,
    /// How a call that sends failed: nothing more is sent.
    broken: Option<&'static str>,
    /// The last word to the peer, which leaves behind all else.
    goodbye: Option<u64>,
    /// It waits in the list of those that have something to send.
    pub(super) is_listed: bool,
    /// The kernel took not all.
    pub(super) is_blocked: bool,
    /// Not looked at until the epoll set says so, or something is sent.
    pub(super) is_parked: bool,
    /// Where it stands among those that are looked at.
    pub(super) turn: usize,
    /// It moved since the table asked last; then its rings may have pages.
    pub(super) has_moved: bool,
    /// The table is to ask.
    pub(super) may_rest: bool,
    /// What was seen last of the peer's host.
    pulse: Option<Pulse>,
    /// Since when its host owes an acknowledgement of a pulse.
    owed_since: Option<Time>,
    /// Since when it was seen that the peer takes nothing.
    stalled_since: Option<Time>,
    /// Since when the peer has not heard of all its credit.
    pub(super) untold_since: Option<Time>,
    idle_looks: u32,
    unread: Unread,
}

/// What a look knows of the bytes in the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unread {
    /// It knows nothing, and asks.
    Unknown,
    /// There are none: the last call took all, so the next look makes none. Bytes that arrive meanwhile are found by the look after it, and a worker
    /// that sleeps at once asks the socket once a frame.
    Nothing,
    /// There may be more: the last call took as much as it asked for, or none was made since the socket told of bytes. Nobody
    /// sleeps before it was asked.
    More,
}

/// The body of a record that is being received.
#[derive(Debug)]
enum Body {
    None,
    Ask { id: u32, what: u32, bytes: [u8; ASK_BYTES], got: usize },
    Data { id: u32, left: usize },
    Put,
}

/// Where a look puts what it finds.
pub(super) struct Found<'a> {
    pub(super) shared: &'a Shared,
    pub(super) counters: &'a mut PortCounters,
    pub(super) news: &'a mut VecDeque<Event>,
}

impl Live {
    pub(super) fn new(id: ConnId, link: TcpLink, shared: &Shared, now: Time) -> Self {
        let TcpLink { wire, rings, is_granted, negotiated, handshake_timeout } = link;
        let (memory, config) = (Arc::clone(&shared.memory), &shared.config);
        Self {
            id,
            wire,
            rx: Receiver::new(rings.rx, &negotiated),
            out: Outgoing::new(rings.tx, &negotiated),
            requests: Requests::new(id, memory, negotiated.initiator_depth.granted),
            serving: Serving::new(id, negotiated.responder_resources.granted, config.bulk_piece_bytes),
            negotiated,
            serves_next: false,
            body: Body::None,
            greeting_until: (!is_granted).then(|| now.plus(handshake_timeout)),
            is_told: false,
            over: None,
            broken: None,
            goodbye: None,
            is_listed: false,
            is_blocked: false,
            is_parked: false,
            turn: 0,
            has_moved: true,
            may_rest: false,
            pulse: None,
            owed_since: None,
            stalled_since: None,
            untold_since: None,
            idle_looks: 0,
            unread: Unread::Unknown,
        }
    }

    /// Whether the peer has granted.
    #[inline]
    pub(super) const fn is_open(&self) -> bool {
        self.greeting_until.is_none()
    }

    /// Whether the engine may stage frames.
    pub(super) const fn is_ending(&self) -> bool {
        self.over.is_some() || self.broken.is_some()
    }

    /// Whether nothing came for a while, as one of `active` connections that are looked at.
    pub(super) fn is_idle(&self, active: usize) -> bool {
        let of_many = u32::try_from(IDLE_LOOKS_OF_ALL / active.max(1)).unwrap_or(IDLE_LOOKS);
        self.idle_looks > of_many.min(IDLE_LOOKS)
    }

    /// Forgets what the last call found: the next look asks the socket.
    pub(super) const fn forget_unread(&mut self) {
        self.unread = Unread::Unknown;
    }

    /// Notes that the socket told of bytes: nobody tells of them again.
    pub(super) const fn told(&mut self) {
        self.unread = Unread::More;
    }

    /// What was seen of the peer's host: whether it acknowledged something since the last look, or may still delay that. Where it takes
    /// nothing, no pulse can be sent, and the kernel asks it ever more rarely: then it has acknowledged what it was asked last. A
    /// process that is stopped is not told from one that is busy.
    pub(super) fn pulse(&mut self, now: Time) -> Option<Pulse> {
        let seen = socket::seen(self.wire.socket())?;
        let before = self.pulse.map_or(now, |pulse| pulse.at);
        let is_heard = seen.since < now.since(before) || (seen.is_stalled && seen.is_answered);
        self.bear_as(seen, now);
        self.owed_since = self.owed_since.filter(|_| !is_heard);
        let is_early = self.owed_since.is_some_and(|owed| now.since(owed) < ACKNOWLEDGED_AFTER);
        let beat = self.pulse.map_or(0, |pulse| pulse.beat) + u64::from(is_heard || is_early);
        self.pulse = Some(Pulse { beat, at: now });
        if self.out.is_empty() && !seen.is_stalled && !self.is_ending() {
            self.out.say(Record::Pulse, &[]);
            self.owed_since.get_or_insert(now);
        }
        self.pulse
    }

    /// A peer that takes nothing is borne as long as its host acknowledges what the kernel asks. Whether something waits for the peer to
    /// take it.
    pub(super) fn bear(&mut self, now: Time) -> bool {
        let Some(seen) = socket::seen(self.wire.socket()) else { return false };
        self.bear_as(seen, now);
        seen.is_behind
    }

    fn bear_as(&mut self, seen: Seen, now: Time) {
        if !seen.is_stalled {
            if self.stalled_since.take().is_some() {
                socket::bear(self.wire.socket(), Duration::ZERO);
            }
            return;
        }
        let since = *self.stalled_since.get_or_insert(now);
        if seen.is_answered {
            socket::bear(self.wire.socket(), now.since(since));
        }
    }

    /// Gives the pages of both rings back, if nothing lies there, and memory that is not in use. Pages come again, zeroed, as they are
    /// used.
    pub(super) fn rest(&mut self) {
        self.rx.rest();
        self.out.rest();
        self.wire.rest();
        if !matches!(self.body, Body::Put) {
            self.serving.rest();
        }
    }

    /// Bytes of the memory for what the peer writes.
    #[cfg(test)]
    pub(super) const fn staged_memory(&self) -> usize {
        self.serving.staged_memory()
    }

    /// It moved, or is about to.
    pub(super) const fn stir(&mut self) {
        (self.idle_looks, self.has_moved) = (0, true);
    }

    /// Whether a frame is there to be read, after a look at the socket.
    ///
    /// # Errors
    /// Why the connection ends; everything before was read.
    #[inline]
    pub(super) fn look(&mut self, found: &mut Found<'_>) -> Result<bool, CloseReason> {
        if self.rx.has_run() {
            return Ok(false);
        }
        let mut calls = if self.over.is_some() { 0 } else { RECEIVES_PER_LOOK };
        if self.unread == Unread::Nothing {
            (calls, self.unread) = (0, Unread::Unknown);
        }
        loop {
            let missing = match self.take_records(found)? {
                Front::Frame if self.is_open() => return Ok(true),
                Front::Frame => return Err(Violation::Malformed { what: "frame before the grant" }.into()),
                Front::Missing(bytes) => bytes,
            };
            if calls == 0 {
                return self.over.clone().map_or(Ok(false), Err);
            }
            calls -= 1;
            if !self.receive(missing) {
                calls = 0;
            }
        }
    }

    /// Whether a look may find something of which nobody tells any more: a whole frame at the front, bytes behind TLS, or bytes in the
    /// socket that the last call did not ask for. An event loop told of those when they arrived.
    pub(super) fn has_come(&self) -> bool {
        self.wire.has_unread()
            || self.unread == Unread::More
            || matches!((&self.body, self.rx.head(0)), (Body::None, Ok(Head::Frame) | Err(_)))
    }

    /// Takes the records at the front, and what of their bodies was received. What lies behind them is moved once: records may be many.
    fn take_records(&mut self, found: &mut Found<'_>) -> Result<Front, CloseReason> {
        let mut used = 0;
        let front = loop {
            if !matches!(self.body, Body::None) {
                let Self { rx, requests, serving, body, .. } = self;
                let fed = rx.feed(used, sink(body, requests, serving));
                used += fed;
                self.body_came(fed, found)?;
                if !matches!(self.body, Body::None) {
                    break Front::Missing(0);
                }
                continue;
            }
            match self.rx.head(used)? {
                Head::Frame => break Front::Frame,
                Head::Nothing { missing } => break Front::Missing(missing),
                Head::Record(record) => {
                    used += super::record::RECORD_BYTES;
                    self.record(record, found)?;
                }
            }
        };
        self.rx.strip(used);
        Ok(front)
    }

    /// Does what a record says, or awaits its body.
    fn record(&mut self, record: Record, found: &mut Found<'_>) -> Result<(), CloseReason> {
        if !self.is_open() && !matches!(record, Record::Grant | Record::Goodbye { .. }) {
            return Err(Violation::Malformed { what: "record before the grant" }.into());
        }
        match record {
            Record::Grant if self.is_open() => Err(Violation::Malformed { what: "second grant" }.into()),
            Record::Grant => {
                self.greeting_until = None;
                let (conn, negotiated) = (self.id, Arc::clone(&self.negotiated));
                found.news.push_back(Event::Opened { conn, negotiated });
                Ok(())
            }
            Record::Goodbye { how } => Err(closed_by_peer(how)),
            Record::Pulse => Ok(()),
            Record::Credit { position } => {
                self.out.credited(position);
                Ok(())
            }
            Record::Ask { id, what } => {
                self.body = Body::Ask { id, what, bytes: [0; ASK_BYTES], got: 0 };
                Ok(())
            }
            Record::Data { id, bytes } => {
                self.requests.expect(id, bytes)?;
                self.body = Body::Data { id, left: bytes as usize };
                // An empty piece is whole at once.
                self.body_came(0, found)
            }
            Record::Put { id, bytes } => {
                self.serving.expect(id, bytes)?;
                self.body = Body::Put;
                Ok(())
            }
            Record::End { id, status } => {
                found.news.extend(self.requests.ended(id, status, found.counters)?);
                Ok(())
            }
        }
    }

    /// So many bytes of the body came: does what it says, if it is whole.
    fn body_came(&mut self, bytes: usize, found: &mut Found<'_>) -> Result<(), CloseReason> {
        match &mut self.body {
            Body::None => {}
            Body::Ask { id, what, bytes: body, got } => {
                *got += bytes;
                if *got == ASK_BYTES {
                    let (id, ask) = (*id, Ask::decode(*what, body)?);
                    self.body = Body::None;
                    self.serving.asked(id, ask, found.shared, &mut self.out)?;
                }
            }
            Body::Data { id, left } => {
                self.requests.came(*id, bytes);
                *left -= bytes;
                if *left == 0 {
                    let id = *id;
                    self.body = Body::None;
                    found.news.extend(self.requests.piece_came(id, found.counters));
                }
            }
            Body::Put => {
                self.serving.came(bytes);
                if self.serving.sink().is_empty() {
                    self.body = Body::None;
                    self.serving.piece_came(&mut self.out)?;
                }
            }
        }
        Ok(())
    }

    /// Receives once. Whether another call may bring more.
    fn receive(&mut self, missing: u64) -> bool {
        let beside_bulk = self.requests.expects_bulk() || self.serving.expects_bulk();
        let Self { rx, requests, serving, body, wire, .. } = self;
        let received = rx.receive(wire, sink(body, requests, serving), missing, beside_bulk);
        let how = match received {
            Ok(Some((to_body, is_all))) => {
                self.stir();
                self.advance(to_body);
                self.unread = match is_all {
                    false => Unread::More,
                    true if beside_bulk => Unread::Unknown,
                    true => Unread::Nothing,
                };
                // TLS is asked once a look: to open what came takes longer than to receive it.
                return !is_all && matches!(self.wire, Wire::Plain(_));
            }
            Err(Errno::AGAIN) => {
                self.idle_looks = self.idle_looks.saturating_add(1);
                if self.wire.has_unread() {
                    // Something came that says nothing to us. Nobody tells of what is behind it: it is not left out of the looks.
                    self.stir();
                }
                self.unread = Unread::Unknown;
                return false;
            }
            Ok(None) => self.broken.unwrap_or("socket closed"),
            Err(errno) => gone(errno),
        };
        self.unread = Unread::Unknown;
        self.over = Some(CloseReason::PeerGone { how });
        false
    }

    /// The kernel has put so many bytes of the body where they go; [`Live::take_records`] sees whether it is whole.
    fn advance(&mut self, bytes: usize) {
        match &mut self.body {
            Body::None => {}
            Body::Ask { got, .. } => *got += bytes,
            Body::Data { id, left } => {
                self.requests.came(*id, bytes);
                *left -= bytes;
            }
            Body::Put => self.serving.came(bytes),
        }
    }

    /// Sends what was flushed, records, and a piece of bulk. Returns whether something is left.
    pub(super) fn push(&mut self, counters: &PortCounters, news: &mut VecDeque<Event>) -> bool {
        if self.broken.is_some() {
            return false;
        }
        self.requests.begin(&mut self.out);
        if self.rx.is_credit_due() {
            self.tell_credit();
        }
        let frames = counters.frames_sent + counters.frames_received;
        if self.out.wants_bulk()
            && let Some(piece) = self.next_piece(frames)
        {
            self.out.put_bulk(piece);
        }
        match self.out.send(&mut self.wire) {
            Ok((went, left)) => {
                self.is_blocked = went == Went::Part;
                if let Some(piece) = left
                    && let Some(id) = piece.request
                {
                    news.extend(self.requests.left(id, piece.bytes()));
                }
            }
            Err(errno) => self.broken = Some(gone(errno)),
        }
        self.broken.is_none() && (self.is_blocked || self.has_out())
    }

    /// The next piece of bulk: of our writes and of the peer's requests by turns, so that neither waits for the end of the other.
    fn next_piece(&mut self, frames: u64) -> Option<BulkPiece> {
        let Self { requests, serving, .. } = self;
        let piece = if self.serves_next {
            serving.next_piece(frames).or_else(|| requests.next_piece())
        } else {
            requests.next_piece().or_else(|| serving.next_piece(frames))
        }?;
        self.serves_next = piece.request.is_some();
        Some(piece)
    }

    /// Whether something is to be sent.
    pub(super) fn has_out(&self) -> bool {
        !self.out.is_empty() || self.requests.has_work() || self.serving.has_work()
    }

    /// The peer hears of its credit with what is sent next.
    pub(super) fn tell_credit(&mut self) {
        self.untold_since = None;
        let record = self.rx.tell_credit();
        self.out.say(record, &[]);
    }

    /// Says goodbye behind what was flushed, unless the peer has gone.
    pub(super) fn say_goodbye(&mut self, reason: &CloseReason) {
        let how = match reason {
            CloseReason::Peer | CloseReason::PeerGone { .. } | CloseReason::PeerLacks => return,
            CloseReason::WorkerPanicked => PANICKED,
            CloseReason::Port(_) => LACKS,
            _ => CLOSED,
        };
        self.out.end();
        self.goodbye = Some(how);
    }

    /// Sends what is left of a connection that has ended, and its goodbye behind that: of records, one that left in part goes before
    /// frames. Whether it is all out.
    pub(super) fn push_last(&mut self) -> bool {
        loop {
            match self.out.send(&mut self.wire) {
                Ok((Went::All, _)) => {}
                Ok((Went::Part, _)) => return false,
                Ok((Went::Nothing, _)) => match self.goodbye.take() {
                    Some(how) => {
                        self.out.say(Record::Goodbye { how }, &[]);
                    }
                    None => break,
                },
                Err(_) => break,
            }
        }
        self.wire.end();
        true
    }
}

/// What lies at the front of the ring behind the records.
enum Front {
    Frame,
    Missing(u64),
}

/// Where the next bytes of the body go.
fn sink<'a>(body: &'a mut Body, requests: &'a mut Requests, serving: &'a mut Serving) -> &'a mut [u8] {
    match body {
        Body::None => &mut [],
        Body::Ask { bytes, got, .. } => &mut bytes[*got..],
        Body::Data { id, left } => requests.sink(*id).map_or(&mut [], |rest| {
            let bytes = rest.len().min(*left);
            &mut rest[..bytes]
        }),
        Body::Put => serving.sink(),
    }
}

/// How a peer was lost.
fn gone(errno: Errno) -> &'static str {
    match errno {
        Errno::CONNRESET | Errno::PIPE => "connection reset",
        Errno::TIMEDOUT => "no acknowledgement of what was sent",
        Errno::BADMSG => "its TLS failed",
        Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::NETDOWN => "no route to it",
        _ => "its socket failed",
    }
}
