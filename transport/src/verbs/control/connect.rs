//! The attempts of the active side. Names are looked up on helper threads, and a bounded number of attempts runs at once.
//!
//! Each step of an attempt is work for the one control thread. If a thousand ran at once, all would still be making their
//! queue pairs when the kernel gives up on the first (siw waits 10 s for the answer to its MPA request). None would
//! connect.

use std::{
    collections::VecDeque,
    sync::{Arc, mpsc::Receiver},
};

use gimmal_rdma::{
    cm::{CmError, Target},
    id::{BlockingCall, CmEvent, IdKey},
};

use crate::{
    ConnectError, Instant, PortError, thread,
    verbs::control::{
        attempt::{Active, Attempt, Failure, Next, Outcome, Running},
        entry::{Entry, Live, Role},
        ids::Ids,
        lane::Lane,
        mailbox::{Command, Mailbox},
        naming,
        table::{Action, State},
    },
};

/// The most attempts that run at once: as many as the handshakes of a listener by default. So many names are looked up at
/// once too, each on a thread of its own.
const AT_ONCE: usize = 128;

/// Attempts that have no id yet, and the next deadline of all attempts.
#[derive(Debug)]
pub(crate) struct Attempts {
    mailbox: Mailbox,
    /// In order: attempts whose name is being looked up, and attempts that wait for others to end.
    pending: VecDeque<Box<Attempt>>,
    /// Shared with each attempt that runs, which counts them. A search through all ids with every event would cost a server
    /// with thousands of connections more than the connecting.
    running: Arc<()>,
    /// Shared with each helper thread that looks a name up.
    looking_up: Arc<()>,
    /// No attempt's deadline is earlier. It may be the deadline of an attempt that has ended.
    pub(crate) next_look: Option<Instant>,
}

impl Attempts {
    /// Makes an empty list. Helper threads answer through `mailbox`.
    pub(crate) fn new(mailbox: Mailbox) -> Self {
        Self {
            mailbox,
            pending: VecDeque::new(),
            running: Arc::default(),
            looking_up: Arc::default(),
            next_look: None,
        }
    }

    pub(crate) fn connect(&mut self, mut attempt: Box<Attempt>) {
        let deadline = attempt.deadline;
        attempt.candidates.extend(naming::literal(&attempt.host, attempt.port));
        self.pending.push_back(attempt);
        self.next_look = Some(self.next_look.map_or(deadline, |at| at.min(deadline)));
    }

    /// Takes the result of a name look-up.
    pub(crate) fn named(&mut self, ticket: u64, result: Result<Vec<Target>, CmError>) {
        let Some(at) = self.pending.iter().position(|attempt| attempt.ticket == ticket) else { return };
        let attempt = &mut self.pending[at];
        match result {
            Ok(targets) if !targets.is_empty() => return attempt.candidates.extend(targets),
            Ok(_) => attempt.fail(attempt.resolve_error("getaddrinfo", 0)),
            Err(error) => attempt.fail(naming::connect_error(&attempt.address, error)),
        }
        self.pending.remove(at);
    }

    /// Looks up as many names as may be looked up at once.
    fn look_up(&mut self) {
        let mut at = 0;
        while Arc::strong_count(&self.looking_up) <= AT_ONCE
            && let Some(attempt) = self.pending.get_mut(at)
        {
            if attempt.is_looked_up || !attempt.candidates.is_empty() {
                at += 1;
                continue;
            }
            attempt.is_looked_up = true;
            let (ticket, host, port) = (attempt.ticket, attempt.host.clone(), attempt.port);
            let (mailbox, counted) = (self.mailbox.clone(), Arc::clone(&self.looking_up));
            let helper = thread::spawn("gimmal-resolve", move || {
                let result = naming::targets(&host, port);
                drop(counted);
                mailbox.send(Command::Named { ticket, result });
            });
            if let Err(error) = helper {
                let errno = error.raw_os_error().unwrap_or(0);
                attempt.fail(attempt.resolve_error("starting a thread", errno));
                self.pending.remove(at);
            }
        }
    }

    /// Begins as many attempts as may run, and look-ups of names for others.
    pub(crate) fn begin(&mut self, ids: &mut Ids) {
        self.look_up();
        while Arc::strong_count(&self.running) <= AT_ONCE
            && let Some(at) = self.pending.iter().position(|attempt| !attempt.candidates.is_empty())
            && let Some(mut attempt) = self.pending.remove(at)
        {
            attempt.running = Some(Arc::new(Running(Arc::clone(&self.running))));
            next_address(ids, attempt, None);
        }
    }

    /// Handles an event of an attempt, which moves it on or ends it.
    pub(crate) fn advance(&self, ids: &mut Ids, action: Action, event: &CmEvent) {
        // What was destroyed leaves its seats to those who come.
        ids.scatter();
        let Some(entry) = ids.get_mut(event.key) else { return };
        let handle = entry.handle();
        let Role::Active(active) = &mut entry.role else { return };
        let failure = match active.advance(action, event, &mut entry.id, handle) {
            Ok(Next::Wait) => return ids.know_qp(event.key),
            Ok(Next::Call(call)) => match self.call(entry, call) {
                Ok(()) => return ids.know_qp(event.key),
                Err(failure) => failure,
            },
            Ok(Next::Link(parts)) => {
                let live = Role::Live(Live::of(&parts.lane));
                if let Role::Active(active) = std::mem::replace(&mut entry.role, live) {
                    ids.connected.push((active.attempt, *parts));
                }
                return;
            }
            Err(failure) => {
                if action == Action::Accepted {
                    // The peer believes that it is connected.
                    let _ = entry.id.disconnect();
                }
                failure
            }
        };
        fail(ids, event.key, |_| failure);
    }

    /// Makes the next call on the id of an attempt: on a thread of its own where it may block.
    fn call(&self, entry: &mut Entry, call: BlockingCall) -> Result<(), Failure> {
        let handle = entry.handle();
        let Role::Active(active) = &entry.role else { return Ok(()) };
        let is_iwarp = active.lane().is_some_and(Lane::iwarp);
        let is_connecting = active.state() == State::Connecting;
        // siw connects its TCP socket inside; elsewhere the request is only sent. On iWARP nobody is asked for a route.
        let may_block = if is_connecting { is_iwarp } else { !is_iwarp && naming::has_resolver() };
        if !may_block {
            return call.run().map_err(|errno| active.call_failed(errno));
        }
        let (mailbox, running) = (self.mailbox.clone(), active.attempt.running.clone());
        let name = if is_connecting { "gimmal-connect" } else { "gimmal-route" };
        let helper = thread::spawn(name, move || {
            let result = call.run();
            // Until here its attempt counts as running, also after its time-out: no more threads than attempts wait.
            drop(running);
            mailbox.send(Command::Called { handle, result });
        });
        helper.map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(0);
            ConnectError::from(PortError::System { step: "starting a thread", errno })
        })?;
        (entry.busy, entry.unanswered) = (true, is_connecting);
        Ok(())
    }

    /// Drops the attempt `ticket`, and the connection that its outcome may hold.
    pub(crate) fn give_up(&mut self, ids: &mut Ids, ticket: u64, outcome: &Receiver<Outcome>) {
        self.pending.retain(|attempt| attempt.ticket != ticket);
        let key = ids.actives().find(|(_, active)| active.attempt.ticket == ticket).map(|(key, _)| key);
        key.and_then(|key| ids.bury(key));
        // Only this thread sends outcomes, so what is not here now never comes.
        if let Ok(Ok(parts)) = outcome.try_recv() {
            ids.destroy(parts.handle, parts.lane);
        }
    }

    /// Ends the attempts whose deadline has passed.
    pub(crate) fn expire(&mut self, ids: &mut Ids, now: Instant) {
        if self.next_look.is_none_or(|at| now < at) {
            return;
        }
        let late = ids.actives().filter(|(_, active)| active.attempt.deadline <= now);
        for key in late.map(|(key, _)| key).collect::<Vec<_>>() {
            fail(ids, key, Active::timed_out);
        }
        self.pending.retain(|attempt| {
            let is_late = attempt.deadline <= now;
            if is_late && attempt.candidates.is_empty() {
                attempt.fail(attempt.timeout("looking up the name"));
            } else if is_late {
                attempt.fail(attempt.timeout("waiting for its turn: others connect"));
            }
            !is_late
        });
        let active = ids.actives().map(|(_, active)| active.attempt.deadline);
        self.next_look = self.pending.iter().map(|attempt| attempt.deadline).chain(active).min();
    }

    /// Drops all attempts that have no id.
    pub(crate) fn stop(&mut self) {
        self.pending.clear();
    }
}

/// Ends the attempt of the id `key`, or goes on with its next address if that may succeed.
pub(crate) fn fail(ids: &mut Ids, key: IdKey, why: impl FnOnce(&Active) -> Failure) {
    let Some(entry) = ids.get_mut(key) else { return };
    let Role::Active(active) = &entry.role else { return };
    let Failure { error, try_next } = why(active);
    let Some(attempt) = ids.bury(key) else { return };
    if try_next && !attempt.candidates.is_empty() && Instant::now() < attempt.deadline {
        tracing::debug!(%error, "trying the next address");
        next_address(ids, attempt, Some(error));
    } else {
        attempt.fail(error);
    }
}

/// Begins with the next address. `error` is why the last one failed.
fn next_address(ids: &mut Ids, mut attempt: Box<Attempt>, error: Option<ConnectError>) {
    match attempt.next_address(&ids.channel, error) {
        Ok(id) => {
            ids.keep(id, Role::Active(Active::new(attempt)));
        }
        Err(error) => attempt.fail(error),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::{channel, sync_channel},
        time::Duration,
    };

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::{ConnectOptions, PortConfig, sync::doorbell::Doorbell, verbs::control::shared::Shared};

    #[test]
    fn many_names_are_looked_up_a_few_at_a_time() {
        let (commands, inbox) = channel();
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("an eventfd");
        let mut attempts = Attempts::new(Mailbox::new(commands, bell));
        let bell = Arc::new(Doorbell::new().expect("an eventfd"));
        let shared = Shared::new(&PortConfig::default(), bell);
        let tickets: Vec<u64> = (0..).take(2 * AT_ONCE + 1).collect();
        for &ticket in &tickets {
            attempts.connect(Box::new(Attempt {
                ticket,
                address: "rdma://localhost:9".to_owned(),
                host: "localhost".to_owned(),
                port: 9,
                service: 0,
                candidates: VecDeque::new(),
                is_looked_up: false,
                current: None,
                shared: Arc::clone(&shared),
                options: ConnectOptions::default(),
                nonce: 0,
                sources: Vec::new(),
                deadline: Instant::now() + Duration::from_secs(600),
                running: None,
                outcome: sync_channel(1).0,
            }));
        }
        assert_eq!(Arc::strong_count(&attempts.looking_up), 1, "only the loop of the thread starts any");
        let mut named = Vec::new();
        while named.len() < tickets.len() {
            attempts.look_up();
            assert!(Arc::strong_count(&attempts.looking_up) <= 1 + AT_ONCE);
            let Ok(Command::Named { ticket, result }) = inbox.recv_timeout(Duration::from_secs(120)) else {
                panic!("{} of {} names were looked up", named.len(), tickets.len());
            };
            named.push(ticket);
            attempts.named(ticket, result);
        }
        named.sort_unstable();
        assert_eq!(named, tickets, "each once");
    }
}
