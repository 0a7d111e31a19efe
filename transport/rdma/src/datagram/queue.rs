//! The data path of an end point: a ring of posted receives, and slots to send from.
//!
//! ```text
//!  receive slot  posted ─► completed ─► lent to a closure ─► posted again     │ 40 header │ message │
//!  send slot     free ─► filled by a closure ─► posted ─► completed ─► free   │ message │
//! ```
//! The device owns a slot from its post to its completion; in between nobody here can reach it.

use std::sync::Arc;

use super::{
    config::{DatagramConfig, DatagramCounters},
    error::SendError,
    grh::GRH_BYTES,
    peer::{Handle, Peer, Source},
    ring::Slots,
};
use crate::{
    error::{DeviceError, system},
    sys,
    verbs::{
        context::{Context, DeviceLimits, Pd},
        cq::{Cq, Harvest, POLL_BURST, STATUS_FLUSHED},
        lists::{RecvList, SendList},
        qp::Qp,
    },
    wait::{Deadline, readable},
};

/// A message that arrived, lent until the closure returns.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// What was sent.
    pub message: &'a [u8],
    /// The sender.
    pub source: Source,
    /// The four bytes beside the message, when it came with some.
    pub imm: Option<u32>,
}

/// What a completed receive holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Arrival {
    /// So many bytes behind the header.
    Message(usize),
    /// Less than its own header.
    TooShort,
    /// More than its slot: the device cannot be believed.
    Impossible,
}

impl Arrival {
    fn of(byte_len: u32, slot_bytes: usize) -> Self {
        match usize::try_from(byte_len) {
            Ok(bytes) if bytes > slot_bytes => Self::Impossible,
            Ok(bytes) => bytes.checked_sub(GRH_BYTES).map_or(Self::TooShort, Self::Message),
            Err(_) => Self::Impossible,
        }
    }
}

/// The parts of a queue before there is a queue pair.
pub(super) struct Parts {
    pub(super) send_cq: Arc<Cq>,
    pub(super) receive_cq: Arc<Cq>,
    sends: Slots,
    receives: Slots,
}

impl Parts {
    pub(super) fn new(
        context: &Arc<Context>,
        limits: &DeviceLimits,
        pd: &Arc<Pd>,
        config: &DatagramConfig,
        mtu: usize,
    ) -> Result<Self, DeviceError> {
        // One more than can complete: a full queue drops completions on rxe.
        let entries = |slots: u16| u32::from(slots) + 1;
        Ok(Self {
            send_cq: Cq::with_entries(context, limits, entries(config.sends))?,
            receive_cq: Cq::with_entries(context, limits, entries(config.receives))?,
            sends: Slots::new(pd, config.sends, mtu)?,
            receives: Slots::new(pd, config.receives, mtu + GRH_BYTES)?,
        })
    }
}

/// The data path of an end point: a ring of posted receives, and slots to send from. Dropped after the id that owns
/// the queue pair.
pub(super) struct Queue {
    qp: Qp,
    parts: Parts,
    /// Slots that may be filled.
    free: Vec<u16>,
    /// Where the others go: an address handle lives as long as a send that names it.
    flying: Box<[Option<Arc<Handle>>]>,
    list: RecvList,
    sending: SendList,
    arrived: Harvest,
    done: Harvest,
    broken: Option<(u32, u32)>,
    pub(super) counters: DatagramCounters,
}

impl Queue {
    pub(super) fn new(qp: Qp, parts: Parts) -> Self {
        let sends = parts.sends.count();
        Self {
            qp,
            free: (0..sends).rev().collect(),
            flying: (0..sends).map(|_| None).collect(),
            parts,
            list: RecvList::new(POLL_BURST),
            sending: SendList::new(1),
            arrived: Harvest::new(),
            done: Harvest::new(),
            broken: None,
            counters: DatagramCounters::default(),
        }
    }

    pub(super) fn mtu(&self) -> usize {
        self.parts.sends.bytes()
    }

    pub(super) fn qp(&self) -> &Qp {
        &self.qp
    }

    /// Posts every receive; once.
    pub(super) fn prepost(&mut self) -> Result<(), DeviceError> {
        for slot in 0..self.parts.receives.count() {
            if self.list.is_full() {
                self.repost()?;
            }
            self.give_back(slot);
        }
        self.repost()
    }

    /// Only for a slot that is not posted.
    fn give_back(&mut self, slot: u16) {
        let all = self.parts.receives.local(slot, self.parts.receives.bytes());
        self.list.push(slot, Some(all));
    }

    fn repost(&mut self) -> Result<(), DeviceError> {
        self.list.post(&self.qp).map_err(|error| system("ibv_post_recv")(error.errno))
    }

    /// Hands out at most [`POLL_BURST`] messages and posts their receives again.
    pub(super) fn receive(&mut self, mut each: impl FnMut(Received<'_>)) -> Result<usize, DeviceError> {
        let mut given = 0;
        // What a closure that panicked has left.
        self.repost()?;
        self.parts.receive_cq.poll(&mut self.arrived).map_err(system("ibv_poll_cq"))?;
        while let Some(wc) = self.arrived.take_raw() {
            let slot = match u16::try_from(wc.wr_id) {
                Ok(slot) if slot < self.parts.receives.count() => slot,
                _ => continue,
            };
            if wc.status != 0 {
                self.counters.receives_failed += 1;
                if wc.status != STATUS_FLUSHED {
                    self.give_back(slot);
                }
                continue;
            }
            let arrival = Arrival::of(wc.byte_len, self.parts.receives.bytes());
            let Arrival::Message(bytes) = arrival else {
                match arrival {
                    Arrival::TooShort => self.counters.too_short += 1,
                    _ => self.counters.receives_failed += 1,
                }
                self.give_back(slot);
                continue;
            };
            // SAFETY: both members are u32, so reading either is defined; the flag decides whether it means something.
            let imm = u32::from_be(unsafe { wc.imm_data_invalidated_rkey_union.imm_data });
            let imm = (wc.wc_flags & sys::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0).then_some(imm);
            let header = self.parts.receives.place(slot, 0, GRH_BYTES).cast::<[u8; GRH_BYTES]>();
            // SAFETY: 40 initialised bytes of our own slot (`place` checked it), alignment 1; the device completed
            // the slot and it is posted again only after the closure, so nobody writes it.
            let source = Source::new(wc, unsafe { header.read() });
            // In the list already: a closure that panics loses no receive. Posted only below.
            self.give_back(slot);
            let place = self.parts.receives.place(slot, GRH_BYTES, bytes);
            // SAFETY: `bytes` of our own slot behind the header, checked by `place`; not written, as above; the
            // closure cannot keep the slice, and it ends before the list is posted.
            let message = unsafe { std::slice::from_raw_parts(place.as_ptr(), bytes) };
            self.counters.received += 1;
            given += 1;
            each(Received { message, source, imm });
        }
        self.repost()?;
        Ok(given)
    }

    /// Arms the notification of arrivals; `true` when there is one already.
    pub(super) fn arm(&mut self) -> Result<bool, DeviceError> {
        self.parts.receive_cq.arm().map_err(system("ibv_req_notify_cq"))?;
        self.parts.receive_cq.poll(&mut self.arrived).map_err(system("ibv_poll_cq"))?;
        Ok(!self.arrived.is_empty())
    }

    pub(super) fn arrivals(&self) -> &Arc<Cq> {
        &self.parts.receive_cq
    }

    /// Lets `fill` write a message of `bytes` and posts it.
    pub(super) fn send(
        &mut self,
        to: &Peer,
        bytes: usize,
        imm: Option<u32>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), SendError> {
        if bytes > self.mtu() {
            return Err(SendError::TooLarge { bytes, limit: self.mtu() });
        }
        if self.free.is_empty() {
            self.settle()?;
        }
        if let Some((status, vendor)) = self.broken {
            return Err(SendError::Broken { status, vendor });
        }
        // Taken off the list only when it was posted, so that a closure that panics loses no slot.
        let slot = *self.free.last().ok_or(SendError::Full)?;
        let place = self.parts.sends.place(slot, 0, bytes);
        // SAFETY: `bytes` of our own slot, checked by `place` and zeroed when it was mapped; it is free, so the
        // device does not read it, and `&mut self` keeps everybody else away.
        fill(unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), bytes) });
        let remote = sys::ud_t { ah: to.handle.raw(), remote_qpn: to.qp().get(), remote_qkey: to.qkey().0 };
        // SAFETY: `flying` keeps the handle until the send has completed, or the queue pair is gone with its id.
        unsafe { self.sending.datagram(slot, self.parts.sends.local(slot, bytes), remote, imm) };
        self.sending.post(&self.qp).map_err(|error| match error.errno {
            libc::ENOMEM => SendError::Full,
            errno => system("ibv_post_send")(errno).into(),
        })?;
        self.free.pop();
        self.flying[usize::from(slot)] = Some(Arc::clone(&to.handle));
        Ok(())
    }

    /// Takes back the slots of sends that the device completed.
    fn settle(&mut self) -> Result<(), SendError> {
        while self.parts.send_cq.poll(&mut self.done).map_err(system("ibv_poll_cq"))? > 0 {
            while let Some(done) = self.done.take() {
                let slot = usize::try_from(done.wr_id).unwrap_or(usize::MAX);
                if self.flying.get_mut(slot).and_then(Option::take).is_none() {
                    continue;
                }
                self.free.extend(u16::try_from(slot));
                if done.status == 0 {
                    self.counters.sent += 1;
                } else {
                    self.counters.sends_failed += 1;
                    self.broken.get_or_insert((done.status, done.vendor));
                }
            }
        }
        Ok(())
    }

    /// Waits until the device took every send; `false` when the deadline came first.
    pub(super) fn drain(&mut self, deadline: &Deadline) -> Result<bool, SendError> {
        let all = usize::from(self.parts.sends.count());
        loop {
            self.settle()?;
            if self.free.len() == all {
                return Ok(true);
            }
            self.parts.send_cq.arm().map_err(system("ibv_req_notify_cq"))?;
            self.settle()?;
            if self.free.len() == all {
                return Ok(true);
            }
            readable(&[self.parts.send_cq.fd()], deadline).map_err(system("poll"))?;
            self.parts.send_cq.quiet();
            if deadline.has_passed() {
                self.settle()?;
                return Ok(self.free.len() == all);
            }
        }
    }

    /// Brings the counters up to date.
    pub(super) fn count(&mut self) -> DatagramCounters {
        // A broken queue is reported by the next send.
        let _ = self.settle();
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_lengths_give_no_message() {
        let slot = 4096 + GRH_BYTES;
        for bytes in 0..40 {
            assert_eq!(Arrival::of(bytes, slot), Arrival::TooShort, "{bytes}");
        }
        assert_eq!(Arrival::of(40, slot), Arrival::Message(0));
        assert_eq!(Arrival::of(41, slot), Arrival::Message(1));
        assert_eq!(Arrival::of(4136, slot), Arrival::Message(4096));
        assert_eq!(Arrival::of(4137, slot), Arrival::Impossible);
        assert_eq!(Arrival::of(u32::MAX, slot), Arrival::Impossible);
    }
}
