//! How other threads reach a worker.

use std::{
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};

use gimmal_transport::{
    Address, ConnId, ConnectError, ConnectOptions, Connecting, Exposed, Gate, Loan, LoanError, Negotiated,
    PortCounters, Provider, UserBytes,
};

use super::{
    duty::{Duty, DutySnapshot},
    inbox::{Adopted, Command, Inbox},
};
use crate::{
    again::Again,
    app::App,
    error::{ConfigError, OpenError},
    overdue::within,
};

/// One worker, as seen from any thread. Cheap to clone; a handle does not keep its worker alive, and does not lead to its
/// successor: [`Station`](super::Station) does.
#[derive(Debug)]
pub struct WorkerHandle<P: Provider, A: App> {
    pub(crate) provider: P,
    pub(crate) gate: P::Gate,
    pub(crate) inbox: Arc<Inbox<P::Link, A::Command>>,
    pub(crate) duty: Arc<Duty>,
    pub(crate) connect: Arc<ConnectOptions>,
    pub(crate) handshakes_max: usize,
    pub(crate) accepted_max: usize,
    /// That its port holds.
    pub(crate) connections: usize,
}

impl<P: Provider, A: App> Clone for WorkerHandle<P, A> {
    fn clone(&self) -> Self {
        Self {
            provider: self.provider.clone(),
            gate: self.gate.clone(),
            inbox: Arc::clone(&self.inbox),
            duty: Arc::clone(&self.duty),
            connect: Arc::clone(&self.connect),
            handshakes_max: self.handshakes_max,
            accepted_max: self.accepted_max,
            connections: self.connections,
        }
    }
}

impl<P: Provider, A: App> WorkerHandle<P, A> {
    /// Hands `command` to the application on the worker. Never blocks; wakes it when it sleeps.
    ///
    /// # Errors
    /// The command, when the inbox is full: back-pressure.
    pub fn submit(&self, command: A::Command) -> Result<(), A::Command> {
        self.inbox.push(Command::App(command)).map_err(ours::<P, A>)
    }

    /// Hands `command` to the application on the worker. While the inbox is full it is offered again: 64 times with a
    /// yield between, then every millisecond for `patience`, which blocks the thread.
    ///
    /// # Errors
    /// The command, when the inbox stayed full.
    pub fn offer(&self, command: A::Command, patience: Duration) -> Result<(), A::Command> {
        self.inbox.offer(Command::App(command), patience).map_err(ours::<P, A>)
    }

    /// Has the worker take a turn, and so call [`App::tick`]. Never blocks, never fails for want of room, and many rings are one.
    /// Returns whether the worker was there.
    pub fn ring(&self) -> bool {
        self.inbox.ring()
    }

    /// Whether the worker has stopped or panicked. Commands to it are [refused](App::refused).
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.inbox.is_closed()
    }

    /// Whether both lead to the same worker.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inbox, &other.inbox)
    }

    /// Connects, and waits until the connection is open on the worker; at most the connect and handshake time-outs.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn connect(&self, address: &Address) -> Result<(ConnId, Arc<Negotiated>), OpenError> {
        self.connect_with(address, &self.connect)
    }

    /// Connects with options that replace the configuration's.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn connect_with(
        &self,
        address: &Address,
        options: &ConnectOptions,
    ) -> Result<(ConnId, Arc<Negotiated>), OpenError> {
        if self.is_gone() {
            return Err(OpenError::Worker("it is gone, and another takes its place: try again"));
        }
        if let Some((field, value, rule)) = options.flaw() {
            return Err(ConfigError::Time { field, value, rule }.into());
        }
        let mut again = Again::new();
        let link = loop {
            match self.attempt(address, options)? {
                Ok(link) => break link,
                Err(error) => std::thread::sleep(again.pause(&error).ok_or(error)?),
            }
        };
        let (adopted, outcome) = Adopted::channel();
        self.inbox.adopt(link, adopted)?;
        within("connect.handshake_timeout", options.handshake_timeout, |left| {
            match outcome.recv_timeout(left) {
                Ok(opened) => Some(opened),
                Err(RecvTimeoutError::Disconnected) => Some(Err(OpenError::Worker("it stopped"))),
                Err(RecvTimeoutError::Timeout) => None,
            }
        })?
    }

    fn attempt(
        &self,
        address: &Address,
        options: &ConnectOptions,
    ) -> Result<Result<P::Link, ConnectError>, OpenError> {
        let mut connecting = self.provider.connect(address, &self.gate, options)?;
        within("connect.connect_timeout", options.connect_timeout, |left| connecting.poll(left))
    }

    /// How connections are made when nothing else is said.
    #[must_use]
    pub fn connect_options(&self) -> &ConnectOptions {
        &self.connect
    }

    /// Ends a connection in an orderly way, as soon as the worker gets to it. A full inbox is offered this a few times, with
    /// a yield between.
    ///
    /// # Errors
    /// [`OpenError::Worker`] when the inbox stays full.
    pub fn close(&self, conn: ConnId) -> Result<(), OpenError> {
        let offered = self.inbox.offer(Command::Close(conn), Duration::ZERO);
        offered.map_err(|_| OpenError::Worker("its inbox is full"))
    }

    /// Registered memory that can be sent as a loan on `conn`.
    ///
    /// # Errors
    /// See [`LoanError`].
    pub fn allocate(&self, conn: ConnId, bytes: usize) -> Result<Loan, LoanError> {
        self.gate.allocate(conn, bytes)
    }

    /// Memory of the user's as a loan for `conn`, without a copy where the provider can; [`Gate::lend`] says how, and what it
    /// counts is in [`Gate::user_memory`] of [`WorkerHandle::gate`].
    ///
    /// # Errors
    /// See [`LoanError`].
    pub fn lend(&self, conn: ConnId, bytes: &UserBytes) -> Result<Loan, LoanError> {
        self.gate.lend(conn, bytes)
    }

    /// Zeroed memory that the peer of `conn` may use by itself once [`Io::show`](crate::Io::show) told it where; for set-up
    /// only, as it maps and registers.
    ///
    /// # Errors
    /// See [`LoanError`].
    pub fn expose(&self, conn: ConnId, bytes: usize) -> Result<Exposed, LoanError> {
        self.gate.expose(conn, bytes)
    }

    /// The control side's handle on the worker's port.
    #[must_use]
    pub fn gate(&self) -> &P::Gate {
        &self.gate
    }

    /// What the port did for `conn`; asks the worker, so not for a hot path. `None` when it did not answer in 1 s.
    #[must_use]
    pub fn port_counters(&self, conn: ConnId) -> Option<PortCounters> {
        let (reader, counters) = mpsc::sync_channel(1);
        self.inbox.push(Command::Counters(conn, reader)).ok()?;
        counters.recv_timeout(Duration::from_secs(1)).ok()
    }

    /// What the worker did.
    #[must_use]
    pub fn duty(&self) -> DutySnapshot {
        self.duty.snapshot()
    }

    /// Connections that are open, or accepted and in their handshake: what the next one is accepted by.
    pub(crate) fn counted(&self) -> usize {
        self.duty.counted()
    }
}

/// The application's part of what an inbox gave back.
fn ours<P: Provider, A: App>(command: Command<P::Link, A::Command>) -> A::Command {
    match command {
        Command::App(command) => command,
        _ => unreachable!("the queue gives back what it was given"),
    }
}
