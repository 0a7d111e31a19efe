//! An established connection: work posted by ranges, completions waited for with a deadline.

use std::time::Duration;

use crate::{
    cm::{
        endpoint::{Endpoint, endpoints},
        error::{CmError, above, call},
        memory::{RemoteBuffer, Span, Work},
        operation::Operation,
        params::Depths,
        wait::{self},
    },
    id::event::{CmEvent, EventKind},
    verbs::{
        cq::{Completion, Harvest, STATUS_FLUSHED},
        lists::SendList,
        qp::{Flags, RemoteBytes},
    },
    wait::Deadline,
};

/// Work that completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// What it was.
    pub operation: Operation,
    /// What it was posted with.
    pub token: u64,
    /// Its range, which is ours again; of a receive, the part that was filled.
    pub span: Span,
}

/// A connection. Dropping it disconnects, and destroys everything in the right order.
#[derive(Debug)]
pub struct Connection {
    endpoint: Endpoint,
    depths: Depths,
    private_data: Vec<u8>,
    ready: Harvest,
    list: SendList,
    /// READs outstanding.
    reads: u32,
    down: bool,
    disconnected: bool,
}

endpoints! { Connection }

impl Connection {
    pub(crate) fn new(endpoint: Endpoint, depths: Depths, private_data: Vec<u8>) -> Self {
        Self {
            endpoint,
            depths,
            private_data,
            ready: Harvest::new(),
            list: SendList::new(1),
            reads: 0,
            down: false,
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
        &self.private_data
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
                    EventKind::AddrChange | EventKind::TimewaitExit | EventKind::Other(_) => {}
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
        self.post(Operation::Send, span, None, token)
    }

    /// Brings the first bytes of `from` into `into`; its buffer needs [`Access::ReadSink`](crate::cm::Access) or more.
    ///
    /// # Errors
    /// [`CmError::NoReads`] when the granted initiator_depth is 0, [`CmError::ReadsFull`] when so many are
    /// outstanding (devices round the number up, peers need not); else as [`Connection::post_send`].
    pub fn post_read(&mut self, into: Span, from: RemoteBuffer, token: u64) -> Result<(), CmError> {
        let granted = self.depths.initiator_depth.granted;
        if granted == 0 {
            return Err(CmError::NoReads { why: self.depths.initiator_depth.to_string() });
        }
        if self.reads == u32::from(granted) {
            return Err(CmError::ReadsFull { granted: granted.into() });
        }
        self.post(Operation::Read, into, Some(from), token)?;
        self.reads += 1;
        Ok(())
    }

    /// Puts `from` to the first bytes of `to`.
    ///
    /// # Errors
    /// As [`Connection::post_send`].
    pub fn post_write(&mut self, from: Span, to: RemoteBuffer, token: u64) -> Result<(), CmError> {
        self.post(Operation::Write, from, Some(to), token)
    }

    fn post(
        &mut self,
        operation: Operation,
        span: Span,
        remote: Option<RemoteBuffer>,
        token: u64,
    ) -> Result<(), CmError> {
        if let Some(remote) = remote.filter(|remote| span.len() as u64 > remote.bytes) {
            return Err(above("bytes of a transfer (the peer's buffer)", span.len() as u64, remote.bytes));
        }
        if self.endpoint.sends == self.endpoint.plan.send_entries {
            return Err(CmError::Full);
        }
        let (id, local) = self.endpoint.memory.post(Work { operation, token, span })?;
        let flags = Flags { signalled: true, inline: false };
        let remote = remote.map(|remote| RemoteBytes { address: remote.address, rkey: remote.rkey });
        match (operation, remote) {
            (Operation::Read, Some(remote)) => self.list.read(id, local, remote),
            (Operation::Write, Some(remote)) => self.list.write(id, local, remote, flags),
            _ => self.list.send(id, local, flags),
        }
        if let Err(error) = self.list.post(&self.endpoint.qp) {
            self.endpoint.memory.end(id);
            return Err(call("ibv_post_send")(error.errno));
        }
        self.endpoint.sends += 1;
        Ok(())
    }

    /// The next completion, in order, waiting at most `timeout`.
    ///
    /// # Errors
    /// [`CmError::Timeout`]; [`CmError::Work`] when the work failed; [`CmError::Closed`] when the connection is over
    /// and every completion that had succeeded was handed out.
    pub fn completion(&mut self, timeout: Duration) -> Result<Done, CmError> {
        let limit = Deadline::after(timeout);
        loop {
            if let Some(completion) = self.ready.take() {
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
    fn finish(&mut self, completion: &Completion) -> Option<Result<Done, CmError>> {
        let Work { operation, token, span } = self.endpoint.memory.end(completion.wr_id)?;
        if operation == Operation::Read {
            self.reads = self.reads.saturating_sub(1);
        }
        let counter = match operation {
            Operation::Receive => &mut self.endpoint.receives,
            _ => &mut self.endpoint.sends,
        };
        *counter = counter.saturating_sub(1);
        Some(match completion.status {
            0 if operation == Operation::Receive => {
                Ok(Done { operation, token, span: span.first(completion.bytes as usize) })
            }
            0 => Ok(Done { operation, token, span }),
            STATUS_FLUSHED => {
                self.down = true;
                // Several work requests are flushed at once; their ranges are free again with the first.
                let is_flushed = |next: &Completion| (next.status == STATUS_FLUSHED).then_some(next.wr_id);
                while let Some(id) = self.ready.take_new_if(is_flushed) {
                    self.endpoint.memory.end(id);
                }
                Err(CmError::Closed)
            }
            status => {
                Err(CmError::Work { operation: operation.name(), token, status, vendor: completion.vendor })
            }
        })
    }

    fn look_at_events(&mut self) -> Result<(), CmError> {
        while let Some(event) = CmEvent::next(&self.endpoint.channel).map_err(call("rdma_get_cm_event"))? {
            match event.kind {
                // Rejected: it went while its CM, or ours, still waited for the last message of the handshake.
                EventKind::Disconnected | EventKind::Rejected | EventKind::ConnectError => self.down = true,
                EventKind::DeviceRemoval => {
                    self.down = true;
                    return Err(CmError::Event {
                        event: EventKind::DeviceRemoval.name(),
                        status: event.status,
                        step: "connected",
                    });
                }
                _ => tracing::debug!(?event, "passed over on a live connection"),
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
    /// [`CmError::Timeout`].
    pub fn wait_closed(&mut self, timeout: Duration) -> Result<(), CmError> {
        let limit = Deadline::after(timeout);
        loop {
            match self.completion(limit.left()) {
                Err(CmError::Closed) => return Ok(()),
                Err(error @ CmError::Timeout { .. }) => return Err(error),
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
