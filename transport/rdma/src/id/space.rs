//! Port spaces, and the types of queue pairs in them.

use crate::sys;

/// What a service's port number means (`RDMA_PS_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PortSpace {
    /// Reliable connected; message based, no stream.
    #[default]
    Tcp,
    /// Unreliable datagrams and multicast.
    Udp,
    /// IP over InfiniBand's own groups.
    IpOib,
    /// Any service of an InfiniBand fabric.
    Ib,
}

impl PortSpace {
    pub(crate) const fn raw(self) -> u32 {
        match self {
            Self::IpOib => sys::rdma_port_space::RDMA_PS_IPOIB,
            Self::Tcp => sys::rdma_port_space::RDMA_PS_TCP,
            Self::Udp => sys::rdma_port_space::RDMA_PS_UDP,
            Self::Ib => sys::rdma_port_space::RDMA_PS_IB,
        }
    }

    pub(crate) fn parse(raw: i32) -> Option<Self> {
        [Self::Tcp, Self::Udp, Self::IpOib, Self::Ib]
            .into_iter()
            .find(|space| i32::try_from(space.raw()) == Ok(raw))
    }
}

/// What kind of queue pair the addresses are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum QpType {
    /// Reliable connected (`IBV_QPT_RC`).
    #[default]
    Rc,
    /// Unreliable connected (`IBV_QPT_UC`), of [`PortSpace::Ib`].
    Uc,
    /// Unreliable datagram (`IBV_QPT_UD`).
    Ud,
}

impl QpType {
    pub(crate) const fn raw(self) -> u32 {
        match self {
            Self::Rc => sys::ibv_qp_type::IBV_QPT_RC,
            Self::Uc => sys::ibv_qp_type::IBV_QPT_UC,
            Self::Ud => sys::ibv_qp_type::IBV_QPT_UD,
        }
    }

    pub(crate) fn parse(raw: i32) -> Option<Self> {
        [Self::Rc, Self::Uc, Self::Ud].into_iter().find(|kind| i32::try_from(kind.raw()) == Ok(raw))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_spaces_round_trip() {
        for space in [PortSpace::Tcp, PortSpace::Udp, PortSpace::IpOib, PortSpace::Ib] {
            assert_eq!(PortSpace::parse(i32::try_from(space.raw()).unwrap()), Some(space));
        }
        assert_eq!(PortSpace::parse(0), None);
        assert_eq!(
            [2, 3, 4, 9].map(QpType::parse),
            [Some(QpType::Rc), Some(QpType::Uc), Some(QpType::Ud), None]
        );
    }
}
