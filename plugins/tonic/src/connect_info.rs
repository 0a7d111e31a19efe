//! The address of a caller, where tonic looks for it.

use gimmal_http::{Body, Peer};
use http::Request;
use tonic::transport::server::TcpConnectInfo;

/// Puts the caller's address among the extensions, if it has one.
pub(crate) fn with_address(mut request: Request<Body>) -> Request<Body> {
    if let Some(address) = request.extensions().get::<Peer>().and_then(Peer::address) {
        let info = TcpConnectInfo { local_addr: None, remote_addr: Some(address) };
        request.extensions_mut().insert(info);
    }
    request
}
