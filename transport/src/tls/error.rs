//! The reasons why TLS fails.

use std::path::PathBuf;

use thiserror::Error;

/// Why a side of `tcp+tls://` turned its peer away, or could not begin.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// TLS is not compiled in.
    #[error("TLS is not compiled in: build with the cargo feature `tls`")]
    NotBuilt,
    /// A file of certificates or keys is of no use.
    #[error("{}: {why}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Something that this side needs was not chosen.
    #[error("{why}")]
    Incomplete {
        /// What is missing, and how it is given.
        why: &'static str,
    },
    /// The peer's certificate is out of its time.
    #[error(
        "the peer's certificate has expired or is not valid yet; renew it, and check the clocks of both hosts"
    )]
    Expired,
    /// Nobody that this side believes has signed the peer's certificate.
    #[error(
        "an unknown authority signed the peer's certificate; name the file of that authority (`tls.authority`)"
    )]
    UnknownAuthority,
    /// The server's certificate is for other names.
    #[error(
        "the server's certificate is not for {wanted} but for {has}; use that name, or set `tls.server_name`"
    )]
    WrongName {
        /// What the URL or `server_name` says.
        wanted: String,
        /// The certificate's names.
        has: String,
    },
    /// The peer showed no certificate, and this side demands one.
    #[error("the peer has no certificate, and this side demands one; give it one (`tls.certificate`)")]
    NoCertificate,
    /// The server demands a certificate, and this side has none.
    #[error("the server demands a certificate; give this client one (`tls.certificate`)")]
    CertificateNeeded,
    /// The server does not accept this side's certificate.
    #[error(
        "the server refused this client's certificate ({alert}); check its authority and its dates there"
    )]
    Refused {
        /// The alert of TLS that it sent.
        alert: String,
    },
    /// The peer's identity is not on this side's list.
    #[error("{identity} is not on this side's list of identities; add it (`tls.allow`)")]
    NotAllowed {
        /// The peer's.
        identity: String,
    },
    /// The peer speaks without TLS.
    #[error("the peer does not speak TLS; use tcp:// on this side, or tcp+tls:// on the other")]
    Plain,
    /// The peer speaks TLS, and not gimmal inside it.
    #[error("the peer speaks TLS, but not gimmal inside it; another program uses this address")]
    NotOurs,
    /// The peer is too old.
    #[error("the peer does not speak TLS 1.3; upgrade it")]
    Version,
    /// The peer went away during the handshake.
    #[error("the peer closed the connection during the TLS handshake; its log may say why")]
    Closed,
    /// Anything else.
    #[error("TLS failed: {why}; check the certificates of both sides")]
    Other {
        /// In the words of the library.
        why: String,
    },
}
