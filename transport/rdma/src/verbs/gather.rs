//! Single work requests of any number of pieces, with every flag: for callers that post one at a time.

use crate::{
    sys,
    verbs::{
        qp::{LocalBytes, Qp, RemoteBytes},
        srq::Srq,
    },
};

/// Most pieces of one work request.
pub(crate) const PIECES_MAX: usize = 32;

/// What a send work request does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verb {
    Send(Option<u32>),
    Write(RemoteBytes, Option<u32>),
    Read(RemoteBytes),
    /// The old value, and the new one.
    CompareSwap(RemoteBytes, u64, u64),
    FetchAdd(RemoteBytes, u64),
}

impl Verb {
    fn fill(self, request: &mut sys::ibv_send_wr) {
        use sys::ibv_wr_opcode as op;
        let rdma = |RemoteBytes { address: remote_addr, rkey }| sys::wr_t {
            rdma: sys::rdma_t { remote_addr, rkey },
        };
        let atomic = |RemoteBytes { address: remote_addr, rkey }, compare_add, swap| sys::wr_t {
            atomic: sys::atomic_t { remote_addr, compare_add, swap, rkey },
        };
        let (Self::Send(imm) | Self::Write(_, imm)) = self else {
            (request.opcode, request.wr) = match self {
                Self::CompareSwap(on, old, new) => (op::IBV_WR_ATOMIC_CMP_AND_SWP, atomic(on, old, new)),
                Self::FetchAdd(on, add) => (op::IBV_WR_ATOMIC_FETCH_AND_ADD, atomic(on, add, 0)),
                Self::Read(from) | Self::Write(from, _) => (op::IBV_WR_RDMA_READ, rdma(from)),
                Self::Send(_) => return,
            };
            return;
        };
        request.opcode = match (self, imm) {
            (Self::Write(..), None) => op::IBV_WR_RDMA_WRITE,
            (Self::Write(..), Some(_)) => op::IBV_WR_RDMA_WRITE_WITH_IMM,
            (_, None) => op::IBV_WR_SEND,
            (_, Some(_)) => op::IBV_WR_SEND_WITH_IMM,
        };
        if let Self::Write(to, _) = self {
            request.wr = rdma(to);
        }
        let imm_data = imm.unwrap_or(0).to_be();
        request.imm_data_invalidated_rkey_union = sys::imm_data_invalidated_rkey_union_t { imm_data };
    }
}

/// The pieces as the library reads them, and how many.
fn places(pieces: &[LocalBytes]) -> ([sys::ibv_sge; PIECES_MAX], i32) {
    let mut places = [sys::ibv_sge { addr: 0, length: 0, lkey: 0 }; PIECES_MAX];
    for (place, piece) in places.iter_mut().zip(pieces) {
        *place = sys::ibv_sge { addr: piece.address, length: piece.bytes, lkey: piece.lkey };
    }
    (places, i32::try_from(pieces.len().min(PIECES_MAX)).unwrap_or(0))
}

/// Posts one request to the send queue (`ibv_post_send(3)`), with these `ibv_send_flags`.
///
/// # Errors
/// errno; EINVAL for more pieces than the queue pair was made for.
pub(crate) fn post_send(
    qp: &Qp,
    id: u64,
    verb: Verb,
    pieces: &[LocalBytes],
    flags: sys::ibv_send_flags,
) -> Result<(), i32> {
    let (mut places, count) = places(pieces);
    let mut request: sys::ibv_send_wr = sys::zeroed();
    verb.fill(&mut request);
    (request.wr_id, request.send_flags) = (id, flags.0);
    (request.sg_list, request.num_sge) = (places.as_mut_ptr(), count);
    let mut bad = std::ptr::null_mut();
    // SAFETY: the queue pair is live (we hold its licence); request and places are locals that the call only reads. For
    // what they name, the maker of each `LocalBytes` answers.
    sys::verbs_result(unsafe { sys::ibv_post_send(qp.raw(), &raw mut request, &raw mut bad) })
}

/// Posts one receive to a queue pair (`ibv_post_recv(3)`).
///
/// # Errors
/// errno.
pub(crate) fn post_receive(qp: &Qp, id: u64, into: &[LocalBytes]) -> Result<(), i32> {
    receive(id, into, |request, bad| {
        // SAFETY: the queue pair is live (we hold its licence); the rest as in `post_send`.
        unsafe { sys::ibv_post_recv(qp.raw(), request, bad) }
    })
}

/// Posts one receive to a shared receive queue (`ibv_post_srq_recv(3)`).
///
/// # Errors
/// errno.
pub(crate) fn post_shared(srq: &Srq, id: u64, into: &[LocalBytes]) -> Result<(), i32> {
    receive(id, into, |request, bad| {
        // SAFETY: the queue is live while it is borrowed; the rest as in `post_send`.
        unsafe { sys::ibv_post_srq_recv(srq.raw(), request, bad) }
    })
}

fn receive(
    id: u64,
    into: &[LocalBytes],
    post: impl FnOnce(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> i32,
) -> Result<(), i32> {
    let (mut places, count) = places(into);
    let mut request: sys::ibv_recv_wr = sys::zeroed();
    (request.wr_id, request.sg_list, request.num_sge) = (id, places.as_mut_ptr(), count);
    let mut bad = std::ptr::null_mut();
    sys::verbs_result(post(&raw mut request, &raw mut bad))
}
