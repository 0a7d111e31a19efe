//! Which device port a connection goes through, and which addresses one that was asked for has.

use std::{
    mem::MaybeUninit,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::Mutex,
};

use crate::{
    ConnectError, PortError,
    device_port::{DeviceChoice, DevicePort, Fabric, Gid},
    verbs::{
        DeviceInfo,
        addresses::{self, Assigned},
        cm::CmId,
        connect::Attempt,
        device::Context,
        gate::lock,
        inspect::devices,
        lane::Lane,
        qp::Qp,
        raw::{CmAddress, Target},
        sys,
    },
};

/// The port of a queue pair that stands.
pub(crate) fn device_port(id: &CmId, qp: &Qp, context: &Context, iwarp: bool) -> DevicePort {
    let number = id.port_number();
    if iwarp {
        return DevicePort { device: context.name(), number, gid: None, fabric: Fabric::Iwarp };
    }
    let from = id.source_gid();
    context.known_ports.find(number, &from).unwrap_or_else(|| {
        // What was sent from is in the queue pair; a GID alone does not tell, RoCE has the same one for two versions.
        let (gid, fabric) = match source_index(qp) {
            Some(index) => gid_at(context, number, index),
            None => (None, Fabric::Infiniband),
        };
        let port = DevicePort { device: context.name(), number, gid, fabric };
        context.known_ports.learn(from, &port);
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

/// The place of the queue pair's own GID in its port's table; `None` within an InfiniBand subnet.
fn source_index(qp: &Qp) -> Option<u8> {
    let mut attributes = MaybeUninit::<sys::ibv_qp_attr>::zeroed();
    let mut made_with = MaybeUninit::<sys::ibv_qp_init_attr>::zeroed();
    let wanted = i32::try_from(sys::ibv_qp_attr_mask::IBV_QP_AV.0).unwrap_or(0);
    // SAFETY: the queue pair is live (we hold its licence); both places are ours and as large as the call writes.
    let returned =
        unsafe { sys::ibv_query_qp(qp.raw(), attributes.as_mut_ptr(), wanted, made_with.as_mut_ptr()) };
    if let Err(errno) = sys::verbs_result(returned) {
        tracing::debug!(errno, "ibv_query_qp does not tell the GID");
        return None;
    }
    // SAFETY: zeroed, then filled by the call; every field is an integer or a union of integers.
    let address = unsafe { attributes.assume_init() }.ah_attr;
    (address.is_global != 0).then_some(address.grh.sgid_index)
}

fn gid_at(context: &Context, port: u8, index: u8) -> (Option<Gid>, Fabric) {
    // SAFETY: integers only, for which zero is a value.
    let mut entry: sys::ibv_gid_entry = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the context is open while we hold it, and the place is for one entry.
    let returned =
        unsafe { sys::ibv_query_gid_ex(context.raw(), port.into(), index.into(), &raw mut entry, 0) };
    if returned == 0 {
        let fabric = match entry.gid_type {
            sys::IBV_GID_TYPE_IB => Fabric::Infiniband,
            sys::IBV_GID_TYPE_ROCE_V1 => Fabric::RoceV1,
            sys::IBV_GID_TYPE_ROCE_V2 => Fabric::RoceV2,
            _ => Fabric::Unknown,
        };
        return (Some(gid(index, &entry.gid)), fabric);
    }
    let mut plain = sys::ibv_gid { raw: [0; 16] };
    // SAFETY: as above, for one GID.
    let returned = unsafe { sys::ibv_query_gid(context.raw(), port, index.into(), &raw mut plain) };
    ((returned == 0).then(|| gid(index, &plain)), Fabric::Unknown)
}

fn gid(index: u8, gid: &sys::ibv_gid) -> Gid {
    // SAFETY: both members of the union are plain bytes of the same size.
    Gid { index, value: Ipv6Addr::from(unsafe { gid.raw }) }
}

impl Attempt {
    /// Where to connect from: what was chosen, or what the resolver found.
    ///
    /// # Errors
    /// Nothing that was chosen is of the family of `to`.
    pub(crate) fn source(&self, target: &Target, to: &CmAddress) -> Result<Option<CmAddress>, ConnectError> {
        let Some(to) = to.ip().filter(|_| !self.sources.is_empty()) else { return Ok(target.source) };
        let fits = self.sources.iter().find(|source| source.is_ipv4() == to.is_ipv4());
        let source = fits.ok_or_else(|| ConnectError::Address {
            address: self.address.clone(),
            why: format!("{} cannot be reached from {:?}", to.ip(), self.sources),
        })?;
        Ok(Some(CmAddress::Ip(SocketAddr::new(*source, 0))))
    }

    /// Whether the way leads through the device that was chosen.
    pub(crate) fn check_device(&self, lane: &Lane, port: u8) -> Result<(), ConnectError> {
        let Some(choice) = &self.options.device else { return Ok(()) };
        let name = lane.context().name();
        if choice.is(&name, port) {
            return Ok(());
        }
        let why = format!("the way there is through {name}:{port}, not {choice}");
        Err(ConnectError::Address { address: self.address.clone(), why })
    }
}

/// The IP addresses of what was asked for, the usable ones of its network interface.
///
/// # Errors
/// [`PortError::NoSuchDevice`] with the ones there are; [`PortError::NoDevice`] when it has no address.
pub(crate) fn addresses_of(choice: &DeviceChoice) -> Result<Vec<IpAddr>, PortError> {
    pick(&devices()?, &addresses::all(), choice)
}

fn pick(
    devices: &[DeviceInfo],
    assigned: &[Assigned],
    choice: &DeviceChoice,
) -> Result<Vec<IpAddr>, PortError> {
    let ports =
        || devices.iter().flat_map(|device| device.ports.iter().map(move |port| (&device.name, port)));
    if !ports().any(|(name, port)| choice.is(name, port.number)) {
        let present: Vec<_> = ports().map(|(name, port)| format!("{name}:{}", port.number)).collect();
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
    use crate::verbs::{DeviceCapacity, LinkLayer, PortInfo, Transport};

    fn device(name: &str, netdevs: &[&str]) -> DeviceInfo {
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
        DeviceInfo {
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
        }
    }

    #[test]
    fn a_choice_is_found_or_told_what_there_is() {
        let devices = [device("rxe0", &["v0"]), device("two", &["e0", "e1"]), device("bare", &["b0"])];
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
        assert!(pick("two:3").unwrap_err().to_string().contains("two:3"));
        assert!(pick("bare").unwrap_err().to_string().contains("no IP address"), "link-local does not count");
    }
}
