//! The passive side: whose clients they are, and what they say before they are handed out.

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use rustix::{
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
    hello::{HELLO_BYTES, is_foreign},
    kernel::{self, system},
    proof::{CHALLENGE_MARK, Label, PROOF_BYTES, PROOF_MARK, REQUEST_BYTES, Session, admit, random},
    reception::{Door, Reception},
    rejected::Rejected,
    strangers::{PLACES, PLACES_OF_ONE, Stranger},
};

const _: () = assert!(PLACES <= handover::CLIENTS_MAX);

/// Listens on `tcp://host:port` or `tcp+tls://host:port`.
#[derive(Debug)]
pub struct TcpListener {
    reception: Reception<TcpDoor>,
    /// Processes that wait to take over.
    successors: Option<Successors>,
}

/// The listening socket.
#[derive(Debug)]
struct TcpDoor {
    socket: OwnedFd,
    address: Address,
    tls: bool,
    options: ListenOptions,
}

/// A client that has not said hello, or has a key to prove.
#[derive(Debug)]
struct TcpClient {
    wire: Wire,
    heard: Heard,
    is_secure: bool,
    /// It said hello with a key, and was asked to prove it.
    proving: Option<Box<(Hello, Session)>>,
}

impl From<OwnedFd> for TcpClient {
    fn from(socket: OwnedFd) -> Self {
        Wire::Plain(socket).into()
    }
}

impl From<Wire> for TcpClient {
    fn from(wire: Wire) -> Self {
        let is_secure = matches!(wire, Wire::Plain(_));
        Self { wire, heard: Heard::default(), is_secure, proving: None }
    }
}

impl TcpClient {
    /// An error is the reason to tell the client.
    fn hear(&mut self, keys: &[Key]) -> Result<Option<Hello>, RejectReason> {
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

impl Stranger for TcpClient {
    fn read(&mut self, keys: &[Key]) -> Result<Option<Hello>, Option<RejectReason>> {
        self.hear(keys).map_err(Some)
    }

    fn is_silent(&self) -> bool {
        self.heard.bytes().is_empty() && self.proving.is_none() && !self.wire.has_begun()
    }

    fn socket(&self) -> &OwnedFd {
        self.wire.socket()
    }

    fn name(&self) -> String {
        let peer = socket::name(socket::remote(self.wire.socket()));
        self.wire.fault().map_or_else(|| peer.clone(), |fault| format!("{peer}: {fault}"))
    }

    fn refuse(mut self, reason: RejectReason) {
        self.wire.refuse(&reason.into());
    }
}

impl TcpDoor {
    /// Whose a socket is: the host's. One without an address has gone, or is about to.
    fn host(socket: &OwnedFd) -> Option<IpAddr> {
        socket::remote(socket).map(|address| address.ip())
    }

    /// The end of a client's connection that is ours.
    fn wire(&self, socket: OwnedFd) -> Option<Wire> {
        // Its files could be read when this began to listen, and what was read then stays in force.
        Wire::server(socket, self.tls.then_some(&self.options.tls)).ok()
    }
}

impl AsFd for TcpDoor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Door for TcpDoor {
    type Client = TcpClient;
    /// A host.
    type Source = Option<IpAddr>;

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn options(&self) -> &ListenOptions {
        &self.options
    }

    fn accept(&self) -> Result<OwnedFd, Errno> {
        kernel::accept(&self.socket).map_err(|errno| match errno {
            Errno::AGAIN | Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP => errno,
            Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM => errno,
            // An error of the client's network (accept(2)).
            _ => Errno::CONNABORTED,
        })
    }

    fn source(&self, socket: &OwnedFd) -> Result<Option<IpAddr>, RejectReason> {
        Ok(Self::host(socket))
    }

    fn let_in(&self, socket: OwnedFd) -> Option<TcpClient> {
        socket::tune(&socket);
        self.wire(socket).map(TcpClient::from)
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
        let address = Address::Tcp { host: host.to_owned(), port, tls };
        let door = TcpDoor { socket, address, tls, options: options.clone() };
        // No host alone keeps others out.
        let mut reception = Reception::new(door, PLACES_OF_ONE);
        for client in clients {
            let source = TcpDoor::host(&client);
            if let Some(wire) = reception.door.wire(client) {
                reception.give_place(wire.into(), source);
            }
        }
        Self { reception, successors }
    }

    /// Whether a process waits to take over.
    #[cfg(test)]
    pub(super) fn is_awaited(&self) -> bool {
        self.successors.as_ref().is_some_and(Successors::is_awaited)
    }
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
        self.reception.door.address()
    }

    fn accept(&mut self, timeout: Duration) -> Result<Option<TcpIncoming>, ListenError> {
        let next = self.reception.next(timeout)?;
        Ok(next.map(|(client, hello)| TcpIncoming::new(client.wire, hello, &self.reception.door.options)))
    }

    fn rejections(&self) -> &Arc<Rejected> {
        &self.reception.rejected
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        let Self { reception, successors } = self;
        if let Some(successors) = successors {
            let silent = reception.strangers.clients().filter(|client| client.is_silent());
            let sockets = silent.map(TcpClient::socket);
            successors.hand_over(&reception.door.socket, sockets, reception.spare.take());
        }
    }
}
