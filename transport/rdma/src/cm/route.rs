//! Where the CM would send to a host.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    time::Duration,
};

use crate::{
    cm::{active::Draft, error::CmError},
    id::{address::CmAddress, space::PortSpace},
    wait::Deadline,
};

/// The way to a peer, as the CM found it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// The device it leaves by.
    pub device: String,
    /// That device's port.
    pub port: u8,
    /// Our address on it.
    pub local: Option<SocketAddr>,
    /// The peer's address.
    pub peer: SocketAddr,
}

/// Resolves the first address of `host` and the route there; sends nothing to the peer's CM.
///
/// # Errors
/// The step that failed, or the deadline.
pub fn route(host: &str, port: u16, timeout: Duration) -> Result<Route, CmError> {
    let deadline = Deadline::after(timeout);
    let failed = |why: String| CmError::Resolve { what: format!("{host}, {port}"), why };
    let mut addresses = (host, port).to_socket_addrs().map_err(|error| failed(error.to_string()))?;
    let peer = addresses.next().ok_or_else(|| failed("it has no address".to_owned()))?;
    let resolved = Draft::new(PortSpace::Tcp)?.resolve(None, peer, deadline.left())?;
    let routed = resolved.resolve_route(deadline.left())?;
    let (device, port) = routed.device();
    Ok(Route { device, port, local: routed.local_address().and_then(CmAddress::ip), peer })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_devices_has_no_route() {
        if std::path::Path::new("/sys/class/infiniband").exists() {
            return;
        }
        assert!(route("127.0.0.1", 1, Duration::from_millis(100)).is_err());
    }
}
