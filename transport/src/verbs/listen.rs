//! The passive side: requests whose hello was good are handed out, others are refused and counted.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::{
    AcceptError, Address, Hello, Incoming, ListenError, ListenOptions, Listener, PortError, Refusal,
    RejectReason,
    hello::encode_reject,
    verbs::{
        cm::{CmEvent, CmId},
        connect::{set_ack_timeout, set_rnr_timer},
        control::{self, Command, Control, ControlHandle},
        entry::{Handle, Live, Role},
        gate::{Shared, VerbsGate},
        lane::{CREATE_QP, Lane, LinkParts, WireError},
        link::VerbsLink,
        naming::look_up,
        sys,
    },
};

/// How long dropping a listener waits for its address to be free.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// What a listening id knows. Shared by the ids of a wildcard listener.
#[derive(Clone, Debug)]
pub(crate) struct Listening {
    pub(crate) requests: Sender<Request>,
    pub(crate) rejected: Arc<AtomicU64>,
    pub(crate) options: ListenOptions,
}

/// A request as it is handed out.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) handle: Handle,
    hello: Hello,
    peer: String,
}

/// What the request's id remembers until it is accepted.
#[derive(Debug)]
pub(crate) struct Requested {
    hello: Hello,
    /// What the CM's event allows; already swapped by it.
    responder_resources: u8,
    initiator_depth: u8,
    options: ListenOptions,
    peer: String,
}

impl Control {
    /// Listens on the first of `addresses` that works; wildcards on both families.
    pub(crate) fn listen(
        &mut self,
        addresses: &[SocketAddr],
        listening: &Listening,
    ) -> Result<(Vec<Handle>, u16), ListenError> {
        let mut error = None;
        for &address in addresses {
            match self.listen_on(address, listening) {
                Ok((handle, bound)) => {
                    let mut ids = vec![handle];
                    if address.ip() == Ipv4Addr::UNSPECIFIED {
                        let also = SocketAddr::from((Ipv6Addr::UNSPECIFIED, bound));
                        match self.listen_on(also, listening) {
                            Ok((handle, _)) => ids.push(handle),
                            Err(error) => tracing::debug!(%error, "listening on IPv4 only"),
                        }
                    }
                    return Ok((ids, bound));
                }
                Err(why) => error = Some(why),
            }
        }
        Err(error.unwrap_or_else(|| ListenError::Address {
            address: String::new(),
            why: "the name has no address".to_owned(),
        }))
    }

    pub(crate) fn listen_on(
        &mut self,
        address: SocketAddr,
        listening: &Listening,
    ) -> Result<(Handle, u16), ListenError> {
        let failed = |step, errno| listen_error(address, step, errno);
        let id = CmId::new(&self.channel).map_err(|errno| failed("rdma_create_id", errno))?;
        if address.is_ipv6() {
            id.set_flag(sys::OPTION_ID_AFONLY, 1).map_err(|errno| failed("rdma_set_option", errno))?;
        }
        id.bind(address).map_err(|errno| failed("rdma_bind_addr", errno))?;
        id.listen(listening.options.backlog).map_err(|errno| failed("rdma_listen", errno))?;
        let bound = id.local().unwrap_or(address).port();
        Ok((self.keep(id, Role::Listener(listening.clone())), bound))
    }

    /// CONNECT_REQUEST: checks the hello, and hands the request out or refuses it.
    pub(crate) fn request(&mut self, mut event: CmEvent) {
        let Some(id) = event.request.take() else { return };
        let Some(Role::Listener(listening)) = self.ids.get(&event.key).map(|entry| &entry.role) else {
            return;
        };
        let hello = match Hello::decode_behind(event.private()) {
            Ok(hello) => hello,
            Err(reason) => {
                listening.rejected.fetch_add(1, Ordering::Relaxed);
                tracing::info!(peer = ?id.peer(), %reason, "refused a connect request");
                if let Err(errno) = id.reject(&encode_reject(reason)) {
                    tracing::debug!(errno, "rdma_reject failed: the client is gone");
                }
                return;
            }
        };
        let peer = id.peer().map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
        let requested = Requested {
            hello,
            responder_resources: event.responder_resources,
            initiator_depth: event.initiator_depth,
            options: listening.options.clone(),
            peer: peer.clone(),
        };
        let requests = listening.requests.clone();
        let handle = self.keep(id, Role::Requested(requested));
        if requests.try_send(Request { handle, hello, peer }).is_err() {
            // As many wait as the backlog allows.
            self.reject(handle, &RejectReason::Overloaded.into());
        }
    }

    /// Makes the queue pair, posts its receives, and only then answers.
    pub(crate) fn accept(&mut self, handle: Handle, shared: &Arc<Shared>) -> Result<LinkParts, AcceptError> {
        let gone = AcceptError::Gone { errno: sys::errno::ECONNRESET };
        let mut entry = self.take(handle).ok_or_else(|| gone.clone())?;
        let Role::Requested(requested) = std::mem::replace(&mut entry.role, Role::Dying(None)) else {
            return Err(gone);
        };
        let lane = match Lane::new(&mut entry.id, shared) {
            Ok(lane) => lane,
            Err(error) => {
                let _ = entry.id.reject(&encode_reject(RejectReason::Overloaded));
                self.bury(entry, None);
                return Err(match error {
                    // The sums were checked: what is invalid is the state of a request whose client went away.
                    PortError::System { step: CREATE_QP, errno: errno @ sys::errno::EINVAL } => {
                        AcceptError::Gone { errno }
                    }
                    error => error.into(),
                });
            }
        };
        self.watches.add(lane.context());
        match answer(&entry.id, lane, handle, &requested, shared) {
            Ok(parts) => {
                entry.role = Role::Live(Live::of(&parts, &entry.id, shared));
                self.ids.insert(handle.key, entry);
                Ok(parts)
            }
            Err((lane, error)) => {
                self.bury(entry, Some((lane.qp, Box::new(lane.holdings))));
                Err(error)
            }
        }
    }
}

/// The part of an accept that has a queue pair. A failure gives the lane back, for the right order of destruction.
fn answer(
    id: &CmId,
    mut lane: Lane,
    handle: Handle,
    requested: &Requested,
    shared: &Arc<Shared>,
) -> Result<LinkParts, (Box<Lane>, AcceptError)> {
    let theirs = &requested.hello;
    let ours = lane.hello(&shared.config, theirs.nonce);
    let mut wiring = match lane.wire(shared, &ours, theirs) {
        Ok(wiring) => wiring,
        Err(error) => {
            let (reason, error) = match error {
                WireError::Terms(reason) => (reason, AcceptError::Rejected(reason)),
                WireError::Port(error) => (RejectReason::Overloaded, error.into()),
            };
            let _ = id.reject(&encode_reject(reason));
            return Err((Box::new(lane), error));
        }
    };
    let event = (theirs, requested.responder_resources, requested.initiator_depth);
    let params = lane.params(&ours, Some(event));
    let ack_timeout = set_ack_timeout(id, &lane, requested.options.ack_timeout);
    if let Err(errno) = id.accept(&params) {
        return Err((Box::new(lane), AcceptError::Gone { errno }));
    }
    wiring.negotiated.ack_timeout = ack_timeout;
    wiring.negotiated.rnr_timer = set_rnr_timer(&lane, requested.options.rnr_timer);
    wiring.negotiated.device.clone_from(&lane.device_name);
    wiring.negotiated.peer.clone_from(&requested.peer);
    let handshake_timeout = requested.options.handshake_timeout;
    Ok(LinkParts { handle, lane, wiring, active: false, handshake_timeout })
}

fn listen_error(address: SocketAddr, step: &'static str, errno: i32) -> ListenError {
    let name = format!("rdma://{address}");
    match errno {
        // siw refuses loopback addresses with this one too.
        sys::errno::EADDRINUSE if address.ip().is_loopback() => ListenError::Address {
            address: name,
            why: "in use, or the device does not listen on loopback; give the interface's address".to_owned(),
        },
        sys::errno::EADDRINUSE => ListenError::InUse { address: name },
        sys::errno::ENODEV | sys::errno::EADDRNOTAVAIL => ListenError::Address {
            address: name,
            why: format!(
                "{step}: no RDMA device has this address, or a listener on all addresses has the port ({})",
                crate::error::errno_text(errno)
            ),
        },
        errno => PortError::System { step, errno }.into(),
    }
}

/// Addresses to listen on. May look a name up.
pub(crate) fn listen_addresses(host: &str, port: u16) -> Result<Vec<SocketAddr>, ListenError> {
    if host == "*" {
        let any = [SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), (Ipv6Addr::UNSPECIFIED, port).into()];
        return Ok(any.to_vec());
    }
    look_up(host, port).map_err(|errno| ListenError::Address {
        address: format!("rdma://{host}:{port}"),
        why: format!("getaddrinfo: {}", crate::error::errno_text(errno)),
    })
}

/// The passive side of the RDMA CM.
#[derive(Debug)]
pub struct VerbsListener {
    control: Arc<ControlHandle>,
    address: Address,
    ids: Vec<Handle>,
    requests: Receiver<Request>,
    rejected: Arc<AtomicU64>,
}

impl VerbsListener {
    pub(crate) fn start(
        control: &Arc<ControlHandle>,
        host: &str,
        port: u16,
        options: &ListenOptions,
    ) -> Result<Self, ListenError> {
        let addresses = listen_addresses(host, port)?;
        let (sender, requests) = bounded(usize::from(options.backlog.max(1)));
        let rejected = Arc::new(AtomicU64::new(0));
        let (reply, answer) = bounded(1);
        control.send(Command::Listen {
            addresses,
            options: options.clone(),
            requests: sender,
            rejected: Arc::clone(&rejected),
            reply,
        });
        let (ids, bound) = answer.recv().map_err(|_| ListenError::Port(control::gone()))??;
        let address = Address::Rdma { host: host.to_owned(), port: bound };
        Ok(Self { control: Arc::clone(control), address, ids, requests, rejected })
    }
}

impl Listener for VerbsListener {
    type Gate = VerbsGate;
    type Link = VerbsLink;
    type Incoming = VerbsIncoming;

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn accept(&mut self, timeout: Duration) -> Result<Option<VerbsIncoming>, ListenError> {
        match self.requests.recv_timeout(timeout) {
            Ok(request) => {
                Ok(Some(VerbsIncoming { control: Arc::clone(&self.control), request, answered: false }))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(PortError::NoDevice {
                detail: "the device this listener was bound to is gone".to_owned(),
            }
            .into()),
        }
    }

    fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }
}

impl Drop for VerbsListener {
    fn drop(&mut self) {
        let (done, free) = bounded(1);
        let ids = std::mem::take(&mut self.ids);
        if self.control.send(Command::Unlisten { ids, requests: self.requests.clone(), done }) {
            // Afterwards the address can be listened on again.
            let _ = free.recv_timeout(CLOSE_WAIT);
        }
    }
}

/// A request to connect over the RDMA CM.
#[derive(Debug)]
pub struct VerbsIncoming {
    control: Arc<ControlHandle>,
    request: Request,
    answered: bool,
}

impl Incoming for VerbsIncoming {
    type Gate = VerbsGate;
    type Link = VerbsLink;

    fn hello(&self) -> &Hello {
        &self.request.hello
    }

    fn peer(&self) -> String {
        self.request.peer.clone()
    }

    fn accept(mut self, gate: &VerbsGate) -> Result<VerbsLink, AcceptError> {
        self.answered = true;
        let (reply, answer) = bounded(1);
        let shared = Arc::clone(&gate.shared);
        self.control.send(Command::Accept { handle: self.request.handle, shared, reply });
        let parts = answer.recv().map_err(|_| AcceptError::Port(control::gone()))??;
        Ok(VerbsLink::new(parts, &self.control))
    }

    fn refuse(mut self, refusal: Refusal) {
        self.answered = true;
        self.control.send(Command::Reject { handle: self.request.handle, refusal });
    }
}

impl Drop for VerbsIncoming {
    fn drop(&mut self) {
        if !self.answered {
            let refusal = RejectReason::Overloaded.into();
            self.control.send(Command::Reject { handle: self.request.handle, refusal });
        }
    }
}
