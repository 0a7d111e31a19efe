//! Wakes tasks at a time, on any runtime or none: one thread for the process, made when it is first needed.

use std::{
    collections::BTreeMap,
    fmt,
    future::poll_fn,
    sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    task::{Poll, Waker},
    time::Duration,
};

use gimmal_engine::transport::{Instant, thread};

use crate::wake::wake;

#[derive(Default)]
struct Timer {
    alarms: Mutex<Alarms>,
    changed: Condvar,
}

#[derive(Default)]
struct Alarms {
    next: u64,
    wakers: BTreeMap<(Instant, u64), Waker>,
    is_running: bool,
}

static TIMER: OnceLock<Timer> = OnceLock::new();

impl Timer {
    fn alarms(&self) -> MutexGuard<'_, Alarms> {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut alarms = self.alarms();
        loop {
            let now = Instant::now();
            alarms = match alarms.wakers.first_key_value().map(|(key, _)| key.0) {
                Some(at) if at <= now => {
                    let waker = alarms.wakers.pop_first().map(|(_, waker)| waker);
                    drop(alarms);
                    // Foreign code: not under the lock.
                    if let Some(waker) = waker {
                        wake(waker);
                    }
                    self.alarms()
                }
                Some(at) => {
                    let waited = self.changed.wait_timeout(alarms, at - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(alarms).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// A waker that will be woken; not any more when this is dropped.
pub(crate) struct Alarm {
    key: (Instant, u64),
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Alarm({:?})", self.key.0)
    }
}

impl Alarm {
    /// Wakes `waker` at `at`. Without a thread for it, it is woken at once, and looks again: slower, and right.
    pub(crate) fn new(at: Instant, waker: &Waker) -> Self {
        let timer = TIMER.get_or_init(Timer::default);
        // Foreign code: not under the lock.
        let waker = waker.clone();
        let mut alarms = timer.alarms();
        if !alarms.is_running {
            let timer = thread::spawn("gimmal-timer", || TIMER.get_or_init(Timer::default).run());
            alarms.is_running = timer.is_ok();
        }
        alarms.next += 1;
        let key = (at, alarms.next);
        if !alarms.is_running {
            drop(alarms);
            wake(waker);
            return Self { key };
        }
        alarms.wakers.insert(key, waker);
        let is_first = alarms.wakers.first_key_value().is_some_and(|(first, _)| *first == key);
        drop(alarms);
        if is_first {
            timer.changed.notify_one();
        }
        Self { key }
    }

    /// A timer for the same time and another waker.
    pub(crate) fn again(&self, waker: &Waker) -> Self {
        Self::new(self.key.0, waker)
    }

    pub(crate) fn at(&self) -> Instant {
        self.key.0
    }

    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.key.0
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Some(timer) = TIMER.get() {
            let waker = timer.alarms().wakers.remove(&self.key);
            // Foreign code: not under the lock.
            drop(waker);
        }
    }
}

/// Waits, on no runtime's clock and on no thread of a runtime's.
///
/// Cancel safe.
pub async fn pause(time: Duration) {
    let (until, mut alarm) = (Instant::now() + time, None);
    poll_fn(|context| {
        if until.has_passed() {
            return Poll::Ready(());
        }
        alarm = Some(Alarm::new(until, context.waker()));
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::block;

    #[test]
    fn alarms_wake_in_time_whatever_the_order_they_were_set_in() {
        let started = Instant::now();
        let _late = Alarm::new(started + Duration::from_secs(3600), Waker::noop());
        let mut alarm = None;
        block(|context| {
            let alarm =
                alarm.get_or_insert_with(|| Alarm::new(started + Duration::from_millis(20), context.waker()));
            if alarm.is_over() { Poll::Ready(()) } else { Poll::Pending }
        });
        assert!(started.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn a_waker_that_panics_stops_no_other_alarm() {
        struct Panics;
        impl std::task::Wake for Panics {
            fn wake(self: std::sync::Arc<Self>) {
                panic!("a waker of a foreign runtime");
            }
        }
        let started = Instant::now();
        let _bad = Alarm::new(started, &std::sync::Arc::new(Panics).into());
        let (sent, woken) = std::sync::mpsc::sync_channel(1);
        struct Tells(std::sync::mpsc::SyncSender<()>);
        impl std::task::Wake for Tells {
            fn wake(self: std::sync::Arc<Self>) {
                let _ = self.0.try_send(());
            }
        }
        let at = started + Duration::from_millis(20);
        let _good = Alarm::new(at, &std::sync::Arc::new(Tells(sent)).into());
        woken.recv_timeout(Duration::from_secs(20)).expect("the timer's thread lives");
    }

    #[test]
    fn a_waker_that_owns_an_alarm_is_dropped_outside_the_lock() {
        struct Owner(#[expect(dead_code, reason = "held for its drop")] Mutex<Option<Alarm>>);
        impl std::task::Wake for Owner {
            fn wake(self: std::sync::Arc<Self>) {}
        }
        let at = Instant::now() + Duration::from_secs(7200);
        let (sent, dropped) = std::sync::mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let inner = Alarm::new(at, Waker::noop());
            let owner = std::sync::Arc::new(Owner(Mutex::new(Some(inner)))).into();
            let alarm = Alarm::new(at, &owner);
            drop(owner);
            // The waker goes with its alarm, and the other alarm with the waker.
            drop(alarm);
            sent.send(()).unwrap();
        });
        dropped.recv_timeout(Duration::from_secs(20)).expect("an alarm waits for its own lock");
    }

    #[test]
    fn a_dropped_alarm_is_forgotten() {
        let at = Instant::now() + Duration::from_secs(7200);
        let alarm = Alarm::new(at, Waker::noop());
        let key = alarm.key;
        drop(alarm);
        let timer = TIMER.get().unwrap();
        assert!(!timer.alarms().wakers.contains_key(&key));
    }
}
