//! TLS of other protocols by the same files: what rustls is told, and whom it let in.

use std::sync::Arc;

use rustls::{
    ClientConfig, CommonState, ServerConfig, client::Resumption, pki_types::ServerName,
    server::NoServerSessionStorage,
};

use super::{names, session};
use crate::{Certificate, Tls, TlsError};

/// What a server of the protocol that ALPN names `protocol` accepts with now. Asked for each connection, it is of the files of
/// today. No session is resumed, so that none outlives its certificate.
///
/// # Errors
/// Files that were never of use; no certificate.
pub fn server(tls: &Tls, protocol: &[u8]) -> Result<Arc<ServerConfig>, TlsError> {
    let mut config = ServerConfig::clone(&tls.kept().server(tls.choice())?.config);
    config.alpn_protocols = vec![protocol.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// What a client connects to `host` with now, and the name that it expects there. See [`server`].
///
/// # Errors
/// Files that were never of use; a host that no certificate can name.
pub fn client(
    tls: &Tls,
    host: &str,
    protocol: &[u8],
) -> Result<(Arc<ClientConfig>, ServerName<'static>), TlsError> {
    let mut config = ClientConfig::clone(&tls.kept().client(tls.choice())?.config);
    config.alpn_protocols = vec![protocol.to_vec()];
    config.resumption = Resumption::disabled();
    Ok((Arc::new(config), session::server_name(tls, host)?))
}

/// The peer's certificate after a handshake, if it may connect and named `protocol`.
///
/// # Errors
/// [`TlsError::Other`] for another protocol; [`TlsError::NotAllowed`] and [`TlsError::NoCertificate`].
pub fn admitted(tls: &Tls, state: &CommonState, protocol: &[u8]) -> Result<Option<Certificate>, TlsError> {
    if state.alpn_protocol() != Some(protocol) {
        let why = format!("the peer does not name the protocol {} (ALPN)", String::from_utf8_lossy(protocol));
        return Err(TlsError::Other { why });
    }
    let certificate = state.peer_certificates().and_then(<[_]>::first).map(names::of);
    session::check_allowed(&tls.choice().allowed, certificate.as_ref())?;
    Ok(certificate)
}

/// What an error of a handshake means to a client or a server.
#[must_use]
pub fn fault(error: &rustls::Error, is_client: bool) -> TlsError {
    super::faults::fault(error, is_client)
}
