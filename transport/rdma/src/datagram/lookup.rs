//! Finding a peer's queue pair, and being found: SIDR by `rdma_connect` and `rdma_accept`.

use std::{net::SocketAddr, time::Duration};

use super::{
    endpoint::Datagram,
    error::{AnswerError, LookUpError, OpenError, SidrStatus},
    event::DatagramEvent,
    peer::Peer,
    private::{AnswerData, LookUpData},
    request::{LookUpRequest, Pending},
    way::Way,
    way::with_scope,
};
use crate::{
    error::system,
    id::{
        cm_id::{CmId, IdKey},
        event::{CmEvent, EventKind},
        params::ConnectParams,
        space::PortSpace,
    },
    wait::Deadline,
};

/// As long as the asking side's kernel asks again: 15 times 4.096 s.
const REQUEST_LIFE: Duration = Duration::from_secs(62);

impl Datagram {
    /// Answers look-ups on `port` of this end point's address, with as many as `backlog` waiting in the kernel.
    /// Port 0 chooses one; returns the address. Listening again moves to the new port.
    ///
    /// # Errors
    /// The port is taken (`EADDRINUSE`), or the CM refused.
    pub fn listen(&mut self, port: u16, backlog: u16) -> Result<SocketAddr, OpenError> {
        let address = SocketAddr::new(self.local.ip(), port);
        let address = with_scope(address, self.local);
        let refused = |step| move |errno| OpenError::Device(system(step)(errno));
        self.listener = None;
        let id = CmId::new(&self.channel, PortSpace::Udp).map_err(refused("rdma_create_id"))?;
        id.bind(address).map_err(|errno| match errno {
            libc::EADDRINUSE => OpenError::Address { address, why: "the port is taken".to_owned() },
            errno => refused("rdma_bind_addr")(errno),
        })?;
        id.listen(backlog).map_err(refused("rdma_listen"))?;
        let bound = id.info().local_ip().unwrap_or(address);
        self.listener = Some(id);
        Ok(bound)
    }

    /// Gives the asking side our queue pair.
    ///
    /// # Errors
    /// The request is too old, or the CM refused.
    pub fn accept(&mut self, request: LookUpRequest, data: &AnswerData) -> Result<(), AnswerError> {
        let pending = self.take_request(&request)?;
        // The answer is one packet: when the call returns, the id has nothing left to do.
        Ok(pending.id.accept(&self.parameters(data.bytes())).map_err(system("rdma_accept"))?)
    }

    /// Tells the asking side no.
    ///
    /// # Errors
    /// The request is too old, or the CM refused.
    pub fn reject(&mut self, request: LookUpRequest, data: &AnswerData) -> Result<(), AnswerError> {
        let pending = self.take_request(&request)?;
        Ok(pending.id.reject(data.bytes()).map_err(system("rdma_reject"))?)
    }

    /// What the CM is told with a look-up or its answer. The rest of `rdma_conn_param` is for connections.
    fn parameters(&self, data: &[u8]) -> ConnectParams {
        ConnectParams { qp_num: self.number.get(), ..ConnectParams::new(data.to_vec(), 0, 0) }
    }

    fn take_request(&mut self, request: &LookUpRequest) -> Result<Pending, AnswerError> {
        let at = self.requests.iter().position(|pending| pending.number == request.number);
        at.map(|at| self.requests.swap_remove(at)).ok_or(AnswerError::Gone)
    }

    pub(super) fn note_request(&mut self, event: CmEvent) {
        let data = LookUpData::arrived(event.private());
        let Some(id) = event.request else { return };
        if self.requests.len() >= usize::from(self.config.requests) {
            self.queue.counters.requests_dropped += 1;
            // Dropped here, which rejects it.
            return;
        }
        self.next_number += 1;
        let number = self.next_number;
        let from = id.info().peer_ip();
        if self.keep(DatagramEvent::Request(LookUpRequest { number, from, data: Box::new(data) })) {
            self.requests.push(Pending { number, id, until: Deadline::after(REQUEST_LIFE) });
        }
    }

    pub(super) fn forget_old_requests(&mut self) {
        let before = self.requests.len();
        self.requests.retain(|pending| !pending.until.has_passed());
        self.queue.counters.requests_dropped += (before - self.requests.len()) as u64;
    }

    /// Asks `remote` for its queue pair, waiting at most `timeout`. Nothing stands afterwards that would have to be
    /// closed; the other side can go away without a word.
    ///
    /// Messages that arrive meanwhile stay in the ring; requests and other events are kept.
    ///
    /// # Errors
    /// See [`LookUpError`]. Nobody listening and a refusal are [`LookUpError::Refused`].
    pub fn look_up(
        &mut self,
        remote: SocketAddr,
        data: &LookUpData,
        timeout: Duration,
    ) -> Result<Peer, LookUpError> {
        if self.gone {
            return Err(LookUpError::DeviceGone);
        }
        let id = CmId::new(&self.channel, PortSpace::Udp).map_err(system("rdma_create_id"))?;
        let ask = Ask { remote, deadline: Deadline::after(timeout), key: id.key() };
        let failed =
            |event| move |errno: i32| LookUpError::Resolve { address: remote, event, status: -errno };

        let source = with_scope(SocketAddr::new(self.local.ip(), 0), self.local);
        let resolving = id.resolve_address(Some(source.into()), remote, timeout);
        resolving.map_err(failed("rdma_resolve_addr"))?;
        self.answer(&ask, "resolving the address", EventKind::AddrResolved)?;
        let info = id.info();
        if info.device != Some(self.context.key()) || info.port != self.port_number {
            return Err(LookUpError::OtherDevice { address: remote });
        }
        id.resolve_route(ask.deadline.left()).map_err(failed("rdma_resolve_route"))?;
        self.answer(&ask, "resolving the route", EventKind::RouteResolved)?;
        id.connect(&self.parameters(data.bytes())).map_err(failed("rdma_connect"))?;
        let event = self.answer(&ask, "asking for the queue pair", EventKind::Established)?;
        let way = Way::of(&event).ok_or_else(|| system("ESTABLISHED")(libc::EINVAL))?;
        Ok(Peer::new(&self.pd, &way, Some(AnswerData::arrived(event.private())))?)
    }

    fn answer(&mut self, ask: &Ask, step: &'static str, wanted: EventKind) -> Result<CmEvent, LookUpError> {
        let address = ask.remote;
        // A moved hardware address is no answer.
        let is_mine = |event: &CmEvent| event.key == ask.key && event.kind != EventKind::AddrChange;
        let event = self.await_event(ask.deadline, is_mine)?;
        let timeout = ask.deadline.timeout();
        let given_up =
            if self.gone { LookUpError::DeviceGone } else { LookUpError::Timeout { address, step, timeout } };
        let event = event.ok_or(given_up)?;
        match event.kind {
            kind if kind == wanted && event.status == 0 => Ok(event),
            EventKind::Unreachable if event.status > 0 => Err(LookUpError::Refused {
                address,
                status: SidrStatus::from_status(event.status),
                data: Box::new(AnswerData::arrived(event.private())),
            }),
            EventKind::DeviceRemoval => {
                self.removed();
                Err(LookUpError::DeviceGone)
            }
            kind => Err(LookUpError::Resolve { address, event: kind.name(), status: event.status }),
        }
    }
}

/// What one look-up waits for.
struct Ask {
    remote: SocketAddr,
    deadline: Deadline,
    key: IdKey,
}
