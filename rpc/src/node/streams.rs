//! Items, their credit and their ends, for both roles.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
};

use gimmal_engine::{
    Head, Io, LoanRefused, RemoteBulk, SendError,
    transport::{ConnId, Port, Time, Violation},
};

use super::{
    Conn, Node,
    answers::{drop_answered, status_answer},
    items::decline,
    serving::{Answered, CANCELLED, State},
    tasks::{Polled, Served},
};
use crate::{
    calls::CallKey,
    cx::Cx,
    error::TransportError,
    frame::{self, Flags, Kind, ResponseHead},
    id::CallId,
    service::Entry,
    stats::Counters,
    status::{Code, Fate, Status},
    stream::{self, Begun, Lane, Lanes, Offered, Owed, Owner, lanes_begun, lanes_of_callee},
    task::BoxTask,
    wake::Waking,
};

/// Lanes looked at in one turn.
const LANES: usize = 256;
/// Most bytes of items that a call sends before others have their turn.
const TURN_BYTES: usize = 64 << 10;

/// How far sending came.
enum Pumped {
    Done,
    /// Others first.
    Turn,
    Blocked,
    TooLarge(usize),
}

/// Sends what a call's lanes owe: items of the direction that `items` says, and credit for the other.
fn pump<P: Port>(
    io: &mut Io<'_, P>,
    conn: ConnId,
    id: CallId,
    lanes: &mut Lanes,
    (items, credit): (Flags, Flags),
    counters: &Counters,
) -> Pumped {
    let (mut sent_bytes, limit) = (0, io.body_bytes_max(conn));
    while let Some(owed) = lanes.next_owed(limit) {
        let number;
        if let Owed::Bulk { is_short, .. } = owed {
            let flags = if is_short { items.and(Flags::SHORT) } else { items };
            if offer(io, conn, Head { kind: Kind::Item.with(flags.and(Flags::BULK)), aux: id.aux() }, lanes) {
                counters.large_items.increment();
                lanes.left(owed);
            } else if !lanes.is_unlent() {
                return Pumped::Blocked;
            }
            continue;
        }
        let (kind, bytes): (u16, &[u8]) = match &owed {
            Owed::Item { bytes, is_short, has_more } => {
                if sent_bytes >= TURN_BYTES {
                    return Pumped::Turn;
                }
                sent_bytes += bytes;
                let flags = if *is_short { items.and(Flags::SHORT) } else { items };
                let flags = if *has_more { flags.and(Flags::LARGE) } else { flags };
                (Kind::Item.with(flags), &lanes.item()[..*bytes])
            }
            Owed::Bulk { .. } => continue,
            Owed::Credit { bytes, .. } => {
                number = bytes.to_le_bytes();
                (Kind::Credit.with(credit), &number)
            }
            Owed::Stop(code) => {
                number = code.to_le_bytes();
                (Kind::Credit.with(credit.and(Flags::ABORT)), &number)
            }
            Owed::End => (Kind::End.with(items), &[]),
            Owed::Abort(code) => {
                number = code.to_le_bytes();
                (Kind::End.with(items.and(Flags::ABORT)), &number)
            }
        };
        let head = Head { kind, aux: id.aux() };
        let sent = io.send(conn, head, bytes.len(), |body| {
            body[..bytes.len()].copy_from_slice(bytes); // an item
            Some(bytes.len())
        });
        match sent {
            Ok(()) => lanes.left(owed),
            Err(SendError::TooLarge { limit, .. }) => {
                return Pumped::TooLarge(limit.max(lanes.item_bytes_max));
            }
            Err(_) => {
                lanes.blocked(owed);
                return Pumped::Blocked;
            }
        }
    }
    Pumped::Done
}

/// Offers the first item, which lies in memory of its own, to the peer. Whether that left.
fn offer<P: Port>(io: &mut Io<'_, P>, conn: ConnId, head: Head, lanes: &mut Lanes) -> bool {
    let Some(mut ahead) = lanes.take_loan() else { return true };
    let Some(loan) = ahead.take() else { return true };
    let Err(LoanRefused { error, loan }) = io.send_with_loan(conn, head, loan, 0, |_| Some(0)) else {
        return true;
    };
    let may_later = matches!(error, SendError::Blocked | SendError::TooManyLoans { .. } | SendError::Closed);
    ahead.put(loan);
    lanes.put_back(ahead, may_later);
    false
}

/// Puts a call behind the others of its connection, until there is room or its turn has come again.
fn fall_behind(behind: &mut VecDeque<Owner>, lanes: &mut Lanes, pumped: &Pumped, owner: Owner) {
    match pumped {
        Pumped::Turn => lanes.look_again(),
        Pumped::Blocked if !std::mem::replace(&mut lanes.is_behind, true) => behind.push_back(owner),
        _ => {}
    }
}

impl Conn {
    /// The lanes of a call that has not ended.
    fn lanes_of(&mut self, owner: Owner) -> Option<&mut Lanes> {
        match owner {
            Owner::Caller(key) => {
                let index = self.calls.find(CallKey::from_bits(key))?;
                self.calls.streaming(index).map(|(_, lanes)| lanes)
            }
            Owner::Callee(slot, mark) => {
                let slot = self.serving.slot(slot).filter(|slot| slot.mark == mark)?;
                slot.lanes.as_deref_mut()
            }
        }
    }

    /// Forgets calls that ended while they waited for room, once there are more of them than may wait: a peer that reads nothing, and
    /// cancels its calls, makes any number.
    #[cold]
    fn forget_behind(&mut self) {
        if self.behind.len() > 2 * (self.calls.window() + self.serving.len()) + CANCELLED {
            let mut behind = std::mem::take(&mut self.behind);
            behind.retain(|owner| self.lanes_of(*owner).is_some());
            self.behind = behind;
        }
    }
}

const fn broken(what: &'static str) -> Violation {
    Violation::Malformed { what }
}

impl Node {
    /// Lanes whose users did something.
    pub(super) fn pump_noticed<P: Port>(&mut self, io: &mut Io<'_, P>) {
        for _ in 0..LANES {
            let Some(lane) = self.reach.pop_lane() else { return };
            lane.unqueue();
            match lane.owner() {
                Some((conn, Owner::Caller(key))) => self.notice_call(io, conn, CallKey::from_bits(key)),
                Some((conn, Owner::Callee(slot, mark))) => self.pump_slot(io, conn, slot, mark),
                None => {}
            }
        }
    }

    /// A call with streams left, or may: its user's ends learn where it is.
    #[cold]
    pub(super) fn bind_call<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, key: CallKey) {
        let Some(here) = self.conns.get_mut(conn) else { return };
        if let Some(lanes) = &here.calls.call(key.index()).lanes {
            lanes.bind(&here.home, Owner::Caller(key.bits()));
        }
        self.notice_call(io, conn, key);
    }

    /// The user of a call's streams did something, or may have: dropped the call, too.
    fn notice_call<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, key: CallKey) {
        let Some(here) = self.conns.get_mut(conn) else { return };
        let Some(index) = here.calls.find(key) else { return };
        if here.calls.call(index).lanes.as_ref().is_some_and(|lanes| lanes.is_given_up()) {
            self.cancel(io, conn, key);
        } else {
            self.pump_call(io, conn, key);
        }
    }

    /// Sends what a call's streams owe, if its request has left.
    pub(super) fn pump_call<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, key: CallKey) {
        let Some(here) = self.conns.get_mut(conn) else { return };
        let Some(index) = here.calls.find(key) else { return };
        let Some((id, lanes)) = here.calls.streaming(index) else { return };
        let pumped = pump(io, conn, id, lanes, (Flags::NONE, Flags::DOWN), &self.counters);
        fall_behind(&mut here.behind, lanes, &pumped, Owner::Caller(key.bits()));
        match pumped {
            Pumped::Done | Pumped::Turn => {}
            Pumped::Blocked => here.forget_behind(),
            Pumped::TooLarge(limit) => {
                here.calls.withdraw(index);
                let error = TransportError::Item { limit };
                self.finish(conn, index, error);
                self.send_requests(io, conn);
            }
        }
    }

    /// Sends what the streams of a slot owe, and its answer when that was all and the handler is done.
    pub(super) fn pump_slot<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, index: u32, mark: u64) {
        let Some(here) = self.conns.get_mut(conn) else { return };
        let Some(slot) = here.serving.slot(index).filter(|slot| slot.mark == mark) else { return };
        let id = CallId { slot: index, generation: slot.generation };
        let Some(lanes) = &mut slot.lanes else { return };
        let pumped = pump(io, conn, id, lanes, (Flags::DOWN, Flags::NONE), &self.counters);
        fall_behind(&mut here.behind, lanes, &pumped, Owner::Callee(index, mark));
        match pumped {
            Pumped::Turn => {}
            Pumped::Blocked => here.forget_behind(),
            Pumped::Done => {
                let State::Ended(answered) = &mut slot.state else { return };
                let is_good = answered.is_good();
                if !lanes.may_answer(is_good) {
                    return;
                }
                let is_cut = is_good && lanes.is_aborted();
                here.peer.running[index as usize].store(0, Ordering::Relaxed);
                if let State::Ended(answered) = here.serving.free(index) {
                    self.counters.serving.decrement();
                    let answered = if is_cut { cut(answered) } else { answered };
                    self.answer(io, conn, id, Time::NEVER, answered);
                }
            }
            Pumped::TooLarge(limit) => {
                here.peer.give_up(index);
                let state = here.serving.free(index);
                self.counters.serving.decrement();
                let _ = self.drop_state(state);
                let text = format!(
                    "an item is above the limit of {limit} bytes; send smaller items, or raise message_bytes_max at the server"
                );
                let head = ResponseHead::Status { code: Code::ResourceExhausted, fate: Fate::Ran };
                self.answer(io, conn, id, Time::NEVER, Answered::Bytes(head, text.into()));
            }
        }
    }

    /// There is room again: for every call that found none, in turn, until there is none again.
    pub(super) fn pump_all<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) {
        let mut left = self.conns.get_mut(conn).map_or(0, |here| here.behind.len());
        while left > 0
            && let Some(here) = self.conns.get_mut(conn)
            && let Some(owner) = here.behind.pop_front()
        {
            left -= 1;
            let Some(lanes) = here.lanes_of(owner) else { continue };
            lanes.is_behind = false;
            match owner {
                Owner::Caller(key) => self.pump_call(io, conn, CallKey::from_bits(key)),
                Owner::Callee(slot, mark) => self.pump_slot(io, conn, slot, mark),
            }
            let here = self.conns.get_mut(conn);
            if here.and_then(|here| here.lanes_of(owner)).is_some_and(|lanes| lanes.is_behind) {
                return;
            }
        }
    }

    /// A message of a stream arrived. Those of calls that have ended are late, and dropped.
    pub(super) fn streamed<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        (kind, flags): (Kind, Flags),
        id: CallId,
        (body, bulk): (&[u8], Option<RemoteBulk>),
    ) -> Result<(), Violation> {
        let Some(here) = self.conns.get_mut(conn) else { return Ok(()) };
        let arrived = Arrived { kind, flags, body, bulk_bytes: bulk.as_ref().map(RemoteBulk::len) };
        if (kind == Kind::Credit) != flags.has(Flags::DOWN) {
            let Some(index) = here.calls.posted(id) else {
                decline(io, conn, bulk);
                return Ok(());
            };
            let key = here.calls.key(index);
            if here.calls.may_begin(index) && !begin_down(here, index, &mut self.waking) {
                decline(io, conn, bulk);
                self.cancel(io, conn, key);
                return Ok(());
            }
            let lanes = here.calls.call(index).lanes.as_mut();
            let wanted = handle(lanes.ok_or(NO_STREAMS)?, &arrived)?;
            self.bring(io, conn, wanted, bulk);
            self.pump_call(io, conn, key);
            return Ok(());
        }
        let Some(slot) = here.serving.find(id) else {
            decline(io, conn, bulk);
            return Ok(());
        };
        let mark = slot.mark;
        let Some(lanes) = &mut slot.lanes else {
            // An answer that waits for room, of a call whose streams are over; else it has none.
            let over = matches!(slot.state, State::Answered(_));
            decline(io, conn, bulk);
            return if over { Ok(()) } else { Err(NO_STREAMS) };
        };
        let wanted = handle(lanes, &arrived)?;
        self.bring(io, conn, wanted, bulk);
        self.pump_slot(io, conn, id.slot, mark);
        Ok(())
    }
}

impl Node {
    /// Makes the future of a handler with streams and polls it once. If it is done and sent nothing but its answer, that leaves as
    /// any other. Else it gets a slot, and its worker looks at what it did.
    pub(super) fn run_streams<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
        entry: &Entry,
        (deadline, window): (Time, u32),
        arguments: &[u8],
    ) -> Result<(), Violation> {
        let mark = self.next_mark();
        let Some(here) = self.conns.get_mut(conn) else { return Ok(()) };
        let Some(place) = self.tasks.place() else { return self.no_place(io, conn, id) };
        here.streams_seen = true;
        let peer = Arc::clone(&here.peer);
        let directions = (entry.method.streams_up, entry.method.streams_down);
        let lanes = lanes_of_callee(directions, window, &here.home.budget, &mut self.spare_lane);
        lanes.bind(&here.home, Owner::Callee(id.slot, mark));
        lanes.expect_look();
        let seat = &mut self.seats[entry.number()];
        (seat.up, seat.down) = (lanes.rx.clone(), lanes.tx.clone());
        let cx = Cx { peer: Arc::clone(&peer), method: entry.method, slot: id.slot, mark, deadline };
        peer.running[id.slot as usize].store(mark, Ordering::Relaxed);
        let began = self.begin_handler(place, entry, cx, arguments, None);
        let seat = &mut self.seats[entry.number()];
        (seat.up, seat.down) = (None, None);
        let (task, polled) = match began {
            Ok(began) => began,
            Err(status) => return self.not_started(io, conn, id, &status),
        };
        lanes.unqueue();
        if polled == Polled::Ready && lanes.is_silent() {
            self.spare_lane = lanes.into_spare();
            self.ready(io, conn, id, entry, task);
            return Ok(());
        }
        let state = if polled == Polled::Pending {
            self.tasks.keep(place, task, Served { conn, slot: id.slot, method: entry.method });
            State::Running(place)
        } else {
            State::Ended(self.answered_by(entry.method, task, polled))
        };
        self.take_slot(conn, id, mark, (io.now(), deadline), state);
        if let Some(slot) = self.conns.get_mut(conn).and_then(|here| here.serving.slot(id.slot)) {
            slot.lanes = Some(Box::new(lanes));
        }
        self.pump_slot(io, conn, id.slot, mark);
        Ok(())
    }

    /// A handler with streams is done: what it sent goes before its answer.
    pub(super) fn stream_ended<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        Served { conn, slot: index, method }: Served,
        task: BoxTask,
        polled: Polled,
    ) {
        let answered = self.answered_by(method, task, polled);
        let Some(here) = self.conns.get_mut(conn) else { return };
        let Some(slot) = here.serving.slot(index) else { return };
        slot.state = State::Ended(answered);
        let mark = slot.mark;
        self.pump_slot(io, conn, index, mark);
    }
}

/// Replaces an answer if a panic dropped the handler's sink, because items are missing.
fn cut(answered: Answered) -> Answered {
    drop_answered(answered);
    status_answer(&Status::new(Code::Internal, "a panic dropped the handler's sink").with_fate(Fate::Ran))
}

/// A message of a stream.
struct Arrived<'a> {
    kind: Kind,
    flags: Flags,
    body: &'a [u8],
    bulk_bytes: Option<u64>,
}

const NO_STREAMS: Violation = broken("a stream of a call that has none");

/// Something comes by the stream down of a call, which is made now. `false`: nobody waits for the call.
#[cold]
fn begin_down(here: &mut Conn, index: u32, waking: &mut Waking) -> bool {
    let owner = Owner::Caller(here.calls.key(index).bits());
    let call = here.calls.call(index);
    let lanes = lanes_begun(&here.home.budget, call.window);
    lanes.bind(&here.home, owner);
    let Some(begun) = Begun::of(&lanes) else { return false };
    here.streams_seen = true;
    let told = call.begin(lanes, begun);
    told.map(|waker| waking.add(waker)).is_some()
}

/// What the message says to the call's streams. The lane that is to have its bulk, and what it knows that by.
fn handle(lanes: &mut Lanes, arrived: &Arrived<'_>) -> Result<Option<(Arc<Lane>, u64)>, Violation> {
    let Arrived { kind, flags, body, bulk_bytes } = *arrived;
    let (fine, what) = match (kind, flags.has(Flags::ABORT)) {
        (Kind::Item, is_short) if flags.has(Flags::BULK) => {
            return match (lanes.offered(bulk_bytes.unwrap_or(0), is_short), body) {
                (Offered::Wanted(lane, number), []) => Ok(Some((lane, number))),
                (Offered::Unwanted, []) => Ok(None),
                (Offered::Wrong(what), []) => Err(broken(what)),
                _ => Err(broken("bulk of a stream beside an item")),
            };
        }
        (Kind::Item, is_short) => {
            let arrived = lanes.arrived(body, (is_short, flags.has(Flags::LARGE)));
            (arrived, "an item of a stream without credit")
        }
        (Kind::End, false) => (lanes.ended(stream::State::Ended), "the end of a stream"),
        (Kind::End, true) => {
            (lanes.ended(stream::State::Aborted(frame::parse_number(body)?)), "the end of a stream")
        }
        (_, false) => (lanes.credited(frame::parse_number(body)?), "credit of a stream"),
        (_, true) => (lanes.stopped(frame::parse_number(body)?), "the stop of a stream"),
    };
    if fine { Ok(None) } else { Err(broken(what)) }
}
