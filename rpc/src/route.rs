//! `gimmal://host:port`: shared memory for a server on this host, verbs for any other.
//!
//! Such a server listens twice: at the shared-memory name `gimmal-PORT`, and on the RDMA CM where there is a device.

use std::net::{ToSocketAddrs, UdpSocket};

use gimmal_engine::{
    OpenError, StartError,
    transport::{Address, AddressError, Via},
};

use crate::error::ConnectError;

/// What a URL leads to: one address, or for `gimmal://` those to try, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    /// As it was given, if it was to be chosen.
    pub(crate) chosen_for: Option<String>,
    pub(crate) addresses: Vec<Address>,
}

const SCHEME: &str = "gimmal://";

fn shm(port: u16) -> Result<Address, AddressError> {
    format!("shm://gimmal-{port}").parse()
}

/// The host, the port and the choices of a `gimmal://` URL.
fn parts(url: &str) -> Option<Result<(String, u16, Via), AddressError>> {
    url.strip_prefix(SCHEME)?;
    let address: Result<Address, AddressError> = url.replacen(SCHEME, "rdma://", 1).parse();
    Some(match address {
        Ok(Address::Rdma { host, port, via }) => Ok((host, port, via)),
        Ok(_) => Err(malformed(url, "it has no host and port")),
        Err(AddressError::Malformed { why, .. }) => Err(malformed(url, why)),
        Err(error) => Err(error),
    })
}

fn malformed(url: &str, why: &'static str) -> AddressError {
    AddressError::Malformed { url: url.to_owned(), why }
}

/// Whether `host` is this one: a socket can be bound to one of its addresses.
fn is_here(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let Ok(addresses) = (host, 0).to_socket_addrs() else { return false };
    addresses.into_iter().any(|address| !address.ip().is_unspecified() && UdpSocket::bind(address).is_ok())
}

impl Route {
    /// Where a client may look, as far as the URL alone tells.
    pub(crate) fn check(url: &str) -> Result<Vec<Address>, AddressError> {
        match parts(url) {
            None => Ok(vec![url.parse()?]),
            Some(parts) => {
                let (host, port, via) = parts?;
                Ok(vec![shm(port)?, Address::Rdma { host, port, via }])
            }
        }
    }

    /// Where a client looks.
    pub(crate) fn to(url: &str) -> Result<Self, AddressError> {
        let Some(parts) = parts(url) else {
            return Ok(Self { chosen_for: None, addresses: vec![url.parse()?] });
        };
        let (host, port, via) = parts?;
        let local = is_here(&host).then(|| shm(port)).transpose()?;
        let addresses = local.into_iter().chain([Address::Rdma { host, port, via }]).collect();
        Ok(Self { chosen_for: Some(url.to_owned()), addresses })
    }

    /// Where a server listens.
    pub(crate) fn at(url: &str) -> Result<Self, AddressError> {
        let Some(parts) = parts(url) else {
            return Ok(Self { chosen_for: None, addresses: vec![url.parse()?] });
        };
        let (host, port, via) = parts?;
        if port == 0 {
            return Err(malformed(url, "a server that is reached in two ways needs a port of its own"));
        }
        Ok(Self {
            chosen_for: Some(url.to_owned()),
            addresses: vec![shm(port)?, Address::Rdma { host, port, via }],
        })
    }

    /// Why no way led there: without RDMA to another host there is none.
    pub(crate) fn explain(&self, error: ConnectError) -> ConnectError {
        use gimmal_engine::transport::{self, PortError};
        let Some(url) = self.chosen_for.clone().filter(|_| self.addresses.len() == 1) else { return error };
        let port = match &error {
            ConnectError::Open(OpenError::Connect(transport::ConnectError::Resolve { .. })) => None,
            ConnectError::Open(OpenError::Connect(transport::ConnectError::Port(port)))
            | ConnectError::Start(StartError::Port(port)) => Some(port),
            _ => return error,
        };
        let no_rdma = port.is_none_or(|port| {
            matches!(
                port,
                PortError::NotBuilt { .. }
                    | PortError::NotOpened { .. }
                    | PortError::NoDevice { .. }
                    | PortError::Unavailable { .. }
            )
        });
        if no_rdma { ConnectError::NoWay { url, why: error.to_string() } } else { error }
    }

    /// Says once which way was taken, and why.
    pub(crate) fn log(&self, taken: &Address) {
        let Some(url) = &self.chosen_for else { return };
        let why = match (taken, self.addresses.len()) {
            (Address::Shm { .. }, _) => "it is on this host",
            (_, 1) => "it is on another host",
            _ => "it is on this host, but nobody listens in shared memory",
        };
        tracing::info!(url, by = %taken, why, "connected");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_reached_through_shared_memory_first() {
        let here = Route::to("gimmal://127.0.0.1:7471").unwrap();
        assert_eq!(here.addresses.len(), 2);
        assert!(matches!(&here.addresses[0], Address::Shm { path } if path.ends_with("gimmal-7471")));
        // TEST-NET-1 is nobody's.
        let there = Route::to("gimmal://192.0.2.1:7471").unwrap();
        assert!(matches!(&there.addresses[..], [Address::Rdma { port: 7471, .. }]));
        let plain = Route::to("mem://x").unwrap();
        assert_eq!((plain.chosen_for, plain.addresses.len()), (None, 1));
        assert!(Route::to("gimmal://nowhere").is_err() && Route::at("gimmal://127.0.0.1:0").is_err());
        assert_eq!(Route::at("gimmal://127.0.0.1:9").unwrap().addresses.len(), 2);
    }
}
