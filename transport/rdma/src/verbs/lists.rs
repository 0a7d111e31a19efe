//! Work requests that one doorbell covers: linked once in memory of their own, so that only what differs is written.
//!
//! ```text
//!  requests   0 ──next──► 1 ──next──► 2 ──next──► …      `room` of them; each names its place
//!  places     0           1           2
//!             ◄─── len ───►  the last one's `next` is null while they are posted
//! ```

use std::ptr::NonNull;

use crate::{
    sys,
    verbs::{
        qp::{Flags, LocalBytes, PostError, Qp, RemoteBytes},
        srq::Srq,
    },
};

/// `ibv_send_wr` or `ibv_recv_wr`.
trait Request: sys::Plain {
    /// Its local memory is what `place` says.
    fn lie_at(&mut self, place: *mut sys::ibv_sge);
    /// `next` is posted with it.
    fn link(&mut self, next: *mut Self);
}

macro_rules! requests {
    ($($name:ident)*) => { $(impl Request for sys::$name {
        fn lie_at(&mut self, place: *mut sys::ibv_sge) {
            self.sg_list = place;
        }

        fn link(&mut self, next: *mut Self) {
            self.next = next;
        }
    })* };
}
requests! { ibv_send_wr ibv_recv_wr }

/// What both lists are. Their memory is reached by these pointers, and by those in it, alone.
struct Linked<R> {
    requests: NonNull<R>,
    places: NonNull<sys::ibv_sge>,
    room: usize,
    len: usize,
}

// SAFETY: requests and places are plain data, and the pointers in them are into memory of its own that nobody else has.
unsafe impl<R> Send for Linked<R> {}

impl<R> std::fmt::Debug for Linked<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.len, self.room)
    }
}

fn leaked<T>(items: impl Iterator<Item = T>) -> NonNull<T> {
    NonNull::from(Box::leak(items.collect::<Box<[T]>>())).cast()
}

impl<R: Request> Linked<R> {
    fn new(room: usize) -> Self {
        let places = leaked((0..room).map(|_| sys::ibv_sge { addr: 0, length: 0, lkey: 0 }));
        let requests = leaked((0..room).map(|_| sys::zeroed::<R>()));
        let list = Self { requests, places, room, len: 0 };
        for at in 0..room {
            // SAFETY: one of the `room` requests that were just made, and the only reference to it.
            let request = unsafe { &mut *requests.as_ptr().wrapping_add(at) };
            request.lie_at(places.as_ptr().wrapping_add(at));
            request.link(list.behind(at));
        }
        list
    }

    /// The request behind the one at `at`; null when that is the last that there is room for.
    #[inline]
    fn behind(&self, at: usize) -> *mut R {
        if at + 1 < self.room { self.requests.as_ptr().wrapping_add(at + 1) } else { std::ptr::null_mut() }
    }

    /// One more request, as it was left the last time, and its place.
    #[inline]
    fn push(&mut self) -> (&mut R, &mut sys::ibv_sge) {
        assert!(self.len < self.room, "a list is as long as the queue that it is posted to");
        let at = self.len;
        self.len += 1;
        // SAFETY: one of the `room` requests, by the check; the list is borrowed, so nobody else has it.
        let request = unsafe { &mut *self.requests.as_ptr().wrapping_add(at) };
        // SAFETY: as above: there are as many places.
        let place = unsafe { &mut *self.places.as_ptr().wrapping_add(at) };
        (request, place)
    }

    /// Hands all of them to `post`, which says what the library returned, and empties the list.
    ///
    /// # Errors
    /// How many were taken, and why not the rest.
    #[inline]
    fn post(&mut self, post: impl FnOnce(*mut R, *mut *mut R) -> i32) -> Result<(), PostError> {
        let Some(at) = self.len.checked_sub(1) else { return Ok(()) };
        let first = self.requests.as_ptr();
        let last = first.wrapping_add(at);
        // SAFETY: one of the requests, by `push`; the list is borrowed, and nothing else refers to it here.
        unsafe { &mut *last }.link(std::ptr::null_mut());
        let mut bad = std::ptr::null_mut();
        let result = sys::verbs_result(post(first, &raw mut bad))
            .map_err(|errno| PostError { posted: index_of(bad, first, self.len), errno });
        // SAFETY: as above; the library has copied what it took.
        unsafe { &mut *last }.link(self.behind(at));
        self.len = 0;
        result
    }
}

impl<R> Drop for Linked<R> {
    fn drop(&mut self) {
        let requests = NonNull::slice_from_raw_parts(self.requests, self.room);
        let places = NonNull::slice_from_raw_parts(self.places, self.room);
        // SAFETY: a box of that many was leaked for it, and a post is over when it returns.
        drop(unsafe { Box::from_raw(requests.as_ptr()) });
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(places.as_ptr()) });
    }
}

/// Which request `bad` is; the providers that leave it null failed at the first.
fn index_of<T>(bad: *mut T, first: *mut T, count: usize) -> usize {
    if bad.is_null() {
        return 0;
    }
    (bad.addr().wrapping_sub(first.addr()) / size_of::<T>()).min(count)
}

/// Send work requests of one doorbell. Its room is fixed when it is made.
#[derive(Debug)]
pub struct SendList(Linked<sys::ibv_send_wr>);

impl SendList {
    /// An empty list with room for so many requests.
    pub fn new(room: usize) -> Self {
        Self(Linked::new(room))
    }

    /// Whether there is no room for another request.
    pub fn is_full(&self) -> bool {
        self.0.len == self.0.room
    }

    /// Adds an RDMA WRITE that completes a receive of the peer, which is given `imm`.
    #[inline]
    pub fn write_with_imm(
        &mut self,
        id: impl Into<u64>,
        from: LocalBytes,
        to: RemoteBytes,
        imm: u32,
        flags: Flags,
    ) {
        let request = self.push(id, from, sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, flags);
        request.imm_data_invalidated_rkey_union =
            sys::imm_data_invalidated_rkey_union_t { imm_data: imm.to_be() };
        request.wr = sys::wr_t { rdma: remote(to) };
    }

    /// Adds a SEND.
    #[inline]
    pub fn send(&mut self, id: impl Into<u64>, from: LocalBytes, flags: Flags) {
        self.push(id, from, sys::ibv_wr_opcode::IBV_WR_SEND, flags);
    }

    /// Adds a SEND to a datagram queue pair, with `imm` beside it. Always signalled.
    ///
    /// # Safety
    /// The address handle lives until the request has completed, or the queue pair is destroyed.
    pub(crate) unsafe fn datagram(
        &mut self,
        id: impl Into<u64>,
        from: LocalBytes,
        to: sys::ud_t,
        imm: Option<u32>,
    ) {
        let opcode = match imm {
            Some(_) => sys::ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
            None => sys::ibv_wr_opcode::IBV_WR_SEND,
        };
        let request = self.push(id, from, opcode, SIGNALLED);
        let imm_data = imm.unwrap_or(0).to_be();
        request.imm_data_invalidated_rkey_union = sys::imm_data_invalidated_rkey_union_t { imm_data };
        request.wr = sys::wr_t { ud: to };
    }

    /// Adds an RDMA WRITE.
    pub fn write(&mut self, id: impl Into<u64>, from: LocalBytes, to: RemoteBytes, flags: Flags) {
        self.push(id, from, sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, flags).wr = sys::wr_t { rdma: remote(to) };
    }

    /// Always signalled: the port counts READs by their completions.
    pub fn read(&mut self, id: impl Into<u64>, into: LocalBytes, from: RemoteBytes) {
        let request = self.push(id, into, sys::ibv_wr_opcode::IBV_WR_RDMA_READ, SIGNALLED);
        request.wr = sys::wr_t { rdma: remote(from) };
    }

    /// Sets the word at `on` to `new` if it is `expected`; what it was goes `into`. Always signalled.
    pub fn compare_swap(
        &mut self,
        id: impl Into<u64>,
        into: LocalBytes,
        on: RemoteBytes,
        expected: u64,
        new: u64,
    ) {
        self.atomic(id, into, on, sys::ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, (expected, new));
    }

    /// Adds to the word at `on`; what it was goes `into`. Always signalled.
    pub fn fetch_add(&mut self, id: impl Into<u64>, into: LocalBytes, on: RemoteBytes, add: u64) {
        self.atomic(id, into, on, sys::ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, (add, 0));
    }

    fn atomic(
        &mut self,
        id: impl Into<u64>,
        into: LocalBytes,
        on: RemoteBytes,
        opcode: u32,
        (compare_add, swap): (u64, u64),
    ) {
        let RemoteBytes { address: remote_addr, rkey } = on;
        let atomic = sys::atomic_t { remote_addr, compare_add, swap, rkey };
        self.push(id, into, opcode, SIGNALLED).wr = sys::wr_t { atomic };
    }

    /// One more, of which the remote side and the immediate are what they were for the request in its place before.
    #[inline]
    fn push(
        &mut self,
        id: impl Into<u64>,
        local: LocalBytes,
        opcode: u32,
        flags: Flags,
    ) -> &mut sys::ibv_send_wr {
        let (request, place) = self.0.push();
        (place.addr, place.length, place.lkey) = (local.address, local.bytes, local.lkey);
        request.wr_id = id.into();
        request.num_sge = i32::from(local.bytes > 0);
        request.opcode = opcode;
        request.send_flags = flags.bits();
        request
    }

    /// Posts everything in one call and empties the list.
    ///
    /// # Errors
    /// How many were taken, and why not the rest.
    #[inline]
    pub fn post(&mut self, qp: &Qp) -> Result<(), PostError> {
        // SAFETY: the queue pair is live (we hold its licence). The list is linked within memory that does not move and ends
        // with a null. For what the work names, the maker of each `LocalBytes` answers.
        self.0.post(|first, bad| unsafe { sys::ibv_post_send(qp.raw(), first, bad) })
    }
}

/// One request that is posted by itself over and over. What is the same each time is written once.
#[derive(Debug)]
pub struct OneRequest(Linked<sys::ibv_send_wr>);

impl OneRequest {
    /// A SEND.
    pub fn send(id: impl Into<u64>) -> Self {
        Self::new(id.into(), sys::ibv_wr_opcode::IBV_WR_SEND)
    }

    /// A write whose immediate is its length.
    pub fn write_with_imm(id: impl Into<u64>) -> Self {
        Self::new(id.into(), sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM)
    }

    fn new(id: u64, opcode: u32) -> Self {
        let mut one = Self(Linked::new(1));
        let (request, _) = one.parts();
        (request.wr_id, request.num_sge, request.opcode) = (id, 1, opcode);
        one
    }

    /// The request, and its place.
    #[inline]
    fn parts(&mut self) -> (&mut sys::ibv_send_wr, &mut sys::ibv_sge) {
        // SAFETY: its list was made for one (`new`), and is borrowed, so nobody else has it.
        let request = unsafe { self.0.requests.as_mut() };
        // SAFETY: as above: there are as many places.
        let place = unsafe { self.0.places.as_mut() };
        (request, place)
    }

    /// From here on what it sends is registered under `lkey`.
    pub fn set_lkey(&mut self, lkey: u32) {
        self.parts().1.lkey = lkey;
    }

    /// From here on it writes what is registered under `rkey`.
    pub fn set_rkey(&mut self, rkey: u32) {
        self.parts().0.wr = sys::wr_t { rdma: remote(RemoteBytes { address: 0, rkey }) };
    }

    /// Posts `from`, which goes `to` there in the peer's memory, unless it is a SEND.
    ///
    /// # Errors
    /// errno.
    ///
    /// # Safety
    /// `from` is registered under the key that was set last.
    #[inline]
    pub unsafe fn post(&mut self, qp: &Qp, from: LocalBytes, to: u64, flags: Flags) -> Result<(), i32> {
        let LocalBytes { address, bytes, .. } = from;
        let (request, place) = self.parts();
        (place.addr, place.length) = (address, bytes);
        request.send_flags = flags.bits();
        request.imm_data_invalidated_rkey_union =
            sys::imm_data_invalidated_rkey_union_t { imm_data: bytes.to_be() };
        request.wr.rdma.remote_addr = to;
        let mut bad = std::ptr::null_mut();
        // SAFETY: as in `SendList::post`; it is the only one of its list, so its `next` is null. For what it names, the
        // caller's promise.
        sys::verbs_result(unsafe { sys::ibv_post_send(qp.raw(), request, &raw mut bad) })
    }
}

const SIGNALLED: Flags = Flags { signalled: true, inline: false };

#[inline]
fn remote(RemoteBytes { address: remote_addr, rkey }: RemoteBytes) -> sys::rdma_t {
    sys::rdma_t { remote_addr, rkey }
}

/// Receive work requests of one doorbell.
#[derive(Debug)]
pub struct RecvList(Linked<sys::ibv_recv_wr>);

impl RecvList {
    /// An empty list with room for so many requests.
    pub fn new(room: usize) -> Self {
        Self(Linked::new(room))
    }

    /// Whether there is no room for another request.
    pub fn is_full(&self) -> bool {
        self.0.len == self.0.room
    }

    /// `None` is a receive without memory: it takes a write-with-immediate.
    #[inline]
    pub fn push(&mut self, id: impl Into<u64>, into: Option<LocalBytes>) {
        let (request, place) = self.0.push();
        request.wr_id = id.into();
        request.num_sge = i32::from(into.is_some());
        if let Some(LocalBytes { address, bytes, lkey }) = into {
            (place.addr, place.length, place.lkey) = (address, bytes, lkey);
        }
    }

    /// Posts everything in one call and empties the list.
    ///
    /// # Errors
    /// How many were taken, and why not the rest.
    pub fn post(&mut self, qp: &Qp) -> Result<(), PostError> {
        // SAFETY: as in `SendList::post`.
        self.0.post(|first, bad| unsafe { sys::ibv_post_recv(qp.raw(), first, bad) })
    }

    /// As [`RecvList::post`], for whichever queue pair comes first.
    ///
    /// # Errors
    /// As there.
    pub fn post_shared(&mut self, srq: &Srq) -> Result<(), PostError> {
        // SAFETY: the queue is live while it is borrowed; the rest as in `SendList::post`.
        self.0.post(|first, bad| unsafe { sys::ibv_post_srq_recv(srq.raw(), first, bad) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a library would see: ids and local addresses, one request behind the other.
    fn seen(mut request: *mut sys::ibv_recv_wr) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        while !request.is_null() {
            // SAFETY: linked by the list, which outlives the post.
            let one = unsafe { request.read() };
            // SAFETY: as above.
            let place = unsafe { one.sg_list.read() };
            found.push((one.wr_id, place.addr));
            request = one.next;
        }
        found
    }

    #[test]
    fn a_post_sees_what_was_pushed_and_nothing_of_the_one_before() {
        let mut list = RecvList::new(3);
        let push = |list: &mut RecvList, slot: u64| {
            let into = LocalBytes { address: 100 + slot, bytes: 8, lkey: 1 };
            list.push(slot, Some(into));
        };
        (0..3).for_each(|slot| push(&mut list, slot));
        assert!(list.is_full());
        let refused = list.0.post(|first, bad| {
            assert_eq!(seen(first), [(0, 100), (1, 101), (2, 102)]);
            // SAFETY: a place of the list, for one of its requests.
            unsafe { bad.write(first.wrapping_add(1)) };
            libc::ENOMEM
        });
        assert_eq!(refused, Err(PostError { posted: 1, errno: libc::ENOMEM }));
        for count in [1, 2, 3_u64] {
            (0..count).for_each(|slot| push(&mut list, 7 + slot));
            let posted = list.0.post(|first, _| {
                assert_eq!(seen(first).len() as u64, count);
                0
            });
            assert_eq!(posted, Ok(()));
        }
        assert_eq!(list.0.post(|_, _| unreachable!("there is nothing to post")), Ok(()));
    }

    #[test]
    #[should_panic(expected = "as long as the queue")]
    fn a_list_takes_no_more_than_its_room() {
        let mut list = RecvList::new(1);
        (0..2_u64).for_each(|slot| list.push(slot, None));
    }
}
