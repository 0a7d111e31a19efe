//! The control thread, which alone owns the event channel and the ids.
//!
//! ```text
//!  anyone ── Command ─► queue + eventfd ─┐
//!  CM ─────── events ─► channel fd ──────┼─► epoll ─► one thread ─► ids: IdKey → Entry { id, role }
//!  devices ── news ─► their receiver ─────┘                 └─► notes to ports, answers to callers
//! ```
//! It sleeps when nothing happens, and ends when the last `ControlHandle` is gone and no helper thread runs.

use std::{
    os::fd::{AsFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Weak,
        mpsc::{self, Receiver},
    },
    time::Duration,
};

use gimmal_rdma::{
    id::{CmEvent, EventChannel, EventKind, IdInfo, IdKey},
    verbs::{AsyncEvent, DeviceEvent, DeviceNews},
};
use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::{
    CloseReason, Instant, PortError, RejectReason,
    kernel::{system, system_io},
    thread,
    verbs::{
        control::{
            connect::{self, Attempts},
            entry::Role,
            ids::Ids,
            lane::Handle,
            mailbox::{Command, ControlHandle, Mailbox},
            removal::Removals,
            table::{Action, Happening, action, answers},
            watches::{Watches, concerns},
        },
        srq::queue::SharedQueue,
    },
};

const CHANNEL: u64 = 0;
const BELL: u64 = 1;
const DEVICES: u64 = 2;
/// Events of the CM in one round.
const EVENTS: usize = 64;

pub(crate) struct Control {
    epoll: OwnedFd,
    ids: Ids,
    attempts: Attempts,
    removals: Removals,
    inbox: Receiver<Command>,
    mailbox: Mailbox,
    stray_events: u64,
    /// Shared receive queues that ran low, and when to arm each again.
    low: Vec<(Instant, Weak<SharedQueue>)>,
    stopping: bool,
}

impl Control {
    /// Starts the thread, which ends with the last handle.
    pub(crate) fn spawn() -> Result<Arc<ControlHandle>, PortError> {
        let channel = EventChannel::new()?;
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(system("eventfd"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create"))?;
        let watches = Watches::new()?;
        for (fd, data) in [(channel.fd(), CHANNEL), (bell.as_fd(), BELL), (watches.fd(), DEVICES)] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(data), epoll::EventFlags::IN)
                .map_err(system("epoll_ctl"))?;
        }
        let (commands, inbox) = mpsc::channel();
        let (end, ended) = mpsc::sync_channel(1);
        let mailbox = Mailbox::new(commands, bell);
        let control = Self {
            epoll,
            ids: Ids::new(channel, watches),
            attempts: Attempts::new(mailbox.clone()),
            removals: Removals::default(),
            inbox,
            mailbox: mailbox.clone(),
            stray_events: 0,
            low: Vec::new(),
            stopping: false,
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
        thread::spawn("gimmal-control", run)
            .map_err(|error| system_io("starting the control thread", &error))?;
        Ok(Arc::new(ControlHandle::new(mailbox, ended)))
    }

    fn run(mut self) {
        let mut ready = Vec::with_capacity(16);
        loop {
            let deadline = self.next_deadline();
            if self.stopping && self.ids.all().next().is_none() {
                return;
            }
            let wait = deadline.map(|at| timespec(at.remaining()));
            let buffer = rustix::buffer::spare_capacity(&mut ready);
            match epoll::wait(&self.epoll, buffer, wait.as_ref()) {
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
                    _ => {}
                }
            }
            self.take_news();
            if has_commands {
                self.take_commands();
            }
            if has_events {
                self.take_events();
            }
            self.attempts.expire(&mut self.ids, Instant::now());
            self.arm_again(Instant::now());
            self.attempts.begin(&mut self.ids);
            self.ids.tell();
            self.removals.step(&mut self.ids, Instant::now());
            self.ids.tell();
        }
    }

    /// Takes what the CM reports. More stays for the next round, behind commands and deadlines: the channel says so again.
    fn take_events(&mut self) {
        for _ in 0..EVENTS {
            match CmEvent::next(&self.ids.channel) {
                Ok(Some(event)) => self.on_event(event),
                Ok(None) => break,
                Err(errno) => {
                    tracing::warn!(errno, "rdma_get_cm_event failed");
                    break;
                }
            }
            self.ids.tell_of_many();
        }
        self.ids.tell();
    }

    fn take_commands(&mut self) {
        self.mailbox.silence();
        while let Ok(command) = self.inbox.try_recv() {
            self.on_command(command);
            self.ids.tell_of_many();
        }
        self.ids.tell();
    }

    /// Handles what devices have reported.
    ///
    /// Before every command and event: either may make a queue pair, which can have the address of one that was destroyed
    /// and that news are still about.
    fn take_news(&mut self) {
        while let Some(news) = self.ids.watches.next() {
            match news {
                DeviceNews::Event(event) => self.on_device(event),
                DeviceNews::Removed(device) => self.removals.begin(&self.ids, device),
            }
        }
    }

    fn on_command(&mut self, command: Command) {
        self.take_news();
        let ids = &mut self.ids;
        match command {
            Command::Connect(attempt) => {
                ids.watches.add(&attempt.shared);
                self.attempts.connect(attempt);
            }
            Command::Named { ticket, result } => self.attempts.named(ticket, result),
            Command::Called { handle, result } => self.called(handle, result),
            Command::GiveUp { ticket, outcome } => self.attempts.give_up(ids, ticket, &outcome),
            Command::Listen { addresses, listening, reply } => {
                // The caller waits; if it is gone, so are the ids with the next `Unlisten` or `Stop`.
                let _ = reply.send(ids.listen(&addresses, &listening));
            }
            Command::Unlisten { ticket, requests, done } => {
                self.removals.unlisten(ids, ticket);
                for request in requests.try_iter() {
                    ids.reject(request.handle, &RejectReason::ShuttingDown.into());
                }
                let _ = done.send(());
            }
            Command::Accept { handle, shared, then } => {
                let outcome = ids.accept(handle, &shared);
                ids.accepted.push((then, outcome));
            }
            Command::Reject { handle, refusal } => ids.reject(handle, &refusal),
            Command::Disconnect { handle } => {
                if let Some(entry) = ids.current(handle) {
                    // EINVAL: it is down already.
                    let _ = entry.id.disconnect();
                }
            }
            Command::Destroy { handle, lane } => ids.destroy(handle, lane),
            Command::Stop => self.stop(),
        }
    }

    /// Handles the return of a helper thread, and what the CM reported meanwhile.
    fn called(&mut self, handle: Handle, result: Result<(), i32>) {
        let Some(entry) = self.ids.current(handle) else { return };
        entry.busy = false;
        entry.unanswered &= result.is_ok();
        let held = std::mem::take(&mut entry.held);
        match (&entry.role, result) {
            (Role::Dying(_), _) => {
                self.ids.bury(handle.key);
            }
            (_, Err(errno)) => connect::fail(&mut self.ids, handle.key, |active| active.call_failed(errno)),
            (_, Ok(())) => {}
        }
        held.into_iter().for_each(|event| self.on_event(event));
    }

    fn on_event(&mut self, event: CmEvent) {
        self.take_news();
        tracing::trace!(?event, "CM event");
        let Some(entry) = self.ids.get_mut(event.key) else { return self.stray(&event) };
        // A removal ends the attempt at once; everything else would use the id.
        if entry.busy && event.kind != EventKind::DeviceRemoval {
            return entry.held.push(event);
        }
        entry.unanswered &= !answers(event.kind);
        let live = if let Role::Live(live) = &entry.role { Some(&*live.fate) } else { None };
        match (action(entry.role.state(), Happening::Cm(event.kind)), live) {
            (Action::Note, _) => {}
            (Action::Probe, live) => {
                tracing::debug!(?event, "a hint about an established connection: its peer is asked");
                live.inspect(|fate| fate.suspect());
            }
            (Action::Establish | Action::LastReceive | Action::Refill | Action::Stray, _) => {
                self.stray(&event)
            }
            (Action::Request, _) => self.ids.request(event),
            (Action::PeerGone, live) => {
                live.inspect(|fate| fate.set_down(CloseReason::PeerGone { how: how_gone(&event) }));
            }
            (Action::DeviceGone, _) => self.device_gone(&event),
            (Action::Fail, Some(fate)) => {
                fate.set_down(CloseReason::Event { event: event.kind.name(), status: event.status });
            }
            (Action::End, _) => {
                self.ids.bury(event.key);
            }
            (
                step @ (Action::HasDevice
                | Action::NextAddress
                | Action::HasRoute
                | Action::Accepted
                | Action::Refused
                | Action::Fail),
                _,
            ) => self.attempts.advance(&mut self.ids, step, &event),
        }
    }

    fn device_gone(&mut self, event: &CmEvent) {
        if let Some(device) = self.ids.get(event.key).and_then(|entry| entry.id.info().device) {
            self.removals.begin(&self.ids, device);
        }
        match self.ids.get(event.key).map(|entry| &entry.role) {
            // The port hands its licence back, and then the id goes.
            Some(Role::Live(live)) => live.fate.set_down(CloseReason::DeviceGone),
            Some(Role::Active(_)) => self.attempts.advance(&mut self.ids, Action::Fail, event),
            Some(Role::Listener(_)) => self.removals.lose_listener(&mut self.ids, event.key),
            _ => {
                self.ids.bury(event.key);
            }
        }
    }

    fn stray(&mut self, event: &CmEvent) {
        self.stray_events += 1;
        tracing::debug!(?event, total = self.stray_events, "a CM event that has no place here");
    }

    fn on_device(&mut self, event: AsyncEvent) {
        if event.kind == DeviceEvent::SrqLimit {
            // Whether a connection is left that shares it or not: who comes later does.
            return match self.ids.watches.queue(event.device, event.element) {
                Some(queue) => self.low.push((queue.ran_low(), Arc::downgrade(&queue))),
                None => self.stray_events += 1,
            };
        }
        if event.kind == DeviceEvent::CqErr {
            self.ids.watches.on(event.device).iter().for_each(|device| device.cq_broke(event.element));
        }
        let mut failed = Vec::<IdKey>::new();
        for entry in self.ids.concerned(&event) {
            let action = action(entry.role.state(), Happening::Device(event.kind));
            // Most ids have nothing to do with most events, and what an id is about takes long to read.
            if action == Action::Note {
                continue;
            }
            let cq = entry.role.cq();
            let queue = entry.role.queue();
            let srq = queue.as_ref().map(|queue| queue.address());
            let IdInfo { device, qp, .. } = entry.id.info();
            if !device.is_some_and(|device| concerns(&event, device, qp, cq, srq)) {
                continue;
            }
            match (action, &entry.role) {
                (Action::LastReceive, Role::Live(live)) => live.fate.set_last_receive(),
                (Action::Probe, Role::Live(live)) => live.fate.suspect(),
                (Action::Fail, Role::Live(live)) => live.fate.set_down(match event.kind {
                    DeviceEvent::DeviceFatal => CloseReason::DeviceGone,
                    kind => CloseReason::Event { event: kind.name(), status: 0 },
                }),
                (Action::Fail, Role::Active(_)) => failed.push(entry.id.key()),
                (Action::Establish, _) => {
                    // EISCONN: it knows already.
                    let _ = entry.id.notify_established();
                }
                (Action::Stray, _) => self.stray_events += 1,
                _ => {}
            }
        }
        for key in failed {
            connect::fail(&mut self.ids, key, |active| active.call_failed(libc::EIO));
        }
    }

    /// Arms shared receive queues again where that is due.
    fn arm_again(&mut self, now: Instant) {
        self.low.retain_mut(|(at, queue)| {
            let again = queue.upgrade().and_then(|queue| queue.arm_again(now));
            again.inspect(|&again| *at = again).is_some()
        });
    }

    fn next_deadline(&self) -> Option<Instant> {
        let low = self.low.iter().map(|&(at, _)| at);
        low.chain(self.attempts.next_look).chain(self.removals.next_look()).min()
    }

    /// Ends everything: the last handle is gone, and with it every port, link and listener.
    fn stop(&mut self) {
        self.stopping = true;
        self.attempts.stop();
        self.removals.stop();
        for key in self.ids.all().map(|entry| entry.id.key()).collect::<Vec<_>>() {
            self.ids.bury(key);
        }
    }
}

/// Describes how the peer went, when the CM reports the connection as disconnected, or as rejected after all.
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
