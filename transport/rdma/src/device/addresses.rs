//! The addresses of network interfaces, asked of the kernel: a dump of RTM_GETADDR, `rtnetlink(7)`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, netdevice, recv, send, socket};

/// An interface's address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assigned {
    /// `eth0`.
    pub netdev: String,
    /// What it has.
    pub address: IpAddr,
    /// Bits that it shares with its network.
    pub prefix: u8,
}

impl Assigned {
    /// Whether peers beyond the link can use it; link-local ones need a scope that no URL of ours carries.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        match self.address {
            IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_loopback(),
            IpAddr::V6(v6) => !v6.is_unicast_link_local() && !v6.is_loopback(),
        }
    }
}

/// Bytes of `nlmsghdr`, and of `ifaddrmsg`.
const HEADER: usize = 16;
const BODY: usize = 8;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// What all interfaces have; empty when the kernel does not say.
#[must_use]
pub fn all() -> Vec<Assigned> {
    ask().unwrap_or_default()
}

fn ask() -> rustix::io::Result<Vec<Assigned>> {
    let netlink = socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let mut request = [0u8; HEADER + BODY];
    let length = u32::try_from(request.len()).unwrap_or(0);
    request[..4].copy_from_slice(&length.to_ne_bytes());
    request[4..6].copy_from_slice(&RTM_GETADDR.to_ne_bytes());
    request[6..8].copy_from_slice(&NLM_F_REQUEST_DUMP.to_ne_bytes());
    send(&netlink, &request, SendFlags::empty())?;
    let mut found = Vec::new();
    let mut buffer = vec![0u8; 64 << 10];
    loop {
        let (bytes, _) = recv(&netlink, &mut buffer[..], RecvFlags::empty())?;
        let name = |index| netdevice::index_to_name(&any, index).ok();
        if bytes == 0 || read(&buffer[..bytes], &mut found, name) {
            return Ok(found);
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Takes what one datagram holds; `true` when it was the last, or makes no sense.
fn read(mut bytes: &[u8], found: &mut Vec<Assigned>, name: impl Fn(u32) -> Option<String>) -> bool {
    while let (Some(length), Some(kind)) = (u32_at(bytes, 0), u16_at(bytes, 4)) {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if kind == NLMSG_DONE || kind == NLMSG_ERROR || length < HEADER || length > bytes.len() {
            return true;
        }
        if kind == RTM_NEWADDR {
            found.extend(assigned(&bytes[HEADER..length], &name));
        }
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    false
}

/// One `ifaddrmsg` with its attributes.
fn assigned(message: &[u8], name: impl Fn(u32) -> Option<String>) -> Option<Assigned> {
    let (family, prefix, index) = (*message.first()?, *message.get(1)?, u32_at(message, 4)?);
    let mut attributes = message.get(BODY..)?;
    let mut address = None;
    while let (Some(length), Some(kind)) = (u16_at(attributes, 0), u16_at(attributes, 2)) {
        let length = usize::from(length);
        if length < 4 || length > attributes.len() {
            break;
        }
        let value = &attributes[4..length];
        let parsed = match family {
            AF_INET => <[u8; 4]>::try_from(value).ok().map(|octets| IpAddr::V4(Ipv4Addr::from(octets))),
            AF_INET6 => <[u8; 16]>::try_from(value).ok().map(|octets| IpAddr::V6(Ipv6Addr::from(octets))),
            _ => None,
        };
        // On a point-to-point link IFA_ADDRESS is the other side, and IFA_LOCAL ours.
        if kind == IFA_LOCAL || (kind == IFA_ADDRESS && address.is_none()) {
            address = parsed.or(address);
        }
        attributes = &attributes[length.next_multiple_of(4).min(attributes.len())..];
    }
    Some(Assigned { netdev: name(index)?, address: address?, prefix })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_loopback() {
        let loopback = all().into_iter().find(|one| one.netdev == "lo").unwrap();
        assert!(loopback.address.is_loopback() && !loopback.is_usable(), "{loopback:?}");
    }

    #[test]
    fn nonsense_ends_the_reading() {
        let mut found = Vec::new();
        for bytes in [&[][..], &[1; 3], &[0; 16], &[255; 40]] {
            read(bytes, &mut found, |_| None);
        }
        assert_eq!(found, []);
    }

    #[test]
    fn link_local_addresses_do_not_count() {
        let one = |text: &str| Assigned { netdev: "v0".into(), address: text.parse().unwrap(), prefix: 24 };
        assert!(one("10.0.0.1").is_usable() && one("fd77::1").is_usable());
        assert!(
            !one("169.254.1.1").is_usable() && !one("fe80::1").is_usable() && !one("127.0.0.1").is_usable()
        );
    }
}
