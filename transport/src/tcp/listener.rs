//! The passive side: accepts sockets, reads hellos, hands out the good ones.

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
    net::{AddressFamily, sockopt},
};

use super::{
    gate::TcpGate,
    handover::{self, Inherited, Successors},
    heard::Heard,
    incoming::TcpIncoming,
    link::TcpLink,
    place, socket,
    wire::{self, Wire},
};
use crate::{
    Address, Hello, Instant, Key, ListenError, ListenOptions, Listener, RejectReason,
    error::errno_text,
    hello::{HELLO_BYTES, is_foreign},
    kernel::{self, system},
    proof::{CHALLENGE_MARK, Label, PROOF_BYTES, PROOF_MARK, REQUEST_BYTES, Session, admit, random},
    rejected::Rejected,
};

/// Clients that may be connected without having said hello, a descriptor each. Beyond it the oldest goes if it had its chance.
pub(super) const WAITING_MAX: usize = 128;
const _: () = assert!(WAITING_MAX <= handover::CLIENTS_MAX);
/// Of them, from one address: half, so that no host alone keeps others out.
pub(super) const WAITING_OF_ONE_MAX: usize = WAITING_MAX / 2;
/// That chance.
const CHANCE: Duration = Duration::from_millis(100);
/// Sockets that are accepted before the hellos of those that wait are looked for again.
const SOCKETS_PER_ROUND: usize = 32;
/// How long clients wait in the backlog for a descriptor or memory of this process before they are refused.
const LACK_PATIENCE: Duration = Duration::from_millis(100);
/// Between two tries meanwhile: the socket stays readable.
const LACK_PAUSE: Duration = Duration::from_millis(10);

/// Listens on `tcp://host:port` or `tcp+tls://host:port`.
#[derive(Debug)]
pub struct TcpListener {
    socket: OwnedFd,
    address: Address,
    tls: bool,
    options: ListenOptions,
    /// Clients that were let in, the oldest first.
    waiting: VecDeque<Waiting>,
    /// Processes that wait to take over.
    successors: Option<Successors>,
    rejected: Arc<Rejected>,
    /// Closed to accept a client that is refused, when there is no other descriptor.
    spare: Option<OwnedFd>,
    lack: Option<Lack>,
}

/// A client is in the backlog and cannot be accepted, for a reason that may pass.
#[derive(Debug)]
struct Lack {
    since: Instant,
    again: Instant,
}

/// A client that has not said hello, or has a key to prove.
#[derive(Debug)]
struct Waiting {
    wire: Wire,
    source: Option<IpAddr>,
    since: Instant,
    until: Instant,
    heard: Heard,
    is_secure: bool,
    /// It said hello with a key, and was asked to prove it.
    proving: Option<Box<(Hello, Session)>>,
}

impl Waiting {
    fn new(wire: Wire, options: &ListenOptions) -> Self {
        let source = source(wire.socket());
        let is_secure = matches!(wire, Wire::Plain(_));
        let since = Instant::now();
        let until = since + options.handshake_timeout;
        Self { wire, source, since, until, heard: Heard::default(), is_secure, proving: None }
    }

    /// Whether nothing was read of it, or said to it.
    fn is_silent(&self) -> bool {
        self.heard.bytes().is_empty() && self.proving.is_none() && !self.wire.has_begun()
    }

    /// Whether it had its chance to say hello.
    fn is_late(&self) -> bool {
        self.since.elapsed() >= CHANCE
    }

    /// Reads what the client sent, if anything. Returns its hello when that is good and a key was proved where one is asked
    /// for. An error is the reason to tell the client.
    fn read(&mut self, keys: &[Key]) -> Result<Option<Hello>, RejectReason> {
        if !self.is_secure {
            self.is_secure = self.wire.secure().map_err(|fault| Wire::refusal(&fault))?;
            if !self.is_secure {
                return Ok(None);
            }
        }
        if let Some(proving) = &self.proving {
            let (hello, session) = &**proving;
            let want = PROOF_MARK.len() + PROOF_BYTES;
            if !self.heard.read(&mut self.wire, want).map_err(|_| RejectReason::Authentication)? {
                return Ok(None);
            }
            let proof = self.heard.bytes().strip_prefix(&PROOF_MARK);
            let is_proved = proof.is_some_and(|proof| session.is_proved(Label::ActiveGrant, &[], proof));
            return if is_proved { Ok(Some(*hello)) } else { Err(RejectReason::Authentication) };
        }
        let whole = self.heard.read(&mut self.wire, HELLO_BYTES);
        let bytes = self.heard.bytes();
        // Told at once, whatever else it has to say: what speaks another language may never send as much as a hello.
        if is_foreign(bytes) {
            return Err(RejectReason::NotOurs);
        }
        if let Err(version @ RejectReason::Version { .. }) = Hello::decode(bytes) {
            return Err(version);
        }
        if !whole.map_err(|_| RejectReason::NotOurs)? {
            return Ok(None);
        }
        let is_keyed = Hello::decode(bytes)?.is_keyed();
        if is_keyed && !keys.is_empty() {
            let whole = self.heard.read(&mut self.wire, REQUEST_BYTES);
            if !whole.map_err(|_| RejectReason::Authentication)? {
                return Ok(None);
            }
        }
        let (hello, key) = admit(self.heard.bytes(), keys)?;
        let Some(key) = key else { return Ok(Some(hello)) };
        // The client is asked to prove its key, and has it proved. Our hello comes later, over this socket.
        let nonce = random().map_err(|_| RejectReason::Overloaded)?;
        let session = Session::passive(key, &hello, &hello, nonce);
        let challenge = [&CHALLENGE_MARK[..], &session.challenge()].concat();
        self.wire.say(&challenge).map_err(|_| RejectReason::Authentication)?;
        self.heard = Heard::default();
        self.proving = Some(Box::new((hello, session)));
        Ok(None)
    }
}

impl TcpListener {
    /// Listens on the first address of `address` that can be had.
    pub(super) fn bind(address: &Address, options: &ListenOptions) -> Result<Self, ListenError> {
        let refuse = |why| ListenError::Address { address: address.to_string(), why };
        let (host, port, tls) = place::parts(address).map_err(refuse)?;
        if tls {
            let refuse = |cause| ListenError::Tls { address: address.to_string(), cause };
            wire::check_server(&options.tls).map_err(refuse)?;
        }
        let places = place::to_listen(host, port);
        let places = places.map_err(|error| refuse(format!("the host cannot be resolved: {error}")))?;
        let mut failed = None;
        for place in &places {
            match take(place, options) {
                Ok(inherited) => return Ok(Self::new(inherited, (host, port, tls), options)),
                Err(errno) => failed = Some(errno),
            }
            // Not the next one: what a client finds first is a server already.
            if failed == Some(Errno::ADDRINUSE) {
                break;
            }
        }
        match failed {
            Some(Errno::ADDRINUSE) => {
                let by = "a live process".to_owned();
                Err(ListenError::InUse { address: address.to_string(), by })
            }
            Some(Errno::ADDRNOTAVAIL) => Err(refuse("no interface of this host has it".to_owned())),
            Some(errno) => Err(ListenError::Port(system("bind")(errno))),
            None => Err(refuse("the host has no address".to_owned())),
        }
    }

    fn new(inherited: Inherited, (host, port, tls): (&str, u16, bool), options: &ListenOptions) -> Self {
        let Inherited { listening: socket, successors, clients } = inherited;
        let port = socket::local(&socket).map_or(port, |local| local.port());
        let mut waiting = VecDeque::with_capacity(WAITING_MAX);
        let wires = clients.into_iter().flat_map(|client| Wire::server(client, tls.then_some(&options.tls)));
        waiting.extend(wires.map(|wire| Waiting::new(wire, options)));
        let (rejected, spare) = (Arc::<Rejected>::default(), kernel::spare());
        let (address, options) = (Address::Tcp { host: host.to_owned(), port, tls }, options.clone());
        Self { socket, address, tls, options, waiting, successors, rejected, spare, lack: None }
    }

    /// Whether a process waits to take over.
    #[cfg(test)]
    pub(super) fn is_awaited(&self) -> bool {
        self.successors.as_ref().is_some_and(Successors::is_awaited)
    }

    /// Takes what waits in the socket's backlog, as far as it is let in. Those that were let in before have been read: a hello
    /// frees its place, so nobody goes who has said one.
    fn accept_sockets(&mut self) -> Result<(), ListenError> {
        if self.lack.as_ref().is_some_and(|lack| !lack.again.has_passed()) {
            return Ok(());
        }
        // Bounded, so that the next hellos are read before anybody is refused for want of a place.
        for _ in 0..SOCKETS_PER_ROUND {
            let full = self.waiting.len() == WAITING_MAX;
            if full && !self.waiting.front().is_some_and(Waiting::is_late) {
                // The others wait in the backlog.
                return Ok(());
            }
            let socket = match kernel::accept(&self.socket) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return Ok(()),
                // The socket itself is no listening one any more.
                Err(errno @ (Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP)) => {
                    return Err(ListenError::Port(system("accept4")(errno)));
                }
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    if self.refuse_for_lack(errno) {
                        continue;
                    }
                    return Ok(());
                }
                // A client that has gone, or an error of its network (accept(2)).
                Err(_) => continue,
            };
            self.lack = None;
            self.let_in(socket);
        }
        Ok(())
    }

    /// Gives a client its place, or refuses it.
    fn let_in(&mut self, socket: OwnedFd) {
        let source = source(&socket);
        let is_of_one = |other: &Waiting| other.source == source;
        if self.waiting.iter().filter(|other| is_of_one(other)).count() == WAITING_OF_ONE_MAX {
            // Its oldest goes, if that had its chance: who is silent does not keep out who is not.
            let oldest = self.waiting.iter().position(is_of_one);
            let late = oldest.filter(|at| self.waiting[*at].is_late());
            let Some(gone) = late.and_then(|at| self.waiting.remove(at)) else {
                return self.reject(Wire::Plain(socket), RejectReason::Overloaded);
            };
            self.reject(gone.wire, RejectReason::Overloaded);
        }
        if self.waiting.len() == WAITING_MAX
            && let Some(oldest) = self.waiting.pop_front()
        {
            self.reject(oldest.wire, RejectReason::Overloaded);
        }
        socket::tune(&socket);
        // Its files could be read when this began to listen, and what was read then stays in force.
        if let Ok(wire) = Wire::server(socket, self.tls.then_some(&self.options.tls)) {
            self.waiting.push_back(Waiting::new(wire, &self.options));
        }
    }

    /// There is no descriptor or memory for a client: the oldest that is silent and had its chance makes room, or the client is
    /// refused after it has waited for a while. Whether there may be room for the next one now.
    fn refuse_for_lack(&mut self, errno: Errno) -> bool {
        let now = Instant::now();
        // accept(2) takes a descriptor before it looks for a client.
        if !matches!(kernel::wait_readable(self.socket.as_fd(), now), Ok(true)) {
            self.lack = None;
            return false;
        }
        let lack = self.lack.get_or_insert_with(|| {
            let error = errno_text(errno.raw_os_error());
            tracing::warn!(error, address = %self.address, "clients cannot be accepted; trying again");
            Lack { since: now, again: now }
        });
        lack.again = now + LACK_PAUSE;
        let is_long = now - lack.since >= LACK_PATIENCE;
        let silent = self.waiting.iter().position(|client| client.is_silent() && client.is_late());
        if let Some(silent) = silent.and_then(|at| self.waiting.remove(at)) {
            self.reject(silent.wire, RejectReason::Overloaded);
            return true;
        }
        if !is_long {
            return false;
        }
        self.spare = None;
        let refused = kernel::accept(&self.socket);
        let is_refused = refused.is_ok();
        if let Ok(socket) = refused {
            self.reject(Wire::Plain(socket), RejectReason::Overloaded);
        }
        self.spare = kernel::spare();
        is_refused
    }

    /// The first waiting client whose hello is good.
    fn first_hello(&mut self) -> Option<TcpIncoming> {
        let (now, mut at) = (Instant::now(), 0);
        while let Some(client) = self.waiting.get_mut(at) {
            let hello = match client.read(&self.options.keys) {
                Ok(Some(hello)) => Ok(hello),
                Ok(None) if client.until <= now => Err(RejectReason::Overloaded),
                Ok(None) => {
                    at += 1;
                    continue;
                }
                Err(reason) => Err(reason),
            };
            let client = self.waiting.remove(at)?;
            match hello {
                Ok(hello) => return Some(TcpIncoming::new(client.wire, hello, &self.options)),
                Err(reason) => self.reject(client.wire, reason),
            }
        }
        None
    }

    fn reject(&self, mut wire: Wire, reason: RejectReason) {
        self.rejected.note(reason, || {
            let peer = socket::name(socket::remote(wire.socket()));
            wire.fault().map_or_else(|| peer.clone(), |fault| format!("{peer}: {fault}"))
        });
        wire.refuse(&reason.into());
    }
}

fn source(socket: &OwnedFd) -> Option<IpAddr> {
    socket::remote(socket).map(|address| address.ip())
}

/// Listens on `place`, by a new socket or by that of the process that stops listening there.
fn take(place: &SocketAddr, options: &ListenOptions) -> Result<Inherited, Errno> {
    match open(place, i32::from(options.backlog)) {
        Err(Errno::ADDRINUSE) if !options.take_over.is_zero() => {
            let inherited = handover::wait(place, Instant::now() + options.take_over);
            let inherited = inherited.ok_or(Errno::ADDRINUSE)?;
            // The backlog is this server's from here on.
            rustix::net::listen(&inherited.listening, options.backlog.into())?;
            Ok(inherited)
        }
        opened => {
            let listening = opened?;
            let successors = socket::local(&listening).as_ref().and_then(Successors::of);
            Ok(Inherited { listening, successors, clients: Vec::new() })
        }
    }
}

/// A socket that listens on `place`.
fn open(place: &SocketAddr, backlog: i32) -> Result<OwnedFd, Errno> {
    let socket = socket::open(place)?;
    // The port of connections that have just ended.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if sockopt::socket_domain(&socket)? == AddressFamily::INET6 {
        sockopt::set_ipv6_v6only(&socket, !place.ip().is_unspecified())?;
    }
    rustix::net::bind(&socket, place)?;
    rustix::net::listen(&socket, backlog)?;
    Ok(socket)
}

impl Listener for TcpListener {
    type Gate = TcpGate;
    type Link = TcpLink;
    type Incoming = TcpIncoming;

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn accept(&mut self, timeout: Duration) -> Result<Option<TcpIncoming>, ListenError> {
        let until = Instant::now() + timeout;
        loop {
            // Those that were let in are read first, so that a hello that is there frees its place for the next one.
            if let Some(incoming) = self.first_hello() {
                return Ok(Some(incoming));
            }
            self.accept_sockets()?;
            if let Some(incoming) = self.first_hello() {
                return Ok(Some(incoming));
            }
            let now = Instant::now();
            if until <= now {
                return Ok(None);
            }
            // A client that stays silent is dropped at its own time, whoever else comes.
            let full = self.waiting.len() == WAITING_MAX;
            let chance = self.waiting.front().filter(|_| full).map(|oldest| oldest.since + CHANCE);
            let again = self.lack.as_ref().map(|lack| lack.again).filter(|again| *again > now);
            let turns = self.waiting.iter().map(|client| client.until);
            let turn = turns.chain(chance).chain(again).fold(until, Instant::min);
            let sockets = self.waiting.iter().map(|client| client.wire.socket());
            // Clients in the backlog are let in when there is room.
            let place = (!full && again.is_none()).then_some(&self.socket);
            let readable = |fd| PollFd::new(fd, PollFlags::IN);
            let mut fds: Vec<_> = sockets.chain(place).map(readable).collect();
            if kernel::wait(&mut fds, turn).is_err() {
                // The kernel has no memory for the wait: it is given time instead.
                std::thread::sleep(LACK_PAUSE.min(turn - now));
            }
        }
    }

    fn rejections(&self) -> &Arc<Rejected> {
        &self.rejected
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        if let Some(successors) = &self.successors {
            let silent = self.waiting.iter().filter(|client| client.is_silent());
            successors.hand_over(&self.socket, silent.map(|client| client.wire.socket()), self.spare.take());
        }
    }
}
