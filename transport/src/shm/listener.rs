//! The passive side: accepts sockets, reads hellos, hands out the good ones.

use std::{
    collections::VecDeque,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::{io::Errno, net::SocketFlags};

use super::{
    gate::ShmGate,
    incoming::ShmIncoming,
    link::ShmLink,
    rendezvous::Rendezvous,
    socket::{self, Packet},
    system,
};
use crate::{Address, Hello, ListenError, ListenOptions, Listener, Refusal, RejectReason};

/// Clients that may be connected without having said hello. Beyond it the oldest goes if it had its chance: an honest
/// client's hello is there soon after its socket is.
const WAITING_MAX: usize = 32;
/// That chance, on a host with more clients than cores.
const CHANCE: Duration = Duration::from_millis(25);

/// Listens on a unix socket.
#[derive(Debug)]
pub struct ShmListener {
    place: Rendezvous,
    options: ListenOptions,
    waiting: VecDeque<Waiting>,
    rejected: u64,
}

/// A client that has not said hello.
#[derive(Debug)]
struct Waiting {
    socket: OwnedFd,
    since: Instant,
    until: Instant,
    /// Its hello was looked for, in vain.
    looked: bool,
}

/// What a waiting client came to.
enum Outcome {
    Hello(Hello),
    Later,
    Gone,
    Rejected(RejectReason),
}

impl ShmListener {
    pub(super) fn new(place: Rendezvous, options: ListenOptions) -> Self {
        Self { place, options, waiting: VecDeque::with_capacity(WAITING_MAX), rejected: 0 }
    }

    /// Takes what waits in the socket's backlog, as far as it is let in.
    fn accept_sockets(&mut self) -> Result<(), ListenError> {
        // Bounded, so that a flood of clients cannot keep us from those who have said hello.
        for _ in 0..WAITING_MAX {
            let full = self.waiting.len() == WAITING_MAX;
            let is_late = |oldest: &Waiting| oldest.looked && oldest.since.elapsed() >= CHANCE;
            if full && !self.waiting.front().is_some_and(is_late) {
                // The others wait in the backlog.
                return Ok(());
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match rustix::net::accept_with(self.place.socket(), flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => return Err(ListenError::Port(system("accept4")(errno))),
            };
            if !socket::peer(&socket).is_ok_and(|peer| socket::is_trusted(&peer)) {
                self.reject(socket, RejectReason::NotOurs);
                continue;
            }
            if full && let Some(oldest) = self.waiting.pop_front() {
                self.reject(oldest.socket, RejectReason::Overloaded);
            }
            let since = Instant::now();
            let until = since + self.options.handshake_timeout;
            self.waiting.push_back(Waiting { socket, since, until, looked: false });
        }
        Ok(())
    }

    /// The first waiting client whose hello is good.
    fn first_hello(&mut self) -> Option<ShmIncoming> {
        let now = Instant::now();
        for _ in 0..self.waiting.len() {
            let client = self.waiting.pop_front()?;
            match read_hello(&client.socket) {
                Outcome::Hello(hello) => {
                    return Some(ShmIncoming::new(client.socket, hello, self.place.path(), &self.options));
                }
                Outcome::Later if client.until <= now => self.reject(client.socket, RejectReason::Overloaded),
                Outcome::Later => self.waiting.push_back(Waiting { looked: true, ..client }),
                Outcome::Gone => {}
                Outcome::Rejected(reason) => self.reject(client.socket, reason),
            }
        }
        None
    }

    fn reject(&mut self, socket: OwnedFd, reason: RejectReason) {
        self.rejected += 1;
        refuse(&socket, &reason.into());
    }
}

impl Listener for ShmListener {
    type Gate = ShmGate;
    type Link = ShmLink;
    type Incoming = ShmIncoming;

    fn address(&self) -> Address {
        Address::Shm { path: self.place.path().to_owned() }
    }

    fn accept(&mut self, timeout: Duration) -> Result<Option<ShmIncoming>, ListenError> {
        let until = Instant::now().checked_add(timeout);
        loop {
            self.accept_sockets()?;
            if let Some(incoming) = self.first_hello() {
                return Ok(Some(incoming));
            }
            let now = Instant::now();
            if until.is_some_and(|until| until <= now) {
                return Ok(None);
            }
            // A client that stays silent is dropped at its own time, whoever else comes.
            let full = self.waiting.len() == WAITING_MAX;
            let chance = self.waiting.front().filter(|_| full).map(|oldest| oldest.since + CHANCE);
            let turn = self.waiting.iter().map(|client| client.until).chain(until).chain(chance).min();
            let turn = turn.unwrap_or_else(|| now + Duration::from_secs(3600));
            let sockets = self.waiting.iter().map(|client| client.socket.as_fd());
            // Who waits in the backlog is let in when there is room.
            let place = (!full).then(|| self.place.socket().as_fd());
            socket::wait_readable(sockets.chain(place), turn)
                .map_err(|errno| ListenError::Port(system("poll")(errno)))?;
        }
    }

    fn rejected(&self) -> u64 {
        self.rejected
    }
}

fn read_hello(socket: &OwnedFd) -> Outcome {
    match socket::receive(socket) {
        Ok(packet) if packet.is_end() => Outcome::Gone,
        Ok(Packet { flawed: true, .. } | Packet { fd: Some(_), .. }) => {
            Outcome::Rejected(RejectReason::NotOurs)
        }
        Ok(packet) => match Hello::decode(packet.bytes()) {
            Ok(hello) => Outcome::Hello(hello),
            Err(reason) => Outcome::Rejected(reason),
        },
        Err(Errno::AGAIN) => Outcome::Later,
        Err(_) => Outcome::Gone,
    }
}

/// Tells a client no, and makes sure that it can read it.
pub(super) fn refuse(socket: &OwnedFd, refusal: &Refusal) {
    let _ = socket::send(socket, &refusal.encode());
    socket::drain(socket);
}
