//! Which device port a connection goes through, and which addresses one that was asked for has.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Mutex,
};

use gimmal_rdma::{
    cm::{CmAddress, Target},
    device::{Assigned, DeviceInfo, GidType, Unusable, addresses, devices},
    id::{CmId, IdInfo},
    verbs::{Context, Qp},
};

use crate::{
    ConnectError, PortError,
    device_port::{DeviceChoice, DevicePort, Fabric, Gid},
    sync::lock::lock,
};

/// The port of a connected queue pair.
pub(crate) fn device_port(
    id: &CmId,
    qp: &Qp,
    context: &Context,
    known_ports: &KnownPorts,
    iwarp: bool,
) -> DevicePort {
    let IdInfo { port: number, source_gid: from, .. } = id.info();
    if iwarp {
        return DevicePort { device: context.name(), number, gid: None, fabric: Fabric::Iwarp };
    }
    known_ports.find(number, &from).unwrap_or_else(|| {
        // What was sent from is in the queue pair; a GID alone does not tell, RoCE has the same one for two versions.
        let (gid, fabric) = match qp.source_gid_index() {
            Some(index) => gid_at(context, number, index),
            None => (None, Fabric::Infiniband),
        };
        let port = DevicePort { device: context.name(), number, gid, fabric };
        known_ports.learn(from, &port);
        port
    })
}

/// Ports as they were found, by the GID that the CM connects from: which of a port's entries that is, is the port's
/// default, and to ask takes two system calls for each connection.
#[derive(Debug, Default)]
pub(crate) struct KnownPorts(Mutex<Vec<([u8; 16], DevicePort)>>);

/// Ports that are remembered.
const KNOWN_MAX: usize = 64;

impl KnownPorts {
    fn find(&self, number: u8, from: &[u8; 16]) -> Option<DevicePort> {
        let known = lock(&self.0);
        known.iter().find(|(gid, port)| gid == from && port.number == number).map(|(_, port)| port.clone())
    }

    fn learn(&self, from: [u8; 16], port: &DevicePort) {
        let mut known = lock(&self.0);
        if from != [0; 16] && known.len() < KNOWN_MAX {
            known.push((from, port.clone()));
        }
    }

    /// The device's table of GIDs has changed.
    pub(crate) fn forget(&self) {
        lock(&self.0).clear();
    }
}

fn gid_at(context: &Context, port: u8, index: u8) -> (Option<Gid>, Fabric) {
    let Some(entry) = context.gid(port, index) else { return (None, Fabric::Unknown) };
    let fabric = match entry.kind {
        GidType::Ib => Fabric::Infiniband,
        GidType::RoceV1 => Fabric::RoceV1,
        GidType::RoceV2 => Fabric::RoceV2,
        _ => Fabric::Unknown,
    };
    (Some(Gid { index, value: entry.gid }), fabric)
}

/// Where an attempt to reach `address` connects from: one of `sources`, or what the resolver found where there is none.
///
/// # Errors
/// No source is of the family of `to`.
pub(crate) fn source(
    sources: &[IpAddr],
    address: &str,
    target: &Target,
    to: &CmAddress,
) -> Result<Option<CmAddress>, ConnectError> {
    let Some(to) = to.ip().filter(|_| !sources.is_empty()) else { return Ok(target.source) };
    let fits = sources.iter().find(|source| source.is_ipv4() == to.is_ipv4());
    let source = fits.ok_or_else(|| ConnectError::Address {
        address: address.to_owned(),
        why: format!("{} cannot be reached from {sources:?}", to.ip()),
    })?;
    Ok(Some(CmAddress::Ip(SocketAddr::new(*source, 0))))
}

/// Whether the way to `address`, by `port` of the device `name`, is the one that was chosen.
pub(crate) fn check_device(
    choice: Option<&DeviceChoice>,
    address: &str,
    name: &str,
    port: u8,
) -> Result<(), ConnectError> {
    let Some(choice) = choice.filter(|choice| !choice.is(name, port)) else { return Ok(()) };
    let why = format!("the way there is through {name}:{port}, not {choice}");
    Err(ConnectError::Address { address: address.to_owned(), why })
}

/// The IP addresses of what was asked for, the usable ones of its network interface.
///
/// # Errors
/// [`PortError::NoSuchDevice`] with the ones there are; [`PortError::NoDevice`] when it has no address.
pub(crate) fn addresses_of(choice: &DeviceChoice) -> Result<Vec<IpAddr>, PortError> {
    pick(&devices()?, &addresses(), choice)
}

fn pick(
    devices: &[Result<DeviceInfo, Unusable>],
    assigned: &[Assigned],
    choice: &DeviceChoice,
) -> Result<Vec<IpAddr>, PortError> {
    let usable = || devices.iter().filter_map(|device| device.as_ref().ok());
    let ports = || usable().flat_map(|device| device.ports.iter().map(move |port| (&device.name, port)));
    if !ports().any(|(name, port)| choice.is(name, port.number)) {
        let unusable = devices.iter().filter_map(|device| device.as_ref().err()).map(Unusable::to_string);
        let present = ports().map(|(name, port)| format!("{name}:{}", port.number)).chain(unusable);
        let present: Vec<_> = present.collect();
        let present = if present.is_empty() { "none".to_owned() } else { present.join(", ") };
        return Err(PortError::NoSuchDevice { wanted: choice.to_string(), present });
    }
    let netdevs: Vec<_> = ports()
        .filter(|(name, port)| choice.is(name, port.number))
        .filter_map(|(_, port)| port.netdev.as_deref())
        .collect();
    let found: Vec<_> = assigned
        .iter()
        .filter(|one| one.is_usable() && netdevs.contains(&one.netdev.as_str()))
        .map(|one| one.address)
        .collect();
    if found.is_empty() {
        let detail =
            format!("{choice} has no IP address that peers can use (interface {})", netdevs.join(", "));
        return Err(PortError::NoDevice { detail });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gimmal_rdma::device::{DeviceCapacity, LinkLayer, PortInfo, Transport, Why};

    fn device(name: &str, netdevs: &[&str]) -> Result<DeviceInfo, Unusable> {
        let port = |(at, netdev): (usize, &&str)| PortInfo {
            number: u8::try_from(at + 1).unwrap(),
            state: "PORT_ACTIVE".to_owned(),
            is_active: true,
            link_layer: LinkLayer::Ethernet,
            active_mtu_bytes: 4096,
            max_mtu_bytes: 4096,
            message_bytes_max: 1 << 23,
            lid: 0,
            netdev: Some((*netdev).to_owned()),
            gids: Vec::new(),
        };
        Ok(DeviceInfo {
            name: name.to_owned(),
            file: "uverbs0".to_owned(),
            transport: Transport::Ib,
            guid: 0,
            firmware: String::new(),
            vendor_id: 0,
            vendor_part_id: 0,
            capacity: DeviceCapacity {
                queue_pairs: 0,
                queue_pair_entries: 0,
                pieces: 0,
                completion_queues: 0,
                completion_queue_entries: 0,
                registrations: 0,
                registration_bytes_max: 0,
                responder_resources: 0,
                initiator_depth: 0,
                shared_receive_queues: 0,
                multicast_groups: 0,
            },
            ports: netdevs.iter().enumerate().map(port).collect(),
        })
    }

    #[test]
    fn a_choice_is_found_or_told_what_there_is() {
        let broken = Unusable { name: "siw7".to_owned(), file: "uverbs7".to_owned(), why: Why::NoFile };
        let devices =
            [device("rxe0", &["v0"]), device("two", &["e0", "e1"]), Err(broken), device("bare", &["b0"])];
        let at = |netdev: &str, address: &str| Assigned {
            netdev: netdev.to_owned(),
            address: address.parse().unwrap(),
            prefix: 24,
        };
        let assigned = [at("v0", "10.0.0.1"), at("v0", "fe80::1"), at("e0", "10.0.1.1"), at("e1", "fd00::1")];
        let pick = |choice: &str| pick(&devices, &assigned, &choice.parse().unwrap());
        let ip = |address: &str| address.parse::<IpAddr>().unwrap();
        assert_eq!(pick("rxe0"), Ok(vec![ip("10.0.0.1")]));
        assert_eq!(pick("two"), Ok(vec![ip("10.0.1.1"), ip("fd00::1")]));
        assert_eq!(pick("two:2"), Ok(vec![ip("fd00::1")]));
        let wrong = pick("siw0").unwrap_err().to_string();
        assert!(wrong.contains("siw0") && wrong.contains("rxe0:1, two:1, two:2, bare:1"), "{wrong}");
        assert!(wrong.contains("siw7 (uverbs7) cannot be used: its file is missing"), "{wrong}");
        assert!(pick("two:3").unwrap_err().to_string().contains("two:3"));
        assert!(pick("bare").unwrap_err().to_string().contains("no IP address"), "link-local does not count");
    }
}
