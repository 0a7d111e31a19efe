//! Commands to the control thread, and the handle that keeps it alive.
//!
//! The channels are those of std, whose receivers sleep at once. Other channels yield several times first, and with few
//! processors delay the thread that they wait for.

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

/// How long dropping the last handle waits for the thread to end.
const END_WAIT: Duration = Duration::from_secs(1);

/// A request of another thread.
pub(crate) enum Command {
    Connect(Box<Attempt>),
    /// A helper thread has looked up a name.
    Named {
        ticket: u64,
        result: Result<Vec<Target>, CmError>,
    },
    /// A call on the id has returned on a helper thread.
    Called {
        handle: Handle,
        result: Result<(), i32>,
    },
    /// The caller has given up. A connection in `outcome` is destroyed too.
    GiveUp {
        ticket: u64,
        outcome: Receiver<Outcome>,
    },
    Listen {
        addresses: Vec<std::net::SocketAddr>,
        listening: Listening,
        reply: SyncSender<Result<u16, ListenError>>,
    },
    /// Ends the listener `ticket` and refuses the `requests` that are left.
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
    /// Disconnects, destroys the queue pair and the id, then releases what they used.
    Destroy {
        handle: Handle,
        lane: Lane,
    },
    Stop,
}

/// Takes the outcome of an accept, on the control thread.
pub(crate) type Then = Box<dyn FnOnce(Result<LinkParts, AcceptError>) + Send>;

/// Sends commands. Never blocks, because the control thread sends some itself. Each connection and each caller has only
/// a few in flight, so the limits on both bound the queue.
#[derive(Clone, Debug)]
pub(crate) struct Mailbox {
    commands: Sender<Command>,
    bell: Arc<OwnedFd>,
}

impl Mailbox {
    /// Makes a mailbox that rings `bell`, an `eventfd(2)`.
    pub(crate) fn new(commands: Sender<Command>, bell: OwnedFd) -> Self {
        Self { commands, bell: Arc::new(bell) }
    }

    /// Resets the bell. Called by the control thread before it takes commands.
    pub(crate) fn silence(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.bell, &mut count);
    }

    /// Sends a command. Returns `false` if the control thread has ended.
    pub(crate) fn send(&self, command: Command) -> bool {
        let sent = self.commands.send(command).is_ok();
        // A full counter is readable already.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        sent
    }
}

/// Keeps the control thread alive.
#[derive(Debug)]
pub(crate) struct ControlHandle {
    mailbox: Mailbox,
    /// Never locked: only the drop of the last handle reads it.
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

    /// Returns a new number for an attempt or a listener.
    pub(crate) fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::Relaxed)
    }
}

impl Drop for ControlHandle {
    fn drop(&mut self) {
        self.mailbox.send(Command::Stop);
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(END_WAIT).is_err() {
            tracing::debug!("a helper thread is still in a call; the control thread ends when it returns");
        }
    }
}

/// The error of a call that finds the control thread gone.
pub(crate) fn gone() -> PortError {
    PortError::System { step: "asking the control thread, which has ended", errno: 0 }
}
