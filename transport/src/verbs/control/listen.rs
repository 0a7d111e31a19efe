//! The passive side: requests whose hello was good are handed out, others are refused and counted.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    time::Duration,
};

use gimmal_rdma::id::{CmEvent, CmId};

use crate::{
    AcceptError, Address, DeviceChoice, Hello, Incoming, Key, ListenError, ListenOptions, Listener,
    PortError, Refusal, RejectReason, Via,
    hello::{Feature, encode_reject},
    proof::{Session, admit, random},
    rejected::Rejected,
    verbs::control::{
        entry::{Handle, Live, Role},
        gate::{Shared, VerbsGate},
        lane::{CREATE_QP, Lane, LinkParts, WireError},
        link::VerbsLink,
        mailbox::{self, Command, ControlHandle, Then},
        naming::look_up,
        ports,
        thread::Control,
        timers::{set_ack_timeout, set_rnr_timer},
    },
};

/// How long dropping a listener waits for its address to be free.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// What a listening id knows. Shared by the ids of a wildcard listener.
#[derive(Clone, Debug)]
pub(crate) struct Listening {
    pub(crate) requests: SyncSender<Request>,
    pub(crate) rejected: Arc<Rejected>,
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
    /// The shared key that the request was tagged with.
    key: Option<Key>,
    /// What the CM's event allows; already swapped by it.
    responder_resources: u8,
    initiator_depth: u8,
    options: ListenOptions,
    peer: String,
}

impl Control {
    /// Listens on all of `addresses`, which are those of a device, with one port; the first chooses it.
    fn listen_on_each(
        &mut self,
        addresses: &[SocketAddr],
        listening: &Listening,
    ) -> Result<(Vec<Handle>, u16), ListenError> {
        let (mut ids, mut bound) = (Vec::new(), 0);
        for &address in addresses {
            let port = if ids.is_empty() { address.port() } else { bound };
            match self.listen_on(SocketAddr::new(address.ip(), port), listening) {
                Ok((handle, port)) => {
                    ids.push(handle);
                    bound = port;
                }
                Err(error) => {
                    ids.into_iter().for_each(|handle| self.unlisten(handle));
                    return Err(error);
                }
            }
        }
        Ok((ids, bound))
    }

    /// Listens on the first of `addresses` that works; wildcards on both families. On every one when a device was
    /// chosen: they are its.
    pub(crate) fn listen(
        &mut self,
        addresses: &[SocketAddr],
        listening: &Listening,
    ) -> Result<(Vec<Handle>, u16), ListenError> {
        if listening.options.device.is_some() && !addresses.is_empty() {
            return self.listen_on_each(addresses, listening);
        }
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
            id.set_one_family(true).map_err(|errno| failed("rdma_set_option", errno))?;
        }
        id.bind(address).map_err(|errno| failed("rdma_bind_addr", errno))?;
        id.listen(listening.options.backlog.max(1)).map_err(|errno| failed("rdma_listen", errno))?;
        let bound = id.local().unwrap_or(address).port();
        Ok((self.keep(id, Role::Listener(listening.clone())), bound))
    }

    /// CONNECT_REQUEST: checks the hello, and hands the request out or refuses it.
    pub(crate) fn request(&mut self, mut event: CmEvent) {
        let Some(id) = event.request.take() else { return };
        let Some(Role::Listener(listening)) = self.ids.get(&event.key).map(|entry| &entry.role) else {
            return;
        };
        let (hello, key) = match admit(event.private(), &listening.options.keys) {
            Ok((hello, key)) => (hello, key.cloned()),
            Err(reason) => {
                listening.rejected.note(reason);
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
            key,
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
        // What was destroyed leaves its seats to those who come.
        self.untold.scatter();
        let gone = AcceptError::Gone { errno: libc::ECONNRESET };
        let mut entry = self.take(handle).ok_or_else(|| gone.clone())?;
        let Role::Requested(requested) = std::mem::replace(&mut entry.role, Role::Dying(None)) else {
            return Err(gone);
        };
        let lane = match Lane::new(&mut entry.id, shared, requested.options.receives) {
            Ok(lane) => lane,
            Err(error) => {
                let _ = entry.id.reject(&encode_reject(RejectReason::Overloaded));
                self.bury(entry, None);
                return Err(match error {
                    // The sums were checked: what is invalid is the state of a request whose client went away.
                    PortError::System { step: CREATE_QP, errno: errno @ libc::EINVAL } => {
                        AcceptError::Gone { errno }
                    }
                    error => error.into(),
                });
            }
        };
        self.watches.add(lane.context(), shared);
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
    let mut ours = lane.hello(&shared.config, requested.options.trust, theirs.nonce);
    ours.features = ours.features.and(Feature::KEYED, requested.key.is_some());
    let session = requested.key.as_ref().map(|key| Ok(Session::passive(key, theirs, &ours, random()?)));
    let wired = session
        .transpose()
        .map_err(WireError::Port)
        .and_then(|session| Ok((lane.wire(shared, &ours, theirs)?, session)));
    let (mut wiring, session) = match wired {
        Ok(wired) => wired,
        Err(error) => {
            let (reason, error) = match error {
                WireError::Terms(reason) => (reason, AcceptError::Rejected(reason)),
                WireError::Unproven => {
                    (RejectReason::Authentication, AcceptError::Rejected(RejectReason::Authentication))
                }
                WireError::Port(error) => (RejectReason::Overloaded, error.into()),
            };
            let _ = id.reject(&encode_reject(reason));
            return Err((Box::new(lane), error));
        }
    };
    let event = (theirs, requested.responder_resources, requested.initiator_depth);
    let mut private = ours.encode().to_vec();
    private.extend(session.iter().flat_map(Session::challenge));
    let params = lane.params(&ours, private, Some(event));
    let ack_timeout = set_ack_timeout(id, &lane, requested.options.ack_timeout);
    if let Err(errno) = id.accept(&params) {
        return Err((Box::new(lane), AcceptError::Gone { errno }));
    }
    wiring.negotiated.ack_timeout = ack_timeout;
    wiring.negotiated.rnr_timer = set_rnr_timer(&lane, requested.options.rnr_timer);
    lane.describe(id, &mut wiring.negotiated);
    wiring.negotiated.peer.clone_from(&requested.peer);
    let handshake_timeout = requested.options.handshake_timeout;
    Ok(LinkParts { handle, lane, wiring, active: false, handshake_timeout, session })
}

fn listen_error(address: SocketAddr, step: &'static str, errno: i32) -> ListenError {
    let name = format!("rdma://{address}");
    match errno {
        // siw refuses loopback addresses with this one too.
        libc::EADDRINUSE if address.ip().is_loopback() => ListenError::Address {
            address: name,
            why: "in use, or the device does not listen on loopback; give the interface's address".to_owned(),
        },
        libc::EADDRINUSE => ListenError::InUse { address: name },
        libc::ENODEV | libc::EADDRNOTAVAIL => ListenError::Address {
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

/// Those of `asked` that the device has; all it has for a wildcard.
fn on_device(
    asked: &[SocketAddr],
    has: &[IpAddr],
    choice: &DeviceChoice,
) -> Result<Vec<SocketAddr>, ListenError> {
    let fits = |asked: IpAddr, has: IpAddr| {
        asked == has || (asked.is_unspecified() && (asked.is_ipv4() || has.is_ipv6()))
    };
    let mut found = Vec::new();
    for asked in asked {
        for &ip in has.iter().filter(|ip| fits(asked.ip(), **ip)) {
            let address = SocketAddr::new(ip, asked.port());
            if !found.contains(&address) {
                found.push(address);
            }
        }
    }
    if found.is_empty() {
        let address = asked.first().map_or_else(String::new, |asked| format!("rdma://{asked}"));
        return Err(ListenError::Address { address, why: format!("{choice} has {has:?}") });
    }
    Ok(found)
}

/// The passive side of the RDMA CM.
#[derive(Debug)]
pub struct VerbsListener {
    control: Arc<ControlHandle>,
    address: Address,
    ids: Vec<Handle>,
    requests: Receiver<Request>,
    rejected: Arc<Rejected>,
}

impl VerbsListener {
    pub(crate) fn start(
        control: &Arc<ControlHandle>,
        host: &str,
        port: u16,
        options: &ListenOptions,
    ) -> Result<Self, ListenError> {
        let mut addresses = listen_addresses(host, port)?;
        if let Some(choice) = &options.device {
            addresses = on_device(&addresses, &ports::addresses_of(choice)?, choice)?;
        }
        let (sender, requests) = sync_channel(usize::from(options.backlog.max(1)));
        let rejected = Arc::<Rejected>::default();
        let (reply, answer) = sync_channel(1);
        control.send(Command::Listen {
            addresses,
            options: options.clone(),
            requests: sender,
            rejected: Arc::clone(&rejected),
            reply,
        });
        let (ids, bound) = answer.recv().map_err(|_| ListenError::Port(mailbox::gone()))??;
        let address = Address::Rdma { host: host.to_owned(), port: bound, via: Via::default() };
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
            Err(RecvTimeoutError::Disconnected) => Err(mailbox::gone().into()),
        }
    }

    fn rejected(&self) -> u64 {
        self.rejected.count()
    }

    fn last_rejected(&self) -> Option<RejectReason> {
        self.rejected.last()
    }
}

impl Drop for VerbsListener {
    fn drop(&mut self) {
        let (done, free) = sync_channel(1);
        let ids = std::mem::take(&mut self.ids);
        // Nobody receives any more, so any receiver may stand here.
        let requests = std::mem::replace(&mut self.requests, sync_channel(0).1);
        if self.control.send(Command::Unlisten { ids, requests, done }) {
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

    fn accept(self, gate: &VerbsGate) -> Result<VerbsLink, AcceptError> {
        let (reply, answer) = sync_channel(1);
        self.accept_then(gate, move |outcome| {
            // The other end waits below.
            let _ = reply.send(outcome);
        });
        answer.recv().map_err(|_| AcceptError::Port(mailbox::gone()))?
    }

    fn accept_then(
        mut self,
        gate: &VerbsGate,
        then: impl FnOnce(Result<VerbsLink, AcceptError>) + Send + 'static,
    ) {
        self.answered = true;
        let control = Arc::clone(&self.control);
        let then = move |outcome: Result<_, _>| then(outcome.map(|parts| VerbsLink::new(parts, &control)));
        let (handle, shared) = (self.request.handle, Arc::clone(&gate.shared));
        self.control.send(Command::Accept { handle, shared, then: Then(Box::new(then)) });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_device_has_is_listened_on() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let has = [ip("10.0.0.1"), ip("10.0.0.2"), ip("fd00::1")];
        let choice: DeviceChoice = "rxe0".parse().unwrap();
        let on = |asked: &[&str]| {
            on_device(&asked.iter().map(|asked| at(asked)).collect::<Vec<_>>(), &has, &choice)
        };
        let all = vec![at("10.0.0.1:7"), at("10.0.0.2:7"), at("[fd00::1]:7")];
        assert_eq!(on(&["0.0.0.0:7"]), Ok(all.clone()));
        assert_eq!(on(&["0.0.0.0:7", "[::]:7"]), Ok(all));
        assert_eq!(on(&["[::]:7"]), Ok(vec![at("[fd00::1]:7")]));
        assert_eq!(on(&["10.0.0.2:7"]), Ok(vec![at("10.0.0.2:7")]));
        let error = on(&["10.0.9.9:7"]).unwrap_err().to_string();
        assert!(
            error.contains("10.0.9.9:7") && error.contains("rxe0 has") && error.contains("fd00::1"),
            "{error}"
        );
    }
}
