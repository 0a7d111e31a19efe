//! The passive side: accepts sockets, reads hellos, hands out the good ones.

use std::{
    collections::VecDeque,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
};

use super::{
    gate::ShmGate,
    incoming::ShmIncoming,
    link::ShmLink,
    place::{self, Place},
    socket,
};
use crate::{
    Address, Hello, Instant, Key, ListenError, ListenOptions, Listener, RejectReason,
    error::errno_text,
    kernel::{self, system},
    peer,
    proof::{Label, Session, admit, random},
    rejected::Rejected,
};

/// Clients that may be connected without having said hello, a descriptor each. Beyond it the oldest goes if it had its
/// chance: an honest client's hello is there soon after its socket is.
pub(super) const WAITING_MAX: usize = 128;
/// That chance: 200 threads that share two cores and connect at once get their turns within it. A client that fills
/// all places with silence, again and again, keeps an honest client out for as long.
pub(super) const CHANCE: Duration = Duration::from_millis(100);

/// How many of those one user may have, where others than this user are let in: nobody's silence keeps the others out.
pub(super) const WAITING_OF_USER: usize = WAITING_MAX / 2;

/// Sockets that are accepted before the hellos of those that wait are looked for again.
const SOCKETS_PER_ROUND: usize = 32;
/// How long clients wait in the backlog for a descriptor or memory of this process before they are refused.
pub(super) const LACK_PATIENCE: Duration = Duration::from_millis(100);
/// Between two tries meanwhile: the socket stays readable.
const LACK_PAUSE: Duration = Duration::from_millis(10);

/// Listens on `shm://name` or `mem://name`.
#[derive(Debug)]
pub struct ShmListener {
    place: Place,
    options: ListenOptions,
    /// Clients that were let in, the oldest first.
    waiting: VecDeque<Waiting>,
    pub(super) rejected: Arc<Rejected>,
    /// Closed to accept a client that is refused, when there is no other descriptor.
    spare: Option<OwnedFd>,
    lack: Option<Lack>,
    /// How long that lasts before clients are refused.
    pub(super) lack_patience: Duration,
}

/// A client is in the backlog and cannot be accepted, for a reason that may pass.
#[derive(Debug)]
struct Lack {
    since: Instant,
    again: Instant,
}

/// A client that has not said hello, or has a key to prove.
#[derive(Debug)]
struct Waiting {
    socket: OwnedFd,
    uid: u32,
    since: Instant,
    until: Instant,
    /// Its packet was looked for, in vain.
    looked: bool,
    /// It said hello with a key, and was asked to prove it.
    proving: Option<Box<(Hello, Session)>>,
}

impl Waiting {
    /// Reads what the client sent, if anything. Returns its hello when that is good and a key was proved where one is asked for.
    /// An error ends the client: the reason to tell it, or none when it is gone.
    fn read(&mut self, keys: &[Key]) -> Result<Option<Hello>, Option<RejectReason>> {
        let packet = match socket::receive(&self.socket) {
            Ok(packet) if !packet.is_end() => packet,
            Err(Errno::AGAIN) => {
                self.looked = true;
                return Ok(None);
            }
            _ => return Err(None),
        };
        if let Some(proving) = self.proving.take() {
            let (hello, session) = *proving;
            let proof = packet.proof().filter(|proof| session.is_proved(Label::ActiveGrant, &[], proof));
            return proof.map(|_| Some(hello)).ok_or(Some(RejectReason::Authentication));
        }
        if packet.flawed || packet.fd.is_some() {
            return Err(Some(RejectReason::NotOurs));
        }
        let (hello, key) = admit(packet.bytes(), keys)?;
        let Some(key) = key else { return Ok(Some(hello)) };
        // The client is asked to prove its key, and has it proved. Which port takes it is not known yet; our hello comes later, over
        // this socket.
        let nonce = random().map_err(|_| RejectReason::Overloaded)?;
        let session = Session::passive(key, &hello, &hello, nonce);
        socket::send_challenge(&self.socket, &session.challenge()).map_err(|_| None)?;
        self.looked = false;
        self.proving = Some(Box::new((hello, session)));
        Ok(None)
    }
}

impl ShmListener {
    pub(super) fn new(place: Place, options: ListenOptions) -> Self {
        let (waiting, spare) = (VecDeque::with_capacity(WAITING_MAX), kernel::spare());
        Self {
            place,
            options,
            waiting,
            rejected: Arc::default(),
            spare,
            lack: None,
            lack_patience: LACK_PATIENCE,
        }
    }

    /// Takes what waits in the socket's backlog, as far as it is let in.
    fn accept_sockets(&mut self) -> Result<(), ListenError> {
        if self.lack.as_ref().is_some_and(|lack| !lack.again.has_passed()) {
            return Ok(());
        }
        // Before anybody goes, everybody was looked at: a hello frees its place.
        let is_stuck = self.waiting.len() == WAITING_MAX && self.waiting.iter().all(|client| client.looked);
        // Bounded, so that the next hellos are read before anybody is refused for want of a place.
        for _ in 0..SOCKETS_PER_ROUND {
            let full = self.waiting.len() == WAITING_MAX;
            let is_late = |oldest: &Waiting| oldest.since.elapsed() >= CHANCE;
            if full && !(is_stuck && self.waiting.front().is_some_and(is_late)) {
                // The others wait in the backlog.
                return Ok(());
            }
            let socket = match self.place.accept() {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::CONNABORTED) => continue,
                // The socket itself is no listening one any more.
                Err(errno @ (Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP)) => {
                    return Err(ListenError::Port(system("accept4")(errno)));
                }
                Err(errno) if self.refuse_for_lack(errno) => continue,
                Err(_) => return Ok(()),
            };
            self.lack = None;
            let uid = match self.admit(&socket) {
                Ok(uid) => uid,
                Err(reason) => {
                    self.reject(&socket, reason);
                    continue;
                }
            };
            if full && let Some(oldest) = self.waiting.pop_front() {
                self.reject(&oldest.socket, RejectReason::Overloaded);
            }
            let since = Instant::now();
            let until = since + self.options.handshake_timeout;
            self.waiting.push_back(Waiting { socket, uid, since, until, looked: false, proving: None });
        }
        Ok(())
    }

    /// Whether a client may say hello. Its user, who has a place for it.
    fn admit(&mut self, socket: &OwnedFd) -> Result<u32, RejectReason> {
        let peer = peer::of(socket).map_err(|_| RejectReason::NotOurs)?;
        if !place::admits(&self.place.address(), &peer, &self.options.allow) {
            return Err(RejectReason::NotAllowed { uid: peer.uid });
        }
        let is_shared = !self.options.allow.is_default();
        let mut of_user = (0..self.waiting.len()).filter(|at| is_shared && self.waiting[*at].uid == peer.uid);
        let oldest = of_user.next();
        if of_user.count() + 1 < WAITING_OF_USER {
            return Ok(peer.uid);
        }
        let is_late = |client: &Waiting| client.looked && client.since.elapsed() >= CHANCE;
        let late = oldest.filter(|at| is_late(&self.waiting[*at])).and_then(|at| self.waiting.remove(at));
        let late = late.ok_or(RejectReason::Overloaded)?;
        self.reject(&late.socket, RejectReason::Overloaded);
        Ok(peer.uid)
    }

    /// Refuses a client, since there has been nothing to accept one with for a while; whether one was.
    fn refuse_for_lack(&mut self, errno: Errno) -> bool {
        let now = Instant::now();
        // accept(2) takes a descriptor before it looks for a client.
        if !matches!(kernel::wait_readable(self.place.as_fd(), now), Ok(true)) {
            self.lack = None;
            return false;
        }
        let lack = self.lack.get_or_insert_with(|| {
            let error = errno_text(errno.raw_os_error());
            tracing::warn!(error, address = %self.place.address(), "clients cannot be accepted; trying again");
            Lack { since: now, again: now }
        });
        lack.again = now + LACK_PAUSE;
        let is_long = now - lack.since >= self.lack_patience;
        let is_late = |client: &Waiting| client.looked && client.since.elapsed() >= CHANCE;
        if self.waiting.front().is_some_and(is_late)
            && let Some(silent) = self.waiting.pop_front()
        {
            self.reject(&silent.socket, RejectReason::Overloaded);
            return true;
        }
        if !is_long {
            return false;
        }
        self.spare = None;
        let socket = self.place.accept();
        if let Ok(socket) = &socket {
            self.reject(socket, RejectReason::Overloaded);
        }
        let is_refused = socket.is_ok();
        drop(socket);
        self.spare = kernel::spare();
        is_refused
    }

    /// The first waiting client whose hello is good.
    fn first_hello(&mut self) -> Option<ShmIncoming> {
        let (now, mut at) = (Instant::now(), 0);
        while let Some(client) = self.waiting.get_mut(at) {
            let hello = match client.read(&self.options.keys) {
                Ok(Some(hello)) => Ok(hello),
                Ok(None) if client.until <= now => Err(Some(RejectReason::Overloaded)),
                Ok(None) => {
                    at += 1;
                    continue;
                }
                Err(reason) => Err(reason),
            };
            let client = self.waiting.remove(at)?;
            match hello {
                Ok(hello) => {
                    let device = place::device(&self.place.address());
                    return Some(ShmIncoming::new(client.socket, hello, device, &self.options));
                }
                Err(Some(reason)) => self.reject(&client.socket, reason),
                Err(None) => {}
            }
        }
        None
    }

    fn reject(&self, socket: &OwnedFd, reason: RejectReason) {
        self.rejected.note(reason, || peer::describe(peer::of(socket).ok().as_ref()));
        socket::refuse(socket, &reason.into());
    }
}

impl Listener for ShmListener {
    type Gate = ShmGate;
    type Link = ShmLink;
    type Incoming = ShmIncoming;

    fn address(&self) -> Address {
        self.place.address()
    }

    fn accept(&mut self, timeout: Duration) -> Result<Option<ShmIncoming>, ListenError> {
        let until = Instant::now() + timeout;
        loop {
            // Those that were let in are read first, so that a hello that is there frees its place for the next one.
            if let Some(incoming) = self.first_hello() {
                return Ok(Some(incoming));
            }
            self.accept_sockets()?;
            if let Some(incoming) = self.first_hello() {
                return Ok(Some(incoming));
            }
            let now = Instant::now();
            if until <= now {
                return Ok(None);
            }
            // A client that stays silent is dropped at its own time, whoever else comes.
            let full = self.waiting.len() == WAITING_MAX;
            let chance = self.waiting.front().filter(|_| full).map(|oldest| oldest.since + CHANCE);
            let again = self.lack.as_ref().map(|lack| lack.again).filter(|again| *again > now);
            let turns = self.waiting.iter().map(|client| client.until);
            let turn = turns.chain(chance).chain(again).fold(until, Instant::min);
            let sockets = self.waiting.iter().map(|client| client.socket.as_fd());
            // Clients in the backlog are let in when there is room.
            let place = (!full && again.is_none()).then(|| self.place.as_fd());
            let has_place = place.is_some();
            let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
            let mut fds: Vec<_> = sockets.chain(place).map(readable).collect();
            if kernel::wait(&mut fds, turn).is_err() {
                // The kernel has no memory for the wait: it is given time instead.
                std::thread::sleep(LACK_PAUSE.min(turn - now));
            }
            let broken = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
            if has_place && fds.last().is_some_and(|place| place.revents().intersects(broken)) {
                return Err(ListenError::Port(system("accept4")(Errno::INVAL)));
            }
        }
    }

    fn rejections(&self) -> &Arc<Rejected> {
        &self.rejected
    }
}
