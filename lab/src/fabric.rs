//! The fabrics a guest can have, and the addresses they live at.
//!
//! Every address exists inside a guest only; nothing of it is visible on the host.

use clap::ValueEnum;

/// What `--fabric` accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fabrics {
    /// SoftRoCE.
    Rxe,
    /// Soft-iWARP.
    Siw,
    /// SoftRoCE and Soft-iWARP, each on a network of its own.
    Both,
    /// No RDMA device: for tests of what happens then.
    None,
}

/// One RDMA device inside a one-host guest, on one end of a veth pair.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// The kernel's name of the driver, also the prefix of the environment variables.
    pub kind: &'static str,
    pub device: &'static str,
    pub netdev: &'static str,
    pub netdev_peer: &'static str,
    pub addr: &'static str,
    pub addr6: &'static str,
}

pub(crate) const RXE: Link = Link {
    kind: "rxe",
    device: "rxe0",
    netdev: "v0",
    netdev_peer: "v1",
    addr: "10.77.1.1",
    addr6: "fd77:1::1",
};

pub(crate) const SIW: Link = Link {
    kind: "siw",
    device: "siw0",
    netdev: "w0",
    netdev_peer: "w1",
    addr: "10.77.2.1",
    addr6: "fd77:2::1",
};

/// Which of two joined guests this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    A,
    B,
}

impl Fabrics {
    pub(crate) fn links(self) -> &'static [Link] {
        const BOTH: [Link; 2] = [RXE, SIW];
        const JUST_RXE: [Link; 1] = [RXE];
        const JUST_SIW: [Link; 1] = [SIW];
        match self {
            Self::Rxe => &JUST_RXE,
            Self::Siw => &JUST_SIW,
            Self::Both => &BOTH,
            Self::None => &[],
        }
    }

    /// The names as `GIMMAL_LAB_FABRICS` lists them.
    pub(crate) fn names(self) -> String {
        self.links().iter().map(|link| link.kind).collect::<Vec<_>>().join(" ")
    }
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }

    pub(crate) fn peer(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    pub(crate) fn addr(self) -> &'static str {
        match self {
            Self::A => "10.77.3.1",
            Self::B => "10.77.3.2",
        }
    }

    pub(crate) fn addr6(self) -> &'static str {
        match self {
            Self::A => "fd77:3::1",
            Self::B => "fd77:3::2",
        }
    }

    pub(crate) fn mac(self) -> &'static str {
        match self {
            Self::A => "52:54:00:77:03:01",
            Self::B => "52:54:00:77:03:02",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_links() {
        assert_eq!(Fabrics::Both.names(), "rxe siw");
        assert_eq!(Fabrics::Siw.names(), "siw");
        assert_eq!(Fabrics::None.names(), "");
    }

    #[test]
    fn two_guests_share_nothing() {
        for role in [Role::A, Role::B] {
            assert_eq!(role.peer().peer(), role);
            assert_ne!(role.addr(), role.peer().addr());
            assert_ne!(role.addr6(), role.peer().addr6());
            assert_ne!(role.mac(), role.peer().mac());
        }
    }
}
