//! Devices, their links, and the addresses on the interfaces under them.

use std::net::IpAddr;

use gimmal_rdma::device::{Assigned, Unusable, Why};

use crate::{machine::Machine, report::Check, tree::Device};

const DEVICES: &str = "devices";
const LINK: &str = "link";
const ADDRESS: &str = "address";

/// Adds the three checks for each device; a fault of one does not count while another works. Returns the names of
/// those that a connection can use.
pub(super) fn examine(machine: &impl Machine, checks: &mut Vec<Check>) -> Vec<String> {
    let mut devices = machine.tree().devices();
    let found = found(machine, &mut devices);
    let has_devices = found.iter().any(Check::is_fine);
    checks.extend(found);
    if !has_devices {
        checks.extend([LINK, ADDRESS].map(|name| Check::not_checked(name, "a device")));
        return Vec::new();
    }
    let assigned = machine.addresses();
    let judged: Vec<(&Device, Check, Check)> = devices
        .iter()
        .map(|device| {
            let link = link(machine, device);
            let address = if link.is_fine() {
                address(machine, device, &assigned)
            } else {
                Check::not_checked(ADDRESS, "a link")
            };
            (device, link, address)
        })
        .collect();
    let usable: Vec<String> = judged
        .iter()
        .filter(|(_, link, address)| link.is_fine() && address.is_fine())
        .map(|(device, ..)| device.name.clone())
        .collect();
    for (_, link, address) in judged {
        let (link, address) =
            if usable.is_empty() { (link, address) } else { (link.not_needed(), address.not_needed()) };
        checks.extend([link, address]);
    }
    usable
}

/// At least one device that can be used. Those that cannot are judged each for itself, and leave `devices`.
fn found(machine: &impl Machine, devices: &mut Vec<Device>) -> Vec<Check> {
    if devices.is_empty() {
        return vec![Check::wrong(DEVICES, "no RDMA device", make_one(machine))];
    }
    let seen = match machine.devices() {
        Ok(seen) => seen,
        Err(error) => {
            let fix = format!("{}apt-get install --reinstall ibverbs-providers", machine.sudo());
            return vec![Check::wrong(DEVICES, error, fix)];
        }
    };
    let (usable, unusable): (Vec<Device>, _) =
        devices.drain(..).partition(|device| seen.iter().flatten().any(|seen| *seen == device.name));
    *devices = usable;
    let fault = |device: &Device| {
        let refused = seen.iter().filter_map(|seen| seen.as_ref().err());
        let check = match refused.into_iter().find(|unusable| unusable.name == device.name) {
            Some(unusable) => Check::wrong(DEVICES, unusable.to_string(), fix_of(machine, unusable)),
            None => {
                let fix = format!("{}apt-get install ibverbs-providers", machine.sudo());
                Check::wrong(DEVICES, format!("libibverbs has no provider for {}", device.name), fix)
            }
        };
        if devices.is_empty() { check } else { check.not_needed() }
    };
    let faults = unusable.iter().map(fault);
    let names = devices.iter().map(|device| match &device.netdev {
        Some(netdev) => format!("{} on {netdev}", device.name),
        None => device.name.clone(),
    });
    let names = names.collect::<Vec<_>>().join(", ");
    let fine = (!devices.is_empty()).then(|| Check::fine(DEVICES, names));
    fine.into_iter().chain(faults).collect()
}

/// The command that makes a device usable.
fn fix_of(machine: &impl Machine, unusable: &Unusable) -> String {
    let (sudo, file) = (machine.sudo(), &unusable.file);
    match unusable.why {
        Why::NoFile => format!("{sudo}udevadm trigger /sys/class/infiniband_verbs/{file}"),
        Why::NoAccess(_) => format!("{sudo}chmod 666 /dev/infiniband/{file}"),
        Why::CgroupLimit(_) => {
            format!(
                "echo {} max | {sudo}tee /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/rdma.max",
                unusable.name
            )
        }
        Why::NoDriver => format!("{sudo}apt-get install ibverbs-providers"),
        _ => format!("ibv_devinfo -d {}", unusable.name),
    }
}

/// The command that makes a software device, on the interface that suits best.
fn make_one(machine: &impl Machine) -> String {
    let tree = machine.tree();
    let assigned = machine.addresses();
    let is_up = |netdev: &String| tree.is_set_up(netdev);
    let has_address = |netdev: &String| assigned.iter().any(|one| one.netdev == *netdev && one.is_usable());
    let mut netdevs: Vec<String> = tree.netdevs().into_iter().filter(|netdev| netdev != "lo").collect();
    netdevs.sort_by_key(|netdev| (!has_address(netdev), !is_up(netdev)));
    let kind =
        if tree.exists("/sys/module/siw") && !tree.exists("/sys/module/rdma_rxe") { "siw" } else { "rxe" };
    match netdevs.first() {
        Some(netdev) => format!("{}rdma link add {kind}0 type {kind} netdev {netdev}", machine.sudo()),
        None => format!("{}rdma link add siw0 type siw netdev lo", machine.sudo()),
    }
}

/// Whether a port of `device` is active.
fn link(machine: &impl Machine, device: &Device) -> Check {
    let name = &device.name;
    let states = device.states.join(", ");
    if device.is_active() {
        let layer = if device.is_iwarp { "iWARP" } else { device.link_layer.as_str() };
        return Check::fine(LINK, format!("{name} {states} ({layer})"));
    }
    let (tree, sudo) = (machine.tree(), machine.sudo());
    if device.link_layer == "InfiniBand" {
        let detail = format!("{name} is {states}: no subnet manager has set it up");
        return Check::wrong(LINK, detail, format!("{sudo}systemctl start opensm"));
    }
    let Some(netdev) = &device.netdev else {
        return Check::wrong(LINK, format!("{name} is {states}"), format!("rdma link show {name}/1"));
    };
    if !tree.is_set_up(netdev) {
        let detail = format!("{name} is {states}: its interface {netdev} is down");
        return Check::wrong(LINK, detail, format!("{sudo}ip link set {netdev} up"));
    }
    match tree.other_end(netdev).filter(|other| !tree.is_set_up(other)) {
        Some(other) => {
            let detail = format!("{name} is {states}: {other}, the other end of {netdev}, is down");
            Check::wrong(LINK, detail, format!("{sudo}ip link set {other} up"))
        }
        None => {
            let detail =
                format!("{name} is {states}: {netdev} is up and has no carrier: cable or switch port");
            Check::wrong(LINK, detail, format!("{sudo}ethtool {netdev}"))
        }
    }
}

/// Whether the interface under `device` has an address that peers can use, and the device knows it.
fn address(machine: &impl Machine, device: &Device, assigned: &[Assigned]) -> Check {
    let (name, sudo) = (&device.name, machine.sudo());
    let Some(netdev) = &device.netdev else {
        return Check::fine(ADDRESS, format!("{name} has no network interface to look at"));
    };
    let usable: Vec<&Assigned> =
        assigned.iter().filter(|one| one.netdev == *netdev && one.is_usable()).collect();
    if usable.is_empty() {
        let detail = format!("{netdev}, the interface of {name}, has no address that peers can use");
        return Check::wrong(ADDRESS, detail, format!("{sudo}ip address add 10.77.0.1/24 dev {netdev}"));
    }
    let is_roce = device.link_layer == "Ethernet" && !device.is_iwarp;
    if let Some(unknown) = usable.iter().find(|one| is_roce && !knows(device, one.address)) {
        let (address, prefix) = (unknown.address, unknown.prefix);
        let detail = format!("{name} has no GID for {address} of {netdev}");
        let fix = format!(
            "{sudo}ip address del {address}/{prefix} dev {netdev} && {sudo}ip address add {address}/{prefix} dev {netdev}"
        );
        return Check::wrong(ADDRESS, detail, fix);
    }
    let list: Vec<String> = usable.iter().map(|one| one.address.to_string()).collect();
    let gids = if is_roce { ", each with its GID" } else { "" };
    Check::fine(ADDRESS, format!("{netdev}: {}{gids}", list.join(", ")))
}

/// Whether the GID table has `address`, as RoCE needs it.
fn knows(device: &Device, address: IpAddr) -> bool {
    let wanted = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    device.gids.iter().any(|gid| gid.parse() == Ok(wanted))
}
