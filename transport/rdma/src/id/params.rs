//! What the CM is told with a connection, and what a queue pair is asked to be.

use crate::{
    id::space::QpType,
    sys,
    verbs::{context::Pd, cq::Cq, srq::Srq},
};

/// Bytes of private data that a connect request carries on every fabric.
pub const CONNECT_PRIVATE_BYTES: usize = 56;
/// Bytes of private data that an accept carries on every fabric.
pub const ACCEPT_PRIVATE_BYTES: usize = 196;
/// Bytes of private data that a reject carries on every fabric.
pub const REJECT_PRIVATE_BYTES: usize = 148;

/// What both `rdma_connect` and `rdma_accept` are told.
#[derive(Clone, Debug)]
pub struct ConnectParams {
    /// At most 56 bytes on connect, 196 on accept.
    pub private: Vec<u8>,
    /// READs that the peer may have outstanding at us.
    pub responder_resources: u8,
    /// READs that we may have outstanding at the peer.
    pub initiator_depth: u8,
    /// Exchanged only, never put into a queue pair.
    pub flow_control: bool,
    /// Ignored on accept.
    pub retry_count: u8,
    /// Times the peer's send is tried again when we have no receive; 7 is for ever.
    pub rnr_retry_count: u8,
    /// These two are ignored when the id has a queue pair.
    pub srq: bool,
    /// Of a queue pair that the CM did not make.
    pub qp_num: u32,
}

/// Times a send is tried again without an answer: the most that 3 bits can say.
const RETRY_COUNT: u8 = 7;
/// Times the peer's send is tried again when no receive is posted. 7 would mean for ever, and turn a broken peer into a
/// silent hang.
const RNR_RETRY_COUNT: u8 = 6;

impl ConnectParams {
    /// With as many retries as end.
    pub fn new(private: Vec<u8>, responder_resources: u8, initiator_depth: u8) -> Self {
        Self {
            private,
            responder_resources,
            initiator_depth,
            flow_control: false,
            retry_count: RETRY_COUNT,
            rnr_retry_count: RNR_RETRY_COUNT,
            srq: false,
            qp_num: 0,
        }
    }

    /// The result points into `self`.
    pub(crate) fn raw(&self) -> sys::rdma_conn_param {
        let mut raw: sys::rdma_conn_param = sys::zeroed();
        raw.private_data = self.private.as_ptr().cast();
        raw.private_data_len = u8::try_from(self.private.len()).unwrap_or(u8::MAX);
        raw.responder_resources = self.responder_resources;
        raw.initiator_depth = self.initiator_depth;
        raw.flow_control = u8::from(self.flow_control);
        raw.retry_count = self.retry_count;
        raw.rnr_retry_count = self.rnr_retry_count;
        raw.srq = u8::from(self.srq);
        raw.qp_num = self.qp_num;
        raw
    }
}

/// What a queue pair is asked to be.
#[derive(Clone, Copy, Debug)]
pub struct QpRequest<'a> {
    /// Sends, READs and WRITEs that may be posted at a time.
    pub send_entries: u32,
    /// Receives that may be posted at a time.
    pub recv_entries: u32,
    /// Pieces of memory that one request may name.
    pub pieces: u32,
    /// Bytes that the device takes with a request.
    pub inline_bytes: u32,
    /// Where its receives come from, if not from a queue of its own.
    pub srq: Option<&'a Srq>,
    /// What kind of queue pair it is.
    pub kind: QpType,
    /// Flags of `ibv_create_qp_ex(3)`, by `rdma_create_qp_ex(3)`: 2 keeps own multicast messages from coming back. Few
    /// devices have any. `None` is `rdma_create_qp(3)`.
    pub create_flags: Option<u32>,
}

impl QpRequest<'_> {
    /// For `ibv_create_qp(3)` and `rdma_create_qp(3)`.
    pub(crate) fn attributes(self, sends: &Cq, receives: &Cq) -> sys::ibv_qp_init_attr {
        let mut attributes: sys::ibv_qp_init_attr = sys::zeroed();
        attributes.send_cq = sends.raw();
        attributes.recv_cq = receives.raw();
        attributes.qp_type = self.kind.raw();
        attributes.cap.max_send_wr = self.send_entries;
        attributes.cap.max_recv_wr = self.recv_entries;
        attributes.cap.max_send_sge = self.pieces;
        attributes.cap.max_recv_sge = self.pieces;
        attributes.cap.max_inline_data = self.inline_bytes;
        if let Some(srq) = self.srq {
            attributes.srq = srq.raw();
            attributes.cap.max_recv_sge = 0;
        }
        attributes
    }

    /// For `rdma_create_qp_ex(3)`.
    pub(crate) fn extended(
        self,
        pd: &Pd,
        sends: &Cq,
        receives: &Cq,
        create_flags: u32,
    ) -> sys::ibv_qp_init_attr_ex {
        /// `IBV_QP_INIT_ATTR_PD` and `IBV_QP_INIT_ATTR_CREATE_FLAGS` of `verbs.h`.
        const PD: u32 = 1;
        const CREATE_FLAGS: u32 = 4;
        let plain = self.attributes(sends, receives);
        let mut attributes: sys::ibv_qp_init_attr_ex = sys::zeroed();
        (attributes.send_cq, attributes.recv_cq, attributes.srq) = (plain.send_cq, plain.recv_cq, plain.srq);
        (attributes.cap, attributes.qp_type, attributes.pd) = (plain.cap, plain.qp_type, pd.raw());
        attributes.comp_mask = if create_flags == 0 { PD } else { PD | CREATE_FLAGS };
        attributes.create_flags = create_flags;
        attributes
    }
}
