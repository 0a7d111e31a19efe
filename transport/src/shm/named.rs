//! Names within this process: `mem://name`. They are no files and the kernel does not know them, so two processes never meet.
//!
//! A client makes a pair of sockets and puts one end into the queue of the name. An eventfd shows that the queue holds some.

use std::{
    collections::{BTreeMap, VecDeque},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex},
};

use rustix::{
    event::{EventfdFlags, eventfd},
    io::Errno,
};

use super::socket;
use crate::{ListenError, kernel::system, sync::lock::lock};

static NAMES: Mutex<BTreeMap<String, Arc<Queue>>> = Mutex::new(BTreeMap::new());

/// Clients that nobody has accepted yet.
#[derive(Debug)]
struct Queue {
    clients: Mutex<VecDeque<OwnedFd>>,
    /// Readable while there are clients.
    bell: OwnedFd,
    backlog: usize,
}

/// A name that this process listens on. Dropping it frees the name and closes the clients that were not accepted.
#[derive(Debug)]
pub(super) struct Named {
    name: String,
    queue: Arc<Queue>,
}

impl Named {
    /// Takes `name`; `None` if it is taken. At most `backlog` clients wait to be accepted.
    pub(super) fn bind(name: &str, backlog: u16) -> Result<Option<Self>, ListenError> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(system("eventfd"))?;
        let mut names = lock(&NAMES);
        if names.contains_key(name) {
            return Ok(None);
        }
        let queue = Arc::new(Queue { clients: Mutex::default(), bell, backlog: backlog.max(1).into() });
        names.insert(name.to_owned(), Arc::clone(&queue));
        Ok(Some(Self { name: name.to_owned(), queue }))
    }

    /// The name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Readable while a client waits.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.queue.bell.as_fd()
    }

    /// The socket of the next client; `AGAIN` when none waits.
    pub(super) fn accept(&self) -> Result<OwnedFd, Errno> {
        let mut clients = lock(&self.queue.clients);
        let client = clients.pop_front().ok_or(Errno::AGAIN);
        if clients.is_empty() {
            // Nobody can ring between the look and this: a client rings under the lock.
            let _ = rustix::io::read(&self.queue.bell, &mut [0; 8]);
        }
        client
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        lock(&NAMES).remove(&self.name);
        lock(&self.queue.clients).clear();
    }
}

/// Our end of a connection to the listener of `name`. `CONNREFUSED`: nobody listens. `AGAIN`: its backlog is full.
pub(super) fn dial(name: &str) -> Result<OwnedFd, Errno> {
    // The queue lives for as long as one of its listener and its dialers: what is put into it too late is closed with it.
    let queue = lock(&NAMES).get(name).map(Arc::clone).ok_or(Errno::CONNREFUSED)?;
    let mut clients = lock(&queue.clients);
    if clients.len() >= queue.backlog {
        return Err(Errno::AGAIN);
    }
    let (ours, theirs) = socket::pair()?;
    clients.push_back(theirs);
    // A full counter is readable too, and no other error is possible.
    let _ = rustix::io::write(&queue.bell, &1u64.to_ne_bytes());
    Ok(ours)
}
