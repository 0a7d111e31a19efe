//! What the provider promises, and what a broken or hostile peer can do to it.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "small numbers, loud failures")]

mod bulk;
mod echo;
mod exposed;
mod hostile;
mod key;
mod kill;
mod leftovers;
mod limits;
mod listen;
mod measure;
mod misuse;
mod named;
mod park;
mod refusal;
mod run;
mod shortage;
mod sleep;
mod theirs;
mod trust;

use std::{
    io::Write as _,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use rustix::io::Errno;

use super::{Shm, ShmConnecting, ShmGate, ShmLink, ShmListener, ShmPort, socket};
use crate::{
    Address, Batch, BulkError, Chain, CloseReason, ConnId, ConnectError, ConnectOptions, Connecting, Credit,
    Incoming, Instant, Limit, ListenOptions, Listener, Look, Port, PortConfig, Position, Provider, Refused,
    Run, RxFrame, Staged, Tag, Time, Transfer, Wait,
    mem::{Bulk, Offer},
    testing::{self, Came, patient_connect, patient_listen},
};

const SECOND: Duration = Duration::from_secs(1);

/// Reports that the calling test skips itself, and why: as `skip` of the testkit, which is built on this crate.
fn skip(why: &str) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {name}: {why}");
}

/// A folder that goes away, and an address in it.
fn place() -> (tempfile::TempDir, Address) {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Shm { path: folder.path().join("socket") };
    (folder, address)
}

fn config(ring_bytes: u32) -> PortConfig {
    PortConfig { ring_bytes, ..PortConfig::default() }
}

fn listen(address: &Address) -> ShmListener {
    Shm.listen(address, &patient_listen()).unwrap()
}

fn connect(address: &Address, gate: &ShmGate) -> Result<ShmConnecting, ConnectError> {
    Shm.connect(address, gate, &patient_connect())
}

/// Both ends of a link, made on this thread.
fn links(listener: &mut ShmListener, server: &ShmGate, client: &ShmGate) -> (ShmLink, ShmLink) {
    let mut connecting = connect(&listener.address(), client).unwrap();
    let incoming = listener.accept(SECOND.saturating_mul(30)).unwrap().expect("a client is there");
    let accepted = incoming.accept(server).unwrap();
    let connected = connecting.poll(SECOND.saturating_mul(30)).expect("the server answered").unwrap();
    (accepted, connected)
}

/// One end with a port and one connection, which counts credit as the engine does.
struct Side {
    port: ShmPort,
    conn: ConnId,
    batch: Batch,
    started: Instant,
}

impl Side {
    fn adopt(mut port: ShmPort, link: ShmLink) -> Self {
        let conn = port.adopt(link, Time(0)).unwrap();
        Self { port, conn, batch: Batch::new(64), started: Instant::now() }
    }

    fn now(&self) -> Time {
        Time::default().plus(self.started.elapsed())
    }

    fn poll(&mut self) -> Vec<Came> {
        let now = self.now();
        testing::poll(&mut self.port, now, &mut self.batch)
    }

    /// Looks around now, as a poll does from time to time.
    fn look(&mut self) {
        let now = self.now();
        self.port.table.look(now);
    }

    /// Polls until something comes.
    fn wait(&mut self) -> Vec<Came> {
        let until = Instant::now() + SECOND.saturating_mul(30);
        loop {
            let events = self.poll();
            if !events.is_empty() {
                return events;
            }
            assert!(Instant::now() < until, "nothing came in 30 s");
        }
    }

    fn opened(&mut self) {
        let events = self.wait();
        let [Came::Opened { conn, .. }] = &events[..] else { panic!("not opened: {events:?}") };
        assert_eq!(*conn, self.conn);
    }

    /// The reason of the `Closed` that is the only thing to come.
    fn closed(&mut self) -> CloseReason {
        let mut events = self.wait();
        let Some(Came::Closed { conn, reason }) = events.pop() else { panic!("not closed: {events:?}") };
        assert!(events.is_empty(), "more came: {events:?}");
        assert_eq!(conn, self.conn);
        assert!(self.poll().is_empty(), "closed is the last event");
        reason
    }

    fn commit(&mut self, payload: &[u8], tag: u32) {
        stage(&mut self.port, self.conn, payload, tag).unwrap();
    }

    /// Writes `payload` where the next frame leaves from, and sends nothing.
    fn scribble(&mut self, payload: &[u8]) {
        let given_up = self.port.compose(self.conn, payload.len(), |room| {
            room.copy_from_slice(payload);
            None
        });
        assert_eq!(given_up, Ok(None));
    }

    /// Whether there is room for a frame, after a look at the peer's credit.
    fn has_room(&mut self, payload_bytes: usize) -> Result<(), Refused> {
        self.port.credit(self.conn);
        self.port.compose(self.conn, payload_bytes, |_| None).map(|_| ())
    }

    fn send(&mut self, payload: &[u8], tag: u32) {
        self.commit(payload, tag);
        self.port.flush();
    }

    /// The next frame.
    fn frame(&mut self) -> RxFrame {
        let mut events = self.wait();
        assert_eq!(events.len(), 1, "{events:?}");
        let Some(Came::Frame { frame, .. }) = events.pop() else { panic!("no frame") };
        frame
    }

    fn give_back(&mut self, frame: RxFrame) {
        let credit = Credit { bytes: frame.end(), arrivals: 0 };
        self.port.release(self.conn, frame);
        self.port.return_credit(self.conn, credit);
    }

    /// Pulls `offer`, and takes what that came to.
    fn pulled(&mut self, offer: Offer, token: u64) -> Result<Bulk, BulkError> {
        self.port.pull(self.conn, offer, token).unwrap().expect("it needs no device")
    }

    /// Arms, waits for the descriptor, disarms. True when it became readable.
    fn sleep(&mut self, timeout: Duration) -> bool {
        let woken = !self.port.arm() || readable(self.port.wait_fd(), timeout);
        self.port.disarm();
        woken
    }
}

/// Stages a frame, after a look at the peer's credit.
fn stage(port: &mut ShmPort, conn: ConnId, payload: &[u8], tag: u32) -> Result<Position, Refused> {
    let payload_bytes = payload.len();
    port.credit(conn);
    let end = port.compose(conn, payload_bytes, |room| {
        room.copy_from_slice(payload);
        Some(Staged { payload_bytes, tag: Tag(tag), chain: Chain::Begin })
    });
    Ok(end?.expect("it was not given up"))
}

/// The next run. A look may say once that everybody was asked.
fn lent(side: &mut Side, limit: Limit) -> Option<Run> {
    (0..2).find_map(|_| match side.port.next_run(limit) {
        Look::Run(run) => Some(run),
        Look::Events | Look::Nothing => None,
    })
}

/// Passes a pool segment, or what goes for one.
fn send_pool(socket: impl AsFd, name: u64, bytes: u64, fd: BorrowedFd<'_>) -> Result<(), Errno> {
    socket::send_memory(socket, &socket::POOL, (name, bytes), fd)
}

/// Passes exposed memory, or what goes for some.
fn send_exposed(socket: impl AsFd, key: u64, bytes: u64, fd: BorrowedFd<'_>) -> Result<(), Errno> {
    socket::send_memory(socket, &socket::EXPOSED, (key, bytes), fd)
}

fn readable(fd: impl AsFd, timeout: Duration) -> bool {
    let timeout = rustix::time::Timespec {
        tv_sec: timeout.as_secs().try_into().unwrap(),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&timeout)).unwrap() == 1
}

/// Server and client on this thread, open, with rings of `ring_bytes` each.
fn pair(ring_bytes: u32) -> (Side, Side) {
    pair_of(&config(ring_bytes), &config(ring_bytes))
}

fn pair_of(server: &PortConfig, client: &PortConfig) -> (Side, Side) {
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let server = Shm.open_port(server).unwrap();
    let client = Shm.open_port(client).unwrap();
    let (accepted, connected) = links(&mut listener, &server.gate(), &client.gate());
    let (mut server, mut client) = (Side::adopt(server, accepted), Side::adopt(client, connected));
    client.opened();
    server.opened();
    (server, client)
}

/// Bytes that say where they belong.
fn pattern(seed: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (seed as usize * 31 + at * 7) as u8).collect()
}

/// Descriptors of this process that lead to something shared memory makes.
fn descriptors() -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
        .filter(|to| {
            let to = to.to_string_lossy().into_owned();
            ["memfd:gimmal", "socket:", "eventpoll", "eventfd", ".lock"].iter().any(|kind| to.contains(kind))
        })
        .count()
}
