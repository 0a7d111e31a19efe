//! What listeners of sockets have in common: they accept clients, read hellos, and hand out the good ones.

use std::{
    fmt::Debug,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
};

use crate::{
    Address, Hello, Instant, ListenError, ListenOptions, RejectReason,
    error::errno_text,
    kernel::{self, system},
    log_pace::LogPace,
    rejected::Rejected,
    strangers::{LOOK, Stranger, Strangers},
};

/// Sockets that are accepted before the hellos of those that wait are looked for again.
const SOCKETS_PER_ROUND: usize = 32;
/// How long clients wait in the backlog for a descriptor or memory of this process before they are refused.
pub(crate) const LACK_PATIENCE: Duration = Duration::from_millis(100);
/// Between two tries meanwhile: the socket stays readable.
const LACK_PAUSE: Duration = Duration::from_millis(10);

/// Where clients come in. It is readable while one is in the backlog.
pub(crate) trait Door: AsFd + Debug {
    /// A client that was let in. One that is made of a socket alone is only told no.
    type Client: Stranger + From<OwnedFd>;
    /// Whose a client is: it shares places with others of the same.
    type Source: PartialEq + Debug;

    /// Where clients find it.
    fn address(&self) -> Address;

    /// How it listens.
    fn options(&self) -> &ListenOptions;

    /// The next client of the backlog, which has none at `AGAIN`. `CONNABORTED` is a client that has gone.
    fn accept(&self) -> Result<OwnedFd, Errno>;

    /// Whose a client is.
    ///
    /// # Errors
    /// It may not say hello.
    fn source(&self, socket: &OwnedFd) -> Result<Self::Source, RejectReason>;

    /// A client that has a place; none if it is gone.
    fn let_in(&self, socket: OwnedFd) -> Option<Self::Client>;
}

/// A door, and the clients that came through it.
#[derive(Debug)]
pub(crate) struct Reception<D: Door> {
    pub(crate) door: D,
    pub(crate) strangers: Strangers<D::Client, D::Source>,
    pub(crate) rejected: Arc<Rejected>,
    /// Closed to accept a client that is refused, when there is no other descriptor.
    pub(crate) spare: Option<OwnedFd>,
    lack: Option<Lack>,
    /// Of lacks: clients end them and bring them back.
    log: LogPace,
    /// How long that lasts before clients are refused.
    pub(crate) lack_patience: Duration,
}

/// A client is in the backlog and cannot be accepted, for a reason that may pass.
#[derive(Debug)]
struct Lack {
    since: Instant,
    again: Instant,
}

impl<D: Door> Reception<D> {
    /// Receives the clients of `door`, of one source at most `places_of_one` at once.
    pub(crate) fn new(door: D, places_of_one: usize) -> Self {
        Self {
            door,
            strangers: Strangers::new(places_of_one, Instant::now()),
            rejected: Arc::default(),
            spare: kernel::spare(),
            lack: None,
            log: LogPace::default(),
            lack_patience: LACK_PATIENCE,
        }
    }

    /// The next client whose hello is good, waiting at most `timeout`.
    ///
    /// # Errors
    /// The listening socket is broken.
    pub(crate) fn next(&mut self, timeout: Duration) -> Result<Option<(D::Client, Hello)>, ListenError> {
        let until = Instant::now() + timeout;
        loop {
            // Clients that were let in are read first, so that a hello that is there frees its place for the next one.
            if let Some(found) = self.first_hello() {
                return Ok(Some(found));
            }
            self.accept_sockets()?;
            if let Some(found) = self.first_hello() {
                return Ok(Some(found));
            }
            let now = Instant::now();
            if until <= now {
                return Ok(None);
            }
            self.wait(now, until)?;
        }
    }

    /// Takes what waits in the backlog, as far as it is let in. Those that were let in before have been read: a hello frees its
    /// place, so nobody goes who has said one.
    fn accept_sockets(&mut self) -> Result<(), ListenError> {
        if self.lack.as_ref().is_some_and(|lack| !lack.again.has_passed()) {
            return Ok(());
        }
        // Bounded, so that the next hellos are read before anybody is refused for want of a place.
        for _ in 0..SOCKETS_PER_ROUND {
            if !self.strangers.is_open(Instant::now()) {
                return Ok(());
            }
            let socket = match self.door.accept() {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return Ok(()),
                // The socket itself is no listening one any more.
                Err(errno @ (Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP)) => {
                    return Err(ListenError::Port(system("accept4")(errno)));
                }
                Err(Errno::CONNABORTED) => continue,
                Err(errno) if self.refuse_for_lack(errno) => continue,
                Err(_) => return Ok(()),
            };
            self.lack = None;
            self.let_in(socket);
        }
        Ok(())
    }

    /// Gives a client its place, or refuses it.
    fn let_in(&mut self, socket: OwnedFd) {
        let source = match self.door.source(&socket) {
            Ok(source) => source,
            Err(reason) => return self.refuse(socket, reason),
        };
        let now = Instant::now();
        match self.strangers.make_place(&source, now) {
            Ok(None) => {}
            Ok(Some(gone)) => refuse(&self.rejected, gone, RejectReason::Overloaded),
            Err(()) => return self.refuse(socket, RejectReason::Overloaded),
        }
        if let Some(client) = self.door.let_in(socket) {
            self.give_place(client, source);
        }
    }

    /// Lets a client in for the time of a handshake.
    pub(crate) fn give_place(&mut self, client: D::Client, source: D::Source) {
        let now = Instant::now();
        self.strangers.let_in(client, source, now, now + self.door.options().handshake_timeout);
    }

    /// There is no descriptor or memory for a client: the oldest that is silent and had its chance makes room, or the client is
    /// refused after it has waited for a while. Whether there may be room for the next one now.
    fn refuse_for_lack(&mut self, errno: Errno) -> bool {
        let now = Instant::now();
        // accept(2) takes a descriptor before it looks for a client.
        if !matches!(kernel::wait_readable(self.door.as_fd(), now), Ok(true)) {
            self.lack = None;
            return false;
        }
        let lack = self.lack.get_or_insert_with(|| {
            if let Some(left_out) = self.log.line(now) {
                let (error, address) = (errno_text(errno.raw_os_error()), self.door.address());
                tracing::warn!(error, %address, left_out, "clients cannot be accepted; trying again");
            }
            Lack { since: now, again: now }
        });
        lack.again = now + LACK_PAUSE;
        let is_long = now - lack.since >= self.lack_patience;
        if let Some(silent) = self.strangers.take_silent(now) {
            refuse(&self.rejected, silent, RejectReason::Overloaded);
            return true;
        }
        if !is_long {
            return false;
        }
        self.spare = None;
        let refused = self.door.accept();
        let is_refused = refused.is_ok();
        if let Ok(socket) = refused {
            self.refuse(socket, RejectReason::Overloaded);
        }
        self.spare = kernel::spare();
        is_refused
    }

    /// The first waiting client whose hello is good.
    fn first_hello(&mut self) -> Option<(D::Client, Hello)> {
        let Self { door, strangers, rejected, .. } = self;
        strangers.first_hello(&door.options().keys, Instant::now(), |client, reason| {
            refuse(rejected, client, reason);
        })
    }

    /// Refuses a client that has no place.
    fn refuse(&self, socket: OwnedFd, reason: RejectReason) {
        refuse(&self.rejected, D::Client::from(socket), reason);
    }

    /// Waits until there is something to do, at most until `until`.
    fn wait(&self, now: Instant, until: Instant) -> Result<(), ListenError> {
        // A client that stays silent is dropped at its own time, whoever else comes.
        let again = self.lack.as_ref().map(|lack| lack.again).filter(|again| *again > now);
        let turn = self.strangers.next_turn().map(|turn| turn.min(now + LOOK));
        let turn = turn.into_iter().chain(again).fold(until, Instant::min);
        let clients = self.strangers.clients().map(|client| client.socket().as_fd());
        // Clients in the backlog are let in when there is room.
        let door = (!self.strangers.is_full() && again.is_none()).then(|| self.door.as_fd());
        let has_door = door.is_some();
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut fds: Vec<_> = clients.chain(door).map(readable).collect();
        if kernel::wait(&mut fds, turn).is_err() {
            // The kernel has no memory for the wait: it is given time instead.
            std::thread::sleep(LACK_PAUSE.min(turn - now));
        }
        let broken = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        if has_door && fds.last().is_some_and(|door| door.revents().intersects(broken)) {
            return Err(ListenError::Port(system("accept4")(Errno::INVAL)));
        }
        Ok(())
    }
}

fn refuse(rejected: &Rejected, client: impl Stranger, reason: RejectReason) {
    rejected.note(reason, || client.name());
    client.refuse(reason);
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        os::fd::BorrowedFd,
        sync::atomic::{AtomicU64, Ordering},
    };

    use tracing::span;

    use super::*;
    use crate::Key;

    /// Lacks that come and go.
    const LACKS: u64 = 300;

    /// A door at which there always is a client. There is no descriptor for the first; it is refused, the next one comes in, and so on.
    #[derive(Debug)]
    struct Short {
        readable: OwnedFd,
        options: ListenOptions,
        tries: Cell<u64>,
    }

    #[derive(Debug)]
    struct Client(OwnedFd);

    impl AsFd for Short {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.readable.as_fd()
        }
    }

    impl Door for Short {
        type Client = Client;
        type Source = ();

        fn address(&self) -> Address {
            "tcp://127.0.0.1:1".parse().unwrap()
        }

        fn options(&self) -> &ListenOptions {
            &self.options
        }

        fn accept(&self) -> Result<OwnedFd, Errno> {
            self.tries.set(self.tries.get() + 1);
            if self.tries.get() % 3 == 1 { Err(Errno::MFILE) } else { Ok(self.readable.try_clone().unwrap()) }
        }

        fn source(&self, _: &OwnedFd) -> Result<(), RejectReason> {
            Ok(())
        }

        /// It has gone.
        fn let_in(&self, _: OwnedFd) -> Option<Client> {
            None
        }
    }

    impl From<OwnedFd> for Client {
        fn from(socket: OwnedFd) -> Self {
            Self(socket)
        }
    }

    impl Stranger for Client {
        fn read(&mut self, _: &[Key]) -> Result<Option<Hello>, Option<RejectReason>> {
            Ok(None)
        }

        fn is_silent(&self) -> bool {
            true
        }

        fn socket(&self) -> &OwnedFd {
            &self.0
        }

        fn name(&self) -> String {
            String::new()
        }

        fn refuse(self, _: RejectReason) {}
    }

    /// Counts lines of the log.
    #[derive(Clone, Default)]
    struct Lines(Arc<AtomicU64>);

    impl tracing::Subscriber for Lines {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() == tracing::Level::WARN
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    /// A lack that ends with each client and comes back with the next one.
    #[test]
    fn lacks_that_come_and_go_are_logged_ten_times_a_second() {
        let (readable, writer) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&writer, b"a").unwrap();
        let door = Short { readable, options: ListenOptions::default(), tries: Cell::default() };
        let (mut reception, lines, started) = (Reception::new(door, 1), Lines::default(), Instant::now());
        reception.lack_patience = Duration::ZERO;
        tracing::subscriber::with_default(lines.clone(), || {
            while reception.door.tries.get() < 3 * LACKS {
                reception.accept_sockets().unwrap();
            }
        });
        let (lines, windows) = (lines.0.load(Ordering::Relaxed), started.elapsed().as_secs() + 1);
        assert!(lines > 0 && lines <= 10 * windows, "{lines} lines in {windows} s");
    }
}
