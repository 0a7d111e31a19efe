//! From a host and a port to what an attempt tries, in order. Through the same resolver as the raw CM.

use std::{
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use gimmal_rdma::cm::{CmError, Resolve, Target};

use crate::{ConnectError, PortError, hello::CONNECT_PRIVATE_BYTES};

/// Where librdmacm looks for ibacm, which alone knows routes and `ai_connect` data.
const RESOLVER: [&str; 2] = ["/run/ibacm.sock", "/run/ibacm.port"];

/// Returns whether librdmacm may ask ibacm, for whose answer it waits without a bound. It keeps the connection that it
/// made with its first question, so once there was a resolver, there is one.
pub(crate) fn has_resolver() -> bool {
    static SEEN: AtomicBool = AtomicBool::new(false);
    // One flag, and nothing hangs on its order.
    if !SEEN.load(Ordering::Relaxed) && RESOLVER.iter().any(|path| Path::new(path).exists()) {
        SEEN.store(true, Ordering::Relaxed);
    }
    SEEN.load(Ordering::Relaxed)
}

/// Of an address, if nobody needs to be asked about it.
pub(crate) fn literal(host: &str, port: u16) -> Option<Target> {
    let ip: IpAddr = host.parse().ok()?;
    (!has_resolver()).then(|| Target::at(SocketAddr::new(ip, port)))
}

/// Of a name or an address: all that is known. Blocks.
pub(crate) fn targets(host: &str, port: u16) -> Result<Vec<Target>, CmError> {
    Resolve::to(host, port).run()
}

/// What the caller of a connect is told.
pub(crate) fn connect_error(address: &str, error: CmError) -> ConnectError {
    match error {
        CmError::Device(error) => PortError::from(error).into(),
        error => ConnectError::Address {
            address: address.to_owned(),
            why: format!("the host cannot be resolved: {error}"),
        },
    }
}

/// Whether our request, a hello and perhaps the tag of a key, fits behind what the resolver wants to be sent first.
pub(crate) fn leaves_room(target: &Target, request_bytes: usize) -> Result<(), PortError> {
    let limit = CONNECT_PRIVATE_BYTES - request_bytes;
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
    use crate::{hello::HELLO_BYTES, proof::REQUEST_BYTES};

    #[test]
    fn an_address_needs_nobody_and_a_name_does() {
        if !has_resolver() {
            let target = literal("fd77::1", 9).unwrap();
            assert_eq!(target.destination.unwrap().to_string(), "[fd77::1]:9");
        }
        assert_eq!(literal("server", 9), None);
    }

    #[test]
    fn connect_data_must_leave_room_for_our_hello() {
        let mut target = Target::at("10.0.0.1:1".parse::<SocketAddr>().unwrap());
        target.connect_data = vec![0; 16];
        assert_eq!(leaves_room(&target, HELLO_BYTES), Ok(()));
        assert!(leaves_room(&target, REQUEST_BYTES).is_err());
        target.connect_data.push(0);
        assert!(matches!(
            leaves_room(&target, HELLO_BYTES),
            Err(PortError::Limit { value: 17, limit: 16, .. })
        ));
    }

    #[test]
    fn what_cannot_be_resolved_is_said() {
        let error = CmError::Resolve { what: "nowhere, 1".to_owned(), why: "no such name".to_owned() };
        let error = connect_error("rdma://nowhere:1", error).to_string();
        assert!(error.contains("rdma://nowhere:1") && error.contains("resolve"), "{error}");
        let missing = gimmal_rdma::DeviceError::NoDevice { detail: "none".to_owned() };
        assert!(
            matches!(connect_error("a", missing.clone().into()), ConnectError::Port(seen) if seen == missing.into())
        );
    }
}
