//! A bare copy loop, pipelined: one thread copies blocks into a ring, another one copies them out.

use std::{
    array,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use anyhow::{Result, anyhow, ensure};
use gimmal_engine::worker::thread::pin_to;

use crate::{
    case::BLOCK,
    measure::{Job, Stretch, Times},
};

/// Blocks of the ring.
const PLACES: usize = 4;

/// The writer and the reader lock a place in turns, so neither waits for a lock.
struct Ring {
    places: [Mutex<Vec<u8>>; PLACES],
    written: AtomicUsize,
    read: AtomicUsize,
}

impl Ring {
    /// Waits until `counter` is above `count`.
    fn wait(counter: &AtomicUsize, count: usize) {
        while counter.load(Ordering::Acquire) <= count {
            std::hint::spin_loop();
        }
    }

    fn copy(&self, number: usize, copy: impl FnOnce(&mut [u8])) {
        copy(&mut self.places[number % PLACES].lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn write(&self, count: usize) {
        let block = vec![7; BLOCK];
        for number in 0..count {
            if let Some(before) = number.checked_sub(PLACES) {
                Self::wait(&self.read, before);
            }
            self.copy(number, |place| place.copy_from_slice(&block));
            self.written.store(number + 1, Ordering::Release);
        }
        if let Some(last) = count.checked_sub(1) {
            Self::wait(&self.read, last);
        }
    }

    fn read(&self, count: usize) {
        let mut block = vec![0; BLOCK];
        for number in 0..count {
            Self::wait(&self.written, number);
            self.copy(number, |place| block.copy_from_slice(place));
            assert!(block.last() == Some(&7), "other bytes");
            self.read.store(number + 1, Ordering::Release);
        }
    }
}

/// The job's blocks, after a tenth of that to warm up.
pub(crate) fn run(job: &Job) -> Result<Times> {
    let run = |count: usize| -> Result<Times> {
        let ring = Ring {
            places: array::from_fn(|_| Mutex::new(vec![0; BLOCK])),
            written: AtomicUsize::new(0),
            read: AtomicUsize::new(0),
        };
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let pinned = pin_to(job.pins.server);
                ring.read(count);
                pinned
            });
            let stretch = Stretch::begin(job);
            ring.write(count);
            let times = stretch.end_all(count);
            reader.join().map_err(|_| anyhow!("the reader panicked"))??;
            times
        })
    };
    ensure!(job.calls >= 10, "too few blocks");
    run(job.calls / 10)?;
    run(job.calls)
}
