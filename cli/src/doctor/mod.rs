//! The order of the checks. One that needs another is not judged while that one is wrong, so that one fault is one line.
//!
//! ```text
//! kernel ─► files ──┐
//! libraries ────────┼─► devices ─► link ─► address ─► route ─┐
//! memory limit ─────┼────────────────────────────────────────┼─► peer
//! shared memory ────┘ (shm:// needs only this one) ──────────┤
//!                          (tcp:// needs none of them) ──────────┘
//! ```

mod device;
mod kernel;
mod limits;
mod peer;
#[cfg(test)]
mod tests;

use std::{fmt, str::FromStr};

use gimmal_transport::{Address, AddressError};

use crate::{
    machine::Machine,
    report::{Check, Report},
};

/// What a connection is tried to.
#[derive(Clone, Debug)]
pub(crate) enum Peer {
    /// An address.
    At(Address),
    /// A `gimmal://` URL.
    Best(String),
}

impl FromStr for Peer {
    type Err = AddressError;

    fn from_str(url: &str) -> Result<Self, AddressError> {
        if url.starts_with("gimmal://") { Ok(Self::Best(url.to_owned())) } else { url.parse().map(Self::At) }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(address) => address.fmt(f),
            Self::Best(url) => f.write_str(url),
        }
    }
}

/// Looks at everything, and which way leads to the server of a `gimmal://` URL. One is enough.
pub(crate) fn examine_best(machine: &impl Machine, url: &str) -> Report {
    let checks = examine(machine, None).checks.into_iter().map(Check::not_needed);
    Report::new(checks.chain([peer::reach_best(machine, url)]).collect())
}

/// Looks at everything, or at what `url` needs.
pub(crate) fn examine(machine: &impl Machine, url: Option<&Address>) -> Report {
    let mut checks = Vec::new();
    let needs_rdma = matches!(url, None | Some(Address::Rdma { .. }));
    let mut usable = Vec::new();
    let mut may_lock = true;
    if needs_rdma {
        usable = rdma(machine, &mut checks);
        let memory = limits::locked_memory(machine);
        may_lock = !memory.is_wrong();
        checks.push(memory);
        // A host without any device is for shared memory: what RDMA would need is shown, and nothing is wrong.
        if url.is_none() && machine.tree().devices().is_empty() {
            checks = checks.into_iter().map(Check::not_needed).collect();
        }
    }
    let shared = limits::shared_memory(machine);
    let has_shared = !shared.is_wrong();
    checks.push(shared);
    checks.push(limits::huge_pages(machine));
    checks.push(limits::cores(machine));
    match url {
        Some(Address::Rdma { host, port, .. }) => {
            let route = peer::route(machine, host, *port, &usable);
            let has_route = route.is_fine();
            checks.push(route);
            let missing = match (has_route, may_lock) {
                (false, _) => Some("a route"),
                (_, false) => Some("locked memory"),
                _ => None,
            };
            checks.push(peer::reach(machine, url, missing));
        }
        Some(Address::Tcp { .. }) => checks.push(peer::reach(machine, url, None)),
        Some(Address::Shm { .. } | Address::Mem { .. }) => {
            checks.push(peer::reach(machine, url, (!has_shared).then_some("shared memory")))
        }
        None => {}
    }
    Report::new(checks)
}

/// What verbs needs of this machine; the names of the devices that a connection can use.
fn rdma(machine: &impl Machine, checks: &mut Vec<Check>) -> Vec<String> {
    let modules = kernel::modules(machine);
    let files = if modules.is_fine() {
        kernel::files(machine)
    } else {
        Check::not_checked("device files", "kernel modules")
    };
    let libraries = kernel::libraries(machine);
    let missing = match (modules.is_fine(), !files.is_wrong(), libraries.is_fine()) {
        (false, ..) => Some("kernel modules"),
        (_, false, _) => Some("device files"),
        (.., false) => Some("libraries"),
        _ => None,
    };
    checks.extend([modules, files, libraries]);
    if let Some(missing) = missing {
        checks.extend(["devices", "link", "address"].map(|name| Check::not_checked(name, missing)));
        return Vec::new();
    }
    device::examine(machine, checks)
}
