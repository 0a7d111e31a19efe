//! Membership without the CM: what it does for IPv4 groups, done here for IPv6 groups on RoCE v2.
//!
//! A socket holds the membership (MLD, and the kernel's filter), the queue pair is attached to the group's GID, and the
//! address handle names the GID entry of our own address.

use std::{
    fs,
    net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket},
};

use super::{
    error::JoinError,
    name::{Gid, Qkey, QpNumber},
    way::Way,
};
use crate::{id::membership::Membership, sys, verbs::qp::Qp};

/// Hops of a group's messages; what the CM gives IPv4 groups.
const HOPS: u8 = 64;
/// More entries than any device's GID table has.
const GIDS_READ: u8 = 255;

/// What the end point keeps of a group. A queue pair that is still attached cannot be destroyed.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) number: u32,
    pub(super) address: SocketAddr,
    /// When the CM could not.
    pub(super) own: Option<OwnMembership>,
}

/// Where an end point is.
pub(super) struct Place<'a> {
    pub(super) local: IpAddr,
    pub(super) device: &'a str,
    pub(super) port: u8,
    pub(super) qp: &'a Qp,
}

/// A group that we joined by ourselves.
#[derive(Debug)]
pub(super) struct OwnMembership {
    /// Leaves when it is closed.
    _socket: Option<UdpSocket>,
    attached: Option<Gid>,
}

impl OwnMembership {
    pub(super) fn join(
        place: &Place<'_>,
        group: SocketAddr,
        membership: Membership,
    ) -> Result<(Self, Way), JoinError> {
        let refused = |step, status| JoinError::Refused { group: group.ip(), step, status };
        let (IpAddr::V6(address), Gid(raw)) = (group.ip(), Gid::of(group.ip())) else {
            return Err(JoinError::NotAGroup { group: group.ip(), why: "not an IPv6 group" });
        };
        let source = Gid::of(place.local);
        let entry = Entry::find(place.device, place.port, source)
            .ok_or_else(|| refused("no RoCE v2 GID for our address", -libc::EADDRNOTAVAIL))?;
        let mut attributes: sys::ibv_ah_attr = sys::zeroed();
        attributes.grh.dgid = sys::ibv_gid { raw };
        attributes.grh.sgid_index = entry.index;
        attributes.grh.hop_limit = HOPS;
        attributes.is_global = 1;
        attributes.port_num = place.port;
        let way = Way { attributes, qp: QpNumber::MULTICAST, qkey: Qkey::UDP };
        if membership == Membership::SendOnly {
            return Ok((Self { _socket: None, attached: None }, way));
        }
        let errno = |error: &std::io::Error| -error.raw_os_error().unwrap_or(libc::EINVAL);
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).map_err(|e| refused("socket", errno(&e)))?;
        socket
            .join_multicast_v6(&address, entry.interface)
            .map_err(|error| refused("IPV6_ADD_MEMBERSHIP", errno(&error)))?;
        let gid = sys::ibv_gid { raw };
        // SAFETY: the queue pair is live; the GID is read during the call only.
        let attached = unsafe { sys::ibv_attach_mcast(place.qp.raw(), &raw const gid, 0) };
        sys::verbs_result(attached).map_err(|errno| refused("ibv_attach_mcast", -errno))?;
        Ok((Self { _socket: Some(socket), attached: Some(Gid(raw)) }, way))
    }

    /// Detaches; the membership ends with the drop.
    pub(super) fn leave(&self, qp: &Qp) -> Result<(), i32> {
        let Some(Gid(raw)) = self.attached else { return Ok(()) };
        let gid = sys::ibv_gid { raw };
        // SAFETY: the queue pair is live; the GID is read during the call only.
        sys::verbs_result(unsafe { sys::ibv_detach_mcast(qp.raw(), &raw const gid, 0) })
    }
}

/// An entry of a port's GID table.
struct Entry {
    index: u8,
    /// Of its network interface.
    interface: u32,
}

impl Entry {
    /// As sysfs shows the table.
    fn find(device: &str, port: u8, gid: Gid) -> Option<Self> {
        let folder = format!("/sys/class/infiniband/{device}/ports/{port}");
        (0..GIDS_READ).find_map(|index| {
            let read = |part: &str| fs::read_to_string(format!("{folder}/{part}/{index}")).ok();
            let address: Ipv6Addr = read("gids")?.trim().parse().ok()?;
            let version = read("gid_attrs/types")?;
            if address.octets() != gid.0 || version.trim() != "RoCE v2" {
                return None;
            }
            let name = read("gid_attrs/ndevs")?;
            let interface = fs::read_to_string(format!("/sys/class/net/{}/ifindex", name.trim())).ok()?;
            Some(Self { index, interface: interface.trim().parse().ok()? })
        })
    }
}
