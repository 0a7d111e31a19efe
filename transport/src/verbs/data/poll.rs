//! One poll of a port, step by step: notes, completions, receives, pulls, deadlines.

use gimmal_rdma::verbs::{Completion, POLL_BURST};

use crate::{
    AccessError, Batch, BulkError, CloseReason, Event, PortError, Time,
    verbs::data::{
        close::Step,
        conn::Phase,
        port::VerbsPort,
        pulls::Limit,
        table::{Slot, list_once},
        wr_id::WrId,
    },
};

/// Bursts of completions in one poll.
const BURSTS: usize = 8;

impl VerbsPort {
    /// The steps of [`Port::poll`](crate::Port::poll).
    pub(crate) fn turn(&mut self, now: Time, batch: &mut Batch) {
        self.now = now;
        self.emit_backlog(batch);
        self.take_notes();
        // By now the last flush has done it, unless there was none.
        self.repost();
        let is_quiet = self.harvest(now, batch);
        if !self.down.is_empty() {
            self.close_down(is_quiet, now);
        }
        if !self.pulling.is_empty() {
            self.advance_pulls();
        }
        self.step_waiting(now);
        self.emit_backlog(batch);
    }

    pub(crate) fn take_notes(&mut self) {
        // To take one from nothing costs a full fence.
        while self.gate.shared.has_notes()
            && let Some(index) = self.gate.shared.next_note()
        {
            let conn = self.slots.get_mut(index).and_then(|slot| slot.conn.as_deref_mut());
            let Some(conn) = conn.filter(|conn| !conn.fate.is_destroyed()) else {
                // Early completions may be of a connection that ended before it was adopted.
                self.look_again_at_early();
                continue;
            };
            let id = conn.id;
            let (suspect, is_open) = (conn.fate.take_suspicion(), conn.is_open());
            if conn.fate.down.get().is_some() {
                self.down.push(id);
            } else if suspect && is_open {
                self.backlog.push_back(Event::Suspect { conn: id });
            }
        }
    }

    /// Closes the connections that are down, all of them if no completion is left: messages that the peer sent before it
    /// went, its goodbye above all, count first.
    #[cold]
    pub(crate) fn close_down(&mut self, is_quiet: bool, now: Time) {
        let down = if is_quiet {
            self.down.take_all()
        } else {
            let hold: u64 = self.cqs.iter().map(|(cq, _)| u64::from(cq.entries())).sum();
            // Those that were taken last may not be handled yet.
            self.down.take_late(hold + POLL_BURST as u64)
        };
        for id in down {
            let reason = self.conn(id).and_then(|conn| conn.fate.down.get().cloned());
            if let Some(reason) = reason {
                self.begin_close(id.index() as usize, reason, now);
            }
        }
    }

    pub(crate) fn emit_backlog(&mut self, batch: &mut Batch) {
        while batch.room() > 0 {
            let Some(event) = self.backlog.pop_front() else { return };
            batch.push(event);
        }
    }

    /// Takes completions while there is room for their events. Returns `true` when none is left.
    pub(crate) fn harvest(&mut self, now: Time, batch: &mut Batch) -> bool {
        // A queue that was asked for a run just now is not asked again, unless what a peer said before it went down may be there.
        let asked = std::mem::take(&mut self.emptied);
        let (mut bursts, mut emptied) = (0, if self.down.is_empty() { asked } else { 0 });
        loop {
            // Frames that arrived before come by runs.
            if batch.room() == 0 || self.begun.is_some() || self.begin_chain() {
                return false;
            }
            if let Some(done) = self.harvest.take() {
                self.on_completion(&done, now, batch);
            } else if bursts == BURSTS {
                return false;
            } else if !self.fetch(&mut emptied) {
                return true;
            } else {
                bursts += 1;
            }
        }
    }

    /// Fills the empty harvest from the next queue that has completions. `emptied` counts the queues in a row that returned
    /// less than they were asked for: asking an empty queue costs as much as asking a full one.
    #[inline]
    pub(crate) fn fetch(&mut self, emptied: &mut usize) -> bool {
        while *emptied < self.cqs.len() {
            self.next_cq += 1;
            if self.next_cq >= self.cqs.len() {
                self.next_cq = 0;
            }
            let count = self.cqs[self.next_cq].0.poll(&mut self.harvest).unwrap_or_else(|errno| {
                tracing::error!(errno, "ibv_poll_cq failed");
                0
            });
            self.down.took(count);
            *emptied = if count < POLL_BURST { *emptied + 1 } else { 0 };
            if count > 0 {
                return true;
            }
        }
        false
    }

    #[inline]
    pub(crate) fn on_completion(&mut self, done: &Completion, now: Time, batch: &mut Batch) {
        let id = WrId::from_bits(done.wr_id);
        if id.is_shared() {
            return self.on_shared(done, now, batch);
        }
        match self.slots.get(id.index()).and_then(|slot| slot.conn.as_deref()) {
            Some(conn) if id.is_of(conn.id) => self.on_completion_of(id.index(), done, now, batch),
            _ => {
                self.on_early(done);
            }
        }
    }

    /// Handles a completion of the connection at `index`.
    #[inline]
    pub(crate) fn on_completion_of(&mut self, index: usize, done: &Completion, now: Time, batch: &mut Batch) {
        let Some(Slot { conn: Some(conn), counters, .. }) = self.slots.get_mut(index) else { return };
        match conn.on_completion(done, now, &mut self.sends, counters) {
            Ok(None) => {}
            Ok(Some(event)) => batch.push(event),
            Err(reason) => return self.begin_close(index, reason, now),
        }
        self.owing.note(index, conn);
        if conn.rx.is_shared() {
            self.take_idle_ring(index);
        }
    }

    /// Keeps a completion of a connection that is not adopted yet, and drops that of one that is gone. Returns whether it is
    /// kept.
    #[cold]
    pub(crate) fn on_early(&mut self, done: &Completion) -> bool {
        let is_early = self.gate.shared.is_seated(WrId::from_bits(done.wr_id), done.qp);
        if is_early {
            self.early.push(*done);
        }
        is_early
    }

    /// Looks at early completions again, before anything newer. Called when connections were adopted or have ended.
    pub(crate) fn look_again_at_early(&mut self) {
        if !self.early.is_empty() {
            self.harvest.put_first(std::mem::take(&mut self.early));
        }
    }

    fn advance_pulls(&mut self) {
        let mut posted_in_post = false;
        // In turn: where a post moves the bytes itself, one connection has one piece each poll.
        if self.pulling.len() > 1 {
            self.pulling.rotate_left(1);
        }
        let mut at = 0;
        while let Some(&index) = self.pulling.get(at) {
            let Some(conn) = self.slots[index].conn.as_deref_mut() else {
                self.pulling.swap_remove(at);
                continue;
            };
            let waits = conn.transfers_in_post && posted_in_post;
            if conn.is_open()
                && conn.pulls.can_post()
                && !waits
                && let Some(lane) = &conn.lane
            {
                let config = &self.gate.shared.config;
                let limit = if conn.transfers_in_post {
                    posted_in_post = true;
                    let (long, short) = (config.bulk_piece_bytes, config.bulk_piece_in_post_bytes);
                    Limit { pieces: 1, piece_bytes: self.pieces.next_bytes(long, short) }
                } else {
                    Limit { pieces: u32::MAX, piece_bytes: config.bulk_piece_bytes }
                };
                let result = conn.pulls.post(limit, &lane.qp, conn.id, &mut conn.tx, &mut self.sends);
                if let Err(errno) = result {
                    conn.fail_post("ibv_post_send", errno, self.now);
                    list_once(&mut self.waiting, index);
                }
            }
            if conn.pulls.is_idle() || !conn.is_open() {
                conn.is_pulling = false;
                self.pulling.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// Advances handshakes, failed posts and closings.
    pub(crate) fn step_waiting(&mut self, now: Time) {
        let mut at = 0;
        while let Some(&index) = self.waiting.get(at) {
            let is_reading = self.is_reading(index);
            let conn = self.slots[index].conn.as_deref_mut();
            let keep = match conn {
                None => false,
                Some(conn) => match &conn.phase {
                    Phase::Failed { step, errno, at } => {
                        if now >= *at {
                            let error = PortError::System { step, errno: *errno };
                            self.begin_close(index, CloseReason::Port(Box::new(error)), now);
                        }
                        true
                    }
                    Phase::Opening { deadline, nudge } => {
                        if now >= *deadline {
                            self.begin_close(index, CloseReason::Handshake, now);
                        } else if now >= *nudge {
                            conn.nudge(now, &mut self.sends);
                        }
                        true
                    }
                    Phase::Open => false,
                    Phase::Closing(_) if is_reading => true,
                    Phase::Closing(_) => match conn.step_close(now, &self.gate.control) {
                        Step::Waits => true,
                        step => {
                            self.finish(index, step);
                            false
                        }
                    },
                },
            };
            if keep {
                at += 1;
            } else {
                self.waiting.swap_remove(at);
            }
        }
    }

    /// Removes a connection whose queue pair is gone, and queues its last events.
    pub(crate) fn finish(&mut self, index: usize, step: Step) {
        let Some(mut conn) = self.slots[index].conn.take() else { return };
        let Phase::Closing(closing) = &conn.phase else { return };
        let (id, reason) = (conn.id, closing.reason.clone());
        self.adopted -= 1;
        self.leave(&mut conn, index);
        self.unwatch(index);
        for (token, is_pull) in conn.pulls.tokens() {
            self.backlog.push_back(if is_pull {
                Event::Pulled { conn: id, token, result: Err(BulkError::Closed) }
            } else {
                Event::Accessed { conn: id, token, result: Err(AccessError::Closed) }
            });
        }
        if step == Step::Stuck {
            tracing::error!(conn = ?id, "a queue pair was not destroyed in time; its memory is leaked");
            // The device may still write it, and what its pulls bring.
            std::mem::forget(conn);
        } else {
            for room in conn.into_rooms() {
                // SAFETY: `Gone` is said after the queue pair and its registrations went; `conn` was the last to point there.
                unsafe { self.gate.shared.give_back(room) };
            }
        }
        self.backlog.push_back(Event::Closed { conn: id, reason });
    }
}
