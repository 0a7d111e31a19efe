//! The 40 bytes in front of a received datagram.
//!
//! ```text
//!  InfiniBand, RoCE v1, RoCE v2 over IPv6      RoCE v2 over IPv4
//!   0 version 6, class, flow │ 4 length          0  anything, 20 bytes
//!   6 next header │ 7 hop limit                 20  the IPv4 header, 20 bytes
//!   8 source GID │ 24 destination GID               (32 source, 36 destination)
//! ```
//! The completion does not say which of the two it is, so the bytes must: without a 6 in front only IPv4 is left;
//! with one, an IPv4 header behind it counts when its checksum is right. So do the kernel and libibverbs tell
//! them apart. The checksum cannot be asked of every IPv4 header: rxe leaves it out of what it loops back.

use std::net::Ipv4Addr;

use super::name::Gid;

/// Bytes that a receive is longer than its message.
pub const GRH_BYTES: usize = 40;

/// Sender and receiver of a datagram, as the network header says. The network can forge it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grh {
    /// The sender.
    pub source: Gid,
    /// The end point's own address, or the group.
    pub destination: Gid,
    /// Traffic class, or type of service.
    pub class: u8,
    /// Routers it may still pass.
    pub hops: u8,
}

impl Grh {
    /// Reads the header; `None` when it is neither of the two forms.
    #[must_use]
    pub fn parse(bytes: &[u8; GRH_BYTES]) -> Option<Self> {
        let (start, ipv4) = bytes.split_at(20);
        let ipv4: &[u8; 20] = ipv4.try_into().ok()?;
        let may_be_ipv6 = start[0] >> 4 == 6;
        if ipv4[0] == 0x45 && (!may_be_ipv6 || is_sum_right(ipv4)) {
            let source = Ipv4Addr::new(ipv4[12], ipv4[13], ipv4[14], ipv4[15]);
            let destination = Ipv4Addr::new(ipv4[16], ipv4[17], ipv4[18], ipv4[19]);
            return Some(Self {
                source: Gid::of(source.into()),
                destination: Gid::of(destination.into()),
                class: ipv4[1],
                hops: ipv4[8],
            });
        }
        if !may_be_ipv6 {
            return None;
        }
        Some(Self {
            source: Gid(bytes[8..24].try_into().ok()?),
            destination: Gid(bytes[24..40].try_into().ok()?),
            class: (start[0] << 4) | (start[1] >> 4), // cut on purpose: the version is before it
            hops: start[7],
        })
    }
}

/// RFC 1071: the ones' complement sum over a header that holds its own checksum is all ones.
fn is_sum_right(header: &[u8; 20]) -> bool {
    let sum: u32 = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    folded == 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10.77.1.1 to 239.5.5.5 by UDP, 1040 bytes, time to live 64, checksum computed apart.
    fn ipv4() -> [u8; GRH_BYTES] {
        let mut bytes = [0xa5; GRH_BYTES];
        bytes[20..].copy_from_slice(&[
            0x45, 0x02, 0x04, 0x10, 0x12, 0x34, 0x40, 0x00, 0x40, 0x11, 0x25, 0x4f, 10, 77, 1, 1, 239, 5, 5,
            5,
        ]);
        bytes
    }

    fn ipv6() -> [u8; GRH_BYTES] {
        let mut bytes = [0; GRH_BYTES];
        bytes[..8].copy_from_slice(&[0x6a, 0xb0, 0, 0, 4, 16, 17, 63]);
        bytes[8..24].copy_from_slice(&"fd77:1::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
        bytes[24..].copy_from_slice(&"ff12::5555".parse::<std::net::Ipv6Addr>().unwrap().octets());
        bytes
    }

    #[test]
    fn golden_headers() {
        let v4 = Grh::parse(&ipv4()).unwrap();
        assert_eq!(
            (v4.source.to_string(), v4.destination.to_string()),
            ("10.77.1.1".into(), "239.5.5.5".into())
        );
        assert_eq!((v4.class, v4.hops), (2, 64));
        let v6 = Grh::parse(&ipv6()).unwrap();
        assert_eq!(
            (v6.source.to_string(), v6.destination.to_string()),
            ("fd77:1::1".into(), "ff12::5555".into())
        );
        assert_eq!((v6.class, v6.hops), (0xab, 63));
        assert!(v4.destination.is_group() && v6.destination.is_group());
    }

    #[test]
    fn the_sum_decides_when_both_are_possible() {
        let mut both = ipv4();
        both[0] = 0x60;
        assert_eq!(Grh::parse(&both).unwrap().destination.to_string(), "239.5.5.5");
        for at in 20..GRH_BYTES {
            let mut wrong = both;
            wrong[at] ^= 0x10;
            assert_eq!(Grh::parse(&wrong).unwrap().destination.0[..], wrong[24..], "byte {at}");
        }
        // IPv6 addresses that look like the start of an IPv4 header stay IPv6.
        let mut bytes = ipv6();
        bytes[20] = 0x45;
        assert_eq!(Grh::parse(&bytes).unwrap().hops, 63);
    }

    #[test]
    fn a_header_that_rxe_looped_back_has_no_sum() {
        let mut bytes = ipv4();
        bytes[..20].fill(0);
        bytes[30..32].fill(0);
        assert_eq!(Grh::parse(&bytes).unwrap().source.to_string(), "10.77.1.1");
    }

    #[test]
    fn neither_form() {
        assert_eq!(Grh::parse(&[0; GRH_BYTES]), None);
        assert_eq!(Grh::parse(&[0xff; GRH_BYTES]), None);
    }
}
