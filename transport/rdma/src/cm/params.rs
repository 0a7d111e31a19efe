//! The numbers of `rdma_connect(3)` and `rdma_accept(3)`, as values that cannot hold an illegal one.

use std::fmt;

use crate::{
    cm::error::{CmError, above},
    id::params::{ACCEPT_PRIVATE_BYTES, CONNECT_PRIVATE_BYTES, ConnectParams, REJECT_PRIVATE_BYTES},
    private_data::PrivateData,
};

/// With a connect request: 56 bytes.
pub type ConnectData = PrivateData<CONNECT_PRIVATE_BYTES>;
/// With an accept: 196 bytes.
pub type AcceptData = PrivateData<ACCEPT_PRIVATE_BYTES>;
/// With a reject: 148 bytes.
pub type RejectData = PrivateData<REJECT_PRIVATE_BYTES>;

/// How often a send is tried again: 3 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryCount(u8);

impl RetryCount {
    /// The most there can be. For want of a receive it is without an end: a peer that never posts one is a silent hang.
    pub const MAX: Self = Self(7);

    /// # Errors
    /// [`CmError::Device`] above 7.
    pub fn new(count: u8) -> Result<Self, CmError> {
        if count <= 7 { Ok(Self(count)) } else { Err(above("retry count", count.into(), 7)) }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// How many READs and atomics may be outstanding. The C interface spells the maximum as 255.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// As many as the device can; we ask it, and never pass 255 on.
    Max,
    /// At most so many; the device's own limit clamps it.
    AtMost(u8),
}

impl From<u8> for Depth {
    /// 255 is [`Depth::Max`], as in C.
    fn from(depth: u8) -> Self {
        if depth == u8::MAX { Self::Max } else { Self::AtMost(depth) }
    }
}

impl Depth {
    fn asked(self, device: u8) -> u8 {
        match self {
            Self::Max => device,
            Self::AtMost(depth) => depth,
        }
    }
}

/// What the device can: `max_qp_rd_atom` and `max_qp_init_rd_atom`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceDepths {
    /// READs a peer may have outstanding at us.
    pub responder_resources: u8,
    /// READs we may have outstanding at a peer.
    pub initiator_depth: u8,
}

/// Both depths of a connection as this side sees them: asked, offered, granted, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Depths {
    /// READs the peer may have outstanding at us.
    pub responder_resources: GrantedDepth,
    /// READs we may have outstanding at the peer.
    pub initiator_depth: GrantedDepth,
}

impl Depths {
    /// `peer` is what the CM's event says the peer gives: (responder_resources, initiator_depth), as seen from here.
    pub(crate) fn settle(responder: Depth, initiator: Depth, device: DeviceDepths, peer: (u8, u8)) -> Self {
        let term =
            |asked: Depth, device: u8, peer: u8| GrantedDepth::settle(asked.asked(device), device, peer);
        Self {
            responder_resources: term(responder, device.responder_resources, peer.0),
            initiator_depth: term(initiator, device.initiator_depth, peer.1),
        }
    }

    /// What is told to the CM: (responder_resources, initiator_depth).
    pub(crate) fn granted(&self) -> (u8, u8) {
        (self.responder_resources.granted, self.initiator_depth.granted)
    }
}

/// One depth of a connection as this side sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantedDepth {
    /// What was asked for; for [`Depth::Max`], what the device can.
    pub asked: u8,
    /// What was told to the peer, after our device's limit.
    pub offered: u8,
    /// What holds.
    pub granted: u8,
}

impl GrantedDepth {
    fn settle(asked: u8, device: u8, peer: u8) -> Self {
        let offered = asked.min(device);
        Self { asked, offered, granted: offered.min(peer) }
    }
}

impl fmt::Display for GrantedDepth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, offered, granted } = self;
        if granted < offered {
            write!(f, "{granted} (asked {asked}, offered {offered}; the peer gives {granted})")
        } else if offered < asked {
            write!(f, "{granted} (asked {asked}; the device gives {offered})")
        } else {
            write!(f, "{granted}")
        }
    }
}

/// `rdma_conn_param`, with private data of at most `DATA` bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnParam<const DATA: usize> {
    /// What the other side is sent along.
    pub private_data: PrivateData<DATA>,
    /// READs the peer may have outstanding at us; with an accept never more than it asked for.
    pub responder_resources: Depth,
    /// READs we want to have outstanding at the peer; with an accept never more than it gives.
    pub initiator_depth: Depth,
    /// Says whether hardware flow control is available; exchanged only.
    pub flow_control: bool,
    /// How often sends of both sides are tried again without an answer. The active side's holds.
    pub retry_count: RetryCount,
    /// How often the peer's sends are tried again when we have no receive.
    pub rnr_retry_count: RetryCount,
    /// Whether our receives come from a shared queue; only for a queue pair of our own making.
    pub srq: bool,
}

/// What connects.
pub type ConnectParam = ConnParam<CONNECT_PRIVATE_BYTES>;
/// What accepts.
pub type AcceptParam = ConnParam<ACCEPT_PRIVATE_BYTES>;

impl<const DATA: usize> Default for ConnParam<DATA> {
    fn default() -> Self {
        Self {
            private_data: PrivateData::EMPTY,
            responder_resources: Depth::Max,
            initiator_depth: Depth::Max,
            flow_control: false,
            retry_count: RetryCount::MAX,
            rnr_retry_count: RetryCount::MAX,
            srq: false,
        }
    }
}

impl<const DATA: usize> ConnParam<DATA> {
    /// With the numbers that `depths` came to, and for the queue pair `qp_num`.
    pub(crate) fn raw(&self, depths: &Depths, qp_num: u32) -> ConnectParams {
        let (responder_resources, initiator_depth) = depths.granted();
        ConnectParams {
            private: self.private_data.bytes().to_vec(),
            responder_resources,
            initiator_depth,
            flow_control: self.flow_control,
            retry_count: self.retry_count.get(),
            rnr_retry_count: self.rnr_retry_count.get(),
            srq: self.srq,
            qp_num,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private_data::TooLong;

    #[test]
    fn private_data_has_a_limit_for_each_side() {
        for len in 0..=56 {
            assert_eq!(ConnectData::new(&[7; 60][..len]).unwrap().bytes(), &[7; 60][..len]);
        }
        assert_eq!(ConnectData::new(&[0; 57]), Err(TooLong { bytes: 57, limit: 56 }));
        assert!(AcceptData::new(&[0; 196]).is_ok() && AcceptData::new(&[0; 197]).is_err());
        assert!(RejectData::new(&[0; 148]).is_ok() && RejectData::new(&[0; 149]).is_err());
        assert!(AcceptData::new(&[0; 300]).is_err());
    }

    /// `ai_connect` data comes first and eats into the limit.
    #[test]
    fn ai_connect_data_comes_first() {
        let data = ConnectData::behind(&[1, 2], &[3]).unwrap();
        assert_eq!(data.bytes(), [1, 2, 3]);
        assert!(ConnectData::behind(&[0; 16], &[0; 40]).is_ok());
        assert!(ConnectData::behind(&[0; 17], &[0; 40]).is_err());
    }

    #[test]
    fn counts_have_three_bits() {
        assert_eq!(RetryCount::new(7), Ok(RetryCount::MAX));
        assert_eq!(RetryCount::new(8), Err(above("retry count", 8, 7)));
        assert_eq!(RetryCount::new(0).unwrap().get(), 0);
        assert!(RetryCount::new(255).is_err());
    }

    /// 255 means the maximum and is resolved here; everything else is clamped by the device, then by the peer.
    #[test]
    fn depths_settle_by_the_rules() {
        let device = DeviceDepths { responder_resources: 128, initiator_depth: 64 };
        let free = (u8::MAX, u8::MAX);
        let max = Depths::settle(255.into(), 255.into(), device, free);
        assert_eq!(max.granted(), (128, 64));
        assert_eq!(max.initiator_depth.to_string(), "64");
        let high = Depths::settle(200.into(), 200.into(), device, free);
        assert_eq!(high.granted(), (128, 64));
        assert_eq!(high.responder_resources.to_string(), "128 (asked 200; the device gives 128)");
        // An accept may not be above what the event says.
        for asked in [0, 1, 3, 16, 128, 255] {
            for event in [0, 1, 3, 16, 128, 255] {
                let terms = Depths::settle(asked.into(), asked.into(), device, (event, event));
                let (responder, initiator) = terms.granted();
                assert!(responder <= event && responder <= asked && responder <= 128);
                assert!(initiator <= event && initiator <= asked && initiator <= 64);
            }
        }
        let peer = Depths::settle(16.into(), 16.into(), device, (4, 0));
        assert_eq!(peer.granted(), (4, 0));
        assert_eq!(peer.initiator_depth.to_string(), "0 (asked 16, offered 16; the peer gives 0)");
    }
}
