//! The bare exchange between two threads: a hand-over each way, through the same queues and with the same ways to wait
//! as the engine's handle, and nothing in between.
//!
//! ```text
//!  caller ── queue, doorbell ──► partner      spins, yields, then sleeps on its doorbell
//!         ◄── queue, unpark ──                looks, yields, then parks
//! ```

use std::{
    os::fd::AsFd as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{JoinHandle, Thread},
    time::Duration,
};

use crossbeam::{queue::ArrayQueue, utils::Backoff};
use gimmal_engine::{Idle, worker::thread::pin_to};
use gimmal_transport::sync::Doorbell;
use rustix::event::{PollFd, PollFlags};

use super::{Contender, Quantity, Role};
use crate::{
    clock::{Patience, Relax, Stamp},
    error::BenchError,
    floors::Floors,
    handoff::PARK,
    recorder::Recorder,
};

/// Looks that only pause, before the partner yields: as many as the engine's worker.
const SPINS: u32 = 256;

#[derive(Debug)]
struct Shared {
    there: ArrayQueue<u64>,
    back: ArrayQueue<u64>,
    bell: Doorbell,
    caller: Thread,
    stop: AtomicBool,
}

impl Shared {
    /// The partner: gives back what it gets.
    fn answer(&self, spin: Duration) {
        let mut empty = 0u32;
        let mut idle_since = Stamp::now();
        while !self.stop.load(Ordering::Relaxed) {
            if let Some(number) = self.there.pop() {
                // There is a place: the caller waits for it.
                let _ = self.back.push(number);
                self.caller.unpark();
                empty = 0;
                continue;
            }
            if empty == 0 {
                idle_since = Stamp::now();
            }
            empty = empty.saturating_add(1);
            if empty <= SPINS {
                std::hint::spin_loop();
            } else if Stamp::now().since(idle_since) < spin {
                std::thread::yield_now();
            } else {
                self.sleep();
            }
        }
    }

    fn sleep(&self) {
        self.bell.arm();
        if self.there.is_empty() && !self.stop.load(Ordering::Relaxed) {
            let mut fds = [PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN)];
            // Woken for nothing is looking once more.
            let _ = rustix::event::poll(&mut fds, None);
        }
        self.bell.disarm();
    }
}

/// The caller's end.
#[derive(Debug)]
pub(crate) struct Exchange {
    shared: Arc<Shared>,
    partner: Option<JoinHandle<()>>,
    recorder: Recorder,
    relax: Relax,
}

impl Exchange {
    /// Starts the partner on `core`, where the engine's worker runs too.
    pub(crate) fn start(core: usize, relax: Relax) -> Result<Self, BenchError> {
        let bell = Doorbell::new().map_err(BenchError::system("eventfd"))?;
        let shared = Arc::new(Shared {
            there: ArrayQueue::new(1),
            back: ArrayQueue::new(1),
            bell,
            caller: std::thread::current(),
            stop: AtomicBool::new(false),
        });
        let spin = match Idle::default() {
            Idle::Adaptive { spin_us } => Duration::from_micros(spin_us.into()),
            Idle::Spin => Duration::MAX,
            Idle::Event => Duration::ZERO,
        };
        let theirs = Arc::clone(&shared);
        let partner = std::thread::Builder::new().name("exchange".to_owned()).spawn(move || {
            // As good as unpinned, when the core went away meanwhile.
            let _ = pin_to(core);
            theirs.answer(spin);
        });
        let partner = partner.map_err(BenchError::system("starting a thread"))?;
        Ok(Self { shared, partner: Some(partner), recorder: Recorder::new()?, relax })
    }

    fn call(&self, number: u64) -> Result<(), BenchError> {
        // The queue is empty: one call at a time.
        let _ = self.shared.there.push(number);
        self.shared.bell.ring();
        let backoff = Backoff::new();
        let mut patience = Patience::new(self.relax);
        loop {
            if let Some(back) = self.shared.back.pop() {
                return if back == number { Ok(()) } else { Err(BenchError::Wrong("another number")) };
            }
            if !backoff.is_completed() {
                backoff.snooze();
                continue;
            }
            std::thread::park_timeout(PARK);
            if !patience.go_on() {
                return Err(BenchError::stalled("exchanging with another thread"));
            }
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.bell.ring();
        if let Some(partner) = self.partner.take() {
            // It looks at `stop` after every sleep.
            let _ = partner.join();
        }
    }
}

impl Contender for Exchange {
    fn name(&self) -> String {
        "bare thread exchange".to_owned()
    }

    fn label(&self) -> &'static str {
        "p50, there and back"
    }

    fn quantity(&self) -> Quantity {
        Quantity::RoundTrip
    }

    fn role(&self) -> Role {
        Role::Exchange
    }

    fn slice(&mut self, floors: &mut Floors, count: u64) -> Result<f64, BenchError> {
        floors.rest()?;
        self.recorder.reset();
        self.recorder.begin_laps();
        for number in 0..count {
            self.call(number)?;
            self.recorder.lap();
        }
        self.recorder.end_laps();
        Ok(self.recorder.fine_median_ns())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_also_after_both_slept() {
        let exchange = Exchange::start(0, Relax::Yield).unwrap();
        for number in 0..200 {
            exchange.call(number).unwrap();
        }
        for number in 0..5 {
            std::thread::sleep(Duration::from_millis(3));
            exchange.call(number).unwrap();
        }
    }
}
