//! A worker with a clock and a way to idle: what a thread runs, whosever it is.

use std::{task::Waker, time::Duration};

use gimmal_transport::{Instant, Port, Time, time};

use super::{
    Worker,
    idle::{Idle, Idler, Pause},
    turn::COMMANDS,
};
use crate::{
    app::{App, Nothing, Pick},
    pace::{SOUGHT, SOUGHT_MAX},
};

/// The longest sleep of a worker that waits for credit.
const UNSETTLED: Duration = Duration::from_millis(1);

/// A worker with a clock and a way to idle: what a thread, inline or of its own, runs.
#[derive(Debug)]
pub(crate) struct Runner<P: Port, A: App> {
    pub(crate) worker: Worker<P, A>,
    idler: Idler,
    started: Instant,
    /// The time that was read, or set, last.
    pub(crate) now: Time,
    /// The caller sets the time.
    is_set: bool,
    /// Messages that were taken since the last turn.
    sought: u32,
}

impl<P: Port, A: App> Runner<P, A> {
    pub(crate) fn new(mut worker: Worker<P, A>, idle: Idle) -> Self {
        // Not a moment of its own: a connection's times go along to another worker.
        let started = time::epoch();
        worker.app.began(started);
        Self { worker, idler: Idler::new(idle), started, now: Time(0), is_set: false, sought: 0 }
    }

    /// It has no core of its own, and spinning may keep one from the thread that brings it work.
    pub(crate) const fn shares_core(&mut self) {
        self.idler.shares_core();
    }

    /// Reads the clock, unless the caller sets the time.
    pub(crate) fn now(&mut self) -> Time {
        if !self.is_set {
            self.now = Time::default().plus(self.started.elapsed());
        }
        self.now
    }

    /// Sets the time. From then on nothing reads the clock or idles, and the next turn is a whole one.
    pub(crate) fn set_time(&mut self, now: Time) {
        (self.now, self.is_set) = (now, true);
        self.idler.set_time();
    }

    /// Does what other threads have asked so far.
    pub(crate) fn take_commands(&mut self) {
        for _ in 0..self.worker.inbox.len().div_ceil(COMMANDS) {
            let now = self.now();
            self.worker.turn(now, &mut Nothing);
        }
    }

    /// Says goodbye to every connection. Returns when the time to wait for the answers is over: so long from now on.
    pub(crate) fn close_all(&mut self, timeout: Duration) -> Time {
        let now = self.now();
        self.worker.close_all(now);
        self.now().plus(timeout)
    }

    /// A turn. Its time is as old as a few others; a whole turn, with a fresh one, comes now and then, and when there
    /// is more to do than frames.
    #[inline]
    pub(crate) fn turn(&mut self) -> usize {
        self.turn_picking(&mut Nothing)
    }

    #[inline]
    fn turn_picking(&mut self, pick: &mut impl Pick<A>) -> usize {
        if self.worker.unsent && !self.worker.is_in_memory() {
            // Before the look at what came: the peer works on it meanwhile.
            self.worker.settle(self.now);
        }
        if self.idler.wants_clock() {
            return self.whole_turn(pick);
        }
        let work = self.worker.short_turn(self.now, pick);
        if work.is_none_or(|work| work == 0) {
            if self.worker.unsent {
                self.worker.settle(self.now);
            }
            if work.is_none() || !self.worker.is_quiet() {
                return self.rest_of_turn();
            }
        }
        let work = work.unwrap_or(0);
        self.turned(work);
        work
    }

    /// What a whole turn does beyond a short one that found nothing, at the time that was read last: a device is asked more
    /// often than the clock.
    fn rest_of_turn(&mut self) -> usize {
        self.idler.looks_at_all();
        let work = self.worker.rest_of_turn(self.now);
        self.turned(work);
        work
    }

    fn whole_turn(&mut self, pick: &mut impl Pick<A>) -> usize {
        let before = self.now;
        let now = self.now();
        if self.idler.has_worked() {
            self.worker.duty.took(now.since(before));
        }
        let asks_device = !self.worker.is_in_memory();
        self.idler.told_time(asks_device);
        let work = self.worker.turn(now, pick);
        self.turned(work);
        work
    }

    #[inline]
    fn turned(&mut self, work: usize) {
        self.worker.duty.turned(work);
        self.idler.turned(work, self.now);
    }

    /// A turn; when it found nothing, idles by the strategy, at most for `limit`.
    #[inline]
    pub(crate) fn run_once(&mut self, limit: Duration) -> usize {
        self.run_picking(limit, &mut Nothing)
    }

    #[inline]
    pub(crate) fn run_picking(&mut self, limit: Duration, pick: &mut impl Pick<A>) -> usize {
        let work = self.turn_picking(pick);
        if work == 0 && !limit.is_zero() {
            self.pause(limit);
        }
        work
    }

    /// Idles after a turn that found nothing.
    fn pause(&mut self, limit: Duration) {
        match self.idler.pause(self.now) {
            Pause::Spin => self.breathe(),
            Pause::Yield => std::thread::yield_now(),
            Pause::Sleep => self.sleep(limit),
            Pause::Return => {}
        }
    }

    /// Gives the core's pipelines to its other hardware thread, which usually runs the peer. Asking a device takes
    /// as long.
    #[inline]
    pub(crate) fn breathe(&mut self) {
        if self.idler.may_pause() && self.worker.is_in_memory() {
            std::hint::spin_loop();
        }
    }

    /// As [`Runner::run_once`], with one frame at a time, up to the message that `pick` takes. Whether it took one.
    #[inline(always)]
    pub(crate) fn seek(&mut self, limit: Duration, mut pick: impl Pick<A>) -> bool {
        let picked = self.seek_one(&mut pick);
        if picked.is_none() {
            self.seek_nothing(limit);
        }
        picked.unwrap_or(false)
    }

    /// The next frame that lies open, unless a turn is due. Whether `pick` took it.
    #[inline(always)]
    fn seek_one(&mut self, pick: &mut impl Pick<A>) -> Option<bool> {
        if self.sought >= SOUGHT_MAX {
            return None;
        }
        let picked = self.worker.seek(self.now, pick)?;
        self.sought += 1;
        if self.sought.is_multiple_of(SOUGHT) {
            self.worker.settle(self.now);
        }
        self.turned(1);
        Some(picked)
    }

    /// Nothing is there for the waiting caller: what was sent leaves, and a turn may look at everything.
    fn seek_nothing(&mut self, limit: Duration) {
        self.sought = 0;
        let worker = &self.worker;
        let is_settled = !worker.unsent && !worker.is_unsettled() && worker.is_quiet();
        if is_settled && !self.idler.wants_clock() {
            self.turned(0);
        } else if self.turn() > 0 {
            return;
        }
        self.pause(limit);
    }

    /// Prepares to sleep; for how long at most, or `None` when there is something to do.
    fn arm(&mut self, limit: Duration) -> Option<Duration> {
        let now = self.now();
        let mut wanted = self.worker.deadline(now).since(now).min(limit);
        // What the application did meanwhile leaves. What came of it may change its deadline: another turn asks again.
        if self.worker.conns.accounted {
            wanted = Duration::ZERO;
        }
        self.worker.settle(now);
        self.worker.restless = true;
        if self.worker.is_unsettled() {
            // Credit may have come between the last settling and the arming; nobody rings for that again.
            wanted = wanted.min(UNSETTLED);
        }
        // A command that is pushed after the arming rings the doorbell. The second look at the inbox finds one that was pushed before.
        if wanted.is_zero() || !self.worker.port.arm() || !self.worker.inbox.is_empty() {
            self.worker.port.disarm();
            return None;
        }
        // A port at rest has deadlines of its own: it gives memory back.
        Some(wanted.min(self.worker.port.deadline().since(now)))
    }

    /// After sleeping.
    pub(crate) fn woke(&mut self) {
        self.worker.port.disarm();
        self.worker.duty.slept();
        self.now();
    }

    fn sleep(&mut self, limit: Duration) {
        let Some(wanted) = self.arm(limit) else { return };
        let fd = self.worker.port.wait_fd();
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let timeout = rustix::time::Timespec {
            tv_sec: wanted.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: wanted.subsec_nanos().into(),
        };
        // A signal ends the sleep early, which is harmless.
        let _ = rustix::event::poll(&mut fds, Some(&timeout));
        self.woke();
    }

    /// A turn for a task of an event loop, which others wake: never blocks, and says what the strategy does then.
    pub(crate) fn step(&mut self, limit: Duration, task: &Waker) -> Rest {
        if self.turn() > 0 {
            return Rest::Worked;
        }
        match self.idler.pause(self.now) {
            Pause::Spin => Rest::Spin,
            Pause::Yield | Pause::Return => Rest::Yield,
            Pause::Sleep => self.arm(limit).map_or(Rest::Yield, |wanted| {
                self.worker.inbox.wakes(task);
                Rest::Sleep(wanted)
            }),
        }
    }
}

/// What there is to do after a [step](crate::Inline::step).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// It found something: others may have something to do now.
    Worked,
    /// Nothing, yet: another step.
    Spin,
    /// Nothing for a while: another step, after others.
    Yield,
    /// Sleep until the [alarm](crate::Inline::alarm) rings, at most so long, and call [`Inline::woke`](crate::Inline::woke) before anything else.
    Sleep(Duration),
}
