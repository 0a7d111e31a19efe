//! The kernel's sockets, by our own code in both processes: TCP over loopback, and unix stream sockets.
//!
//! They are waited for as the mode says: inline looks again and again, handed off sleeps in `poll`. Two more TCP sockets
//! are waited for in one way whatever the mode: by an epoll set, and by a call that blocks.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    time::Duration,
};

use gimmal_engine::transport::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, epoll};

use super::{Contender, Goal, Quantity};
use crate::{
    clock::{Patience, Relax, Stamp},
    error::BenchError,
    floors::{Floors, Phase},
    recorder::Recorder,
    target::{body, total, total_of},
};

/// Looks without bytes between two questions whether to go on.
const LOOKS: u32 = 1 << 7;
/// One sleep of a contender that sleeps.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// For the server to come.
const COME: Duration = Duration::from_secs(10);

/// How a socket is waited for.
#[derive(Debug)]
pub(crate) enum Waiting {
    /// As the mode says.
    AsPlanned,
    /// By this set, which it alone is in.
    Epoll(OwnedFd),
    /// A call that receives blocks, for a nap at most.
    Blocking,
    /// As the mode says, and no call to the kernel moves more than one body.
    Single,
}

/// One connected socket.
#[derive(Debug)]
pub(crate) enum Stream {
    /// TCP, over loopback.
    Tcp(TcpStream, Waiting),
    /// A unix socket.
    Uds(UnixStream),
}

impl Stream {
    /// The server's end of what a [`Meeting`] says.
    pub(crate) fn connect(place: &str) -> Result<Self, BenchError> {
        let stream = match place.split_once(':') {
            Some(("uds", path)) => {
                Self::Uds(UnixStream::connect(path).map_err(BenchError::system("connecting a unix socket"))?)
            }
            Some((kind, address)) if Kind::of(kind).is_some() => {
                let stream =
                    TcpStream::connect(address).map_err(BenchError::system("connecting over loopback"))?;
                Self::tcp(stream, Kind::of(kind).unwrap_or(Kind::Plain))?
            }
            _ => return Err(BenchError::Arguments(format!("--beside {place}: neither tcp: nor uds:"))),
        };
        stream.ready()
    }

    fn tcp(stream: TcpStream, kind: Kind) -> Result<Self, BenchError> {
        let waiting = match kind {
            Kind::Plain => Waiting::AsPlanned,
            Kind::Blocking => Waiting::Blocking,
            Kind::Single => Waiting::Single,
            Kind::Epoll => {
                let failed = BenchError::system::<rustix::io::Errno>("making an epoll set");
                let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(&failed)?;
                let data = epoll::EventData::new_u64(0);
                epoll::add(&set, &stream, data, epoll::EventFlags::IN).map_err(&failed)?;
                Waiting::Epoll(set)
            }
        };
        Ok(Self::Tcp(stream, waiting))
    }

    fn ready(self) -> Result<Self, BenchError> {
        let done = match &self {
            Self::Tcp(stream, Waiting::Blocking) => stream
                .set_nodelay(true)
                .and_then(|()| stream.set_nonblocking(false))
                .and_then(|()| stream.set_read_timeout(Some(Duration::from_millis(20)))),
            Self::Tcp(stream, _) => stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)),
            Self::Uds(stream) => stream.set_nonblocking(true),
        };
        done.map_err(BenchError::system("setting up a socket"))?;
        Ok(self)
    }

    /// When it is measured.
    pub(crate) fn phase(&self) -> Phase {
        match self {
            Self::Tcp(_, Waiting::AsPlanned) => Phase::Tcp,
            Self::Tcp(_, Waiting::Epoll(_)) => Phase::TcpEpoll,
            Self::Tcp(_, Waiting::Blocking) => Phase::TcpBlocking,
            Self::Tcp(_, Waiting::Single) => Phase::TcpSingle,
            Self::Uds(_) => Phase::Uds,
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream, _) => stream.as_fd(),
            Self::Uds(stream) => stream.as_fd(),
        }
    }

    /// How many bytes went; 0 when there was no room.
    fn send(&mut self, bytes: &[u8]) -> Result<usize, BenchError> {
        let sent = match self {
            Self::Tcp(stream, _) => stream.write(bytes),
            Self::Uds(stream) => stream.write(bytes),
        };
        moved(sent)
    }

    /// How many bytes came; 0 when there were none.
    fn receive(&mut self, bytes: &mut [u8]) -> Result<usize, BenchError> {
        let received = match self {
            Self::Tcp(stream, _) => stream.read(bytes),
            Self::Uds(stream) => stream.read(bytes),
        };
        match received {
            Ok(0) if !bytes.is_empty() => Err(BenchError::Closed("a socket was closed".to_owned())),
            other => moved(other),
        }
    }

    /// Between two looks.
    fn wait(&self, relax: Option<Relax>, wants_room: bool) {
        match self {
            // The next call waits by itself.
            Self::Tcp(_, Waiting::Blocking) => return,
            Self::Tcp(_, Waiting::Epoll(set)) if !wants_room => {
                let mut events = [std::mem::MaybeUninit::<epoll::Event>::uninit(); 1];
                let _ = epoll::wait(set, &mut events[..], Some(&NAP));
                return;
            }
            _ => {}
        }
        match relax {
            Some(relax) => relax.relax(),
            None => {
                let flags = if wants_room { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                let mut fds = [PollFd::from_borrowed_fd(self.fd(), flags)];
                // Woken for nothing is looking once more.
                let _ = rustix::event::poll(&mut fds, Some(&NAP));
            }
        }
    }

    /// How much of bodies of `bytes` one call receives, out of memory for `most`.
    fn at_once(&self, bytes: usize, most: usize) -> usize {
        if matches!(self, Self::Tcp(_, Waiting::Single)) { bytes.clamp(1, most) } else { most }
    }

    /// The server's half: echoes bodies of `bytes` until `go_on` returns false. `relax` of none sleeps.
    pub(crate) fn echo(
        &mut self,
        bytes: usize,
        relax: Option<Relax>,
        go_on: impl Fn() -> bool,
    ) -> Result<(), BenchError> {
        let mut buffer = vec![0; self.at_once(bytes, 256 << 10)];
        let mut looks = 0u32;
        loop {
            let came = self.receive(&mut buffer)?;
            let mut gone = 0;
            while gone < came {
                match self.send(&buffer[gone..came])? {
                    0 if !go_on() => return Ok(()),
                    0 => self.wait(relax, true),
                    more => gone += more,
                }
            }
            if came == 0 {
                looks = looks.wrapping_add(1);
                if (relax.is_none() || looks.is_multiple_of(LOOKS)) && !go_on() {
                    return Ok(());
                }
                self.wait(relax, false);
            }
        }
    }

    /// The server's half of blocks of `bytes`: reads each and answers with its sum, until `go_on` returns false. `relax` of
    /// none sleeps.
    pub(crate) fn read_blocks(
        &mut self,
        bytes: usize,
        relax: Option<Relax>,
        go_on: impl Fn() -> bool,
    ) -> Result<(), BenchError> {
        let (mut block, mut filled, mut looks) = (vec![0; bytes], 0, 0u32);
        loop {
            let came = self.receive(&mut block[filled..])?;
            filled += came;
            if filled == bytes {
                filled = 0;
                let sum = total(&block).to_le_bytes();
                let mut gone = 0;
                while gone < sum.len() {
                    gone += self.send(&sum[gone..])?;
                }
            } else if came == 0 {
                looks = looks.wrapping_add(1);
                if (relax.is_none() || looks.is_multiple_of(LOOKS)) && !go_on() {
                    return Ok(());
                }
                self.wait(relax, false);
            }
        }
    }
}

/// Bytes moved; a socket that would block moved none.
fn moved(result: std::io::Result<usize>) -> Result<usize, BenchError> {
    match result {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        other => other.map_err(BenchError::system("moving bytes over a socket")),
    }
}

/// Which TCP socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// As the mode says.
    Plain,
    /// Waited for by an epoll set.
    Epoll,
    /// Waited for by a call that blocks.
    Blocking,
    /// One body for each call to the kernel.
    Single,
}

impl Kind {
    const NAMES: [(&str, Self); 4] = [
        ("tcp", Self::Plain),
        ("tcp-epoll", Self::Epoll),
        ("tcp-blocking", Self::Blocking),
        ("tcp-single", Self::Single),
    ];

    fn of(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(other, _)| *other == name).map(|(_, kind)| *kind)
    }

    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, kind)| *kind == self).map_or("tcp", |(name, _)| name)
    }
}

/// Where the server is waited for.
#[derive(Debug)]
pub(crate) enum Meeting {
    /// A port of loopback.
    Tcp(TcpListener, Kind),
    /// A path.
    Uds(UnixListener, PathBuf),
}

impl Meeting {
    /// Over loopback.
    pub(crate) fn tcp(kind: Kind) -> Result<Self, BenchError> {
        let listener =
            TcpListener::bind("127.0.0.1:0").map_err(BenchError::system("listening on loopback"))?;
        Ok(Self::Tcp(listener, kind))
    }

    /// In `folder`.
    pub(crate) fn uds(folder: &std::path::Path) -> Result<Self, BenchError> {
        let path = folder.join("beside");
        let listener = UnixListener::bind(&path).map_err(BenchError::system("binding a unix socket"))?;
        Ok(Self::Uds(listener, path))
    }

    /// What the server's command line says.
    pub(crate) fn place(&self) -> Result<String, BenchError> {
        match self {
            Self::Tcp(listener, kind) => {
                let address = listener.local_addr().map_err(BenchError::system("listening on loopback"))?;
                Ok(format!("{}:{address}", kind.name()))
            }
            Self::Uds(_, path) => Ok(format!("uds:{}", path.display())),
        }
    }

    /// The server's end came.
    pub(crate) fn accept(self) -> Result<Stream, BenchError> {
        let failed = BenchError::system("accepting the server's socket");
        let deadline = Instant::now() + COME;
        match &self {
            Self::Tcp(listener, _) => listener.set_nonblocking(true),
            Self::Uds(listener, _) => listener.set_nonblocking(true),
        }
        .map_err(&failed)?;
        loop {
            let came = match &self {
                Self::Tcp(listener, kind) => match listener.accept() {
                    Ok((stream, _)) => return Stream::tcp(stream, *kind)?.ready(),
                    Err(error) => Err(error),
                },
                Self::Uds(listener, _) => listener.accept().map(|(stream, _)| Stream::Uds(stream)),
            };
            match came {
                Ok(stream) => return stream.ready(),
                Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

/// The client's half.
#[derive(Debug)]
pub(crate) struct Sockets {
    stream: Stream,
    goal: Goal,
    body: Vec<u8>,
    buffer: Vec<u8>,
    window: usize,
    /// None: sleeps.
    relax: Option<Relax>,
    recorder: Recorder,
}

impl Sockets {
    /// Bodies of `bytes`, `window` of them in flight.
    pub(crate) fn new(
        stream: Stream,
        goal: Goal,
        bytes: usize,
        window: usize,
        relax: Option<Relax>,
    ) -> Result<Self, BenchError> {
        let body = body(bytes.max(1));
        let buffer = vec![0; stream.at_once(body.len(), body.len().max(64 << 10))];
        Ok(Self { stream, goal, body, buffer, window, relax, recorder: Recorder::new()? })
    }

    /// `count` blocks there, each filled before it leaves and answered with its sum, a window of them in flight.
    fn blocks(&mut self, count: usize) -> Result<(), BenchError> {
        let each = self.body.len();
        // Blocks that were begun and answered; bytes of the last one that are gone, and of the next answer that came.
        let (mut begun, mut answered, mut gone, mut came) = (0, 0, each, 0);
        let (mut sum, mut looks) = ([0; 8], 0u32);
        let filling = |number: usize| number.to_le_bytes()[0];
        let mut patience = Patience::new(self.relax.unwrap_or(Relax::Yield));
        while answered < count {
            if gone == each && begun < count.min(answered + self.window) {
                self.body.fill(filling(begun));
                (begun, gone) = (begun + 1, 0);
            }
            let sent = if gone < each { self.stream.send(&self.body[gone..])? } else { 0 };
            let received = self.stream.receive(&mut sum[came..])?;
            (gone, came) = (gone + sent, came + received);
            if came == sum.len() {
                if u64::from_le_bytes(sum) != total_of(filling(answered), each) {
                    return Err(BenchError::Wrong("another sum of a block"));
                }
                (answered, came) = (answered + 1, 0);
            }
            if sent + received > 0 {
                patience = Patience::new(self.relax.unwrap_or(Relax::Yield));
                continue;
            }
            looks = looks.wrapping_add(1);
            if (self.relax.is_none() || looks.is_multiple_of(1 << 12)) && !patience.go_on() {
                return Err(BenchError::stalled("moving blocks over a socket"));
            }
            self.stream.wait(self.relax, gone < each);
        }
        Ok(())
    }

    /// `count` bodies there and back.
    fn exchange(&mut self, count: usize) -> Result<(), BenchError> {
        let each = self.body.len();
        let (mut sent, mut received, mut looks) = (0, 0, 0u32);
        let mut patience = Patience::new(self.relax.unwrap_or(Relax::Yield));
        while received < count * each {
            let limit = (received / each + self.window).min(count) * each;
            let mut moved = 0;
            if sent < limit {
                let from = sent % each;
                let gone = self.stream.send(&self.body[from..each.min(from + limit - sent)])?;
                sent += gone;
                moved += gone;
            }
            let came = self.stream.receive(&mut self.buffer)?;
            received += came;
            if moved + came == 0 {
                looks = looks.wrapping_add(1);
                if (self.relax.is_none() || looks.is_multiple_of(1 << 12)) && !patience.go_on() {
                    return Err(BenchError::stalled("echoing over a socket"));
                }
                self.stream.wait(self.relax, sent < limit);
            } else {
                patience = Patience::new(self.relax.unwrap_or(Relax::Yield));
            }
        }
        Ok(())
    }
}

impl Contender for Sockets {
    fn name(&self) -> String {
        let how = if self.relax.is_some() { "polled" } else { "sleeping" };
        match self.stream {
            Stream::Tcp(_, Waiting::AsPlanned) => format!("kernel TCP, loopback, {how}"),
            Stream::Tcp(_, Waiting::Epoll(_)) => "kernel TCP, loopback, epoll".to_owned(),
            Stream::Tcp(_, Waiting::Blocking) => "kernel TCP, loopback, blocking".to_owned(),
            Stream::Tcp(_, Waiting::Single) => format!("kernel TCP, loopback, {how}, not batched"),
            Stream::Uds(_) => format!("unix socket, {how}"),
        }
    }

    fn label(&self) -> &'static str {
        match self.goal {
            Goal::Latency => "RTT p50",
            Goal::Rate => "echoes per second",
            Goal::Bandwidth => "bytes per second, written here and read there",
        }
    }

    fn quantity(&self) -> Quantity {
        match self.goal {
            Goal::Latency => Quantity::RoundTrip,
            Goal::Rate => Quantity::PerSecond,
            Goal::Bandwidth => Quantity::Bytes,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "sizes far below 2^53")]
    fn slice(&mut self, floors: &mut Floors, count: u64) -> Result<f64, BenchError> {
        floors.announce(self.stream.phase())?;
        self.recorder.reset();
        let first = Stamp::now();
        if self.goal == Goal::Latency {
            self.recorder.begin_laps();
            for _ in 0..count {
                self.exchange(1)?;
                self.recorder.lap();
            }
            self.recorder.end_laps();
            return Ok(self.recorder.fine_median_ns());
        }
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if self.goal == Goal::Bandwidth { self.blocks(count) } else { self.exchange(count) }?;
        let per_second = count as f64 * 1e9 / Stamp::now().nanos_since(first).max(1) as f64;
        let each = if self.goal == Goal::Bandwidth { self.body.len() as f64 } else { 1.0 };
        Ok(per_second * each)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn blocks_are_read_and_answered() {
        for (relax, window) in [(Some(Relax::Yield), 1), (None, 3)] {
            let meeting = Meeting::tcp(Kind::Plain).unwrap();
            let place = meeting.place().unwrap();
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut stream = Stream::connect(&place).unwrap();
                    // It may see us go before it looks at `stop`.
                    let _ = stream.read_blocks(300_003, relax, || !stop.load(Ordering::Relaxed));
                });
                let stream = meeting.accept().unwrap();
                let mut sockets = Sockets::new(stream, Goal::Bandwidth, 300_003, window, relax).unwrap();
                sockets.blocks(20).unwrap();
                stop.store(true, Ordering::Relaxed);
            });
        }
    }

    #[test]
    fn bytes_come_back_over_both_kinds_polled_and_sleeping() {
        let folder = tempfile::tempdir().unwrap();
        for relax in [Some(Relax::Yield), None] {
            let tcp = [Kind::Plain, Kind::Epoll, Kind::Blocking, Kind::Single]
                .map(|kind| Meeting::tcp(kind).unwrap());
            for meeting in tcp.into_iter().chain([Meeting::uds(folder.path()).unwrap()]) {
                let place = meeting.place().unwrap();
                let stop = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let mut stream = Stream::connect(&place).unwrap();
                        // It may see us go before it looks at `stop`.
                        let _ = stream.echo(100_000, relax, || !stop.load(Ordering::Relaxed));
                    });
                    let stream = meeting.accept().unwrap();
                    let mut sockets = Sockets::new(stream, Goal::Rate, 100_000, 8, relax).unwrap();
                    sockets.exchange(100).unwrap();
                    assert_eq!(sockets.buffer.len(), 100_000);
                    stop.store(true, Ordering::Relaxed);
                });
            }
            std::fs::remove_file(folder.path().join("beside")).unwrap();
        }
        assert!(Stream::connect("pipe:x").is_err());
    }
}
