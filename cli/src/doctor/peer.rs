//! The way to a peer, and a connection to it.

use gimmal_transport::Address;

use crate::{machine::Machine, report::Check};

const ROUTE: &str = "route";
const PEER: &str = "peer";

/// Which device the CM would send by.
pub(super) fn route(machine: &impl Machine, host: &str, port: u16, usable: &[String]) -> Check {
    let Some(first) = usable.first() else {
        return Check::not_checked(ROUTE, "a device with link and address");
    };
    match machine.route(host, port) {
        Ok(route) => {
            let from = route.local.map_or_else(String::new, |local| format!(" from {}", local.ip()));
            Check::fine(ROUTE, format!("{} by {} port {}{from}", route.peer.ip(), route.device, route.port))
        }
        Err(error) if error.contains("getaddrinfo") => {
            Check::wrong(ROUTE, format!("{host} is not a known name"), format!("getent hosts {host}"))
        }
        Err(error) => {
            let netdev = machine.tree().devices().into_iter().find(|device| device.name == *first);
            let netdev = netdev.and_then(|device| device.netdev).unwrap_or_else(|| first.clone());
            // The CM goes where the kernel's routes lead, and that must be an RDMA device's interface.
            Check::wrong(ROUTE, error, format!("{}ip route add {host} dev {netdev}", machine.sudo()))
        }
    }
}

/// A whole connection, unless something is missing for it.
pub(super) fn reach(machine: &impl Machine, url: Option<&Address>, missing: Option<&'static str>) -> Check {
    let Some(url) = url else { return Check::not_checked(PEER, "an address") };
    if let Some(missing) = missing {
        return Check::not_checked(PEER, missing);
    }
    match machine.connect(url) {
        Ok(over) => Check::fine(PEER, format!("{url} answered: {over}")),
        Err(error) => {
            Check::wrong(PEER, error, format!("start the server on {url}, then: gimmal doctor {url}"))
        }
    }
}

/// A whole connection to a `gimmal://` URL: by which way, and why not by a better one.
pub(super) fn reach_best(machine: &impl Machine, url: &str) -> Check {
    match machine.connect_best(url) {
        Ok(chosen) => Check::fine(PEER, format!("{url} answered: {chosen}")),
        Err(error) => {
            Check::wrong(PEER, error, format!("start the server on {url}, then: gimmal doctor {url}"))
        }
    }
}
