//! The inline way in: the calling thread runs the turns.

use std::{sync::Arc, task::Waker, time::Duration};

use gimmal_transport::{
    Address, ConnId, ConnectError, ConnectOptions, Instant, Negotiated, Provider, Time, Wait,
};

use crate::{
    again::Again,
    alarm::Alarm,
    app::{Act, App, Pick},
    config::Plan,
    error::{OpenError, StartError},
    io::Io,
    overdue::within,
    worker::{
        WorkerHandle,
        inbox::Adopted,
        runner::{Rest, Runner},
        thread::prepare,
    },
};

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
        self.connect_with(address, &options)
    }

    /// Connects with options that replace the configuration's, running turns until the connection is open.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn connect_with(
        &mut self,
        address: &Address,
        options: &ConnectOptions,
    ) -> Result<(ConnId, Arc<Negotiated>), OpenError> {
        let mut again = Again::new();
        let link = loop {
            match self.attempt(address, options)? {
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

    /// One bounded turn for `task` of an event loop: never blocks, and says what the configured strategy does then. During a sleep,
    /// other threads and tasks that want a turn wake `task`; from its own thread that is no system call. Unless it `asks`, a turn is
    /// left out that would do no more than ask a device, or the kernel, whether something arrived.
    pub fn step(&mut self, limit: Duration, task: &Waker, asks: bool) -> Rest {
        let worker = &mut self.runner.worker;
        if asks || worker.unsent || !worker.is_quiet() || worker.is_in_memory() {
            self.runner.step(limit, task)
        } else {
            Rest::Spin
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

    /// Sets the time: for simulated worlds. From then on the caller is the clock, and nothing idles. The next turn is a
    /// whole one.
    pub fn at(&mut self, now: Time) -> &mut Self {
        self.runner.set_time(now);
        self
    }

    /// Takes over a connection that was made elsewhere. Its outcome is told to the application.
    pub fn adopt(&mut self, link: P::Link) {
        let now = self.runner.now();
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
        let deadline = self.runner.close_all(timeout);
        while self.runner.worker.connections() > 0 && self.runner.now() < deadline {
            self.runner.run_once(Duration::from_millis(1));
        }
        self.runner.worker.connections() == 0
    }
}

#[cfg(all(test, feature = "shm"))]
mod tests {
    use gimmal_transport::{ListenOptions, Port, shm::Shm};

    use super::*;
    use crate::{Acceptor, Config, Message, Workers};

    #[derive(Debug)]
    struct Mute;

    impl App for Mute {
        type Command = ();

        fn message<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, _: Message<'_>) {}
    }

    /// Each settling looks at every connection that is ending.
    #[test]
    fn all_goodbyes_are_said_with_one_settling() {
        let plan = Config::default().validate().unwrap();
        let workers = Workers::spawn(&Shm, &plan, |_| Mute).unwrap();
        let address = format!("mem://goodbyes-{}", std::process::id()).parse().unwrap();
        let listener = Shm.listen(&address, &ListenOptions::default()).unwrap();
        let _acceptor = Acceptor::spawn(listener, workers.handles()).unwrap();
        let mut client = Inline::new(&Shm, &plan, Mute).unwrap();
        for _ in 0..10 {
            client.connect(&address).unwrap();
        }
        let worker = |client: &Inline<Shm, Mute>| {
            (client.runner.worker.conns.turn, client.runner.worker.connections())
        };
        let before = worker(&client).0;
        client.runner.close_all(Duration::from_secs(30));
        assert_eq!(worker(&client), (before + 1, 10));
        assert!(client.close(Duration::from_secs(30)), "a goodbye was not answered");
    }
}
