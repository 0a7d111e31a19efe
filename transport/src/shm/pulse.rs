//! The process's pulse: a word in the control page of every segment of ours, which one thread moves on for as long as the
//! process runs. A worker that is busy with a handler turns for nobody, and its peers see all the same that it is not dead.
//!
//! ```text
//!  gimmal-pulse:  bump, bump, … ; sleep          a peer's look:  moved since the last look? the process lives
//! ```
//! A process that is stopped, frozen or swapped out moves nothing. Without connections the thread ends; it starts again
//! with the next one.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use super::segment;
use crate::{mem::Region, sync::thread};

/// From one bump to the next. A peer gives up after three quarters of its `heartbeat_ms` without one: from 100 ms on that is
/// three of them.
const PERIOD: Duration = Duration::from_millis(25);
/// Or so long for each segment: a bump takes about 100 ns, so all of them stay at 1 % of a core.
const PERIOD_OF_ONE: Duration = Duration::from_micros(10);
/// Rounds without a segment before the thread ends: connections that come and go do not start it each time.
const ROUNDS_ALONE: u32 = 40;

/// What is moved on.
static KEPT: Mutex<Kept> = Mutex::new(Kept { regions: Vec::new(), is_running: false });

#[derive(Debug)]
struct Kept {
    /// Mappings that begin with a control page of ours.
    regions: Vec<Weak<Region>>,
    is_running: bool,
}

fn kept() -> MutexGuard<'static, Kept> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The word of this segment of ours moves on for as long as it is mapped.
pub(super) fn keep(region: &Arc<Region>) {
    let mut kept = kept();
    kept.regions.push(Arc::downgrade(region));
    if !kept.is_running {
        match thread::spawn("gimmal-pulse", run) {
            Ok(_) => kept.is_running = true,
            // Its word stays 0, and the next connection tries again. Meanwhile peers judge by the worker alone.
            Err(error) => {
                tracing::warn!(%error, "no thread for the pulse: peers may take a busy worker for a dead one")
            }
        }
    }
}

fn run() {
    let mut alone = 0;
    for beat in 1.. {
        let mut kept = kept();
        kept.regions.retain(|region| {
            let region = region.upgrade();
            region.inspect(|region| segment::bump(region, beat)).is_some()
        });
        alone = if kept.regions.is_empty() { alone + 1 } else { 0 };
        if alone == ROUNDS_ALONE {
            kept.is_running = false;
            return;
        }
        let segments = u32::try_from(kept.regions.len()).unwrap_or(u32::MAX);
        drop(kept);
        std::thread::sleep(PERIOD.max(PERIOD_OF_ONE.saturating_mul(segments)));
    }
}
