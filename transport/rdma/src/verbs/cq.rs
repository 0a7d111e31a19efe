//! A completion queue with its channel: completions copied out, notification armed, events acked in bulk.

use std::{
    collections::VecDeque,
    os::fd::{BorrowedFd, RawFd},
    ptr::NonNull,
    sync::Arc,
};

use rustix::fs::OFlags;

use crate::{
    error::{DeviceError, system},
    sys,
    verbs::context::{Context, DeviceLimits},
};

/// Entries of a completion queue of the usual size, if the device's hold that many.
pub const CQ_ENTRIES: u32 = 32_767;
/// Completions taken in one call.
pub const POLL_BURST: usize = 32;
const POLL_BURST_INT: i32 = 32;
const _: () = assert!(POLL_BURST == POLL_BURST_INT as usize);

/// One completion, copied out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Completion {
    /// What the work request was posted with.
    pub wr_id: u64,
    /// `ibv_wc_status`; 0 is success. Of what follows, only `wr_id`, `status`, `vendor` and `qp` hold otherwise.
    pub status: u32,
    /// `vendor_err`.
    pub vendor: u32,
    /// Whether it is a receive that was completed by a write-with-immediate.
    pub with_imm: bool,
    /// Host byte order.
    pub imm: u32,
    /// Bytes that a receive got, or that a READ brought.
    pub bytes: u32,
    /// The queue pair's number, which holds whatever the status is.
    pub qp: u32,
}

/// Completions that the library wrote and nobody has taken yet, the oldest first; each is copied out when it is looked at.
/// Zeroed once: a driver leaves fields that mean nothing as they were.
pub struct Harvest {
    written: Box<[sys::ibv_wc; POLL_BURST]>,
    /// Those from `at` on.
    at: usize,
    count: usize,
    /// Older ones: they were taken too early.
    again: VecDeque<Completion>,
}

impl Default for Harvest {
    fn default() -> Self {
        Self::new()
    }
}

impl Harvest {
    /// An empty one.
    pub fn new() -> Self {
        Self {
            written: Box::new([(); POLL_BURST].map(|()| sys::zeroed())),
            at: 0,
            count: 0,
            again: VecDeque::new(),
        }
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.at == self.count && self.again.is_empty()
    }

    /// The next one, which stays.
    pub fn first(&self) -> Option<Completion> {
        let written = || (self.at < self.count).then(|| completion(&self.written[self.at % POLL_BURST]));
        self.again.front().copied().or_else(written)
    }

    /// Takes the next one, unless `make` makes nothing of it, or it is one of the older ones.
    #[inline(always)]
    pub fn take_new_if<R>(&mut self, make: impl FnOnce(&Completion) -> Option<R>) -> Option<R> {
        if (self.at >= self.count) | !self.again.is_empty() {
            return None;
        }
        let made = make(&completion(&self.written[self.at % POLL_BURST]))?;
        self.at += 1;
        Some(made)
    }

    /// Takes the next one.
    pub fn take(&mut self) -> Option<Completion> {
        self.again.pop_front().or_else(|| self.take_new_if(|done| Some(*done)))
    }

    /// Takes the next one as the library wrote it; none of the older ones.
    pub(crate) fn take_raw(&mut self) -> Option<&sys::ibv_wc> {
        let next = self.written[..self.count].get(self.at)?;
        self.at += 1;
        Some(next)
    }

    /// Puts `older` ones in front.
    pub fn put_first(&mut self, older: Vec<Completion>) {
        for done in older.into_iter().rev() {
            self.again.push_front(done);
        }
    }
}

impl std::fmt::Debug for Harvest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} completions", self.count - self.at + self.again.len())
    }
}

/// `IBV_WC_WR_FLUSH_ERR`: the queue pair is in error and this work was not done.
pub const STATUS_FLUSHED: u32 = 5;

/// A completion queue with its channel: completions copied out, notification armed, events acked in bulk.
#[derive(Debug)]
pub struct Cq {
    raw: NonNull<sys::ibv_cq>,
    channel: NonNull<sys::ibv_comp_channel>,
    entries: u32,
    _context: Arc<Context>,
}

// SAFETY: libibverbs lets any thread use a CQ; polling is done by the port's thread alone, which is what keeps
// completions in order, not what keeps this sound.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    /// Makes one of the usual size (`ibv_create_cq(3)`), with a channel.
    ///
    /// # Errors
    /// [`DeviceError::System`].
    pub fn new(context: &Arc<Context>, limits: &DeviceLimits) -> Result<Arc<Self>, DeviceError> {
        Self::with_entries(context, limits, usual(limits))
    }

    /// A queue that holds `entries`.
    ///
    /// # Errors
    /// [`DeviceError::Limit`] when the device's queues hold fewer, and [`DeviceError::System`].
    pub fn with_entries(
        context: &Arc<Context>,
        limits: &DeviceLimits,
        entries: u32,
    ) -> Result<Arc<Self>, DeviceError> {
        let (entries, entries_int) = size(limits, entries)?;
        // SAFETY: the context is open while we hold it.
        let channel = unsafe { sys::ibv_create_comp_channel(context.raw()) };
        let channel = sys::pointer_result(channel).map_err(system("ibv_create_comp_channel"))?;
        // SAFETY: context and channel are live, the cookie is not used, vector 0 always exists.
        let raw = unsafe {
            sys::ibv_create_cq(context.raw(), entries_int, std::ptr::null_mut(), channel.as_ptr(), 0)
        };
        let raw = sys::pointer_result(raw).map_err(|errno| {
            // SAFETY: created above and used by nothing.
            unsafe { sys::ibv_destroy_comp_channel(channel.as_ptr()) };
            system("ibv_create_cq")(errno)
        })?;
        let cq = Self { raw, channel, entries, _context: Arc::clone(context) };
        rustix::fs::fcntl_setfl(cq.fd(), OFlags::NONBLOCK)
            .map_err(|error| system("fcntl")(error.raw_os_error()))?;
        Ok(Arc::new(cq))
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_cq {
        self.raw.as_ptr()
    }

    /// Names it in asynchronous events.
    pub fn address(&self) -> usize {
        self.raw.as_ptr().addr()
    }

    /// Readable when an armed notification fired.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is live while we are.
        let fd: RawFd = unsafe { (*self.channel.as_ptr()).fd };
        // SAFETY: the channel's descriptor stays open until our drop.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Completions that it holds at least.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Fills `harvest`, if it is empty, with at most [`POLL_BURST`] completions. How many.
    ///
    /// # Errors
    /// The queue is broken.
    #[inline]
    pub fn poll(&self, harvest: &mut Harvest) -> Result<usize, i32> {
        if !harvest.is_empty() {
            // What is there would be written over; the queue keeps the rest.
            return Ok(0);
        }
        (harvest.at, harvest.count) = (0, 0);
        let place = harvest.written.as_mut_ptr();
        // SAFETY: the queue is live, and there is room for as many as we ask.
        let count = unsafe { sys::ibv_poll_cq(self.raw.as_ptr(), POLL_BURST_INT, place) };
        let count = usize::try_from(count).map_err(|_| count.saturating_neg())?;
        harvest.count = count.min(POLL_BURST);
        Ok(harvest.count)
    }

    /// Asks for one notification of the next completion.
    pub fn arm(&self) -> Result<(), i32> {
        // SAFETY: the queue is live.
        sys::verbs_result(unsafe { sys::ibv_req_notify_cq(self.raw.as_ptr(), 0) })
    }

    /// Takes all notifications off the channel and acks them at once.
    pub fn quiet(&self) {
        let mut count: u32 = 0;
        loop {
            let mut cq = std::ptr::null_mut();
            let mut cookie = std::ptr::null_mut();
            // SAFETY: the channel is live and does not block; both places are ours.
            let returned =
                unsafe { sys::ibv_get_cq_event(self.channel.as_ptr(), &raw mut cq, &raw mut cookie) };
            if returned != 0 {
                break;
            }
            count += 1;
        }
        if count > 0 {
            // SAFETY: the channel serves this queue only, so all `count` events were its.
            unsafe { sys::ibv_ack_cq_events(self.raw.as_ptr(), count) };
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // Unacked events make ibv_destroy_cq wait for ever.
        self.quiet();
        // SAFETY: queue pairs on it hold an `Arc` of us through their owners, so none is left.
        let returned = unsafe { sys::ibv_destroy_cq(self.raw.as_ptr()) };
        if let Err(errno) = sys::verbs_result(returned) {
            tracing::warn!(errno, "ibv_destroy_cq failed: a queue pair still uses it");
        }
        // SAFETY: its only queue is gone.
        let returned = unsafe { sys::ibv_destroy_comp_channel(self.channel.as_ptr()) };
        if let Err(errno) = sys::verbs_result(returned) {
            tracing::warn!(errno, "ibv_destroy_comp_channel failed");
        }
    }
}

fn usual(limits: &DeviceLimits) -> u32 {
    CQ_ENTRIES.min(limits.cq_entries.max(1))
}

/// What the device is asked for, so that there are `entries`.
fn size(limits: &DeviceLimits, entries: u32) -> Result<(u32, i32), DeviceError> {
    match i32::try_from(entries) {
        Ok(number) if entries <= limits.cq_entries.max(1) => Ok((entries, number)),
        _ => Err(DeviceError::Limit {
            field: "entries of a completion queue (sends and receives)",
            value: entries.into(),
            limit: limits.cq_entries.into(),
        }),
    }
}

#[inline]
fn completion(wc: &sys::ibv_wc) -> Completion {
    let with_imm = wc.opcode == sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
    // SAFETY: both members are u32, and the scratch was zeroed, so reading either is defined; its meaning is decided by
    // `with_imm`.
    let imm = u32::from_be(unsafe { wc.imm_data_invalidated_rkey_union.imm_data });
    Completion {
        wr_id: wc.wr_id,
        status: wc.status,
        vendor: wc.vendor_err,
        with_imm,
        imm,
        bytes: wc.byte_len,
        qp: wc.qp_num,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_is_too_small_is_refused_and_not_made_smaller() {
        let of = |cq_entries, iwarp| DeviceLimits {
            iwarp,
            software: false,
            cq_entries,
            qp_entries: 1,
            pieces: 1,
            responder_resources: 1,
            initiator_depth: 1,
            srqs: 0,
            srq_entries: 0,
            atomics: false,
        };
        let sizes = |limits: &DeviceLimits, entries| size(limits, entries).map(|(entries, _)| entries);
        assert_eq!(sizes(&of(32_767, false), 32), Ok(32));
        assert_eq!(sizes(&of(1 << 22, false), 100_000), Ok(100_000));
        assert_eq!(sizes(&of(1 << 22, true), 32), Ok(32));
        assert_eq!(sizes(&of(1000, true), 32), Ok(32));
        for limits in [of(32_767, false), of(32_767, true)] {
            let refused = sizes(&limits, 32_768);
            assert!(
                matches!(refused, Err(DeviceError::Limit { value: 32_768, limit: 32_767, .. })),
                "{refused:?}"
            );
        }
        assert!(size(&of(u32::MAX, false), u32::MAX).is_err());
    }
}
