//! One connection's TLS: bytes that arrived and are not opened, bytes that are sealed and have not left.

use std::{mem, os::fd::OwnedFd, ptr::NonNull, sync::Arc};

use rustix::io::Errno;
use rustls::{
    CommonState, Error, HandshakeKind,
    client::UnbufferedClientConnection,
    pki_types::{ServerName, UnixTime},
    server::UnbufferedServerConnection,
};

use super::{
    PROTOCOL,
    faults::fault,
    files::{ClientSide, ServerSide},
    names,
    records::{Say, Sink, Step, advance, gather},
};
use crate::{
    Certificate, Secured, Tls, TlsError,
    tcp::socket::{self, PIECES, Piece},
};

/// Two records at their largest, and some: whatever handshakes need goes in, too.
const INPUT_BYTES: usize = 36 << 10;
/// Sealed bytes that are handed to the kernel at once.
const OUTPUT_BYTES: usize = 64 << 10;
/// Kinds of records, from the first to the last (RFC 8446, appendix B.1).
const KINDS: std::ops::RangeInclusive<u8> = 20..=24;

/// The name that a client expects of the server that the URL names `host`.
pub(super) fn server_name(tls: &Tls, host: &str) -> Result<ServerName<'static>, TlsError> {
    let host = tls.choice().server_name.as_deref().unwrap_or(host);
    let name = ServerName::try_from(host.to_owned());
    name.map_err(|_| TlsError::Other { why: format!("{host} is no name of a server") })
}

/// Whether a peer with `certificate` is one of those that are `allowed`; none: all are.
pub(super) fn check_allowed(allowed: &[String], certificate: Option<&Certificate>) -> Result<(), TlsError> {
    let is_one = |certificate: &Certificate| allowed.iter().any(|identity| certificate.is(identity));
    match certificate {
        _ if allowed.is_empty() => Ok(()),
        Some(certificate) if is_one(certificate) => Ok(()),
        Some(certificate) => Err(TlsError::NotAllowed { identity: certificate.to_string() }),
        None => Err(TlsError::NoCertificate),
    }
}

/// TLS over a socket.
pub(in crate::tcp) struct Session {
    socket: OwnedFd,
    side: Side,
    /// Identities that the peer may have; empty: any.
    allowed: Vec<String>,
    certificate: Option<Certificate>,
    /// What came: `begin..end` of it is not opened.
    input: Vec<u8>,
    begin: usize,
    end: usize,
    /// What was opened and found no room, from `left_at` on.
    left: Vec<u8>,
    left_at: usize,
    /// What is to be sealed, between two calls empty.
    plain: Vec<u8>,
    /// What was sealed: `sent` of it has left.
    output: Vec<u8>,
    sent: usize,
    /// What came is a part of something that has to come whole.
    is_blocked: bool,
    /// The last call took as much as it asked for: there may be more in the socket.
    has_more: bool,
    /// The peer has said something.
    has_begun: bool,
    /// Nothing more comes.
    is_over: bool,
    /// The state machine has failed: it is asked for nothing more.
    is_broken: bool,
    fault: Option<TlsError>,
}

enum Side {
    Client { conn: Box<UnbufferedClientConnection>, by: Arc<ClientSide>, name: ServerName<'static> },
    Server { conn: Box<UnbufferedServerConnection>, by: Arc<ServerSide> },
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("socket", &self.socket)
            .field("fault", &self.fault)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// A client's, of a server that the URL names `host`.
    pub(in crate::tcp) fn client(socket: OwnedFd, host: &str, tls: &Tls) -> Result<Self, TlsError> {
        let by = tls.kept().client(tls.choice())?;
        let name = server_name(tls, host)?;
        let conn = UnbufferedClientConnection::new(Arc::clone(&by.config), name.clone());
        let conn = Box::new(conn.map_err(|error| fault(&error, true))?);
        Ok(Self::new(socket, Side::Client { conn, by, name }, tls))
    }

    /// A server's.
    pub(in crate::tcp) fn server(socket: OwnedFd, tls: &Tls) -> Result<Self, TlsError> {
        let by = tls.kept().server(tls.choice())?;
        let conn = UnbufferedServerConnection::new(Arc::clone(&by.config));
        let conn = Box::new(conn.map_err(|error| fault(&error, false))?);
        Ok(Self::new(socket, Side::Server { conn, by }, tls))
    }

    fn new(socket: OwnedFd, side: Side, tls: &Tls) -> Self {
        Self {
            socket,
            side,
            allowed: tls.choice().allowed.clone(),
            certificate: None,
            input: Vec::new(),
            begin: 0,
            end: 0,
            left: Vec::new(),
            left_at: 0,
            plain: Vec::new(),
            output: Vec::new(),
            sent: 0,
            is_blocked: false,
            has_more: false,
            has_begun: false,
            is_over: false,
            is_broken: false,
            fault: None,
        }
    }

    pub(in crate::tcp) const fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(in crate::tcp) const fn fault(&self) -> Option<&TlsError> {
        self.fault.as_ref()
    }

    /// What came and was not opened.
    pub(in crate::tcp) fn unopened(&self) -> &[u8] {
        &self.input[self.begin..self.end]
    }

    /// Whether the peer has said something.
    pub(in crate::tcp) const fn has_begun(&self) -> bool {
        self.has_begun
    }

    fn state(&self) -> &CommonState {
        match &self.side {
            Side::Client { conn, .. } => conn,
            Side::Server { conn, .. } => conn,
        }
    }

    const fn is_client(&self) -> bool {
        matches!(self.side, Side::Client { .. })
    }

    /// What the handshake came to.
    pub(in crate::tcp) fn secured(&self) -> Secured {
        let suite = self.state().negotiated_cipher_suite();
        Secured {
            suite: suite.map_or_else(String::new, |suite| format!("{:?}", suite.suite())),
            resumed: self.state().handshake_kind() == Some(HandshakeKind::Resumed),
            peer: self.certificate.clone(),
        }
    }

    /// Goes on with the handshake; whether it is over.
    pub(in crate::tcp) fn handshake(&mut self) -> Result<bool, TlsError> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let outcome = self.shake_hands();
        if let Err(fault) = &outcome {
            self.fault = Some(fault.clone());
        }
        outcome
    }

    fn shake_hands(&mut self) -> Result<bool, TlsError> {
        while self.state().is_handshaking() {
            match self.step(Say::Nothing, |_| 0).map_err(|error| self.tell(&error))? {
                Step::Closed => return Err(TlsError::Closed),
                Step::Said | Step::Moved => continue,
                Step::Blocked => {}
            }
            let flushed = self.flush();
            match self.fill() {
                // An error of sending comes again, unless the peer has said why.
                Err(Errno::AGAIN) => return flushed.map(|_| false).map_err(|_| TlsError::Closed),
                Ok(0) | Err(_) => return Err(TlsError::Closed),
                Ok(_) if mem::replace(&mut self.has_begun, true) || KINDS.contains(&self.input[0]) => {}
                Ok(_) => return Err(TlsError::Plain),
            }
        }
        self.check_peer()?;
        // Its end of the handshake, which the peer waits for. An error comes again by what is said next.
        let _ = self.flush();
        Ok(true)
    }

    /// Whether the peer speaks our protocol, its certificate is in force, and its identity is allowed.
    fn check_peer(&mut self) -> Result<(), TlsError> {
        if self.state().alpn_protocol() != Some(PROTOCOL) {
            return Err(TlsError::NotOurs);
        }
        let is_resumed = self.state().handshake_kind() == Some(HandshakeKind::Resumed);
        if let Some([end_entity, intermediates @ ..]) = self.state().peer_certificates() {
            // A session is no longer believed than its certificate.
            let now = UnixTime::now();
            let verified = match &self.side {
                Side::Client { by, name, .. } if is_resumed => {
                    by.verifier.verify_server_cert(end_entity, intermediates, name, &[], now).map(drop)
                }
                Side::Server { by, .. } if is_resumed => by.verifier.as_ref().map_or(Ok(()), |verifier| {
                    verifier.verify_client_cert(end_entity, intermediates, now).map(drop)
                }),
                _ => Ok(()),
            };
            verified.map_err(|error| fault(&error, self.is_client()))?;
            self.certificate = Some(names::of(end_entity));
        }
        check_allowed(&self.allowed, self.certificate.as_ref())
    }

    /// One step of the state machine: opens a record that arrived, or seals what is to be said. `take` says how much it took of
    /// what was opened; the rest is kept.
    fn step(&mut self, say: Say<'_>, mut take: impl FnMut(&[u8]) -> usize) -> Result<Step, Error> {
        let Self { side, input, begin, end, left, output, .. } = self;
        let came = &mut input[*begin..*end];
        let mut take = |bytes: &[u8]| left.extend_from_slice(&bytes[take(bytes)..]);
        let (discard, step) = match side {
            Side::Client { conn, .. } => advance(conn.process_tls_records(came), say, output, &mut take),
            Side::Server { conn, .. } => advance(conn.process_tls_records(came), say, output, &mut take),
        };
        *begin += discard;
        if begin == end {
            (*begin, *end) = (0, 0);
        }
        step
    }

    /// TLS has failed: tells the peer by the alert that was made for it. Returns the fault.
    fn tell(&mut self, error: &Error) -> TlsError {
        self.is_broken = true;
        (self.begin, self.end) = (0, 0);
        // No step without something to take out: one that looks for more to open would panic.
        while self.state().wants_write() {
            if self.step(Say::Nothing, <[u8]>::len).is_err() {
                break;
            }
        }
        // It is told as far as that goes.
        let _ = self.flush();
        fault(error, self.is_client())
    }

    /// The errno of a connection whose TLS has failed.
    fn fail(&mut self, error: &Error) -> Errno {
        let fault = self.tell(error);
        self.fault.get_or_insert(fault);
        Errno::BADMSG
    }

    /// Receives once behind the bytes that arrived: how many more. 0: the peer has closed.
    fn fill(&mut self) -> Result<usize, Errno> {
        self.input.resize(INPUT_BYTES, 0);
        self.input.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        let room = &mut self.input[self.end..];
        self.has_more = false;
        if room.is_empty() {
            // A message of a handshake that is larger than any needs to be.
            return Err(Errno::BADMSG);
        }
        let (room, count) = (room.len(), socket::hear(&self.socket, room)?);
        self.end += count;
        (self.is_blocked, self.has_more) = (false, count == room);
        Ok(count)
    }

    /// Hands the kernel what was sealed; whether that is all.
    fn flush(&mut self) -> Result<bool, Errno> {
        while self.sent < self.output.len() {
            match socket::put(&self.socket, &self.output[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN | Errno::NOBUFS) => return Ok(false),
                Err(errno) => return Err(errno),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Seals `say` behind all that was sealed before.
    fn seal(&mut self, say: Say<'_>) -> Result<(), Errno> {
        if self.is_broken || self.state().is_handshaking() {
            return Err(Errno::BADMSG);
        }
        let mut has_closed = false;
        loop {
            match self.step(say, |_| 0) {
                Ok(Step::Said) => return Ok(()),
                Ok(Step::Moved) => {}
                // A peer that says no more may still listen; when we have closed too, nobody does.
                Ok(Step::Closed) if !mem::replace(&mut has_closed, true) => self.is_over = true,
                Ok(Step::Closed | Step::Blocked) => return Err(Errno::PIPE),
                Err(error) => return Err(self.fail(&error)),
            }
        }
    }

    /// See [`Wire::send`](crate::tcp::wire::Wire::send).
    pub(in crate::tcp) unsafe fn send(&mut self, pieces: &[Piece; PIECES]) -> Result<usize, Errno> {
        if !self.flush()? {
            return Err(Errno::AGAIN);
        }
        let total: usize = pieces.iter().map(|piece| piece.bytes).sum();
        let mut taken = 0;
        while taken < total {
            let mut plain = mem::take(&mut self.plain);
            // SAFETY: by the caller's promise.
            unsafe { gather(pieces, taken, &mut plain) };
            let sealed = self.seal(Say::Bytes(&plain));
            taken += plain.len();
            plain.clear();
            self.plain = plain;
            sealed?;
            let is_due = taken == total || self.output.len() >= OUTPUT_BYTES;
            if is_due && !self.flush()? {
                break;
            }
        }
        Ok(taken)
    }

    /// Whether sealed bytes have not left.
    pub(in crate::tcp) const fn is_behind(&self) -> bool {
        !self.output.is_empty()
    }

    /// See [`Wire::receive`](crate::tcp::wire::Wire::receive). Asks the socket once at most: records may hold nothing, and a peer
    /// that sends those on and on would keep this thread. [`Session::has_unread`] says whether to come again.
    pub(in crate::tcp) unsafe fn receive(&mut self, pieces: &[Piece; PIECES]) -> Result<usize, Errno> {
        let mut sink = Sink { pieces: *pieces, taken: 0 };
        let opened = self.open_into(&mut sink);
        if sink.is_full() || self.is_over || opened.is_err() {
            return self.received(&sink, opened);
        }
        match self.fill() {
            Ok(0) => self.is_over = true,
            Ok(_) => {}
            Err(_) if sink.taken > 0 => return Ok(sink.taken),
            Err(errno) => return Err(errno),
        }
        let opened = self.open_into(&mut sink);
        self.received(&sink, opened)
    }

    /// What a call received, of which the last part was `opened`. An error behind some bytes is found again.
    fn received(&self, sink: &Sink, opened: Result<(), Errno>) -> Result<usize, Errno> {
        match opened {
            _ if sink.taken > 0 => Ok(sink.taken),
            Ok(()) if !self.is_over => Err(Errno::AGAIN),
            opened => opened.map(|()| 0),
        }
    }

    /// Opens records that arrived, as far as there is room.
    fn open_into(&mut self, sink: &mut Sink) -> Result<(), Errno> {
        if self.left_at < self.left.len() {
            self.left_at += sink.put(&self.left[self.left_at..]);
            if self.left_at == self.left.len() {
                self.left.clear();
                self.left_at = 0;
            }
        }
        if self.fault.is_some() {
            return Err(Errno::BADMSG);
        }
        while !sink.is_full() && self.begin < self.end {
            match self.step(Say::Nothing, |bytes| sink.put(bytes)) {
                Ok(Step::Moved | Step::Said) => {}
                Ok(Step::Blocked) => {
                    self.is_blocked = true;
                    break;
                }
                Ok(Step::Closed) => {
                    self.is_over = true;
                    break;
                }
                Err(error) => return Err(self.fail(&error)),
            }
        }
        // An answer to the peer's update of its keys; what does not leave now leaves with what is sent next.
        if self.is_behind() {
            let _ = self.flush();
        }
        Ok(())
    }

    /// Whether a receive may have something of which the socket does not tell again.
    pub(in crate::tcp) fn has_unread(&self) -> bool {
        let is_unopened = self.begin < self.end && !self.is_blocked;
        let is_left = self.left_at < self.left.len() || is_unopened;
        is_left || self.has_more || self.is_over || self.fault.is_some()
    }

    /// Gives the buffers back that hold nothing.
    pub(in crate::tcp) fn rest(&mut self) {
        self.plain = Vec::new();
        if self.begin == self.end {
            self.input = Vec::new();
        }
        if self.left.is_empty() {
            self.left = Vec::new();
        }
        if self.output.is_empty() {
            self.output = Vec::new();
        }
    }

    /// See [`Wire::say`](crate::tcp::wire::Wire::say).
    pub(in crate::tcp) fn say(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.seal(Say::Bytes(bytes))?;
        if self.flush()? { Ok(()) } else { Err(Errno::NOBUFS) }
    }

    /// See [`Wire::hear`](crate::tcp::wire::Wire::hear).
    pub(in crate::tcp) fn hear(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        let mut pieces = [Piece::EMPTY; PIECES];
        pieces[0] = Piece { at: NonNull::from(&mut *into).cast(), bytes: into.len() };
        // SAFETY: the piece is borrowed by us alone.
        unsafe { self.receive(&pieces) }
    }

    /// Says that no more will be said, as far as that can be said now.
    pub(in crate::tcp) fn say_close(&mut self) {
        if self.seal(Say::Close).is_ok() {
            let _ = self.flush();
        }
    }
}
