//! How everyone else reaches the control thread: commands, and the handle that keeps it alive.
//!
//! The channels are those of std: who waits in one sleeps at once. Others give the processor away several times first,
//! which on few processors is what the other end waits for.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, Sender, SyncSender},
    },
    time::Duration,
};

use gimmal_rdma::cm::{CmError, Target};

use crate::{
    AcceptError, ListenError, PortError, Refusal,
    verbs::control::{
        attempt::{Attempt, Outcome},
        lane::{Handle, Lane, LinkParts},
        request::{Listening, Request},
        shared::Shared,
    },
};

/// How long dropping the last handle waits for the thread.
const END_WAIT: Duration = Duration::from_secs(1);

/// What other threads ask for.
pub(crate) enum Command {
    Connect(Box<Attempt>),
    /// A name was looked up, on a helper thread.
    Named {
        ticket: u64,
        result: Result<Vec<Target>, CmError>,
    },
    /// `rdma_connect` returned, on a helper thread.
    Called {
        handle: Handle,
        result: Result<(), i32>,
    },
    /// The caller does not want it any more; what is in `outcome` is destroyed too.
    GiveUp {
        ticket: u64,
        outcome: Receiver<Outcome>,
    },
    Listen {
        addresses: Vec<std::net::SocketAddr>,
        listening: Listening,
        reply: SyncSender<Result<u16, ListenError>>,
    },
    /// Ends the listener `ticket`; `requests` nobody took are refused.
    Unlisten {
        ticket: u64,
        requests: Receiver<Request>,
        done: SyncSender<()>,
    },
    Accept {
        handle: Handle,
        shared: Arc<Shared>,
        then: Then,
    },
    Reject {
        handle: Handle,
        refusal: Refusal,
    },
    Disconnect {
        handle: Handle,
    },
    /// Disconnects, destroys the queue pair and the id, then lets go of what they used.
    Destroy {
        handle: Handle,
        lane: Lane,
    },
    Stop,
}

/// What is done with the outcome of an accept, on the control thread.
pub(crate) type Then = Box<dyn FnOnce(Result<LinkParts, AcceptError>) + Send>;

/// Sends commands. Never blocks, because the control thread sends some itself; as each connection and each caller has
/// but a few in flight, their limits bound the queue.
#[derive(Clone, Debug)]
pub(crate) struct Mailbox {
    commands: Sender<Command>,
    bell: Arc<OwnedFd>,
}

impl Mailbox {
    /// `bell` is a counter (`eventfd(2)`).
    pub(crate) fn new(commands: Sender<Command>, bell: OwnedFd) -> Self {
        Self { commands, bell: Arc::new(bell) }
    }

    /// For the thread, before it looks for commands.
    pub(crate) fn silence(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.bell, &mut count);
    }

    /// `false`: the thread is gone, and with it everything it had.
    pub(crate) fn send(&self, command: Command) -> bool {
        let sent = self.commands.send(command).is_ok();
        // A full counter is readable already.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        sent
    }
}

/// Keeps the thread alive.
#[derive(Debug)]
pub(crate) struct ControlHandle {
    mailbox: Mailbox,
    /// Nobody locks it: it is looked at when the last handle goes.
    ended: Mutex<Receiver<()>>,
    tickets: AtomicU64,
}

impl ControlHandle {
    pub(crate) fn new(mailbox: Mailbox, ended: Receiver<()>) -> Self {
        Self { mailbox, ended: Mutex::new(ended), tickets: AtomicU64::new(1) }
    }

    pub(crate) fn send(&self, command: Command) -> bool {
        self.mailbox.send(command)
    }

    /// A number for an attempt.
    pub(crate) fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::Relaxed)
    }
}

impl Drop for ControlHandle {
    fn drop(&mut self) {
        self.mailbox.send(Command::Stop);
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(END_WAIT).is_err() {
            tracing::debug!("an rdma_connect still runs; the control thread ends when it returns");
        }
    }
}

/// What a caller is told when the control thread is gone.
pub(crate) fn gone() -> PortError {
    PortError::System { step: "asking the control thread, which has ended", errno: 0 }
}
