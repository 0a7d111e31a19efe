//! What a connection's bytes go through: its socket, or TLS before it.
//!
//! A plain one costs a branch for each call of the kernel, and nothing where TLS is not compiled in.

#![cfg_attr(
    not(feature = "tls"),
    allow(clippy::needless_pass_by_ref_mut, unused_variables, reason = "only TLS changes and asks")
)]

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::socket::{self, PIECES, Piece};
#[cfg(feature = "tls")]
use super::tls::Session;
use crate::{Refusal, RejectReason, Secured, Tls, TlsError};

/// A stream of bytes between two ends.
#[derive(Debug)]
pub(super) enum Wire {
    /// A socket alone.
    Plain(OwnedFd),
    /// A socket below TLS.
    #[cfg(feature = "tls")]
    Tls(Box<Session>),
}

/// Whether a listener with `tls` can begin: its files can be read.
pub(super) fn check_server(tls: &Tls) -> Result<(), TlsError> {
    #[cfg(feature = "tls")]
    return tls.kept().check_server(tls.choice());
    #[cfg(not(feature = "tls"))]
    Err(TlsError::NotBuilt)
}

impl Wire {
    /// The client's end, which secures itself first if `tls` is given. `host` is the URL's.
    pub(super) fn client(socket: OwnedFd, host: &str, tls: Option<&Tls>) -> Result<Self, TlsError> {
        let Some(tls) = tls else { return Ok(Self::Plain(socket)) };
        #[cfg(feature = "tls")]
        return Ok(Self::Tls(Box::new(Session::client(socket, super::place::without_zone(host), tls)?)));
        #[cfg(not(feature = "tls"))]
        Err(TlsError::NotBuilt)
    }

    /// The server's end, which secures itself first if `tls` is given.
    pub(super) fn server(socket: OwnedFd, tls: Option<&Tls>) -> Result<Self, TlsError> {
        let Some(tls) = tls else { return Ok(Self::Plain(socket)) };
        #[cfg(feature = "tls")]
        return Ok(Self::Tls(Box::new(Session::server(socket, tls)?)));
        #[cfg(not(feature = "tls"))]
        Err(TlsError::NotBuilt)
    }

    /// The socket below.
    #[inline]
    pub(super) fn socket(&self) -> &OwnedFd {
        match self {
            Self::Plain(socket) => socket,
            #[cfg(feature = "tls")]
            Self::Tls(session) => session.socket(),
        }
    }

    /// Whether the peer has said something of TLS.
    pub(super) fn has_begun(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            #[cfg(feature = "tls")]
            Self::Tls(session) => session.has_begun(),
        }
    }

    /// Goes on with the handshake of TLS; whether it is over.
    ///
    /// # Errors
    /// Why the peer is turned away; it was told.
    pub(super) fn secure(&mut self) -> Result<bool, TlsError> {
        match self {
            Self::Plain(_) => Ok(true),
            #[cfg(feature = "tls")]
            Self::Tls(session) => session.handshake(),
        }
    }

    /// What TLS came to.
    pub(super) fn secured(&self) -> Option<Secured> {
        match self {
            Self::Plain(_) => None,
            #[cfg(feature = "tls")]
            Self::Tls(session) => Some(session.secured()),
        }
    }

    /// Why TLS failed, if it did.
    pub(super) fn fault(&self) -> Option<&TlsError> {
        match self {
            Self::Plain(_) => None,
            #[cfg(feature = "tls")]
            Self::Tls(session) => session.fault(),
        }
    }

    /// Takes what the kernel takes of `pieces`, in order; how many bytes. What TLS has taken and the kernel has not leaves by
    /// the next calls: see [`Wire::is_behind`].
    ///
    /// # Safety
    /// The pieces are mapped. Their bytes may change meanwhile.
    #[inline]
    pub(super) unsafe fn send(&mut self, pieces: &[Piece; PIECES]) -> Result<usize, Errno> {
        match self {
            // SAFETY: by the caller's promise.
            Self::Plain(socket) => unsafe { socket::send(socket, pieces) },
            #[cfg(feature = "tls")]
            // SAFETY: by the caller's promise.
            Self::Tls(session) => unsafe { session.send(pieces) },
        }
    }

    /// Whether bytes that were taken have not left.
    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            #[cfg(feature = "tls")]
            Self::Tls(session) => session.is_behind(),
        }
    }

    /// Receives into `pieces`, in order; how many bytes. 0: the peer has closed. Fewer than they hold, or none (`AGAIN`): no more has
    /// come, unless [`Wire::has_unread`] says so.
    ///
    /// # Safety
    /// The pieces are mapped and writable, and nobody else reads or writes them until this returns.
    #[inline]
    pub(super) unsafe fn receive(&mut self, pieces: &[Piece; PIECES]) -> Result<usize, Errno> {
        match self {
            // SAFETY: by the caller's promise.
            Self::Plain(socket) => unsafe { socket::receive(socket, pieces) },
            #[cfg(feature = "tls")]
            // SAFETY: by the caller's promise.
            Self::Tls(session) => unsafe { session.receive(pieces) },
        }
    }

    /// Whether the next receive may have something of which no socket tells: bytes that TLS has, or its socket had more.
    #[inline]
    pub(super) fn has_unread(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            #[cfg(feature = "tls")]
            Self::Tls(session) => session.has_unread(),
        }
    }

    /// Gives memory back that is not in use.
    pub(super) fn rest(&mut self) {
        #[cfg(feature = "tls")]
        if let Self::Tls(session) = self {
            session.rest();
        }
    }

    /// Sends bytes of a handshake: they fit an empty buffer.
    pub(super) fn say(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        match self {
            Self::Plain(socket) => socket::say(socket, bytes),
            #[cfg(feature = "tls")]
            Self::Tls(session) => session.say(bytes),
        }
    }

    /// Receives bytes of a handshake, at most as many as `into` holds. 0: the peer has closed.
    pub(super) fn hear(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Plain(socket) => socket::hear(socket, into),
            #[cfg(feature = "tls")]
            Self::Tls(session) => session.hear(into),
        }
    }

    /// Ends what this side says; what was sent before still arrives.
    pub(super) fn end(&mut self) {
        #[cfg(feature = "tls")]
        if let Self::Tls(session) = self {
            session.say_close();
        }
        socket::end(self.socket());
    }

    /// Reads and drops what has arrived; whether the peer has closed. Bounded, so that a peer that sends on is no burden.
    pub(super) fn drain(&self) -> bool {
        socket::drain(self.socket())
    }

    /// The reason of a server that had no place for this handshake of TLS, and said so before the first word of TLS. Nobody vouches
    /// for it, so it is no other reason: anybody on the way can end a handshake.
    pub(super) fn refused_plainly(&self) -> Option<RejectReason> {
        match self {
            Self::Plain(_) => None,
            #[cfg(feature = "tls")]
            Self::Tls(session) => {
                let reason = Refusal::decode(session.unopened())?.reason();
                matches!(reason, RejectReason::Overloaded | RejectReason::ShuttingDown).then_some(reason)
            }
        }
    }

    /// The reason that a client is told whose handshake of TLS failed.
    pub(super) fn refusal(fault: &TlsError) -> RejectReason {
        match fault {
            TlsError::Plain => RejectReason::TlsNeeded,
            TlsError::NotAllowed { .. } => RejectReason::IdentityNotAllowed,
            _ => RejectReason::Tls,
        }
    }

    /// Tells a client no, and reads what is left of it: a close with unread bytes is a reset, which would hide the answer.
    pub(super) fn refuse(&mut self, refusal: &Refusal) {
        match self.fault() {
            // It would not understand another answer.
            Some(TlsError::Plain) => drop(socket::say(self.socket(), &refusal.encode())),
            // An alert has told it.
            Some(fault) if !matches!(fault, TlsError::NotAllowed { .. }) => {}
            // Of TLS nothing was said: see `refused_plainly`.
            None if !self.has_begun() => drop(socket::say(self.socket(), &refusal.encode())),
            _ => drop(self.say(&refusal.encode())),
        }
        self.end();
        self.drain();
    }
}
