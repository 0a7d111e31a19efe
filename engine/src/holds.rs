//! Frames that outlive their turn: how many is the ledger's to say, where they lie the transport's.

use std::sync::Arc;

use gimmal_transport::{ConnId, Holder, Port, RxBuf, RxFrame, frame::span};

use crate::{proto::RxLedger, worker::Duty};

/// Of one connection.
#[derive(Debug)]
pub(crate) struct Holds {
    /// Made for the first frame that is held.
    holder: Option<Box<Holder>>,
    /// What is held can't be moved out: its release is waited for.
    is_stuck: bool,
    duty: Arc<Duty>,
}

impl Holds {
    pub(crate) fn new(duty: Arc<Duty>) -> Self {
        Self { holder: None, is_stuck: false, duty }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.holder.as_ref().is_none_or(|holder| holder.is_empty())
    }

    /// Whether a release must be noticed soon, although nothing else happens.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.is_stuck && !self.is_empty()
    }

    /// The last `bytes` of `frame`, which has just arrived, to be kept: where they are, inside the budget, or a copy.
    pub(crate) fn hold<P: Port>(
        &mut self,
        ledger: &mut RxLedger,
        port: &mut P,
        conn: ConnId,
        frame: &RxFrame,
        bytes: usize,
    ) -> RxBuf {
        self.take_back(ledger, port, conn);
        let (first, whole) = (frame.len().saturating_sub(bytes), span(frame.len()) as u64);
        if ledger.may_hold(whole) && !self.is_stuck {
            let holder = self.holder.get_or_insert_with(|| Box::new(Holder::of(frame)));
            if let Some(buf) = holder.hold(frame, first) {
                ledger.handle_hold(whole);
                self.duty.held();
                return buf;
            }
        }
        self.duty.held_copied(1);
        RxBuf::copied(frame.get(first..).unwrap_or_default())
    }

    /// Takes a frame that was held, at the end of its turn.
    pub(crate) fn keep(&mut self, frame: RxFrame) {
        if let Some(holder) = &mut self.holder {
            holder.keep(frame);
        }
    }

    /// Gives back what was released, and moves the rest out when it keeps too much of the ring from the peer.
    pub(crate) fn settle<P: Port>(&mut self, ledger: &mut RxLedger, port: &mut P, conn: ConnId) {
        self.take_back(ledger, port, conn);
        if !ledger.is_over() || self.is_stuck {
            return;
        }
        let Some(holder) = &mut self.holder else { return };
        match holder.move_out() {
            Ok(()) => {
                let moved = self.take_back(ledger, port, conn);
                self.duty.held_copied(moved);
            }
            Err(error) => {
                tracing::warn!(?conn, %error, "held frames stay in the ring and may hold up the peer");
                self.is_stuck = true;
            }
        }
    }

    /// How many frames came back.
    fn take_back<P: Port>(&mut self, ledger: &mut RxLedger, port: &mut P, conn: ConnId) -> u64 {
        let Some(holder) = &mut self.holder else { return 0 };
        let mut count = 0;
        while let Some(frame) = holder.poll_released() {
            ledger.handle_release(frame.end());
            port.release(conn, frame);
            count += 1;
        }
        if holder.is_empty() {
            // The next one may be moved out: memory was short for a while.
            self.is_stuck = false;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use gimmal_sim::{Sim, SimConfig, SimDevice};
    use gimmal_transport::{Hello, Negotiated, PortConfig, Position, Provider as _, Tag, hello::Feature};

    use super::*;

    const RING: u32 = 64 << 10;

    fn ledger(config: &PortConfig) -> RxLedger {
        let hello = Hello {
            features: Feature::RING,
            ring_bytes: RING,
            slot_bytes: config.slot_bytes,
            arrivals: config.arrivals,
            responder_resources: 1,
            initiator_depth: 1,
            lane: 0,
            service: 0,
            nonce: 1,
        };
        let caps = SimDevice::shared_memory().capabilities();
        RxLedger::new(&Negotiated::settle("sim", &caps, config, &hello, &hello).unwrap(), 10)
    }

    /// A lack of memory or of mappings passes. Frames that arrive later are held where they are.
    #[test]
    fn frames_are_held_again_when_those_that_could_not_be_moved_are_gone() {
        let config = PortConfig { ring_bytes: RING, ..PortConfig::default() };
        let mut port = Sim::new(SimConfig::default()).open_port(&config).unwrap();
        let (mut ledger, conn, duty) = (ledger(&config), ConnId::new(0, 1), Arc::<Duty>::default());
        let mut holds = Holds::new(Arc::clone(&duty));
        let mut end = 0;
        let mut arrive = |ledger: &mut RxLedger, bytes: usize| {
            end += span(bytes) as u64;
            ledger.handle_run(Position(end)).unwrap();
            RxFrame::on_heap(vec![7; bytes].into(), Tag(0), Position(end), 0)
        };
        let first = arrive(&mut ledger, 1000);
        let buf = holds.hold(&mut ledger, &mut port, conn, &first, 1000);
        assert_eq!((duty.snapshot().held, duty.snapshot().held_copied), (1, 0));
        // Its frame is not kept yet, so nothing can be moved.
        drop(arrive(&mut ledger, 16_000));
        holds.settle(&mut ledger, &mut port, conn);
        assert!(holds.is_waited_for());
        let second = arrive(&mut ledger, 1000);
        drop(holds.hold(&mut ledger, &mut port, conn, &second, 1000));
        assert_eq!((duty.snapshot().held, duty.snapshot().held_copied), (1, 1));
        holds.keep(first);
        drop(buf);
        holds.settle(&mut ledger, &mut port, conn);
        assert!(holds.is_empty() && !holds.is_waited_for());
        let third = arrive(&mut ledger, 1000);
        drop(holds.hold(&mut ledger, &mut port, conn, &third, 1000));
        assert_eq!((duty.snapshot().held, duty.snapshot().held_copied), (2, 1));
    }
}
