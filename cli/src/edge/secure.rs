//! TLS on the side of HTTP/2.

use std::{future::Future, io, time::Duration};

use gimmal_transport::{Tls, TlsError, tls::foreign};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, rustls::Error, server};

/// HTTP/2 over TLS (RFC 9113, section 3.2).
const H2: &[u8] = b"h2";

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Whether clients can be accepted.
pub(super) fn check_server(tls: &Tls) -> Result<(), TlsError> {
    foreign::server(tls, H2).map(drop)
}

/// Whether the server at `host` can be connected to.
pub(super) fn check_client(tls: &Tls, host: &str) -> Result<(), TlsError> {
    foreign::client(tls, bare(host), H2).map(drop)
}

/// An address of IPv6 without its brackets.
fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Shakes hands with a client of HTTP/2, by the files of now.
pub(super) async fn accept(tls: &Tls, stream: TcpStream) -> Result<server::TlsStream<TcpStream>, TlsError> {
    let acceptor = TlsAcceptor::from(foreign::server(tls, H2)?);
    let stream = within(acceptor.accept(stream), false).await?;
    foreign::admitted(tls, stream.get_ref().1, H2)?;
    Ok(stream)
}

/// Shakes hands with the server of HTTP/2 at `host`, by the files of now.
pub(super) async fn connect(
    tls: &Tls,
    host: &str,
    stream: TcpStream,
) -> Result<client::TlsStream<TcpStream>, TlsError> {
    let (config, name) = foreign::client(tls, bare(host), H2)?;
    let stream = within(TlsConnector::from(config).connect(name, stream), true).await?;
    foreign::admitted(tls, stream.get_ref().1, H2)?;
    Ok(stream)
}

async fn within<T>(handshake: impl Future<Output = io::Result<T>>, is_client: bool) -> Result<T, TlsError> {
    let other = |why: String| TlsError::Other { why };
    let Ok(done) = tokio::time::timeout(HANDSHAKE, handshake).await else {
        return Err(other(format!("the handshake took more than {HANDSHAKE:?}")));
    };
    done.map_err(|error| match error.get_ref().and_then(|error| error.downcast_ref::<Error>()) {
        Some(error) => match foreign::fault(error, is_client) {
            TlsError::NotOurs => other("the peer does not speak HTTP/2 inside TLS (ALPN h2)".to_owned()),
            fault => fault,
        },
        None if error.kind() == io::ErrorKind::UnexpectedEof => TlsError::Closed,
        None => other(error.to_string()),
    })
}
