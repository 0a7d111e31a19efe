//! One attempt of the active side. It goes from Resolving to Routing to Connecting to a link, or fails at a named step.
//!
//! ```text
//!  (name) ─► Resolving ─ADDR_RESOLVED─► Routing ─ROUTE_RESOLVED─► Connecting ─ESTABLISHED─► LinkParts
//!               │  └─ ADDR_ERROR: the next address       │            │ calls that may block: on helper threads
//!               └──────────── own deadline, any other event ──────────┴─► ConnectError
//! ```
//! A step returns what to do next (`Next`) or why it failed (`Failure`). The control thread carries that out.

use std::{
    collections::VecDeque,
    net::IpAddr,
    sync::{Arc, mpsc::SyncSender},
    time::Duration,
};

use gimmal_rdma::{
    cm::Target,
    id::{Blocking, BlockingCall, CmEvent, CmId, EventChannel, EventKind, IdOption, PortSpace},
};

use crate::{
    ConnectError, ConnectOptions, Hello, Instant, RejectReason,
    hello::HELLO_BYTES,
    proof::{REQUEST_BYTES, Session, request},
    verbs::control::{
        lane::{Handle, Lane, LinkParts, WireError, Wiring},
        naming, ports, reject,
        shared::Shared,
        table::{Action, State},
    },
};

/// The outcome of an attempt.
pub(crate) type Outcome = Result<LinkParts, ConnectError>;

/// The longest time-out of one resolving call. The attempt's own deadline may end it earlier.
const RESOLVE_MAX: Duration = Duration::from_secs(10);

/// One of the attempts that run at once: it lasts as long as the attempt and its helper thread.
#[derive(Debug)]
pub(crate) struct Running(#[expect(dead_code, reason = "its holders are counted")] pub(crate) Arc<()>);

/// One call to connect, with what its steps need.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) ticket: u64,
    /// The address as the caller gave it, for errors.
    pub(crate) address: String,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The `service` of our hello.
    pub(crate) service: u16,
    /// The targets that are left to try. Empty until the name is resolved.
    pub(crate) candidates: VecDeque<Target>,
    /// A helper thread looks the name up, or did.
    pub(crate) is_looked_up: bool,
    /// The target that is being tried.
    pub(crate) current: Option<Target>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) options: ConnectOptions,
    /// The nonce of our hello.
    pub(crate) nonce: u128,
    /// Our addresses to connect from, if the caller chose a device or a source.
    pub(crate) sources: Vec<IpAddr>,
    pub(crate) deadline: Instant,
    /// Counts this attempt among those that run, until its helper thread has returned too.
    pub(crate) running: Option<Arc<Running>>,
    pub(crate) outcome: SyncSender<Outcome>,
}

impl Attempt {
    pub(crate) fn timeout(&self, step: &'static str) -> ConnectError {
        ConnectError::Timeout { address: self.address.clone(), step, timeout: self.options.connect_timeout }
    }

    /// Reports the failure to the caller, unless the caller has given up.
    pub(crate) fn fail(&self, error: ConnectError) {
        let _ = self.outcome.send(Err(error));
    }

    fn left(&self) -> Duration {
        self.deadline.remaining().min(RESOLVE_MAX)
    }

    pub(crate) fn resolve_error(&self, step: &'static str, errno: i32) -> ConnectError {
        ConnectError::Resolve { address: self.address.clone(), step, errno }
    }

    /// Begins with the next target that can be tried. Returns the id that resolves its address.
    ///
    /// # Errors
    /// No target is left: why the last one failed, or else `error`.
    pub(crate) fn next_address(
        &mut self,
        channel: &Arc<EventChannel>,
        mut error: Option<ConnectError>,
    ) -> Result<CmId, ConnectError> {
        while let Some(target) = self.candidates.pop_front() {
            match self.begin(channel, &target) {
                Ok(id) => {
                    self.current = Some(target);
                    return Ok(id);
                }
                Err(why) => error = Some(why),
            }
        }
        Err(error.unwrap_or_else(|| self.resolve_error("getaddrinfo", 0)))
    }

    /// Makes an id that resolves the address of `target`.
    fn begin(&self, channel: &Arc<EventChannel>, target: &Target) -> Result<CmId, ConnectError> {
        let request_bytes = if self.options.key.is_some() { REQUEST_BYTES } else { HELLO_BYTES };
        naming::leaves_room(target, request_bytes)?;
        let failed = |errno| self.resolve_error("rdma_resolve_addr", errno);
        let to = target.destination.as_ref().ok_or_else(|| failed(libc::EADDRNOTAVAIL))?;
        let from = ports::source(&self.sources, &self.address, target, to)?;
        let id = CmId::new(channel, PortSpace::Tcp).map_err(failed)?;
        if let Some(tos) = self.options.type_of_service {
            id.set(IdOption::TypeOfService(tos)).map_err(failed)?;
        }
        id.resolve_address(from, *to, self.left()).map_err(failed)?;
        Ok(id)
    }
}

/// The current step of an attempt.
#[derive(Debug)]
enum Step {
    /// `rdma_resolve_addr` runs.
    Resolving,
    /// The id has a device and a queue pair; `rdma_resolve_route` runs.
    Routing(Lane),
    /// `rdma_connect` was called with this hello.
    Connecting { lane: Lane, hello: Hello, ack_timeout: Option<u8> },
}

/// An attempt that has an id.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) attempt: Box<Attempt>,
    step: Step,
}

/// What to do for an attempt that goes on.
pub(crate) enum Next {
    /// Wait: the path is known already.
    Wait,
    /// Call `rdma_resolve_route` or `rdma_connect`.
    Call(BlockingCall),
    /// Hand out the established connection.
    Link(Box<LinkParts>),
}

/// Why a step failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: ConnectError,
    /// Whether another address may succeed.
    pub(crate) try_next: bool,
}

impl From<ConnectError> for Failure {
    /// Makes a failure that no other address would change.
    fn from(error: ConnectError) -> Self {
        Self { error, try_next: false }
    }
}

impl Active {
    pub(crate) fn new(attempt: Box<Attempt>) -> Self {
        Self { attempt, step: Step::Resolving }
    }

    pub(crate) fn state(&self) -> State {
        match self.step {
            Step::Resolving => State::Resolving,
            Step::Routing(_) => State::Routing,
            Step::Connecting { .. } => State::Connecting,
        }
    }

    pub(crate) fn lane(&self) -> Option<&Lane> {
        match &self.step {
            Step::Resolving => None,
            Step::Routing(lane) | Step::Connecting { lane, .. } => Some(lane),
        }
    }

    /// Returns the attempt, and the lane that is destroyed with its id.
    pub(crate) fn split(self) -> (Box<Attempt>, Option<Lane>) {
        let lane = match self.step {
            Step::Resolving => None,
            Step::Routing(lane) | Step::Connecting { lane, .. } => Some(lane),
        };
        (self.attempt, lane)
    }

    const fn step(&self) -> &'static str {
        match self.step {
            Step::Resolving => "resolving the address",
            Step::Routing(_) => "resolving the route",
            Step::Connecting { .. } => "connecting",
        }
    }

    pub(crate) fn timed_out(&self) -> Failure {
        self.attempt.timeout(self.step()).into()
    }

    /// Describes a failure of a call itself. That of `rdma_connect` is how iWARP reports a refusal.
    pub(crate) fn call_failed(&self, errno: i32) -> Failure {
        if matches!(self.step, Step::Routing(_)) {
            let error = self.attempt.resolve_error("rdma_resolve_route", errno);
            return Failure { error, try_next: true };
        }
        let error = reject::connect_error(&self.attempt.address, errno.saturating_neg(), &[]);
        Failure { error, try_next: errno != libc::EINVAL }
    }

    /// Handles an event, which moves the attempt on or ends it.
    pub(crate) fn advance(
        &mut self,
        action: Action,
        event: &CmEvent,
        id: &mut CmId,
        handle: Handle,
    ) -> Result<Next, Failure> {
        match (action, std::mem::replace(&mut self.step, Step::Resolving)) {
            (Action::HasDevice, Step::Resolving) => self.has_device(id),
            (Action::HasRoute, Step::Routing(lane)) => Ok(self.has_route(id, lane)),
            (Action::Accepted, Step::Connecting { mut lane, hello, ack_timeout }) => {
                match self.accepted(event, &hello, &mut lane) {
                    Ok((mut wiring, session)) => {
                        let Attempt { address, options, .. } = &*self.attempt;
                        lane.describe(id, address, options.rnr_timer, &mut wiring.negotiated);
                        wiring.negotiated.ack_timeout = ack_timeout;
                        let handshake_timeout = options.handshake_timeout;
                        let parts =
                            LinkParts { handle, lane, wiring, active: true, handshake_timeout, session };
                        Ok(Next::Link(Box::new(parts)))
                    }
                    Err(error) => {
                        self.step = Step::Connecting { lane, hello, ack_timeout };
                        Err(error.into())
                    }
                }
            }
            (_, step) => {
                self.step = step;
                Err(self.event_failed(action, event))
            }
        }
    }

    /// Handles ADDR_RESOLVED: the id is bound to a device.
    fn has_device(&mut self, id: &mut CmId) -> Result<Next, Failure> {
        let attempt = &self.attempt;
        let next = |error| Failure { error, try_next: true };
        let lane = Lane::new(id, &attempt.shared, attempt.options.receives).map_err(ConnectError::from)?;
        let name = lane.holdings.device.context.name();
        // Whatever fails from here on, the queue pair is destroyed before what it uses.
        self.step = Step::Routing(lane);
        let choice = attempt.options.device.as_ref();
        ports::check_device(choice, &attempt.address, &name, id.info().port).map_err(next)?;
        match attempt.current.as_ref().map(|target| target.routes.as_slice()) {
            None | Some([]) => {
                let route = Blocking::ResolveRoute(attempt.left());
                // SAFETY: `Attempts` runs it at once, or marks the entry busy until it returns: a busy id is kept and left alone.
                Ok(Next::Call(unsafe { id.blocking_call(route) }))
            }
            Some(routes) => {
                id.set(IdOption::Paths(routes)).map_err(|errno| self.call_failed(errno))?;
                Ok(Next::Wait)
            }
        }
    }

    /// Handles ROUTE_RESOLVED: makes the call that connects.
    fn has_route(&mut self, id: &CmId, lane: Lane) -> Next {
        let attempt = &self.attempt;
        let ack_timeout = lane.set_ack_timeout(id, attempt.options.ack_timeout);
        let mut hello = lane.hello(&attempt.shared.config, attempt.options.trust, attempt.nonce);
        hello.service = attempt.service;
        let request = request(&mut hello, attempt.options.key.as_ref());
        let mut params = lane.params(&hello, request, None);
        if let Some(target) = &attempt.current {
            // What the resolver gave comes first; that both fit was seen to when the target was tried.
            params.private.splice(0..0, target.connect_data.iter().copied());
        }
        self.step = Step::Connecting { lane, hello, ack_timeout };
        // SAFETY: `Attempts` runs it at once, or marks the entry busy until it returns: a busy id is kept and left alone.
        Next::Call(unsafe { id.blocking_call(Blocking::Connect(params)) })
    }

    /// Handles ESTABLISHED, whose private data is the peer's hello. Makes nothing for a peer that has not proved its key.
    fn accepted(
        &self,
        event: &CmEvent,
        ours: &Hello,
        lane: &mut Lane,
    ) -> Result<(Wiring, Option<Session>), ConnectError> {
        let address = || self.attempt.address.clone();
        let foreign = |reason: RejectReason| ConnectError::Foreign { address: address(), reason };
        let theirs = Hello::decode(event.private()).map_err(foreign)?;
        let challenge = event.private().get(HELLO_BYTES..).unwrap_or_default();
        let key = self.attempt.options.key.as_ref();
        let session = key.map(|key| Session::active(key, ours, &theirs, challenge));
        if let Some(None) = session {
            return Err(ConnectError::Unproven { address: address() });
        }
        let wiring = lane.wire(&self.attempt.shared, ours, &theirs).map_err(|error| match error {
            WireError::Terms(reason) => foreign(reason),
            WireError::Port(error) => error.into(),
        })?;
        Ok((wiring, session.flatten()))
    }

    /// Describes an event that ends the attempt.
    fn event_failed(&self, action: Action, event: &CmEvent) -> Failure {
        let (address, status) = (&self.attempt.address, event.status);
        match action {
            Action::NextAddress => {
                let error = self.attempt.resolve_error(event.kind.name(), status.saturating_abs());
                Failure { error, try_next: true }
            }
            Action::Refused => {
                Failure { error: reject::connect_error(address, status, event.private()), try_next: true }
            }
            // siw tells a refusal in several ways.
            _ if status == -libc::ECONNREFUSED => {
                Failure { error: reject::connect_error(address, status, &[]), try_next: true }
            }
            _ => Failure {
                error: ConnectError::Event {
                    address: address.clone(),
                    event: event.kind.name(),
                    status,
                    step: self.step(),
                },
                try_next: event.kind == EventKind::Unreachable,
            },
        }
    }
}
