//! The active side: resolves, connects, secures, says hello, proves a key, and grants.

use std::{collections::VecDeque, net::SocketAddr, os::fd::OwnedFd, sync::Arc, time::Duration};

use rustix::{io::Errno, net::sockopt};

use super::{
    gate::TcpGate,
    heard::Heard,
    link::{Rings, TcpLink, hello, settle},
    place::{self, Targets},
    record::Record,
    socket,
    wire::Wire,
};
use crate::{
    Address, ConnectError, ConnectOptions, Connecting, Hello, Instant, Key, Refusal, RejectReason, TlsError,
    error::errno_text,
    hello::{HELLO_BYTES, REJECT_BYTES, REJECT_LEN, is_foreign},
    kernel::{self, system},
    proof::{CHALLENGE_BYTES, CHALLENGE_MARK, Label, PROOF_MARK, Session, random, request},
    refusal::DATA_LEN_AT,
};

/// An attempt to connect. Dropping it gives it up.
#[derive(Debug)]
pub struct TcpConnecting {
    step: Step,
    /// Addresses of the name that were not tried yet.
    left: VecDeque<SocketAddr>,
    address: Address,
    gate: TcpGate,
    options: Box<ConnectOptions>,
    until: Instant,
}

#[derive(Debug)]
enum Step {
    Resolving(Targets),
    Dialing {
        socket: OwnedFd,
        /// When the next address gets its turn.
        until: Instant,
    },
    /// TLS, where the address asks for it.
    Securing {
        wire: Wire,
    },
    /// Our hello is sent. While there is a key, the server must prove first that it has it too.
    Greeting {
        wire: Wire,
        ours: Hello,
        key: Option<Key>,
        heard: Heard,
    },
    Done,
}

impl TcpConnecting {
    /// Starts the attempt.
    pub(super) fn start(
        address: &Address,
        gate: &TcpGate,
        options: &ConnectOptions,
    ) -> Result<Self, ConnectError> {
        let refuse = |why| ConnectError::Address { address: address.to_string(), why };
        let (host, port, _) = place::parts(address).map_err(refuse)?;
        if host == "*" || port == 0 {
            return Err(refuse("a server has a host and a port; * and port 0 are for listening".to_owned()));
        }
        let targets = Targets::of(host, port).map_err(|errno| refuse(errno_text(errno)))?;
        Self::to(targets, address, gate, options)
    }

    /// Starts the attempt at the first of `targets` that can be connected to, which are those of `address`.
    pub(super) fn to(
        targets: Targets,
        address: &Address,
        gate: &TcpGate,
        options: &ConnectOptions,
    ) -> Result<Self, ConnectError> {
        let mut attempt = Self {
            step: Step::Resolving(targets),
            left: VecDeque::new(),
            address: address.clone(),
            gate: gate.clone(),
            options: Box::new(options.clone()),
            until: Instant::now() + options.connect_timeout,
        };
        attempt.advance(Duration::ZERO)?;
        // Within a host the socket is connected by now, and the hello goes out at once.
        attempt.advance(Duration::ZERO)?;
        Ok(attempt)
    }

    /// One step, waiting only for a name, at most for `timeout`.
    fn advance(&mut self, timeout: Duration) -> Result<Option<TcpLink>, ConnectError> {
        match std::mem::replace(&mut self.step, Step::Done) {
            Step::Resolving(mut targets) => match targets.poll(timeout) {
                None => self.step = Step::Resolving(targets),
                Some(Ok(found)) => {
                    self.left = found.into();
                    self.dial(None)?;
                }
                Some(Err(error)) => {
                    let why = format!("the host cannot be resolved: {error}");
                    return Err(ConnectError::Address { address: self.address.to_string(), why });
                }
            },
            Step::Dialing { socket, until } => self.dialed(socket, until)?,
            Step::Securing { wire } => self.secure(wire)?,
            Step::Greeting { wire, ours, key, heard } => return self.greeted(wire, ours, key, heard),
            Step::Done => {}
        }
        Ok(None)
    }

    /// Begins with the next address, after the one before `failed`.
    fn dial(&mut self, failed: Option<Errno>) -> Result<(), ConnectError> {
        let mut failed = failed;
        while let Some(to) = self.left.pop_front() {
            let socket = match socket::open(&to) {
                Ok(socket) => socket,
                // This host has no IPv6, say: another address may be of the other kind.
                Err(errno @ Errno::AFNOSUPPORT) => {
                    failed = Some(errno);
                    continue;
                }
                Err(errno) => return Err(system("socket")(errno).into()),
            };
            match kernel::connect(&socket, &to) {
                Ok(()) | Err(Errno::INPROGRESS | Errno::AGAIN) => {
                    let share = u32::try_from(self.left.len()).unwrap_or(u32::MAX).saturating_add(1);
                    let until =
                        Instant::now() + self.until.remaining().checked_div(share).unwrap_or_default();
                    self.step = Step::Dialing { socket, until };
                    return Ok(());
                }
                Err(errno) => failed = Some(errno),
            }
        }
        Err(match failed {
            Some(Errno::CONNREFUSED) => self.nobody(),
            Some(errno) => ConnectError::Port(system("connect")(errno)),
            None => {
                let why = "the host has no address".to_owned();
                ConnectError::Address { address: self.address.to_string(), why }
            }
        })
    }

    /// Looks how a dial went.
    fn dialed(&mut self, socket: OwnedFd, until: Instant) -> Result<(), ConnectError> {
        if let Err(errno) = sockopt::socket_error(&socket).map_err(system("SO_ERROR"))? {
            return self.dial(Some(errno));
        }
        let Some(peer) = socket::remote(&socket) else {
            if Instant::now() >= until && !self.left.is_empty() {
                return self.dial(Some(Errno::TIMEDOUT));
            }
            self.step = Step::Dialing { socket, until };
            return Ok(());
        };
        // A port that nobody listens on may be the one that the kernel chose for us.
        if socket::local(&socket) == Some(peer) {
            return self.dial(Some(Errno::CONNREFUSED));
        }
        socket::tune(&socket);
        let wire = match &self.address {
            Address::Tcp { host, tls: true, .. } => Wire::client(socket, host, Some(&self.options.tls)),
            _ => Wire::client(socket, "", None),
        };
        self.secure(wire.map_err(|cause| self.insecure(cause))?)
    }

    /// Goes on with TLS. Behind it, says hello.
    fn secure(&mut self, mut wire: Wire) -> Result<(), ConnectError> {
        match wire.secure() {
            Ok(true) => return self.greet(wire),
            Ok(false) => self.step = Step::Securing { wire },
            Err(cause @ TlsError::Plain) => {
                let refused = wire.refused_plainly().map(|reason| self.rejected(reason.into()));
                return Err(refused.unwrap_or_else(|| self.insecure(cause)));
            }
            Err(cause) => return Err(self.insecure(cause)),
        }
        Ok(())
    }

    fn greet(&mut self, mut wire: Wire) -> Result<(), ConnectError> {
        let mut ours = hello(&self.gate.shared.config, u128::from_le_bytes(random()?));
        let request = request(&mut ours, self.options.key.as_ref());
        match wire.say(&request) {
            // Then it says why, or is gone: both are read.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(errno) => return Err(system("send")(errno).into()),
        }
        let (key, heard) = (self.options.key.clone(), Heard::default());
        self.step = Step::Greeting { wire, ours, key, heard };
        Ok(())
    }

    /// Reads what the server says, as far as it came.
    fn greeted(
        &mut self,
        mut wire: Wire,
        ours: Hello,
        mut key: Option<Key>,
        mut heard: Heard,
    ) -> Result<Option<TcpLink>, ConnectError> {
        let is_whole = self.hear(&mut wire, &mut heard, key.is_some())?;
        if is_whole && let Some(key) = key.take() {
            self.prove(&mut wire, &ours, &key, &heard)?;
            heard = Heard::default();
        } else if is_whole {
            return self.answered(wire, &ours, &heard).map(Some);
        }
        self.step = Step::Greeting { wire, ours, key, heard };
        Ok(None)
    }

    /// Whether the server's next message is whole: a challenge, or a hello. A refusal is an error.
    fn hear(&self, wire: &mut Wire, heard: &mut Heard, is_keyed: bool) -> Result<bool, ConnectError> {
        let lost = |wire: &Wire, heard: &Heard, errno| match (errno, wire.fault()) {
            (_, Some(cause)) => self.insecure(cause.clone()),
            (Errno::PIPE | Errno::CONNRESET, _) if heard.bytes().is_empty() => self.left(wire),
            (Errno::PIPE | Errno::CONNRESET, _) => self.foreign(RejectReason::NotOurs),
            (errno, _) => system("recv")(errno).into(),
        };
        let mut read =
            |heard: &mut Heard, want| heard.read(wire, want).map_err(|errno| lost(wire, heard, errno));
        let begun = read(heard, REJECT_BYTES);
        let bytes = heard.bytes();
        let mark = bytes.len().min(CHALLENGE_MARK.len());
        if is_foreign(bytes) && bytes[..mark] != CHALLENGE_MARK[..mark] {
            return Err(self.foreign(RejectReason::NotOurs));
        }
        if !begun? {
            return Ok(false);
        }
        let bytes = heard.bytes();
        if !is_foreign(bytes) && bytes[5] == REJECT_LEN {
            if !read(heard, REJECT_BYTES + usize::from(heard.bytes()[DATA_LEN_AT]))? {
                return Ok(false);
            }
            let refusal =
                Refusal::decode(heard.bytes()).ok_or_else(|| self.foreign(RejectReason::NotOurs))?;
            return Err(self.rejected(refusal));
        }
        match (is_keyed, bytes.starts_with(&CHALLENGE_MARK)) {
            (true, true) => read(heard, CHALLENGE_MARK.len() + CHALLENGE_BYTES),
            (true, false) => Err(self.unproven()),
            (false, false) => read(heard, HELLO_BYTES),
            (false, true) => Err(self.foreign(RejectReason::NotOurs)),
        }
    }

    /// Checks the server's proof; ours is the answer.
    fn prove(&self, wire: &mut Wire, ours: &Hello, key: &Key, heard: &Heard) -> Result<(), ConnectError> {
        let challenge = heard.bytes().strip_prefix(&CHALLENGE_MARK);
        let session = challenge.and_then(|challenge| Session::active(key, ours, ours, challenge));
        let session = session.ok_or_else(|| self.unproven())?;
        let proof = [&PROOF_MARK[..], &session.prove(Label::ActiveGrant, &[])].concat();
        match wire.say(&proof) {
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(errno) => Err(system("send")(errno).into()),
        }
    }

    /// The server's hello came.
    fn answered(&self, mut wire: Wire, ours: &Hello, heard: &Heard) -> Result<TcpLink, ConnectError> {
        let theirs = Hello::decode(heard.bytes()).map_err(|reason| self.foreign(reason))?;
        let config = &self.gate.shared.config;
        let negotiated = settle(config, ours, &theirs, &wire).map_err(|reason| self.foreign(reason))?;
        let rings = Rings::new(&self.gate, &negotiated)?;
        wire.say(&Record::Grant.encode()).map_err(|errno| match errno {
            Errno::PIPE | Errno::CONNRESET => self.left(&wire),
            errno => ConnectError::Port(system("send")(errno)),
        })?;
        let (negotiated, handshake_timeout) = (Arc::new(negotiated), self.options.handshake_timeout);
        Ok(TcpLink { wire, rings, is_granted: true, negotiated, handshake_timeout })
    }

    fn nobody(&self) -> ConnectError {
        ConnectError::NobodyListens { address: self.address.to_string() }
    }

    /// The server has gone, which said nothing. One that spoke TLS is there, and has its reasons.
    fn left(&self, wire: &Wire) -> ConnectError {
        if wire.secured().is_some() { self.insecure(TlsError::Closed) } else { self.nobody() }
    }

    fn insecure(&self, cause: TlsError) -> ConnectError {
        ConnectError::Tls { address: self.address.to_string(), cause }
    }

    fn rejected(&self, refusal: Refusal) -> ConnectError {
        let (address, reason) = (self.address.to_string(), refusal.reason());
        ConnectError::Rejected { address, reason, data: refusal.into_data() }
    }

    fn foreign(&self, reason: RejectReason) -> ConnectError {
        ConnectError::Foreign { address: self.address.to_string(), reason }
    }

    fn unproven(&self) -> ConnectError {
        ConnectError::Unproven { address: self.address.to_string() }
    }

    fn wait(&self, until: Instant) {
        match &self.step {
            Step::Dialing { socket, until: turn } => socket::wait(socket, true, until.min(*turn)),
            Step::Securing { wire } | Step::Greeting { wire, .. } => {
                socket::wait(wire.socket(), wire.is_behind(), until);
            }
            // A name is waited for by the step itself.
            Step::Resolving(_) | Step::Done => {}
        }
    }

    pub(super) fn step_name(&self) -> &'static str {
        match self.step {
            Step::Resolving(_) => "resolving its host",
            Step::Dialing { .. } => "connecting its socket",
            Step::Securing { .. } => "shaking hands of TLS",
            Step::Greeting { key: Some(_), .. } => "waiting for its proof of the shared key",
            Step::Greeting { key: None, .. } => "waiting for its hello",
            Step::Done => "done",
        }
    }
}

impl Connecting for TcpConnecting {
    type Link = TcpLink;

    fn poll(&mut self, timeout: Duration) -> Option<Result<TcpLink, ConnectError>> {
        let until = self.until.min(Instant::now() + timeout);
        loop {
            if matches!(self.step, Step::Done) {
                return None;
            }
            if let Some(outcome) = self.advance(until.remaining()).transpose() {
                self.step = Step::Done;
                return Some(outcome);
            }
            let now = Instant::now();
            if now >= self.until {
                let step = self.step_name();
                self.step = Step::Done;
                let timeout = self.options.connect_timeout;
                return Some(Err(ConnectError::Timeout { address: self.address.to_string(), step, timeout }));
            }
            if now >= until {
                return None;
            }
            self.wait(until);
        }
    }
}
