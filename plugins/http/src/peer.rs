//! The other end of a connection, as a service finds it among a request's extensions.

use std::{net::SocketAddr, sync::Arc};

use gimmal::{
    auth::{Certificate, Credentials, Origin},
    info::Negotiated,
};

/// The client of a request. [`Serve`](crate::Serve) puts it among the extensions of every request.
#[derive(Clone, Debug)]
pub struct Peer(Arc<Negotiated>);

impl Peer {
    pub(crate) const fn new(negotiated: Arc<Negotiated>) -> Self {
        Self(negotiated)
    }

    /// Returns its address or process, for people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.peer
    }

    /// Returns user, group and process of a client on this host, as the kernel says.
    #[must_use]
    pub fn credentials(&self) -> Option<Credentials> {
        self.0.credentials
    }

    /// Returns the network address of a client elsewhere. An address alone proves nothing.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match self.0.credentials {
            Some(_) => None,
            None => self.0.peer.parse().ok(),
        }
    }

    /// Returns where the client is.
    #[must_use]
    pub fn origin(&self) -> Origin {
        let address = || self.address().map_or(Origin::Unnamed, Origin::Address);
        self.0.credentials.map_or_else(address, Origin::Process)
    }

    /// Whether it proved that it has one of this server's shared keys.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        self.0.authenticated
    }

    /// Returns the names in its certificate, which was verified; `None` without TLS, and if it was asked for none.
    #[must_use]
    pub fn certificate(&self) -> Option<&Certificate> {
        self.0.secured.as_ref()?.peer.as_ref()
    }

    /// Returns what the connection runs with.
    #[must_use]
    pub fn negotiated(&self) -> &Negotiated {
        &self.0
    }
}
