//! A queue pair as its port sees it: posting, in lists that one doorbell covers.

use std::{mem::MaybeUninit, ptr::NonNull};

use crate::{
    ConnId,
    mem::Region,
    verbs::{srq::Srq, sys, wr_id::WrId},
};

/// The licence to post on a queue pair. The control thread made it with the id and destroys it only in exchange
/// for this value, so the pointer is good as long as somebody has it.
#[derive(Debug)]
pub(crate) struct Qp {
    raw: NonNull<sys::ibv_qp>,
    /// Bytes the device takes inline, as granted.
    pub(crate) inline_bytes: u32,
}

// SAFETY: a queue pair may be posted to from any thread; there is one licence, so from one at a time.
unsafe impl Send for Qp {}

impl Qp {
    /// # Safety
    /// `raw` stays valid until this value is given back to whoever destroys it.
    pub(crate) unsafe fn new(raw: NonNull<sys::ibv_qp>, inline_bytes: u32) -> Self {
        Self { raw, inline_bytes }
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_qp {
        self.raw.as_ptr()
    }

    /// Names it in completions.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair is live (we hold the licence); its number never changes.
        unsafe { (*self.raw()).qp_num }
    }

    /// Sets the RNR timer; legal in RTS (`ibv_modify_qp(3)`).
    pub(crate) fn set_rnr_timer(&self, code: u8) -> Result<(), i32> {
        let mut attributes = MaybeUninit::<sys::ibv_qp_attr>::zeroed();
        // SAFETY: the place is ours; `ibv_qp_attr` is plain data, for which zero is a value.
        let place = unsafe { attributes.assume_init_mut() };
        place.min_rnr_timer = code & 31;
        let mask = sys::ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0;
        // SAFETY: the queue pair is live (we hold the licence); only the masked field is read.
        let returned = unsafe { sys::ibv_modify_qp(self.raw(), place, i32::try_from(mask).unwrap_or(0)) };
        sys::verbs_result(returned)
    }
}

/// Memory of our own that a work request names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalBytes {
    pub(crate) address: u64,
    pub(crate) bytes: u32,
    pub(crate) lkey: u32,
}

impl LocalBytes {
    /// `bytes` of `region` from `at`, which is registered under `lkey`.
    ///
    /// # Panics
    /// When they are not inside it.
    pub(crate) fn of(region: &Region, at: usize, bytes: u32, lkey: u32) -> Self {
        Self { address: region.at(at, bytes as usize).addr().get() as u64, bytes, lkey }
    }
}

/// Memory of the peer that a work request names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteBytes {
    pub(crate) address: u64,
    pub(crate) rkey: u32,
}

/// How a work request is posted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flags {
    pub(crate) signalled: bool,
    pub(crate) inline: bool,
}

impl Flags {
    fn bits(self) -> u32 {
        let signalled = if self.signalled { sys::ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
        let inline = if self.inline { sys::ibv_send_flags::IBV_SEND_INLINE.0 } else { 0 };
        signalled | inline
    }
}

/// Why a list was not posted whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PostError {
    /// Work requests that were posted before the one that failed.
    pub(crate) posted: usize,
    pub(crate) errno: i32,
}

/// Send work requests of one doorbell. Its room is fixed when it is made.
pub(crate) struct SendList {
    requests: Vec<sys::ibv_send_wr>,
    places: Vec<sys::ibv_sge>,
    room: usize,
}

impl std::fmt::Debug for SendList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SendList({} of {})", self.requests.len(), self.room)
    }
}

// SAFETY: the pointers in it point into its own vectors and are set anew before every post.
unsafe impl Send for SendList {}

impl SendList {
    pub(crate) fn new(room: usize) -> Self {
        Self { requests: Vec::with_capacity(room), places: Vec::with_capacity(room), room }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.requests.len() == self.room
    }

    #[inline]
    pub(crate) fn write_with_imm(
        &mut self,
        id: WrId,
        from: LocalBytes,
        to: RemoteBytes,
        imm: u32,
        flags: Flags,
    ) {
        self.push(id, from, Some(to), sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, imm, flags);
    }

    pub(crate) fn send(&mut self, id: WrId, from: LocalBytes, flags: Flags) {
        self.push(id, from, None, sys::ibv_wr_opcode::IBV_WR_SEND, 0, flags);
    }

    pub(crate) fn write(&mut self, id: WrId, from: LocalBytes, to: RemoteBytes, flags: Flags) {
        self.push(id, from, Some(to), sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, 0, flags);
    }

    /// Always signalled: the port counts READs by their completions.
    pub(crate) fn read(&mut self, id: WrId, into: LocalBytes, from: RemoteBytes) {
        let flags = Flags { signalled: true, inline: false };
        self.push(id, into, Some(from), sys::ibv_wr_opcode::IBV_WR_RDMA_READ, 0, flags);
    }

    /// Sets the word at `on` to `new` if it is `expected`; what it was goes `into`. Always signalled.
    pub(crate) fn compare_swap(
        &mut self,
        id: WrId,
        into: LocalBytes,
        on: RemoteBytes,
        expected: u64,
        new: u64,
    ) {
        self.atomic(id, into, on, sys::ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, (expected, new));
    }

    /// Adds to the word at `on`; what it was goes `into`. Always signalled.
    pub(crate) fn fetch_add(&mut self, id: WrId, into: LocalBytes, on: RemoteBytes, add: u64) {
        self.atomic(id, into, on, sys::ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, (add, 0));
    }

    fn atomic(&mut self, id: WrId, into: LocalBytes, on: RemoteBytes, opcode: u32, operands: (u64, u64)) {
        self.push(id, into, None, opcode, 0, Flags { signalled: true, inline: false });
        if let Some(request) = self.requests.last_mut() {
            let ((compare_add, swap), RemoteBytes { address: remote_addr, rkey }) = (operands, on);
            request.wr = sys::wr_t { atomic: sys::atomic_t { remote_addr, compare_add, swap, rkey } };
        }
    }

    #[inline]
    fn push(
        &mut self,
        id: WrId,
        local: LocalBytes,
        remote: Option<RemoteBytes>,
        opcode: u32,
        imm: u32,
        flags: Flags,
    ) {
        debug_assert!(!self.is_full(), "the list is as long as the send queue");
        // SAFETY: plain data and pointers, for which zero is a value; the unions hold integers and pointers.
        self.requests.push(unsafe { MaybeUninit::zeroed().assume_init() });
        let Some(request) = self.requests.last_mut() else { return };
        request.wr_id = id.bits();
        request.num_sge = i32::from(local.bytes > 0);
        request.opcode = opcode;
        request.send_flags = flags.bits();
        request.imm_data_invalidated_rkey_union =
            sys::imm_data_invalidated_rkey_union_t { imm_data: imm.to_be() };
        if let Some(RemoteBytes { address: remote_addr, rkey }) = remote {
            request.wr = sys::wr_t { rdma: sys::rdma_t { remote_addr, rkey } };
        }
        self.places.push(sys::ibv_sge { addr: local.address, length: local.bytes, lkey: local.lkey });
    }

    /// Posts everything in one call and empties the list.
    ///
    /// # Errors
    /// How many were taken, and why not the rest.
    pub(crate) fn post(&mut self, qp: &Qp) -> Result<(), PostError> {
        if self.requests.is_empty() {
            return Ok(());
        }
        let (first, places) = (self.requests.as_mut_ptr(), self.places.as_mut_ptr());
        for (at, request) in self.requests.iter_mut().enumerate() {
            request.sg_list = places.wrapping_add(at);
            // The last one's successor is set to null below.
            request.next = first.wrapping_add(at + 1);
        }
        if let Some(last) = self.requests.last_mut() {
            last.next = std::ptr::null_mut();
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is live (we hold its licence); the list is linked within vectors that do not
        // move during the call; what the work names stays registered until the queue pair is destroyed.
        let returned = unsafe { sys::ibv_post_send(qp.raw(), self.requests.as_mut_ptr(), &raw mut bad) };
        let result = sys::verbs_result(returned)
            .map_err(|errno| PostError { posted: index_of(bad, first, self.requests.len()), errno });
        self.requests.clear();
        self.places.clear();
        result
    }
}

/// Receive work requests of one doorbell.
pub(crate) struct RecvList {
    requests: Vec<sys::ibv_recv_wr>,
    places: Vec<sys::ibv_sge>,
    room: usize,
}

impl std::fmt::Debug for RecvList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RecvList({} of {})", self.requests.len(), self.room)
    }
}

// SAFETY: as for `SendList`.
unsafe impl Send for RecvList {}

impl RecvList {
    pub(crate) fn new(room: usize) -> Self {
        Self { requests: Vec::with_capacity(room), places: Vec::with_capacity(room), room }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.requests.len() == self.room
    }

    /// `None` is a receive without memory: it takes a write-with-immediate.
    pub(crate) fn push(&mut self, id: WrId, into: Option<LocalBytes>) {
        debug_assert!(!self.is_full(), "the list is as long as the receive queue");
        let place = into.unwrap_or(LocalBytes { address: 0, bytes: 0, lkey: 0 });
        self.places.push(sys::ibv_sge { addr: place.address, length: place.bytes, lkey: place.lkey });
        self.requests.push(sys::ibv_recv_wr {
            wr_id: id.bits(),
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: i32::from(into.is_some()),
        });
    }

    /// Posts everything in one call and empties the list.
    ///
    /// # Errors
    /// How many were taken, and why not the rest.
    pub(crate) fn post(&mut self, qp: &Qp) -> Result<(), PostError> {
        // SAFETY: as in `SendList::post`.
        self.post_by(|first, bad| unsafe { sys::ibv_post_recv(qp.raw(), first, bad) })
    }

    /// As [`RecvList::post`], for whichever queue pair comes first.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn post_shared(&mut self, srq: &Srq) -> Result<(), PostError> {
        // SAFETY: the queue is live while it is borrowed; the rest as in `SendList::post`: what the work names stays
        // registered until the queue is destroyed.
        self.post_by(|first, bad| unsafe { sys::ibv_post_srq_recv(srq.raw(), first, bad) })
    }

    fn post_by(
        &mut self,
        post: impl FnOnce(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> i32,
    ) -> Result<(), PostError> {
        if self.requests.is_empty() {
            return Ok(());
        }
        let (first, places) = (self.requests.as_mut_ptr(), self.places.as_mut_ptr());
        for (at, request) in self.requests.iter_mut().enumerate() {
            request.sg_list = places.wrapping_add(at);
            request.next = first.wrapping_add(at + 1);
        }
        if let Some(last) = self.requests.last_mut() {
            last.next = std::ptr::null_mut();
        }
        let mut bad = std::ptr::null_mut();
        let returned = post(self.requests.as_mut_ptr(), &raw mut bad);
        let result = sys::verbs_result(returned)
            .map_err(|errno| PostError { posted: index_of(bad, first, self.requests.len()), errno });
        self.requests.clear();
        self.places.clear();
        result
    }
}

/// Which request `bad` is; the providers that leave it null failed at the first.
fn index_of<T>(bad: *mut T, first: *mut T, count: usize) -> usize {
    if bad.is_null() {
        return 0;
    }
    (bad.addr().wrapping_sub(first.addr()) / size_of::<T>()).min(count)
}

/// What a connection's receives are posted as.
pub(crate) fn receive_id(conn: ConnId, slot: u16) -> WrId {
    WrId::new(crate::verbs::wr_id::Kind::Receive, conn, slot)
}
