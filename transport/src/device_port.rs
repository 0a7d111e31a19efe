//! Ports of RDMA devices: the one that a connection goes through, and the one that somebody wants it to go through.

use std::{fmt, net::Ipv6Addr, str::FromStr};

use crate::AddressError;

/// What carries a connection's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fabric {
    /// InfiniBand.
    Infiniband,
    /// RoCE version 1: Ethernet frames, not routable.
    RoceV1,
    /// RoCE version 2: UDP, routable.
    RoceV2,
    /// RoCE or InfiniBand: libibverbs is older than 1.11 and does not tell.
    Unknown,
    /// iWARP: TCP.
    Iwarp,
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Infiniband => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
            Self::Unknown => "RoCE or InfiniBand",
            Self::Iwarp => "iWARP",
        })
    }
}

/// An entry of a port's GID table: the address that packets leave from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gid {
    /// Its place in the table.
    pub index: u8,
    /// The GID, which is written as an IPv6 address; on RoCE the IPv4 ones are mapped (`::ffff:10.0.0.1`).
    pub value: Ipv6Addr,
}

/// The device port that a connection goes through, at this end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DevicePort {
    /// `rxe0`.
    pub device: String,
    /// From 1.
    pub number: u8,
    /// Where packets leave from; none on iWARP, nor within an InfiniBand subnet.
    pub gid: Option<Gid>,
    /// What carries them.
    pub fabric: Fabric,
}

impl fmt::Display for DevicePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}, {}", self.device, self.number, self.fabric)?;
        self.gid.map_or(Ok(()), |gid| write!(f, ", GID {} {}", gid.index, gid.value))
    }
}

/// A device by its name, or one of its ports: `rxe0`, `mlx5_0:2`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DeviceChoice {
    /// As `rdma link` lists it.
    pub device: String,
    /// From 1; `None`: any port of the device.
    pub port: Option<u8>,
}

impl DeviceChoice {
    /// Whether it is this port.
    #[must_use]
    #[doc(hidden)]
    pub fn is(&self, device: &str, port: u8) -> bool {
        self.device == device && self.port.is_none_or(|wanted| wanted == port)
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.device)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl FromStr for DeviceChoice {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let bad = |why| AddressError::Device { text: text.to_owned(), why };
        let (device, port) = match text.split_once(':') {
            None => (text, None),
            Some((device, port)) => match port.parse() {
                Ok(port) if port > 0 => (device, Some(port)),
                _ => return Err(bad("the port is a number from 1 to 255")),
            },
        };
        if device.is_empty() || device.contains('/') {
            return Err(bad("a device's name is not empty and has no slash"));
        }
        Ok(Self { device: device.to_owned(), port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_parsed_and_printed() {
        let any: DeviceChoice = "rxe0".parse().unwrap();
        assert!(any.is("rxe0", 1) && any.is("rxe0", 2) && !any.is("rxe1", 1));
        let second: DeviceChoice = "mlx5_0:2".parse().unwrap();
        assert!(second.is("mlx5_0", 2) && !second.is("mlx5_0", 1));
        assert_eq!(second.to_string(), "mlx5_0:2");
        for (wrong, why) in
            [("", "not empty"), ("a:", "number"), ("a:0", "number"), (":1", "not empty"), ("a/b", "slash")]
        {
            let error = wrong.parse::<DeviceChoice>().unwrap_err().to_string();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_port_prints_what_is_known() {
        let gid = Gid { index: 1, value: "::ffff:10.77.1.1".parse().unwrap() };
        let mut port =
            DevicePort { device: "rxe0".to_owned(), number: 1, gid: Some(gid), fabric: Fabric::RoceV2 };
        assert_eq!(port.to_string(), "rxe0 port 1, RoCE v2, GID 1 ::ffff:10.77.1.1");
        (port.gid, port.fabric) = (None, Fabric::Iwarp);
        assert_eq!(port.to_string(), "rxe0 port 1, iWARP");
    }
}
