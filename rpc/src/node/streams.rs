//! Items, their credit and their ends, for both roles.

use std::sync::{Arc, atomic::Ordering};

use gimmal_engine::{
    Head, Io, SendError,
    transport::{ConnId, Port, Time, Violation},
};

use super::{
    Node,
    answers::{drop_answered, status_answer},
    serving::{Answered, State},
    tasks::{Polled, Served},
};
use crate::{
    calls::CallKey,
    cx::Cx,
    error::TransportError,
    frame::{self, Flags, Kind, ResponseHead},
    id::CallId,
    service::Entry,
    status::{Code, Fate, Status},
    stream::{self, Lanes, Owed, Owner, lanes_of_callee},
    task::BoxTask,
};

/// Lanes looked at in one turn.
const LANES: usize = 256;

/// How far sending came.
enum Pumped {
    Done,
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
) -> Pumped {
    while let Some(owed) = lanes.next_owed() {
        let number;
        let (kind, bytes): (u16, &[u8]) = match &owed {
            Owed::Item(bytes) => (Kind::Item.with(items), bytes),
            Owed::Credit(count) => {
                number = count.to_le_bytes();
                (Kind::Credit.with(credit), &number)
            }
            Owed::End => (Kind::End.with(Flags::NONE), &[]),
            Owed::Abort => (Kind::End.with(Flags::ABORT), &[]),
        };
        let head = Head { kind, aux: id.aux() };
        let sent = io.send(conn, head, bytes.len(), |body| {
            body[..bytes.len()].copy_from_slice(bytes); // an item
            Some(bytes.len())
        });
        match sent {
            Ok(()) => lanes.left(owed),
            Err(SendError::TooLarge { limit, .. }) => return Pumped::TooLarge(limit),
            Err(_) => {
                lanes.blocked(owed);
                return Pumped::Blocked;
            }
        }
    }
    Pumped::Done
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
            lanes.bind(&self.reach, conn, Owner::Caller(key.bits()));
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
        if let Pumped::TooLarge(limit) = pump(io, conn, id, lanes, (Flags::NONE, Flags::DOWN)) {
            here.calls.withdraw(index);
            let error = TransportError::Item { limit };
            self.finish(conn, index, error);
            self.send_requests(io, conn);
        }
    }

    /// Sends what the streams of a slot owe, and its answer when that was all and the handler is done.
    pub(super) fn pump_slot<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, index: u32, mark: u64) {
        let Some(here) = self.conns.get_mut(conn) else { return };
        let Some(slot) = here.serving.slot(index).filter(|slot| slot.mark == mark) else { return };
        let id = CallId { slot: index, generation: slot.generation };
        let Some(lanes) = &mut slot.lanes else { return };
        match pump(io, conn, id, lanes, (Flags::DOWN, Flags::NONE)) {
            Pumped::Blocked => {}
            Pumped::Done => {
                let State::Ended(answered) = &mut slot.state else { return };
                let is_good = answered.is_good();
                if !lanes.may_answer(is_good) {
                    return;
                }
                let is_cut = is_good && lanes.is_aborted();
                if let State::Ended(answered) = here.serving.free(index) {
                    self.counters.serving.decrement();
                    let answered = if is_cut { cut(answered) } else { answered };
                    self.answer(io, conn, id, Time::NEVER, answered);
                }
            }
            Pumped::TooLarge(limit) => {
                here.peer.running[index as usize].store(0, Ordering::Relaxed);
                let state = here.serving.free(index);
                self.counters.serving.decrement();
                let _ = self.drop_state(state);
                let text = format!(
                    "an item is above the limit of {limit} bytes; send smaller items, or raise port.ring_bytes at the receiver"
                );
                let head = ResponseHead::Status { code: Code::ResourceExhausted, fate: Fate::Ran };
                self.answer(io, conn, id, Time::NEVER, Answered::Bytes(head, text.into()));
            }
        }
    }

    /// There is room again.
    pub(super) fn pump_all<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) {
        let Some(here) = self.conns.get_mut(conn) else { return };
        if here.streams_seen {
            let (calls, slots) = (here.calls.all_streaming(), here.serving.all_streaming());
            calls.into_iter().for_each(|key| self.pump_call(io, conn, key));
            slots.into_iter().for_each(|(slot, mark)| self.pump_slot(io, conn, slot, mark));
        }
    }

    /// A message of a stream arrived. Those of calls that have ended are late, and dropped.
    pub(super) fn streamed<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        (kind, flags): (Kind, Flags),
        id: CallId,
        body: &[u8],
    ) -> Result<(), Violation> {
        let Some(here) = self.conns.get_mut(conn) else { return Ok(()) };
        if matches!((kind, flags), (Kind::Item, Flags::DOWN) | (Kind::Credit, Flags::NONE)) {
            let Some(index) = here.calls.posted(id) else { return Ok(()) };
            let key = here.calls.key(index);
            let lanes = here.calls.call(index).lanes.as_mut();
            let lanes = lanes.ok_or(broken("a stream of a call that has none"))?;
            handle(lanes, (kind, flags), body)?;
            self.pump_call(io, conn, key);
            return Ok(());
        }
        let Some(slot) = here.serving.find(id) else { return Ok(()) };
        let mark = slot.mark;
        let Some(lanes) = &mut slot.lanes else {
            // An answer that waits for room, of a call whose streams are over; else it has none.
            let over = matches!(slot.state, State::Answered(_));
            return if over { Ok(()) } else { Err(broken("a stream of a call that has none")) };
        };
        handle(lanes, (kind, flags), body)?;
        self.pump_slot(io, conn, id.slot, mark);
        Ok(())
    }
}

impl Node {
    /// Makes the future of a handler with streams and polls it once. It has its slot before: what it sends at once
    /// finds it there.
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
        let lanes = lanes_of_callee(entry.method.streams_up, entry.method.streams_down, window);
        lanes.bind(&self.reach, conn, Owner::Callee(id.slot, mark));
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

fn handle(lanes: &mut Lanes, (kind, flags): (Kind, Flags), body: &[u8]) -> Result<(), Violation> {
    let (fine, what) = match kind {
        Kind::Item => (lanes.arrived(body), "an item of a stream without credit"),
        Kind::End => {
            let aborted = flags.has(Flags::ABORT);
            let state = if aborted { stream::State::Aborted } else { stream::State::Ended };
            (lanes.ended(state), "the end of a stream")
        }
        _ => (lanes.credited(frame::parse_credit(body)?), "credit of a stream"),
    };
    if fine { Ok(()) } else { Err(broken(what)) }
}
