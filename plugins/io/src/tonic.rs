//! The streams as connections of tonic's own transport.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    task::{Context, Poll},
};

use gimmal_rpc::Client;
use http::Uri;
use tonic::transport::server::Connected;
use tower_service::Service;

use crate::{Duplex, open};

/// Nothing is told of the peer: the gimmal server has seen it before.
impl Connected for Duplex {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

/// Gives a channel of tonic streams of `client` to connect by, for
/// [`Endpoint::connect_with_connector`](https://docs.rs/tonic/latest/tonic/transport/struct.Endpoint.html).
///
/// The URI of the endpoint goes into requests and is not looked up. A stream is opened at once; that the server does not take it is
/// the first error of the connection.
#[derive(Clone, Debug)]
pub struct Connector {
    client: Client,
}

impl Connector {
    /// Makes a connector that opens streams of `client`.
    #[must_use]
    pub const fn new(client: Client) -> Self {
        Self { client }
    }
}

impl Service<Uri> for Connector {
    type Response = Duplex;
    type Error = Infallible;
    type Future = Ready<Result<Duplex, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        ready(Ok(open(&self.client, uri.authority().map_or("", |authority| authority.as_str()))))
    }
}
