//! The active side: an attempt goes Resolving → Routing → Connecting → a link, or fails at a named step.
//!
//! ```text
//!  (name) ─► Resolving ─ADDR_RESOLVED─► Routing ─ROUTE_RESOLVED─► Connecting ─ESTABLISHED─► LinkParts
//!               │  └─ ADDR_ERROR: the next address       │            │ rdma_connect on a helper thread
//!               └──────────── own deadline, any other event ──────────┴─► ConnectError
//! ```

use std::{
    collections::VecDeque,
    net::IpAddr,
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender},
    },
    time::Duration,
};

use gimmal_rdma::{
    cm::{CmError, Target},
    id::{CmEvent, CmId, ConnectCall, EventChannel, EventKind, IdKey},
    verbs::Qp,
};

use crate::{
    ConnectError, ConnectOptions, Hello, Instant, PortError,
    hello::HELLO_BYTES,
    proof::{REQUEST_BYTES, Session, request},
    thread,
    verbs::control::{
        entry::{Entry, Handle, Live, Role},
        gate::Shared,
        lane::{Holdings, Lane, LinkParts, WireError},
        mailbox::Command,
        naming, ports, reject,
        table::{Action, State},
        thread::Control,
        timers::{set_ack_timeout, set_rnr_timer},
        turns::Running,
    },
};

/// How an attempt ends.
pub(crate) type Outcome = Result<LinkParts, ConnectError>;

/// One call's worth of resolving, at most; the attempt's own deadline ends it earlier.
const RESOLVE_MAX: Duration = Duration::from_secs(10);

/// What an attempt carries through its steps.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) ticket: u64,
    /// As it was given, for errors.
    pub(crate) address: String,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// What is left to try.
    pub(crate) candidates: VecDeque<Target>,
    /// What is being tried.
    pub(crate) current: Option<Target>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) options: ConnectOptions,
    /// Of the hello.
    pub(crate) nonce: u128,
    /// Our addresses to connect from, when the device or one of them was chosen.
    pub(crate) sources: Vec<IpAddr>,
    pub(crate) deadline: Instant,
    /// Once it has its turn.
    pub(crate) running: Option<Running>,
    pub(crate) outcome: SyncSender<Outcome>,
}

impl Attempt {
    pub(crate) fn timeout(&self, step: &'static str) -> ConnectError {
        ConnectError::Timeout { address: self.address.clone(), step, timeout: self.options.connect_timeout }
    }

    /// Tells the caller that it failed. One that does not listen any more has given up.
    pub(crate) fn finish(&self, outcome: Outcome) {
        let _ = self.outcome.send(outcome);
    }

    fn request_bytes(&self) -> usize {
        if self.options.key.is_some() { REQUEST_BYTES } else { HELLO_BYTES }
    }

    fn left(&self) -> Duration {
        self.deadline.remaining().min(RESOLVE_MAX)
    }

    fn resolve_error(&self, step: &'static str, errno: i32) -> ConnectError {
        ConnectError::Resolve { address: self.address.clone(), step, errno }
    }
}

/// `rdma_resolve_addr` runs.
#[derive(Debug)]
pub(crate) struct Resolving {
    attempt: Box<Attempt>,
}

/// The id has a device and a queue pair; `rdma_resolve_route` runs.
#[derive(Debug)]
pub(crate) struct Routing {
    attempt: Box<Attempt>,
    lane: Lane,
}

/// `rdma_connect` was called with this hello.
#[derive(Debug)]
pub(crate) struct Waiting {
    attempt: Box<Attempt>,
    lane: Lane,
    hello: Hello,
    ack_timeout: Option<u8>,
}

/// An attempt in one of its steps. A transition consumes it.
#[derive(Debug)]
pub(crate) enum Active {
    Resolving(Resolving),
    Routing(Routing),
    Connecting(Waiting),
}

/// An attempt that ended, or that goes on with its next address.
#[derive(Debug)]
pub(crate) struct Failure {
    attempt: Box<Attempt>,
    lane: Option<Lane>,
    error: ConnectError,
    try_next: bool,
}

impl Resolving {
    /// ADDR_RESOLVED: the id is bound to a device now.
    fn has_device(self, id: &mut CmId) -> Result<Routing, Box<Failure>> {
        let Self { attempt } = self;
        let lane = match Lane::new(id, &attempt.shared, attempt.options.receives) {
            Ok(lane) => lane,
            Err(error) => {
                return Err(Box::new(Failure { attempt, lane: None, error: error.into(), try_next: false }));
            }
        };
        if let Err(error) = ports::check_device(
            attempt.options.device.as_ref(),
            &attempt.address,
            &lane.context().name(),
            id.port_number(),
        ) {
            return Err(Box::new(Failure { attempt, lane: Some(lane), error, try_next: true }));
        }
        let routed = match attempt.current.as_ref().map(|target| target.routes.as_slice()) {
            None | Some([]) => id.resolve_route(attempt.left()),
            Some(routes) => id.set_paths(routes),
        };
        match routed {
            Ok(()) => Ok(Routing { attempt, lane }),
            Err(errno) => {
                let error = attempt.resolve_error("rdma_resolve_route", errno);
                Err(Box::new(Failure { attempt, lane: Some(lane), error, try_next: true }))
            }
        }
    }
}

impl Routing {
    /// ROUTE_RESOLVED: the call that connects.
    fn has_route(self, id: &CmId) -> (Waiting, ConnectCall) {
        let Self { attempt, lane } = self;
        let ack_timeout = set_ack_timeout(id, &lane, attempt.options.ack_timeout);
        let mut hello = lane.hello(&attempt.shared.config, attempt.options.trust, attempt.nonce);
        let request = request(&mut hello, attempt.options.key.as_ref());
        let mut params = lane.params(&hello, request, None);
        if let Some(target) = &attempt.current {
            // What the resolver gave comes first; that both fit was seen to when the target was tried.
            params.private.splice(0..0, target.connect_data.iter().copied());
        }
        // SAFETY: the entry is marked busy until the call has returned, and a busy id is neither destroyed nor used.
        let call = unsafe { id.connect_call(params) };
        (Waiting { attempt, lane, hello, ack_timeout }, call)
    }
}

impl Waiting {
    /// ESTABLISHED: the accept's private data is the peer's hello.
    fn accepted(
        self,
        id: &CmId,
        handle: Handle,
        event: &CmEvent,
    ) -> Result<(LinkParts, Box<Attempt>), Box<Failure>> {
        let Self { attempt, mut lane, hello, ack_timeout } = self;
        let shared = &attempt.shared;
        let wired = Hello::decode(event.private()).map_err(WireError::from).and_then(|theirs| {
            let challenge = event.private().get(HELLO_BYTES..).unwrap_or_default();
            let session = attempt
                .options
                .key
                .as_ref()
                .map(|key| Session::active(key, &hello, &theirs, challenge).ok_or(WireError::Unproven));
            // Nothing is made for a peer that has not proved itself.
            let session = session.transpose()?;
            Ok((lane.wire(shared, &hello, &theirs)?, session))
        });
        let (mut wiring, session) = match wired {
            Ok(wired) => wired,
            Err(error) => {
                let address = attempt.address.clone();
                let error = match error {
                    WireError::Terms(reason) => ConnectError::Foreign { address, reason },
                    WireError::Unproven => ConnectError::Unproven { address },
                    WireError::Port(error) => error.into(),
                };
                return Err(Box::new(Failure { attempt, lane: Some(lane), error, try_next: false }));
            }
        };
        wiring.negotiated.ack_timeout = ack_timeout;
        wiring.negotiated.rnr_timer = set_rnr_timer(&lane, attempt.options.rnr_timer);
        wiring.negotiated.peer.clone_from(&attempt.address);
        lane.describe(id, &mut wiring.negotiated);
        let handshake_timeout = attempt.options.handshake_timeout;
        Ok((LinkParts { handle, lane, wiring, active: true, handshake_timeout, session }, attempt))
    }
}

impl Active {
    pub(crate) fn state(&self) -> State {
        match self {
            Self::Resolving(_) => State::Resolving,
            Self::Routing(_) => State::Routing,
            Self::Connecting(_) => State::Connecting,
        }
    }

    const fn step(&self) -> &'static str {
        match self {
            Self::Resolving(_) => "resolving the address",
            Self::Routing(_) => "resolving the route",
            Self::Connecting(_) => "connecting",
        }
    }

    fn attempt(&self) -> &Attempt {
        match self {
            Self::Resolving(state) => &state.attempt,
            Self::Routing(state) => &state.attempt,
            Self::Connecting(state) => &state.attempt,
        }
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.attempt().deadline
    }

    /// Names its shared receive queue in asynchronous events.
    pub(crate) fn srq(&self) -> Option<usize> {
        let lane = match self {
            Self::Resolving(_) => return None,
            Self::Routing(state) => &state.lane,
            Self::Connecting(state) => &state.lane,
        };
        lane.holdings.queue().map(|queue| queue.address())
    }

    fn ticket(&self) -> u64 {
        self.attempt().ticket
    }

    fn split(self) -> (Box<Attempt>, Option<Lane>) {
        match self {
            Self::Resolving(state) => (state.attempt, None),
            Self::Routing(state) => (state.attempt, Some(state.lane)),
            Self::Connecting(state) => (state.attempt, Some(state.lane)),
        }
    }

    /// What the id's destruction needs; nobody is told.
    pub(crate) fn into_parts(self) -> Option<(Qp, Box<Holdings>)> {
        parts(self.split().1)
    }

    fn failed(self, error: impl FnOnce(&Attempt) -> ConnectError, try_next: bool) -> Box<Failure> {
        let (attempt, lane) = self.split();
        let error = error(&attempt);
        Box::new(Failure { attempt, lane, error, try_next })
    }

    pub(crate) fn timed_out(self) -> Box<Failure> {
        let step = self.step();
        self.failed(|attempt| attempt.timeout(step), false)
    }

    /// `rdma_connect` itself failed: on iWARP that is how a refusal is told.
    pub(crate) fn call_failed(self, errno: i32) -> Box<Failure> {
        let try_next = errno != libc::EINVAL;
        self.failed(|attempt| reject::connect_error(&attempt.address, errno.saturating_neg(), &[]), try_next)
    }

    /// An event that ends it.
    fn event_failed(self, step: Action, event: &CmEvent) -> Box<Failure> {
        let while_step = self.step();
        let status = event.status;
        match step {
            Action::NextAddress => {
                let name = event.kind.name();
                self.failed(|attempt| attempt.resolve_error(name, status.saturating_abs()), true)
            }
            Action::Refused => {
                self.failed(|attempt| reject::connect_error(&attempt.address, status, event.private()), true)
            }
            // siw tells a refusal in several ways.
            _ if status == -libc::ECONNREFUSED => {
                self.failed(|attempt| reject::connect_error(&attempt.address, status, &[]), true)
            }
            _ => self.failed(
                |attempt| ConnectError::Event {
                    address: attempt.address.clone(),
                    event: event.kind.name(),
                    status,
                    step: while_step,
                },
                event.kind == EventKind::Unreachable,
            ),
        }
    }
}

fn parts(lane: Option<Lane>) -> Option<(Qp, Box<Holdings>)> {
    lane.map(|lane| (lane.qp, Box::new(lane.holdings)))
}

impl Control {
    pub(crate) fn connect(&mut self, attempt: Box<Attempt>) {
        self.look_at(attempt.deadline);
        if let Some(target) = naming::literal(&attempt.host, attempt.port) {
            return self.try_targets(attempt, Ok(vec![target]));
        }
        let (ticket, host, port, mailbox) =
            (attempt.ticket, attempt.host.clone(), attempt.port, self.mailbox.clone());
        let helper = thread::spawn("gimmal-resolve", move || {
            mailbox.send(Command::Named { ticket, result: naming::targets(&host, port) });
        });
        match helper {
            Ok(_) => {
                self.naming.insert(attempt.ticket, attempt);
            }
            Err(error) => {
                let error = attempt.resolve_error("starting a thread", error.raw_os_error().unwrap_or(0));
                attempt.finish(Err(error));
            }
        }
    }

    pub(crate) fn named(&mut self, ticket: u64, result: Result<Vec<Target>, CmError>) {
        if let Some(attempt) = self.naming.remove(&ticket) {
            self.try_targets(attempt, result);
        }
    }

    fn try_targets(&mut self, mut attempt: Box<Attempt>, targets: Result<Vec<Target>, CmError>) {
        match targets {
            Ok(targets) => {
                attempt.candidates.extend(targets);
                self.turns.push(attempt);
            }
            Err(error) => {
                let error = naming::connect_error(&attempt.address, error);
                attempt.finish(Err(error));
            }
        }
    }

    /// Starts with the next address; `error` is why the one before failed.
    pub(crate) fn try_address(&mut self, mut attempt: Box<Attempt>, mut error: Option<ConnectError>) {
        while let Some(target) = attempt.candidates.pop_front() {
            if let Err(full) = naming::leaves_room(&target, attempt.request_bytes()) {
                error = Some(full.into());
                continue;
            }
            match begin(&self.channel, &target, &attempt) {
                Ok(id) => {
                    attempt.current = Some(target);
                    self.keep(id, Role::Active(Active::Resolving(Resolving { attempt })));
                    return;
                }
                Err(why) => error = Some(why),
            }
        }
        let error = error.unwrap_or_else(|| attempt.resolve_error("getaddrinfo", 0));
        attempt.finish(Err(error));
    }

    /// An event that moves an attempt on, or ends it.
    pub(crate) fn advance(&mut self, step: Action, event: &CmEvent) {
        // What was destroyed leaves its seats to those who come.
        self.untold.scatter();
        let Some(mut entry) = self.ids.remove(&event.key) else { return };
        let role = std::mem::replace(&mut entry.role, Role::Dying(None));
        let Role::Active(active) = role else {
            entry.role = role;
            self.ids.insert(event.key, entry);
            return;
        };
        let next = match (active, step) {
            (Active::Resolving(state), Action::HasDevice) => {
                state.has_device(&mut entry.id).map(Active::Routing)
            }
            (Active::Routing(state), Action::HasRoute) => self.call(state, &mut entry),
            (Active::Connecting(state), Action::Accepted) => return self.established(state, entry, event),
            (active, step) => Err(active.event_failed(step, event)),
        };
        match next {
            Ok(active) => {
                if let Active::Routing(state) = &active {
                    self.watches.add(state.lane.context(), state.lane.owner());
                }
                entry.role = Role::Active(active);
                self.ids.insert(event.key, entry);
            }
            Err(failure) => self.failed(entry, *failure),
        }
    }

    /// Runs `rdma_connect`; on iWARP on a thread of its own: it can block (siw), and nobody waits for it.
    fn call(&self, state: Routing, entry: &mut Entry) -> Result<Active, Box<Failure>> {
        let (waiting, call) = state.has_route(&entry.id);
        if !waiting.lane.iwarp() {
            // On IB it only sends the request.
            let active = Active::Connecting(waiting);
            return match call.run() {
                Ok(()) => Ok(active),
                Err(errno) => Err(active.call_failed(errno)),
            };
        }
        let handle = Handle { key: entry.id.key(), serial: entry.serial };
        let mailbox = self.mailbox.clone();
        let helper = thread::spawn("gimmal-connect", move || {
            let result = call.run();
            mailbox.send(Command::Called { handle, result });
        });
        match helper {
            Ok(_) => {
                entry.busy = true;
                entry.unanswered = waiting.lane.iwarp();
                Ok(Active::Connecting(waiting))
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(0);
                let active = Active::Connecting(waiting);
                let error = PortError::System { step: "starting a thread", errno };
                Err(active.failed(|_| error.into(), false))
            }
        }
    }

    fn established(&mut self, state: Waiting, mut entry: Entry, event: &CmEvent) {
        let handle = Handle { key: entry.id.key(), serial: entry.serial };
        match state.accepted(&entry.id, handle, event) {
            Ok((parts, attempt)) => {
                entry.role = Role::Live(Live::of(&parts, &entry.id, &attempt.shared));
                self.ids.insert(handle.key, entry);
                self.untold.connected.push((attempt, parts));
            }
            Err(failure) => {
                // The peer believes that it is connected.
                if !entry.busy {
                    let _ = entry.id.disconnect();
                }
                self.failed(entry, *failure);
            }
        }
    }

    /// Ends what failed, and goes on with the next address if that can help.
    pub(crate) fn failed(&mut self, entry: Entry, failure: Failure) {
        let Failure { attempt, lane, error, try_next } = failure;
        self.bury(entry, parts(lane));
        if try_next && !attempt.candidates.is_empty() && Instant::now() < attempt.deadline {
            tracing::debug!(%error, "trying the next address");
            self.try_address(attempt, Some(error));
        } else {
            attempt.finish(Err(error));
        }
    }

    /// Fails the attempt of `key` by `how`.
    pub(crate) fn fail(&mut self, key: IdKey, how: impl FnOnce(Active) -> Box<Failure>) {
        let Some(mut entry) = self.ids.remove(&key) else { return };
        match std::mem::replace(&mut entry.role, Role::Dying(None)) {
            Role::Active(active) => self.failed(entry, *how(active)),
            role => {
                entry.role = role;
                self.ids.insert(key, entry);
            }
        }
    }

    pub(crate) fn give_up(&mut self, ticket: u64, outcome: &Receiver<Outcome>) {
        self.naming.remove(&ticket);
        self.turns.remove(ticket);
        let key = self.ids.iter().find_map(|(&key, entry)| match &entry.role {
            Role::Active(active) if active.ticket() == ticket => Some(key),
            _ => None,
        });
        if let Some(mut entry) = key.and_then(|key| self.ids.remove(&key))
            && let Role::Active(active) = std::mem::replace(&mut entry.role, Role::Dying(None))
        {
            let parts = active.into_parts();
            self.bury(entry, parts);
        }
        // Only this thread sends outcomes, so what is not here now never comes.
        if let Ok(Ok(parts)) = outcome.try_recv() {
            self.discard(parts);
        }
    }
}

/// An id that resolves `target`'s address.
fn begin(channel: &Arc<EventChannel>, target: &Target, attempt: &Attempt) -> Result<CmId, ConnectError> {
    let failed = |errno| attempt.resolve_error("rdma_resolve_addr", errno);
    let to = target.destination.as_ref().ok_or_else(|| failed(libc::EADDRNOTAVAIL))?;
    let from = ports::source(&attempt.sources, &attempt.address, target, to)?;
    let id = CmId::new(channel).map_err(failed)?;
    if let Some(tos) = attempt.options.type_of_service {
        id.set_type_of_service(tos).map_err(failed)?;
    }
    id.resolve_address(from, *to, attempt.left()).map_err(failed)?;
    Ok(id)
}
