//! The control thread: it alone owns the event channel and the ids.
//!
//! ```text
//!  anyone ── Command ─► queue + eventfd ─┐
//!  CM ─────── events ─► channel fd ──────┼─► epoll ─► one thread ─► ids: IdKey → Entry { id, role }
//!  devices ── async events ─► fds ───────┘                 └─► notes to ports, answers to callers
//! ```
//! It sleeps when nothing happens, and ends when the last `ControlHandle` is gone and no `rdma_connect` runs.

use std::{
    collections::HashMap,
    os::fd::AsFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Weak,
        mpsc::{self, Receiver},
    },
    time::Duration,
};

use gimmal_rdma::{
    id::{CmEvent, CmId, EventChannel, EventKind, IdKey},
    verbs::{DeviceEvent, Qp},
};
use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::{
    CloseReason, Instant, PortError, Refusal, RejectReason, thread,
    verbs::{
        control::{
            connect::{Active, Attempt},
            entry::{Entry, Handle, Role},
            lane::{Holdings, LinkParts},
            listen::Listening,
            mailbox::{Command, ControlHandle, Mailbox},
            removal::Removals,
            table::{Action, Happening, action, answers},
            turns::Turns,
            untold::Untold,
            watches::Watches,
        },
        srq::queue::SharedQueue,
    },
};

const CHANNEL: u64 = 0;
const BELL: u64 = 1;

pub(crate) struct Control {
    pub(crate) channel: Arc<EventChannel>,
    pub(crate) ids: HashMap<IdKey, Entry>,
    /// Attempts whose name is being looked up.
    pub(crate) naming: HashMap<u64, Box<Attempt>>,
    pub(crate) turns: Turns,
    inbox: Receiver<Command>,
    pub(crate) mailbox: Mailbox,
    pub(crate) watches: Watches,
    pub(crate) removals: Removals,
    serial: u64,
    stray_events: u64,
    pub(crate) untold: Untold,
    /// Shared receive queues that ran low, and when each is armed again.
    low: Vec<(Instant, Weak<SharedQueue>)>,
    stopping: bool,
    /// No attempt's deadline is before it. Most end long before theirs: then it is looked at once, in vain.
    next_look: Option<Instant>,
}

impl Control {
    /// Starts the thread; it ends with the last handle.
    pub(crate) fn spawn() -> Result<Arc<ControlHandle>, PortError> {
        let channel = EventChannel::new()?;
        let system =
            |step| move |error: rustix::io::Errno| PortError::System { step, errno: error.raw_os_error() };
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(system("eventfd"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create"))?;
        for (fd, data) in [(channel.fd(), CHANNEL), (bell.as_fd(), BELL)] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(data), epoll::EventFlags::IN)
                .map_err(system("epoll_ctl"))?;
        }
        let (commands, inbox) = mpsc::channel();
        let (end, ended) = mpsc::sync_channel(1);
        let mailbox = Mailbox::new(commands, bell);
        let control = Self {
            channel,
            ids: HashMap::new(),
            naming: HashMap::new(),
            turns: Turns::default(),
            inbox,
            mailbox: mailbox.clone(),
            watches: Watches::new(epoll),
            removals: Removals::default(),
            serial: 0,
            stray_events: 0,
            untold: Untold::default(),
            low: Vec::new(),
            stopping: false,
            next_look: None,
        };
        let run = move || {
            if catch_unwind(AssertUnwindSafe(|| control.run())).is_err() {
                tracing::error!(
                    "the control thread panicked: this process makes and accepts no RDMA connection any more"
                );
            }
            // Nobody may be waiting any more.
            let _ = end.send(());
        };
        thread::spawn("gimmal-control", run).map_err(|error| PortError::System {
            step: "starting the control thread",
            errno: error.raw_os_error().unwrap_or(0),
        })?;
        Ok(Arc::new(ControlHandle::new(mailbox, ended)))
    }

    fn run(mut self) {
        let mut ready = Vec::with_capacity(16);
        loop {
            let deadline = self.next_deadline();
            if self.stopping && self.ids.is_empty() {
                return;
            }
            let wait = deadline.map(|at| timespec(at.remaining()));
            let buffer = rustix::buffer::spare_capacity(&mut ready);
            match epoll::wait(self.watches.epoll(), buffer, wait.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the control thread cannot wait any more and ends");
                    return;
                }
            }
            let (mut has_events, mut has_commands) = (false, false);
            for event in ready.drain(..) {
                match event.data.u64() {
                    CHANNEL => has_events = true,
                    BELL => has_commands = true,
                    watch => self.on_device(watch),
                }
            }
            if has_commands {
                self.take_commands();
            }
            if has_events {
                self.take_events();
            }
            self.expire(Instant::now());
            self.arm_again(Instant::now());
            self.begin_waiting();
            self.attend();
            self.tell();
            self.step_removals(Instant::now());
            self.tell();
        }
    }

    fn take_events(&mut self) {
        loop {
            match CmEvent::next(&self.channel) {
                Ok(Some(event)) => self.on_event(event),
                Ok(None) => break,
                Err(errno) => {
                    tracing::warn!(errno, "rdma_get_cm_event failed");
                    break;
                }
            }
            self.tell_of_many();
        }
        self.tell();
    }

    fn take_commands(&mut self) {
        self.mailbox.silence();
        while let Ok(command) = self.inbox.try_recv() {
            self.on_command(command);
            self.tell_of_many();
        }
        self.tell();
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Connect(attempt) => self.connect(attempt),
            Command::Named { ticket, result } => self.named(ticket, result),
            Command::Called { handle, result } => self.called(handle, result),
            Command::GiveUp { ticket, outcome } => self.give_up(ticket, &outcome),
            Command::Listen { addresses, options, requests, rejected, reply } => {
                let listening = Listening { requests, rejected, options };
                // The caller waits; if it is gone, so are the ids with the next `Unlisten` or `Stop`.
                let _ = reply.send(self.listen(&addresses, &listening));
            }
            Command::Unlisten { ids, requests, done } => {
                for handle in ids {
                    self.unlisten(handle);
                }
                for request in requests.try_iter() {
                    self.reject(request.handle, &RejectReason::ShuttingDown.into());
                }
                let _ = done.send(());
            }
            Command::Accept { handle, shared, then } => {
                let outcome = self.accept(handle, &shared);
                self.untold.accepted.push((then, outcome));
            }
            Command::Reject { handle, refusal } => self.reject(handle, &refusal),
            Command::Disconnect { handle } => {
                if let Some(entry) = self.ids.get(&handle.key).filter(|entry| entry.serial == handle.serial)
                    && !entry.busy
                {
                    // EINVAL: it is down already.
                    let _ = entry.id.disconnect();
                }
            }
            Command::Destroy { handle, qp, holdings } => self.destroy(handle, qp, holdings),
            Command::Stop => self.stop(),
        }
    }

    /// Adds an id and names it.
    pub(crate) fn keep(&mut self, id: CmId, role: Role) -> Handle {
        self.serial += 1;
        let entry = Entry { id, serial: self.serial, busy: false, unanswered: false, role };
        let handle = entry.handle();
        self.ids.insert(handle.key, entry);
        handle
    }

    /// Takes an id out, if it is still the one that is meant.
    pub(crate) fn take(&mut self, handle: Handle) -> Option<Entry> {
        if self.ids.get(&handle.key)?.serial != handle.serial {
            return None;
        }
        self.ids.remove(&handle.key)
    }

    /// Destroys an id now, or when `rdma_connect` lets go of it and the kernel would not wait.
    pub(crate) fn bury(&mut self, mut entry: Entry, parts: Option<(Qp, Box<Holdings>)>) {
        if entry.busy || entry.unanswered {
            entry.role = Role::Dying(parts);
            self.ids.insert(entry.id.key(), entry);
        } else {
            self.untold.destroyed.extend(entry.destroy(parts).map(|holdings| *holdings));
        }
    }

    fn destroy(&mut self, handle: Handle, qp: Qp, holdings: Box<Holdings>) {
        let Some(entry) = self.take(handle) else {
            // Its id went with the device; the queue pair did too.
            return;
        };
        if !entry.busy && holdings.iwarp() {
            // So that the peer hears of an end and not of a reset; EINVAL: it is down already. On IB the destruction of
            // the id asks for the same.
            let _ = entry.id.disconnect();
        }
        self.bury(entry, Some((qp, holdings)));
    }

    /// A link that nobody took.
    pub(crate) fn discard(&mut self, parts: LinkParts) {
        self.destroy(parts.handle, parts.lane.qp, Box::new(parts.lane.holdings));
    }

    fn called(&mut self, handle: Handle, result: Result<(), i32>) {
        let Some(mut entry) = self.take(handle) else { return };
        entry.busy = false;
        entry.unanswered &= result.is_ok();
        match entry.role {
            Role::Dying(parts) => {
                entry.role = Role::Dying(None);
                self.bury(entry, parts);
            }
            Role::Active(active) => {
                entry.role = Role::Dying(None);
                match result {
                    Ok(()) => {
                        entry.role = Role::Active(active);
                        self.ids.insert(handle.key, entry);
                    }
                    Err(errno) => {
                        let failure = active.call_failed(errno);
                        self.failed(entry, *failure);
                    }
                }
            }
            _ => {
                self.ids.insert(handle.key, entry);
            }
        }
    }

    fn on_event(&mut self, event: CmEvent) {
        tracing::trace!(?event, "CM event");
        let Some(entry) = self.ids.get_mut(&event.key) else {
            self.stray(&event);
            return;
        };
        entry.unanswered &= !answers(event.kind);
        match action(entry.role.state(), Happening::Cm(event.kind)) {
            Action::Note => {}
            Action::Probe => {
                tracing::debug!(?event, "a hint about a connection that stands: its peer is asked");
                if let Role::Live(live) = &entry.role {
                    live.suspect();
                }
            }
            Action::Establish | Action::LastReceive | Action::Refill | Action::Stray => self.stray(&event),
            Action::Request => self.request(event),
            Action::PeerGone => self.down(&event, CloseReason::PeerGone { how: how_gone(&event) }),
            Action::DeviceGone => self.device_gone(&event),
            Action::Fail if matches!(entry.role, Role::Live(_)) => {
                let reason = CloseReason::Event { event: event.kind.name(), status: event.status };
                self.down(&event, reason);
            }
            Action::Reap => {
                if let Some(mut entry) = self.ids.remove(&event.key) {
                    let parts = match std::mem::replace(&mut entry.role, Role::Dying(None)) {
                        Role::Dying(parts) => parts,
                        _ => None,
                    };
                    self.bury(entry, parts);
                }
            }
            Action::Forget => {
                if let Some(entry) = self.ids.remove(&event.key) {
                    self.bury(entry, None);
                }
            }
            step @ (Action::HasDevice
            | Action::NextAddress
            | Action::HasRoute
            | Action::Accepted
            | Action::Refused
            | Action::NoAnswer
            | Action::Fail) => self.advance(step, &event),
        }
    }

    fn down(&self, event: &CmEvent, reason: CloseReason) {
        if let Some(Entry { role: Role::Live(live), .. }) = self.ids.get(&event.key) {
            live.down(reason);
        }
    }

    fn device_gone(&mut self, event: &CmEvent) {
        self.begin_removal(event.key);
        match self.ids.get(&event.key).map(|entry| &entry.role) {
            // The port hands its licence back, and then the id goes.
            Some(Role::Live(live)) => live.down(CloseReason::DeviceGone),
            Some(Role::Active(_)) => self.advance(Action::Fail, event),
            Some(Role::Listener(_)) => self.lose_listener(event.key),
            _ => {
                if let Some(entry) = self.ids.remove(&event.key) {
                    self.bury(entry, None);
                }
            }
        }
    }

    fn stray(&mut self, event: &CmEvent) {
        self.stray_events += 1;
        tracing::debug!(?event, total = self.stray_events, "a CM event that has no place here");
    }

    fn on_device(&mut self, watch: u64) {
        for news in self.watches.read(watch) {
            let happening = Happening::Device(news.event);
            let (mut failed, mut low) = (Vec::new(), None);
            for (&key, entry) in &self.ids {
                let (cq, srq) = match &entry.role {
                    Role::Live(live) => (Some(live.cq), live.srq),
                    Role::Active(active) => (None, active.srq()),
                    _ => (None, None),
                };
                let qp = entry.id.qp_address();
                if !entry.device().is_some_and(|device| news.concerns(device, qp, cq, srq)) {
                    continue;
                }
                match (action(entry.role.state(), happening), &entry.role) {
                    // Once, whoever shares it.
                    (Action::Refill, _) => low = Some(news.element),
                    (Action::LastReceive, Role::Live(live)) => live.last_receive(),
                    (Action::Probe, Role::Live(live)) => live.suspect(),
                    (Action::Fail, Role::Live(live)) if news.event == DeviceEvent::DeviceFatal => {
                        live.down(CloseReason::DeviceGone);
                    }
                    (Action::Fail, Role::Live(live)) => {
                        live.down(CloseReason::Event { event: news.event.name(), status: 0 });
                    }
                    (Action::Fail, Role::Active(_)) => failed.push(key),
                    (Action::Establish, _) => {
                        // EISCONN: it knows already.
                        let _ = entry.id.notify_established();
                    }
                    (Action::Stray, _) => self.stray_events += 1,
                    _ => {}
                }
            }
            if let Some(address) = low {
                self.refill(watch, address);
            }
            for key in failed {
                self.fail(key, |active| active.call_failed(libc::EIO));
            }
        }
    }

    /// A shared receive queue of the device that is watched so runs low.
    fn refill(&mut self, watch: u64, address: usize) {
        let Some(queue) = self.watches.owner(watch).and_then(|owner| owner.shared_queue_at(address)) else {
            return;
        };
        self.low.push((queue.ran_low(), Arc::downgrade(&queue)));
    }

    /// Shared receive queues ask to be told again, not at once.
    fn arm_again(&mut self, now: Instant) {
        self.low.retain_mut(|(at, queue)| {
            let again = queue.upgrade().and_then(|queue| queue.arm_again(now));
            again.inspect(|&again| *at = again).is_some()
        });
    }

    fn next_deadline(&self) -> Option<Instant> {
        let low = self.low.iter().map(|&(at, _)| at);
        self.next_look.into_iter().chain(self.removals.next_look()).chain(low).min()
    }

    /// An attempt with this deadline begins.
    pub(crate) fn look_at(&mut self, deadline: Instant) {
        self.next_look = Some(self.next_look.map_or(deadline, |at| at.min(deadline)));
    }

    fn expire(&mut self, now: Instant) {
        if self.next_look.is_none_or(|at| now < at) {
            return;
        }
        let late: Vec<IdKey> = self
            .ids
            .iter()
            .filter(|(_, entry)| matches!(&entry.role, Role::Active(active) if active.deadline() <= now))
            .map(|(&key, _)| key)
            .collect();
        for key in late {
            self.fail(key, Active::timed_out);
        }
        self.turns.expire(now);
        let late: Vec<u64> = self
            .naming
            .iter()
            .filter(|(_, attempt)| attempt.deadline <= now)
            .map(|(&ticket, _)| ticket)
            .collect();
        for attempt in late.iter().filter_map(|ticket| self.naming.remove(ticket)).collect::<Vec<_>>() {
            let error = attempt.timeout("looking up the name");
            attempt.finish(Err(error));
        }
        let named = self.naming.values().map(|attempt| attempt.deadline);
        let active = self.ids.values().filter_map(|entry| match &entry.role {
            Role::Active(active) => Some(active.deadline()),
            _ => None,
        });
        self.next_look = named.chain(active).chain(self.turns.deadlines()).min();
    }

    /// The last handle is gone: nobody has a port, a link or a listener any more.
    fn stop(&mut self) {
        self.stopping = true;
        self.naming.clear();
        self.turns.clear();
        self.removals.stop();
        for key in self.ids.keys().copied().collect::<Vec<_>>() {
            let Some(mut entry) = self.ids.remove(&key) else { continue };
            match std::mem::replace(&mut entry.role, Role::Dying(None)) {
                Role::Active(active) => {
                    let parts = active.into_parts();
                    self.bury(entry, parts);
                }
                Role::Dying(parts) => self.bury(entry, parts),
                Role::Listener(_) | Role::Requested(_) | Role::Live(_) | Role::Sentinel => {
                    self.bury(entry, None);
                }
            }
        }
    }

    pub(crate) fn reject(&mut self, handle: Handle, refusal: &Refusal) {
        if let Some(entry) = self.take(handle) {
            // The client may be gone already.
            let _ = entry.id.reject(&refusal.encode());
            self.bury(entry, None);
        }
    }
}

/// How a connection went that the CM reports as disconnected, or as rejected after all.
fn how_gone(event: &CmEvent) -> &'static str {
    if event.kind == EventKind::Rejected {
        "gone before the CM had finished connecting"
    } else if event.status == -libc::ETIMEDOUT {
        "disconnected; it did not answer our own request to disconnect"
    } else {
        "disconnected"
    }
}

fn timespec(span: Duration) -> rustix::time::Timespec {
    // Rounded up to the next millisecond, so that the deadline has passed when we wake.
    let span = span.saturating_add(Duration::from_millis(1));
    rustix::time::Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(span.subsec_nanos()),
    }
}
