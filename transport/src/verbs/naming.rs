//! From a host and a port to what an attempt tries, in order. Through the same resolver as the raw CM.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use crate::{
    ConnectError, PortError,
    hello::{CONNECT_PRIVATE_BYTES, HELLO_BYTES},
    verbs::raw::{CmError, Resolve, Target},
};

/// Of an address that needs no name server: nobody is waited for.
pub(crate) fn literal(ip: IpAddr, port: u16) -> Result<Vec<Target>, CmError> {
    Resolve::to(&ip.to_string(), port).numeric_host().no_route().run()
}

/// Of a name: every address it has. Blocks.
pub(crate) fn targets(host: &str, port: u16) -> Result<Vec<Target>, CmError> {
    Resolve::to(host, port).run()
}

/// What the caller of a connect is told.
pub(crate) fn connect_error(address: &str, error: CmError) -> ConnectError {
    match error {
        CmError::Port(error) => error.into(),
        error => ConnectError::Address {
            address: address.to_owned(),
            why: format!("the host cannot be resolved: {error}"),
        },
    }
}

/// Whether our hello fits behind what the resolver wants to be sent first.
pub(crate) fn leaves_room(target: &Target) -> Result<(), PortError> {
    let limit = CONNECT_PRIVATE_BYTES - HELLO_BYTES;
    let value = target.connect_data.len();
    if value <= limit {
        return Ok(());
    }
    Err(PortError::Limit {
        field: "ai_connect data of rdma_getaddrinfo (bytes)",
        value: value as u64,
        limit: limit as u64,
    })
}

/// Addresses of a name. Blocks.
pub(crate) fn look_up(host: &str, port: u16) -> Result<Vec<SocketAddr>, i32> {
    match (host, port).to_socket_addrs() {
        Ok(addresses) => Ok(addresses.collect()),
        Err(error) => Err(error.raw_os_error().unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_data_must_leave_room_for_our_hello() {
        let mut target = Target::at("10.0.0.1:1".parse::<SocketAddr>().unwrap());
        target.connect_data = vec![0; 16];
        assert_eq!(leaves_room(&target), Ok(()));
        target.connect_data.push(0);
        assert!(matches!(leaves_room(&target), Err(PortError::Limit { value: 17, limit: 16, .. })));
    }

    #[test]
    fn what_cannot_be_resolved_is_said() {
        let error = CmError::Resolve { what: "nowhere, 1".to_owned(), why: "no such name".to_owned() };
        let error = connect_error("rdma://nowhere:1", error).to_string();
        assert!(error.contains("rdma://nowhere:1") && error.contains("resolve"), "{error}");
        let missing = PortError::NoDevice { detail: "none".to_owned() };
        assert!(
            matches!(connect_error("a", missing.clone().into()), ConnectError::Port(seen) if seen == missing)
        );
    }
}
