//! Loom: every interleaving of publish/consume, of arm/wake and of release/take, and weakened copies that must fail.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p gimmal-transport --release loom_`

use loom::{
    cell::UnsafeCell,
    sync::{
        Arc, Notify,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use super::{
    publish::{consume, consumed, observe, publish},
    release::{release, take},
    wake::{Ringer, announce, settle, withdraw},
};

const PLACES: usize = 2;

/// A ring of two places, a word and a payload each; the control words are the reader's.
struct Ring {
    words: [AtomicU64; PLACES + 1],
    payloads: [UnsafeCell<u64>; PLACES],
    consumed: AtomicU64,
}

impl Ring {
    fn new() -> Self {
        Self {
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            payloads: std::array::from_fn(|_| UnsafeCell::new(0)),
            consumed: AtomicU64::new(0),
        }
    }

    fn fill(&self, place: usize, value: u64) {
        self.payloads[place].with_mut(|payload| {
            // SAFETY: loom checks that nobody else has it.
            unsafe { *payload = value }
        });
    }

    fn read(&self, place: usize) -> u64 {
        self.payloads[place].with(|payload| {
            // SAFETY: loom checks that nobody writes it.
            unsafe { *payload }
        })
    }
}

/// A run of two frames by one publish, read in order; then one place is given back and written again.
fn runs(publish: fn(&AtomicU64, u64), consume: fn(&AtomicU64, u64)) {
    loom::model(move || {
        let ring = Arc::new(Ring::new());
        let writer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                ring.fill(0, 10);
                ring.fill(1, 11);
                ring.words[1].store(2, Ordering::Relaxed);
                ring.words[2].store(0, Ordering::Relaxed);
                publish(&ring.words[0], 1);
                while consumed(&ring.consumed) == 0 {
                    thread::yield_now();
                }
                ring.fill(0, 12);
                publish(&ring.words[2], 3);
            })
        };
        for (place, value) in [(0, 10), (1, 11), (2, 12)] {
            while observe(&ring.words[place]) == 0 {
                thread::yield_now();
            }
            assert_eq!(ring.read(place % PLACES), value);
            if place == 0 {
                consume(&ring.consumed, 1);
            }
        }
        writer.join().unwrap();
    });
}

#[test]
fn loom_runs_are_whole() {
    runs(publish, consume);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_weak_publish_is_caught() {
    runs(|word, bits| word.store(bits, Ordering::Relaxed), consume);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_weak_consume_is_caught() {
    runs(publish, |word, position| word.store(position, Ordering::Relaxed));
}

/// The reader sleeps between two frames; `Notify` stands for the byte on the socket.
fn sleeps(settle_writer: fn(), settle_reader: fn()) {
    loom::model(move || {
        let ring = Arc::new(Ring::new());
        let armed = Arc::new(AtomicU64::new(0));
        let socket = Arc::new(Notify::new());
        let writer = {
            let (ring, armed, socket) = (Arc::clone(&ring), Arc::clone(&armed), Arc::clone(&socket));
            thread::spawn(move || {
                let mut ringer = Ringer::default();
                for place in 0..2 {
                    ring.fill(place, 10);
                    publish(&ring.words[place], 1);
                    settle_writer();
                    if ringer.must_ring(&*armed) {
                        socket.notify();
                    }
                }
            })
        };
        for place in 0..2 {
            for epoch in 1.. {
                if observe(&ring.words[place]) != 0 {
                    break;
                }
                announce(&*armed, epoch + 10 * place as u64);
                settle_reader();
                if observe(&ring.words[place]) == 0 {
                    socket.wait();
                }
                withdraw(&*armed);
            }
            assert_eq!(ring.read(place), 10);
        }
        writer.join().unwrap();
    });
}

#[test]
fn loom_no_wake_is_lost() {
    sleeps(settle, settle);
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_a_waker_without_its_fence_is_caught() {
    sleeps(|| {}, settle);
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_a_sleeper_without_its_fence_is_caught() {
    sleeps(settle, || {});
}

/// Two places are lent, one to another thread and one to a second, and written over when they came back.
fn holds(release: fn(&AtomicU64, u32), take: fn(&AtomicU64) -> u64) {
    loom::model(move || {
        let (ring, map) = (Arc::new(Ring::new()), Arc::new(AtomicU64::new(0)));
        ring.fill(0, 10);
        ring.fill(1, 11);
        let droppers = [(0, 10), (1, 11)].map(|(place, value)| {
            let (ring, map) = (Arc::clone(&ring), Arc::clone(&map));
            thread::spawn(move || {
                assert_eq!(ring.read(place), value);
                release(&map, u32::try_from(place).unwrap());
            })
        });
        // At any time, so also between the two; then until both are back.
        let mut seen = 0;
        loop {
            let back = take(&map);
            for place in [0, 1].into_iter().filter(|place| back & 1 << place != 0) {
                ring.fill(place, 20);
            }
            seen |= back;
            if seen == 0b11 {
                break;
            }
            thread::yield_now();
        }
        for dropper in droppers {
            dropper.join().unwrap();
        }
    });
}

#[test]
fn loom_a_place_is_written_over_only_after_its_reader() {
    holds(release, take);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_weak_release_is_caught() {
    holds(|map, place| _ = map.fetch_or(1 << place, Ordering::Relaxed), take);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_weak_take_is_caught() {
    holds(release, |map| map.swap(0, Ordering::Relaxed));
}

/// It forgets the releases that came before: the owner waits for ever.
#[test]
#[should_panic(expected = "Model exceeded maximum number of branches")]
fn loom_a_release_that_stores_the_word_is_caught() {
    holds(|map, place| map.store(1 << place, Ordering::Release), take);
}
