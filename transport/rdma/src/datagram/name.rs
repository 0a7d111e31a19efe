//! Numbers of datagram traffic that must not be confused: queue pair numbers, queue keys, GIDs.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

/// A queue pair's number: 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QpNumber(u32);

impl QpNumber {
    /// Every member of a group.
    pub const MULTICAST: Self = Self(0x00ff_ffff);

    /// The low 24 bits of `number`.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number & 0x00ff_ffff)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for QpNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// A queue key: a message is delivered only if it carries the key of the queue pair that it goes to.
///
/// With the highest bit set in a *sent* message the device puts its own queue pair's key instead.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Qkey(pub u32);

impl Qkey {
    /// `RDMA_UDP_QKEY`: what the CM gives everyone in `RDMA_PS_UDP`, and answers look-ups with.
    pub const UDP: Self = Self(0x0123_4567);
    /// Keys with this bit belong to privileged consumers.
    pub(super) const PRIVILEGED: u32 = 1 << 31;
}

impl fmt::Display for Qkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// A port's or a group's global identifier. RoCE v2 makes it of the IP address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IP address it is made of; IPv4 addresses are mapped (`::ffff:a.b.c.d`).
    #[must_use]
    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// What RoCE v2 calls `address`.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }

    /// Whether it names a group.
    #[must_use]
    pub fn is_group(self) -> bool {
        self.ip().is_multicast()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_are_addresses() {
        for text in ["10.77.1.1", "239.5.5.5", "fd77:1::1", "ff12::5555"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(Gid::of(address).ip(), address);
            assert_eq!(Gid::of(address).to_string(), text);
            assert_eq!(Gid::of(address).is_group(), address.is_multicast());
        }
        assert_eq!(Gid::of("10.0.0.1".parse().unwrap()).0[8..], [0, 0, 255, 255, 10, 0, 0, 1]);
    }

    #[test]
    fn queue_pairs_have_24_bits() {
        assert_eq!(QpNumber::new(0xff12_3456), QpNumber::new(0x0012_3456));
        assert_eq!(QpNumber::new(u32::MAX), QpNumber::MULTICAST);
    }
}
