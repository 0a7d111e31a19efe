//! The process's pulse: words in memory that peers read, which one thread moves on for as long as the process runs. A worker
//! that is busy with a handler turns for nobody, and its peers see all the same that it is not dead. Over shared memory the
//! word is in the control page of each segment of ours; over verbs a page of each device has it, and peers READ it.
//!
//! ```text
//!  gimmal-pulse:  bump, bump, … ; sleep          a peer's look:  moved since the last look? the process lives
//! ```
//! A process that is stopped, frozen or swapped out moves nothing. Without connections the thread ends; it starts again
//! with the next one. A word is 0 where no thread could be started: then nothing tells.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use crate::{mem::Region, sync::thread};

/// From one bump to the next. A peer gives up after three quarters of its `heartbeat_ms` without one, or five eighths over
/// verbs, where it hears of one later: from 100 ms on that is two of them at least.
const PERIOD: Duration = Duration::from_millis(25);
/// Or so long for each word: a bump takes about 100 ns, so all of them stay at 1 % of a core.
const PERIOD_OF_ONE: Duration = Duration::from_micros(10);
/// Rounds without a word before the thread ends: connections that come and go do not start it each time.
const ROUNDS_ALONE: u32 = 40;

/// What is moved on.
static KEPT: Mutex<Kept> = Mutex::new(Kept { words: Vec::new(), is_running: false });

/// Stores a beat where a kind of region has its word.
type Bump = fn(&Region, u64);

#[derive(Debug)]
struct Kept {
    words: Vec<(Weak<Region>, Bump)>,
    is_running: bool,
}

fn kept() -> MutexGuard<'static, Kept> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The word of `region` moves on for as long as that is mapped.
pub(crate) fn keep(region: &Arc<Region>, bump: Bump) {
    let mut kept = kept();
    kept.words.push((Arc::downgrade(region), bump));
    if !kept.is_running {
        match thread::spawn("gimmal-pulse", run) {
            Ok(_) => kept.is_running = true,
            // Its word stays 0, and the next one tries again. Meanwhile peers judge by the worker alone.
            Err(error) => {
                tracing::warn!(%error, "no thread for the pulse: peers may take a busy worker for a dead one")
            }
        }
    }
    if kept.is_running {
        // From now on 0 says that nothing moves it.
        bump(region, 1);
    }
}

fn run() {
    let mut alone = 0;
    for beat in 1.. {
        let mut kept = kept();
        kept.words.retain(|(region, bump)| region.upgrade().inspect(|region| bump(region, beat)).is_some());
        alone = if kept.words.is_empty() { alone + 1 } else { 0 };
        if alone == ROUNDS_ALONE {
            kept.is_running = false;
            return;
        }
        let words = u32::try_from(kept.words.len()).unwrap_or(u32::MAX);
        drop(kept);
        std::thread::sleep(PERIOD.max(PERIOD_OF_ONE.saturating_mul(words)));
    }
}
