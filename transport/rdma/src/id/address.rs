//! Addresses of the CM: IPv4, IPv6, and its own family, AF_IB.

use std::{
    fmt,
    net::{Ipv6Addr, SocketAddr, SocketAddrV6},
};

/// Families of addresses; the last is the CM's own: a GID and a service id.
pub(crate) const AF_INET: u16 = 2;
pub(crate) const AF_INET6: u16 = 10;
pub(crate) const AF_IB: u16 = 27;

/// `sizeof(struct sockaddr_ib)`, the longest of the three.
pub(crate) const RAW_BYTES: usize = 48;

/// An address of the RDMA CM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CmAddress {
    /// IPv4 or IPv6, with a port of the port space.
    Ip(SocketAddr),
    /// A GID with a service id (`struct sockaddr_ib` of `rdma/ib.h`); needs a kernel and a fabric that have AF_IB.
    Ib(IbAddress),
}

/// An AF_IB address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IbAddress {
    /// The port's GID, in network order.
    pub gid: [u8; 16],
    /// Partition; 0xFFFF is the default one.
    pub pkey: u16,
    /// Flow label and traffic class, as in IPv6.
    pub flow_info: u32,
    /// Service id: for IP port spaces (port space << 16) + port.
    pub service_id: u64,
    /// Which bits of the service id count; 0 lets the kernel choose when binding.
    pub service_mask: u64,
    /// Which subnet a link-local GID is on.
    pub scope_id: u64,
}

impl CmAddress {
    /// The port, in the port spaces that have ports.
    #[must_use]
    pub fn port(&self) -> u16 {
        match self {
            Self::Ip(address) => address.port(),
            Self::Ib(address) => {
                u16::try_from(address.service_id & address.service_mask & 0xffff).unwrap_or(0)
            }
        }
    }

    /// The IP address, if it is one.
    #[must_use]
    pub fn ip(self) -> Option<SocketAddr> {
        match self {
            Self::Ip(address) => Some(address),
            Self::Ib(_) => None,
        }
    }

    /// Reads what the CM holds; `None` for another family.
    pub(crate) fn parse(bytes: &[u8; RAW_BYTES]) -> Option<Self> {
        let port = u16::from_be_bytes(part(bytes, 2));
        match u16::from_ne_bytes(part(bytes, 0)) {
            AF_INET => Some(Self::Ip(SocketAddr::from((part::<4>(bytes, 4), port)))),
            AF_INET6 => {
                let scope = u32::from_ne_bytes(part(bytes, 24));
                Some(Self::Ip(SocketAddrV6::new(part::<16>(bytes, 8).into(), port, 0, scope).into()))
            }
            AF_IB => Some(Self::Ib(IbAddress {
                pkey: port,
                flow_info: u32::from_be_bytes(part(bytes, 4)),
                gid: part(bytes, 8),
                service_id: u64::from_be_bytes(part(bytes, 24)),
                service_mask: u64::from_be_bytes(part(bytes, 32)),
                scope_id: u64::from_ne_bytes(part(bytes, 40)),
            })),
            _ => None,
        }
    }
}

/// The `N` bytes at `at`, which are inside.
fn part<const N: usize>(bytes: &[u8; RAW_BYTES], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}

impl From<SocketAddr> for CmAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Ip(address)
    }
}

impl fmt::Display for CmAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Ib(address) => {
                write!(f, "GID {} service {:#x}", Ipv6Addr::from(address.gid), address.service_id)
            }
        }
    }
}

/// An address in the layout of the C structures.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawCmAddress([u8; RAW_BYTES]);

impl RawCmAddress {
    /// For the CM, which only reads through it.
    pub(crate) fn as_mut_ptr<T>(&mut self) -> *mut T {
        self.0.as_mut_ptr().cast()
    }

    /// The family, in the type of `ai_family`.
    pub(crate) fn family(&self) -> i32 {
        u16::from_ne_bytes([self.0[0], self.0[1]]).into()
    }

    /// Bytes of the structure of this family.
    pub(crate) fn len(&self) -> u32 {
        match u16::from_ne_bytes([self.0[0], self.0[1]]) {
            AF_INET => 16,
            AF_INET6 => 28,
            _ => 48,
        }
    }
}

impl From<&CmAddress> for RawCmAddress {
    fn from(address: &CmAddress) -> Self {
        let mut raw = [0; RAW_BYTES];
        let mut put = |at: usize, bytes: &[u8]| raw[at..at + bytes.len()].copy_from_slice(bytes);
        match address {
            CmAddress::Ip(SocketAddr::V4(v4)) => {
                put(0, &AF_INET.to_ne_bytes());
                put(2, &v4.port().to_be_bytes());
                put(4, &v4.ip().octets());
            }
            CmAddress::Ip(SocketAddr::V6(v6)) => {
                put(0, &AF_INET6.to_ne_bytes());
                put(2, &v6.port().to_be_bytes());
                put(4, &v6.flowinfo().to_be_bytes());
                put(8, &v6.ip().octets());
                put(24, &v6.scope_id().to_ne_bytes());
            }
            CmAddress::Ib(ib) => {
                put(0, &AF_IB.to_ne_bytes());
                put(2, &ib.pkey.to_be_bytes());
                put(4, &ib.flow_info.to_be_bytes());
                put(8, &ib.gid);
                put(24, &ib.service_id.to_be_bytes());
                put(32, &ib.service_mask.to_be_bytes());
                put(40, &ib.scope_id.to_ne_bytes());
            }
        }
        Self(raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_round_trips() {
        let ib = IbAddress {
            gid: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8],
            pkey: 0xffff,
            flow_info: 0x0102_0304,
            service_id: 0x0106_1d2f,
            service_mask: u64::MAX,
            scope_id: 3,
        };
        let v4: SocketAddr = "10.0.0.1:7471".parse().unwrap();
        let v6: SocketAddr = "[fe80::1%3]:9".parse().unwrap();
        let global: SocketAddr = "[fd77::1]:1".parse().unwrap();
        for (address, bytes, port) in [
            (CmAddress::Ip(v4), 16, 7471),
            (CmAddress::Ip(v6), 28, 9),
            (CmAddress::Ip(global), 28, 1),
            (CmAddress::Ib(ib), 48, 0x1d2f),
        ] {
            let raw = RawCmAddress::from(&address);
            assert_eq!(CmAddress::parse(&raw.0), Some(address));
            assert_eq!((raw.len(), address.port()), (bytes, port));
        }
        assert_eq!(CmAddress::parse(&[0; RAW_BYTES]), None);
    }

    /// `struct sockaddr_ib` of `rdma/ib.h`, byte by byte.
    #[test]
    fn golden_sockaddr_ib() {
        let address = CmAddress::Ib(IbAddress {
            gid: [9; 16],
            pkey: 0x8001,
            flow_info: 5,
            service_id: 0x0106_0007,
            service_mask: 0xffff,
            scope_id: 0,
        });
        let raw = RawCmAddress::from(&address).0;
        assert_eq!(raw[0..8], [27, 0, 0x80, 1, 0, 0, 0, 5]);
        assert_eq!(raw[24..40], [0, 0, 0, 0, 1, 6, 0, 7, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    }
}
