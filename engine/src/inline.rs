//! The inline way in: the calling thread runs the turns.

use std::{sync::Arc, time::Duration};

use gimmal_transport::{
    Address, ConnId, ConnectError, ConnectOptions, Instant, Negotiated, Port, Provider, Time, Wait, time,
};

use crate::{
    again::Again,
    alarm::Alarm,
    app::{Act, App, Nothing, Pick},
    config::Plan,
    error::{OpenError, StartError},
    io::Io,
    overdue::within,
    pace::{LOOKS, SOUGHT, SOUGHT_MAX},
    worker::{
        Idle, Worker, WorkerHandle,
        idle::{Idler, Pause},
        inbox::Adopted,
        thread::prepare,
    },
};

/// The longest sleep of a worker that waits for credit.
const UNSETTLED: Duration = Duration::from_millis(1);

/// A worker with a clock and a way to idle: what a thread, inline or of its own, runs.
#[derive(Debug)]
pub(crate) struct Runner<P: Port, A: App> {
    pub(crate) worker: Worker<P, A>,
    idler: Idler,
    started: Instant,
    now: Time,
    /// Messages that were taken since the last turn.
    sought: u32,
}

impl<P: Port, A: App> Runner<P, A> {
    pub(crate) fn new(mut worker: Worker<P, A>, idle: Idle) -> Self {
        // Not a moment of its own: a connection's times go along to another worker.
        let started = time::epoch();
        worker.app.began(started);
        Self { worker, idler: Idler::new(idle), started, now: Time(0), sought: 0 }
    }

    /// Reads the clock.
    pub(crate) fn now(&mut self) -> Time {
        let now = Time::default().plus(self.started.elapsed());
        self.now = now;
        now
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
        self.turn_at(now, pick)
    }

    fn turn_at(&mut self, now: Time, pick: &mut impl Pick<A>) -> usize {
        self.now = now;
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

    /// A turn; when it found nothing, idles by the strategy, at most for `limit`: a few more turns while that is to spin.
    #[inline]
    pub(crate) fn run_once(&mut self, limit: Duration) -> usize {
        self.run_picking(limit, &mut Nothing)
    }

    #[inline]
    fn run_picking(&mut self, limit: Duration, pick: &mut impl Pick<A>) -> usize {
        for _ in 0..LOOKS {
            let work = self.turn_picking(pick);
            if work > 0 {
                return work;
            }
            if limit.is_zero() || !self.pause(limit) {
                break;
            }
        }
        0
    }

    /// After a turn that found nothing. Whether that was short, and nothing but a pause.
    fn pause(&mut self, limit: Duration) -> bool {
        match self.idler.pause(self.now) {
            Pause::Spin => {
                self.breathe();
                return true;
            }
            Pause::Yield => std::thread::yield_now(),
            Pause::Sleep => self.sleep(limit),
        }
        false
    }

    /// Gives the core's pipelines to its other hardware thread, which usually runs the peer. Asking a device takes
    /// as long.
    #[inline]
    fn breathe(&mut self) {
        if self.idler.may_pause() && self.worker.is_in_memory() {
            std::hint::spin_loop();
        }
    }

    /// As [`Runner::run_once`], with one frame at a time, up to the message that `pick` takes. Whether it took one.
    #[inline(always)]
    pub(crate) fn seek(&mut self, limit: Duration, mut pick: impl Pick<A>) -> bool {
        for _ in 0..LOOKS {
            if let Some(picked) = self.seek_one(&mut pick) {
                return picked;
            }
            if !self.seek_nothing(limit) {
                break;
            }
        }
        false
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

    /// As [`Runner::seek`] at `now`: one frame, or a whole turn if none lies open.
    fn seek_at(&mut self, now: Time, mut pick: impl Pick<A>) -> bool {
        self.now = now;
        self.seek_one(&mut pick).unwrap_or_else(|| {
            self.sought = 0;
            self.turn_at(now, &mut Nothing);
            false
        })
    }

    /// Nothing is there for the one who waits: what was sent leaves, and a turn may look at everything. Whether to look again.
    fn seek_nothing(&mut self, limit: Duration) -> bool {
        self.sought = 0;
        let worker = &self.worker;
        let is_settled = !worker.unsent && !worker.is_unsettled() && worker.is_quiet();
        if is_settled && !self.idler.wants_clock() {
            self.turned(0);
        } else if self.turn() > 0 {
            return false;
        }
        self.pause(limit)
    }

    /// Prepares to sleep; for how long at most, or `None` when there is something to do.
    fn arm(&mut self, limit: Duration) -> Option<Duration> {
        self.worker.restless = true;
        let now = self.now();
        let mut wanted = self.worker.deadline(now).since(now).min(limit);
        if self.worker.is_unsettled() {
            // Credit may have come between the last settling and the arming; nobody rings for that again.
            wanted = wanted.min(UNSETTLED);
        }
        // Whoever pushes after this sees the doorbell armed; whoever pushed before is seen by the second look.
        if wanted.is_zero() || !self.worker.port.arm() || !self.worker.inbox.is_empty() {
            self.worker.port.disarm();
            return None;
        }
        Some(wanted)
    }

    /// After sleeping.
    fn woke(&mut self) {
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
}

/// What there is to do after a [step](Inline::step).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// It found something: others may have something to do now.
    Worked,
    /// Nothing, yet: another step.
    Spin,
    /// Nothing for a while: another step, after others.
    Yield,
    /// Sleep until the [alarm](Inline::alarm) rings, at most so long, and call [`Inline::woke`] before anything else.
    Sleep(Duration),
}

/// A worker on the calling thread: the lowest latency, and no thread at all. Not `Send`.
#[derive(Debug)]
pub struct Inline<P: Provider, A: App> {
    runner: Runner<P::Port, A>,
    handle: WorkerHandle<P, A>,
}

impl<P: Provider, A: App> Inline<P, A> {
    /// Opens a port for the calling thread. The plan's workers and cores are for [`Workers`](crate::Workers); pin the
    /// thread with [`pin_to`](crate::worker::thread::pin_to).
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn new(provider: &P, plan: &Plan, app: A) -> Result<Self, StartError> {
        let (runner, handle) = prepare(provider, plan, |_| app)?;
        Ok(Self { runner, handle })
    }

    /// Connects, running turns until the connection is open; at most the connect and handshake time-outs.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn connect(&mut self, address: &Address) -> Result<(ConnId, Arc<Negotiated>), OpenError> {
        let options = self.handle.connect.clone();
        let mut again = Again::new();
        let link = loop {
            match self.attempt(address, &options)? {
                Ok(link) => break link,
                Err(error) => {
                    let pause = again.pause(&error).ok_or(error)?;
                    let started = Instant::now();
                    while started.elapsed() < pause {
                        self.runner.run_once(Duration::from_millis(1));
                    }
                }
            }
        };
        let (adopted, outcome) = Adopted::channel();
        let now = self.runner.now();
        self.runner.worker.adopt(link, adopted, now);
        within("connect.handshake_timeout", options.handshake_timeout, |_| {
            self.runner.run_once(Duration::from_millis(1));
            outcome.try_recv().ok()
        })?
    }

    fn attempt(
        &mut self,
        address: &Address,
        options: &ConnectOptions,
    ) -> Result<Result<P::Link, ConnectError>, OpenError> {
        use gimmal_transport::Connecting as _;
        let mut connecting = self.handle.provider.connect(address, &self.handle.gate, options)?;
        within("connect.connect_timeout", options.connect_timeout, |_| {
            // Short waits: turns keep running, so that a peer on this thread can answer.
            let outcome = connecting.poll(Duration::from_micros(200));
            if outcome.is_none() {
                self.runner.turn();
            }
            outcome
        })
    }

    /// One bounded turn; returns how much it did.
    #[inline]
    pub fn turn(&mut self) -> usize {
        let work = self.runner.turn();
        if work == 0 {
            self.runner.breathe();
        }
        work
    }

    /// A turn; when it found nothing, idles by the configured strategy, at most for `limit`: where that is to spin, a few
    /// turns more.
    #[inline]
    pub fn idle(&mut self, limit: Duration) -> usize {
        self.runner.run_once(limit)
    }

    /// Like [`Inline::idle`], for callers that wait for one message: each is shown to `pick` before the application
    /// has it, and is not
    /// handed to the application if `pick` returns `true`. That ends the turn at once: its accounts wait for the next, and
    /// so does the doorbell for what was sent before, for at most 8 such messages; a peer that needs none has it at once.
    /// Returns whether one was taken.
    ///
    /// Messages with bulk and those of a connection with checksums are never shown.
    #[inline(always)]
    pub fn seek(&mut self, limit: Duration, pick: impl Pick<A>) -> bool {
        self.runner.seek(limit, pick)
    }

    /// Like [`Inline::idle`], for callers that wait for many messages: each without bulk is shown to `pick` before
    /// the application has
    /// it, and is not handed to the application if `pick` returns `true`. Unlike with [`Inline::seek`] this is a turn like any
    /// other, its accounts made once for all of it. `limit` zero: one turn, which never idles.
    #[inline]
    pub fn sift(&mut self, limit: Duration, mut pick: impl Pick<A>) -> usize {
        self.runner.run_picking(limit, &mut pick)
    }

    /// One bounded turn for a task of an event loop: never blocks, and says what the configured strategy does then.
    pub fn step(&mut self, limit: Duration) -> Rest {
        if self.runner.turn() > 0 {
            return Rest::Worked;
        }
        match self.runner.idler.pause(self.runner.now) {
            Pause::Spin => Rest::Spin,
            Pause::Yield => Rest::Yield,
            Pause::Sleep => self.runner.arm(limit).map_or(Rest::Yield, Rest::Sleep),
        }
    }

    /// To be called after [`Rest::Sleep`], whatever ended the sleep.
    pub fn woke(&mut self) {
        self.runner.woke();
    }

    /// What an event loop waits for; meaningful after [`Rest::Sleep`].
    ///
    /// # Errors
    /// The system's: no more descriptors, as a rule.
    pub fn alarm(&self) -> std::io::Result<Alarm> {
        Alarm::new(self.runner.worker.port.wait_fd())
    }

    /// One bounded turn at a time of the caller's choosing: for simulated worlds, whose clock is an argument.
    pub fn turn_at(&mut self, now: Time) -> usize {
        self.runner.turn_at(now, &mut Nothing)
    }

    /// As [`Inline::sift`] at a time of the caller's choosing, and never idle.
    pub fn sift_at(&mut self, now: Time, mut pick: impl Pick<A>) -> usize {
        self.runner.turn_at(now, &mut pick)
    }

    /// As [`Inline::seek`] at a time of the caller's choosing: one frame, or a turn if none lies open.
    pub fn seek_at(&mut self, now: Time, pick: impl Pick<A>) -> bool {
        self.runner.seek_at(now, pick)
    }

    /// Takes over a connection that was made elsewhere. Its outcome is told to the application.
    pub fn adopt(&mut self, link: P::Link) {
        let now = self.runner.now();
        self.adopt_at(link, now);
    }

    /// As [`Inline::adopt`] at a time of the caller's choosing.
    pub fn adopt_at(&mut self, link: P::Link, now: Time) {
        self.runner.worker.adopt(link, Adopted::nobody(), now);
    }

    /// Lets the application act; what it sends leaves at once.
    #[inline]
    pub fn with<R>(&mut self, act: impl FnOnce(&mut A, &mut Io<'_, P::Port>) -> R) -> R {
        let now = self.runner.now;
        self.runner.worker.with(now, act)
    }

    /// As [`Inline::with`], but the doorbell for what it sends comes with the next turn, or with [`Inline::flush`]: one for
    /// several sends. A peer that needs none has each at once.
    #[inline(always)]
    pub fn with_later<T: Act<A>>(&mut self, act: T) -> T::Outcome {
        let now = self.runner.now;
        self.runner.worker.with_later(now, act)
    }

    /// What was sent leaves now.
    #[inline]
    pub fn flush(&mut self) {
        let now = self.runner.now;
        self.runner.worker.settle(now);
    }

    /// Reads the clock. What the application does next happens at this time.
    pub fn now(&mut self) -> Time {
        self.runner.now()
    }

    /// The application.
    #[must_use]
    pub fn app(&self) -> &A {
        &self.runner.worker.app
    }

    /// The application.
    #[must_use]
    pub fn app_mut(&mut self) -> &mut A {
        &mut self.runner.worker.app
    }

    /// For other threads, an [`Acceptor`](crate::Acceptor) among them.
    #[must_use]
    pub fn handle(&self) -> WorkerHandle<P, A> {
        self.handle.clone()
    }

    /// Says goodbye to every peer and waits for the answers, at most `timeout`. Returns whether all came.
    pub fn close(mut self, timeout: Duration) -> bool {
        let now = self.runner.now();
        self.runner.worker.close_all(now);
        let deadline = now.plus(timeout);
        while self.runner.worker.connections() > 0 && self.runner.now() < deadline {
            self.runner.run_once(Duration::from_millis(1));
        }
        self.runner.worker.connections() == 0
    }
}
