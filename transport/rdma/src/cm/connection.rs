//! An established connection: work posted by ranges, completions waited for with a deadline.

use std::{collections::VecDeque, os::fd::BorrowedFd, time::Duration};

use crate::{
    cm::{
        endpoint::{Endpoint, endpoints},
        error::{CmError, above, call},
        memory::{RemoteBuffer, Span, Work},
        operation::Operation,
        order::Order,
        params::Depths,
        shared::SharedReceives,
        transfer::{SendFlags, Transfer},
        wait::{self},
    },
    id::event::{CmEvent, EventKind},
    sys,
    verbs::{
        cq::{Completion, Harvest, STATUS_FLUSHED},
        gather,
    },
    wait::Deadline,
};

/// Events that are kept for [`Connection::next_event`]; the oldest go first.
const EVENTS_KEPT: usize = 64;

/// Work that completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// What it was.
    pub operation: Operation,
    /// What it was posted with.
    pub token: u64,
    /// Its first piece, which is ours again like the others; of a receive, the part that was filled.
    pub span: Span,
    /// Bytes of all pieces; of a receive, those that arrived.
    pub bytes: u64,
    /// The number that the peer sent along.
    pub imm: Option<u32>,
}

/// What the CM said of an established connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionEvent {
    /// What happened.
    pub kind: EventKind,
    /// 0, a negative errno, or a reject code.
    pub status: i32,
}

/// A completion as the library wrote it.
struct Raw {
    wr_id: u64,
    status: u32,
    vendor: u32,
    bytes: u32,
    imm: Option<u32>,
}

impl Raw {
    fn of(wc: &sys::ibv_wc) -> Self {
        // SAFETY: both members are u32, and the place was zeroed when it was made; `wc_flags` says what it means.
        let imm = u32::from_be(unsafe { wc.imm_data_invalidated_rkey_union.imm_data });
        let has_imm = wc.status == 0 && wc.wc_flags & sys::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        Self {
            wr_id: wc.wr_id,
            status: wc.status,
            vendor: wc.vendor_err,
            bytes: wc.byte_len,
            imm: has_imm.then_some(imm),
        }
    }
}

/// A connection. Dropping it disconnects, and destroys everything in the right order.
#[derive(Debug)]
pub struct Connection {
    endpoint: Endpoint,
    depths: Depths,
    said: CmEvent,
    ready: Harvest,
    order: Order,
    events: VecDeque<ConnectionEvent>,
    /// READs and atomics outstanding.
    reads: u32,
    down: bool,
    /// The status of DEVICE_REMOVAL.
    removed: Option<i32>,
    disconnected: bool,
}

endpoints! { Connection }

impl Connection {
    pub(crate) fn new(endpoint: Endpoint, depths: Depths, said: CmEvent) -> Self {
        Self {
            endpoint,
            depths,
            said,
            ready: Harvest::new(),
            order: Order::default(),
            events: VecDeque::new(),
            reads: 0,
            down: false,
            removed: None,
            disconnected: false,
        }
    }

    /// Both depths: asked, offered, granted, and who clamped.
    #[must_use]
    pub fn depths(&self) -> &Depths {
        &self.depths
    }

    /// What the peer sent with its request or its accept; padded with zeroes on InfiniBand and RoCE.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.said.private()
    }

    /// What the peer said with its request or its accept: depths as seen from here, flow control, retries, its queue pair.
    #[must_use]
    pub fn peer_said(&self) -> &CmEvent {
        &self.said
    }

    /// The next thing that the CM said of the connection since it was established: its end, doubts (UNREACHABLE,
    /// ADDR_CHANGE), TIMEWAIT_EXIT, and what this crate does not know. `None` when there is nothing new. 64 are kept.
    ///
    /// # Errors
    /// [`CmError::Device`] when the channel itself is broken.
    pub fn next_event(&mut self) -> Result<Option<ConnectionEvent>, CmError> {
        self.look_at_events()?;
        Ok(self.events.pop_front())
    }

    /// What to wait on in an event loop: readable when a completion, or an event of the CM, waits. Call
    /// [`Connection::arm`] before each wait, then [`Connection::try_completion`] until there is none.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.endpoint.queue.fd(), self.endpoint.channel.fd()]
    }

    /// Makes the next completion readable (`ibv_req_notify_cq(3)`). Those that came before are not: look for them after
    /// this call.
    ///
    /// # Errors
    /// [`CmError::Device`].
    pub fn arm(&self) -> Result<(), CmError> {
        self.endpoint.queue.quiet();
        self.endpoint.queue.arm().map_err(call("ibv_req_notify_cq"))
    }

    /// Waits for ESTABLISHED. A receive that completes before counts as it: the CM's last message may be late or lost.
    pub(crate) fn await_established(&mut self, limit: &Deadline) -> Result<(), CmError> {
        const STEP: &str = "waiting for ESTABLISHED";
        loop {
            if self.fetch()? && self.ready.first().is_some_and(|first| first.status == 0) {
                if let Err(errno) = self.endpoint.id.notify_established() {
                    // EISCONN: it knows by now.
                    tracing::debug!(errno, "rdma_notify");
                }
                return Ok(());
            }
            self.endpoint.queue.arm().map_err(call("ibv_req_notify_cq"))?;
            while let Some(event) =
                CmEvent::next(&self.endpoint.channel).map_err(call("rdma_get_cm_event"))?
            {
                match event.kind {
                    EventKind::Established if event.status == 0 => return Ok(()),
                    kind if wait::is_hint(kind) => self.note(&event),
                    _ => return Err(wait::failed(&event, STEP)),
                }
            }
            if limit.has_passed() {
                return Err(wait::timed_out(limit, STEP));
            }
            wait::readable(&[self.endpoint.queue.fd(), self.endpoint.channel.fd()], limit)?;
            self.endpoint.queue.quiet();
        }
    }

    /// How long the peer waits when it meets no receive of ours: a code of the InfiniBand table, 12 is 0.64 ms. The CM
    /// leaves 0, which is 655 ms.
    ///
    /// # Errors
    /// [`CmError::Device`] above 31, [`CmError::Unsupported`] on iWARP.
    pub fn set_rnr_timer(&mut self, code: u8) -> Result<(), CmError> {
        if self.endpoint.is_iwarp() {
            return Err(CmError::Unsupported { what: "an RNR timer", why: "iWARP has no RNR" });
        }
        if code > 31 {
            return Err(above("rnr_timer", code.into(), 31));
        }
        self.endpoint.qp.set_rnr_timer(code).map_err(call("ibv_modify_qp"))
    }

    /// Sends `span`.
    ///
    /// # Errors
    /// [`CmError::Full`], [`CmError::Posted`], [`CmError::Device`].
    pub fn post_send(&mut self, span: Span, token: u64) -> Result<(), CmError> {
        self.post(Transfer::Send, &[span], SendFlags::default(), token)
    }

    /// Brings the first bytes of `from` into `into`; its buffer needs [`Access::ReadSink`](crate::cm::Access) or more.
    ///
    /// # Errors
    /// [`CmError::NoReads`] when the granted initiator_depth is 0, [`CmError::ReadsFull`] when so many are
    /// outstanding (devices round the number up, peers need not); else as [`Connection::post_send`].
    pub fn post_read(&mut self, into: Span, from: RemoteBuffer, token: u64) -> Result<(), CmError> {
        self.post(Transfer::Read(from), &[into], SendFlags::default(), token)
    }

    /// Puts `from` to the first bytes of `to`.
    ///
    /// # Errors
    /// As [`Connection::post_send`].
    pub fn post_write(&mut self, from: Span, to: RemoteBuffer, token: u64) -> Result<(), CmError> {
        self.post(Transfer::Write(to), &[from], SendFlags::default(), token)
    }

    /// Posts any work: of several pieces, with a number beside it, inline, unsignalled, atomic.
    ///
    /// # Errors
    /// As [`Connection::post_send`] and [`Connection::post_read`]; [`CmError::Unsupported`] for what iWARP or the device
    /// lacks, and for an unsignalled request that would fill the queue: nothing would ever complete.
    pub fn post(
        &mut self,
        transfer: Transfer,
        pieces: &[Span],
        flags: SendFlags,
        token: u64,
    ) -> Result<(), CmError> {
        let operation = transfer.operation();
        let mut work = Work::new(operation, token, pieces);
        self.may_post(transfer, pieces, flags, work.bytes())?;
        if flags.inline {
            work = work.inline();
        }
        let (id, pieces) = self.endpoint.memory.post(work)?;
        let posted = gather::post_send(&self.endpoint.qp, id, transfer.verb(), &pieces, flags.raw());
        if let Err(errno) = posted {
            self.endpoint.memory.end(id);
            return Err(call("ibv_post_send")(errno));
        }
        self.endpoint.sends += 1;
        self.order.push(id, flags.signalled);
        self.reads += u32::from(matches!(operation, Operation::Read | Operation::Atomic));
        Ok(())
    }

    /// Refuses what the device would.
    fn may_post(
        &self,
        transfer: Transfer,
        pieces: &[Span],
        flags: SendFlags,
        bytes: u64,
    ) -> Result<(), CmError> {
        let limits = &self.endpoint.device.limits;
        if let Some(what) = transfer.beyond_iwarp().filter(|_| limits.iwarp) {
            return Err(CmError::Unsupported { what, why: "iWARP has none" });
        }
        self.endpoint.fits(pieces)?;
        if let Some(remote) = transfer.remote().filter(|remote| bytes > remote.bytes) {
            return Err(above("bytes of a transfer (the peer's buffer)", bytes, remote.bytes));
        }
        if flags.inline && bytes > self.endpoint.qp.inline_bytes.into() {
            return Err(above("inline bytes", bytes, self.endpoint.qp.inline_bytes.into()));
        }
        match transfer.operation() {
            Operation::Atomic if !limits.atomics => {
                return Err(CmError::Unsupported { what: "an atomic operation", why: "the device has none" });
            }
            Operation::Atomic if bytes != 8 || pieces.len() != 1 => {
                return Err(above("bytes of an atomic operation (exactly 8)", bytes, 8));
            }
            Operation::Read | Operation::Atomic => {
                let granted = self.depths.initiator_depth.granted;
                if flags.inline {
                    return Err(CmError::Unsupported { what: "inline", why: "it brings bytes here" });
                }
                if limits.iwarp && !flags.signalled {
                    return Err(CmError::Unsupported {
                        what: "an unsignalled READ",
                        why: "over iWARP later requests complete before it, and tell nothing of it",
                    });
                }
                if granted == 0 {
                    return Err(CmError::NoReads { why: self.depths.initiator_depth.to_string() });
                }
                if self.reads >= u32::from(granted) {
                    return Err(CmError::ReadsFull { granted: granted.into() });
                }
            }
            _ => {}
        }
        let room = self.endpoint.plan.send_entries - self.endpoint.sends;
        match room {
            0 => Err(CmError::Full),
            1 if !self.order.has_signalled() && !flags.signalled => Err(CmError::Unsupported {
                what: "an unsignalled request",
                why: "none of those that fill the queue would complete; let this one be signalled",
            }),
            _ => Ok(()),
        }
    }

    /// The next completion, in order, waiting at most `timeout`.
    ///
    /// # Errors
    /// [`CmError::Timeout`]; [`CmError::Work`] when the work failed; [`CmError::Closed`] when the connection is over
    /// and every completion that had succeeded was handed out; [`CmError::Event`] when the device is being removed.
    pub fn completion(&mut self, timeout: Duration) -> Result<Done, CmError> {
        let limit = Deadline::after(timeout);
        loop {
            if let Some(completion) = self.ready.take_raw().map(Raw::of) {
                match self.finish(&completion) {
                    Some(result) => return result,
                    None => continue,
                }
            }
            if self.fetch()? {
                continue;
            }
            self.endpoint.queue.arm().map_err(call("ibv_req_notify_cq"))?;
            self.look_at_events()?;
            if self.fetch()? {
                continue;
            }
            if let Some(status) = self.removed {
                return Err(CmError::Event {
                    event: EventKind::DeviceRemoval.name(),
                    status,
                    step: "connected",
                });
            }
            if self.down {
                return Err(CmError::Closed);
            }
            if limit.has_passed() {
                return Err(wait::timed_out(&limit, "waiting for a completion"));
            }
            wait::readable(&[self.endpoint.queue.fd(), self.endpoint.channel.fd()], &limit)?;
            self.endpoint.queue.quiet();
        }
    }

    /// A completion that is there already.
    ///
    /// # Errors
    /// As [`Connection::completion`], without the timeout.
    pub fn try_completion(&mut self) -> Result<Option<Done>, CmError> {
        match self.completion(Duration::ZERO) {
            Ok(done) => Ok(Some(done)),
            Err(CmError::Timeout { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn fetch(&mut self) -> Result<bool, CmError> {
        if self.ready.is_empty() {
            self.endpoint.queue.poll(&mut self.ready).map_err(call("ibv_poll_cq"))?;
        }
        Ok(!self.ready.is_empty())
    }

    /// `None`: not of ours.
    fn finish(&mut self, completion: &Raw) -> Option<Result<Done, CmError>> {
        let work = self.end(completion.wr_id)?;
        let (operation, token) = (work.operation, work.token);
        Some(match completion.status {
            0 => {
                let is_receive = operation == Operation::Receive;
                let bytes = if is_receive { u64::from(completion.bytes) } else { work.bytes() };
                let filled = usize::try_from(bytes).unwrap_or(usize::MAX);
                let span = if is_receive { work.span.first(filled) } else { work.span };
                Ok(Done { operation, token, span, bytes, imm: completion.imm })
            }
            STATUS_FLUSHED => {
                self.down = true;
                // Several work requests are flushed at once; their ranges are free again with the first.
                let is_flushed = |next: &Completion| (next.status == STATUS_FLUSHED).then_some(next.wr_id);
                while let Some(id) = self.ready.take_new_if(is_flushed) {
                    self.end(id);
                }
                Err(CmError::Closed)
            }
            status => {
                Err(CmError::Work { operation: operation.name(), token, status, vendor: completion.vendor })
            }
        })
    }

    /// Takes back what a completed request had, and what the unsignalled ones before it had.
    fn end(&mut self, wr_id: u64) -> Option<Work> {
        if SharedReceives::has(wr_id) {
            return self.endpoint.shared.as_ref()?.end(wr_id);
        }
        let work = self.endpoint.memory.end(wr_id)?;
        if work.operation == Operation::Receive {
            self.endpoint.receives = self.endpoint.receives.saturating_sub(1);
            return Some(work);
        }
        let Self { endpoint, order, reads, .. } = self;
        let mut over = |work: &Work| {
            endpoint.sends = endpoint.sends.saturating_sub(1);
            if matches!(work.operation, Operation::Read | Operation::Atomic) {
                *reads = reads.saturating_sub(1);
            }
        };
        over(&work);
        let alone = work.operation == Operation::Read && endpoint.device.limits.iwarp;
        order.end(wr_id, alone, |earlier| {
            if let Some(earlier) = endpoint.memory.end(earlier) {
                over(&earlier);
            }
        });
        Some(work)
    }

    fn note(&mut self, event: &CmEvent) {
        if self.events.len() == EVENTS_KEPT {
            self.events.pop_front();
        }
        self.events.push_back(ConnectionEvent { kind: event.kind, status: event.status });
    }

    fn look_at_events(&mut self) -> Result<(), CmError> {
        while let Some(event) = CmEvent::next(&self.endpoint.channel).map_err(call("rdma_get_cm_event"))? {
            self.note(&event);
            match event.kind {
                // Rejected: it went while its CM, or ours, still waited for the last message of the handshake.
                EventKind::Disconnected | EventKind::Rejected | EventKind::ConnectError => self.down = true,
                EventKind::DeviceRemoval => (self.down, self.removed) = (true, Some(event.status)),
                _ => tracing::debug!(?event, "on a live connection"),
            }
        }
        Ok(())
    }

    /// `rdma_disconnect(3)`: what is posted is flushed, and the peer sees DISCONNECTED.
    ///
    /// # Errors
    /// [`CmError::Device`].
    pub fn disconnect(&mut self) -> Result<(), CmError> {
        if self.disconnected {
            return Ok(());
        }
        self.disconnected = true;
        if let Some(own) = &self.endpoint.own {
            own.stop();
        }
        self.endpoint.id.disconnect().map_err(call("rdma_disconnect"))
    }

    /// Waits until the peer disconnected; completions are dropped.
    ///
    /// # Errors
    /// [`CmError::Timeout`]; [`CmError::Event`] when the device is being removed.
    pub fn wait_closed(&mut self, timeout: Duration) -> Result<(), CmError> {
        let limit = Deadline::after(timeout);
        loop {
            match self.completion(limit.left()) {
                Err(CmError::Closed) => return Ok(()),
                Err(error @ (CmError::Timeout { .. } | CmError::Event { .. })) => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Err(error) = self.disconnect() {
            tracing::debug!(%error, "the peer was gone already");
        }
    }
}
