//! The baselines in both processes, and the words by which the client starts the next one.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
    time::Duration,
};

use gimmal_transport::floor::{Area, Block, Echoes, Frames, Line, Queue};
use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus, waitid};

use crate::{
    clock::{Patience, Relax, Stamp, has_ended},
    error::BenchError,
    recorder::Recorder,
    target::{digest, total},
};

/// What both processes do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Nothing: connections come and go.
    Idle,
    /// Nothing at all: other programs have the cores.
    Rest,
    /// The line floor.
    Line,
    /// The frame floor, one by one or a window of them.
    Frame,
    /// The bare ring.
    Ring,
    /// The layer under test, waited for as the plan says.
    Test,
    /// The layer under test, and nobody sleeps.
    Spin,
    /// The block floor.
    Block,
    /// The echo over TCP.
    Tcp,
    /// The kernel's TCP over loopback, waited for by an epoll set.
    TcpEpoll,
    /// The kernel's TCP over loopback, waited for by a call that blocks.
    TcpBlocking,
    /// The kernel's TCP over loopback, one body for each call.
    TcpSingle,
    /// The echo over a unix socket.
    Uds,
    /// The end.
    End,
}

/// Every phase but the end, by its number in a word.
const PHASES: [Phase; 13] = [
    Phase::Idle,
    Phase::Rest,
    Phase::Line,
    Phase::Frame,
    Phase::Ring,
    Phase::Test,
    Phase::Spin,
    Phase::Block,
    Phase::Tcp,
    Phase::Uds,
    Phase::TcpEpoll,
    Phase::TcpBlocking,
    Phase::TcpSingle,
];

impl Phase {
    /// As a word: every announcement has a number, so that two of one kind differ.
    fn word(self, number: u64) -> u64 {
        let kind = PHASES.iter().position(|phase| *phase == self).unwrap_or(PHASES.len());
        number << 8 | kind as u64
    }

    /// What a word says; a word that is none of ours ends it.
    fn of(word: u64) -> Self {
        let kind = usize::from(word.to_le_bytes()[0]);
        PHASES.get(kind).copied().unwrap_or(Self::End)
    }
}

/// From the end of a server's sockets to its own.
const ENDING: Duration = Duration::from_millis(200);

/// Of a child that has ended and was not waited for.
fn how_it_ended(process: BorrowedFd<'_>) -> String {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::PidFd(process), options).ok().flatten();
    let signal = status.as_ref().and_then(WaitIdStatus::terminating_signal);
    let code = status.as_ref().and_then(WaitIdStatus::exit_status);
    match (signal, code) {
        (Some(signal), _) => format!(" by signal {signal}"),
        (None, Some(code)) => format!(" with exit code {code}"),
        (None, None) => String::new(),
    }
}

/// The client's half.
#[derive(Debug)]
pub(crate) struct Floors {
    area: Rc<Area>,
    line: Line,
    frames: Frames,
    queue: Queue,
    block: Block,
    body: Vec<u8>,
    /// What goes into a block, another one each time.
    filling: u8,
    relax: Relax,
    number: u64,
    /// A pidfd of the server.
    server: Option<OwnedFd>,
}

impl Floors {
    /// The half that measures frames of `body`, `window` of them, and blocks of `block` bytes; and the descriptor for
    /// the server.
    pub(crate) fn create(
        body: Vec<u8>,
        window: usize,
        block: usize,
        relax: Relax,
    ) -> Result<(Self, OwnedFd), BenchError> {
        let failed = BenchError::system("creating the floors");
        let (area, fd) = Area::create(body.len().max(block), window, body.len()).map_err(&failed)?;
        let area = Rc::new(area);
        let frames = Frames::new(&area, body.len(), window).map_err(&failed)?;
        let queue = Queue::new(&area, body.len(), window).map_err(&failed)?;
        let (line, block) = (Line::new(&area), Block::new(&area, block).map_err(failed)?);
        Ok((Self { area, line, frames, queue, block, body, filling: 0, relax, number: 0, server: None }, fd))
    }

    /// Nobody is waited for once `server`, a pidfd, says that it ended.
    pub(crate) fn watch(&mut self, server: OwnedFd) {
        self.server = Some(server);
    }

    /// `why` the run broke off, or that the server is gone: what else was seen follows from that.
    pub(crate) fn blame(&self, why: BenchError) -> BenchError {
        let Some(server) = self.server.as_ref().filter(|_| !matches!(why, BenchError::Server(_))) else {
            return why;
        };
        // Its sockets close a little before it has ended.
        let deadline = Stamp::now().after(ENDING);
        while !has_ended(server.as_fd()) {
            if Stamp::now() > deadline {
                return why;
            }
            std::thread::sleep(ENDING.mul_f64(0.05));
        }
        BenchError::Server(format!("ended in the middle{}: {why}", how_it_ended(server.as_fd())))
    }

    /// Why nothing came.
    fn gave_up(&self, doing: &'static str) -> BenchError {
        match &self.server {
            Some(server) if has_ended(server.as_fd()) => {
                let how = how_it_ended(server.as_fd());
                BenchError::Server(format!("ended in the middle{how}: the connection ended"))
            }
            _ => BenchError::stalled(doing),
        }
    }

    /// Says that other programs need the cores.
    pub(crate) fn rest(&mut self) -> Result<(), BenchError> {
        self.announce(Phase::Rest)
    }

    fn patience(&self, now: Stamp) -> Patience<'_> {
        Patience::watching(self.relax, self.server.as_ref().map(AsFd::as_fd), now)
    }

    /// Announces the next baseline and waits until the server runs it.
    pub(crate) fn announce(&mut self, phase: Phase) -> Result<(), BenchError> {
        self.number += 1;
        let word = phase.word(self.number);
        self.area.announce(word);
        let mut patience = self.patience(Stamp::now());
        while self.area.heard() != word {
            // It may have heard that this is the end, and have ended.
            if !patience.go_on() && self.area.heard() != word {
                return Err(self.gave_up("waiting for the server to change what it does"));
            }
        }
        Ok(())
    }

    /// Bounces a line `count` times.
    pub(crate) fn line(&mut self, count: u64, recorder: &mut Recorder) -> Result<(), BenchError> {
        recorder.begin_laps();
        for _ in 0..count {
            let began = recorder.began();
            let mut patience = Patience::watching(self.relax, self.server.as_ref().map(AsFd::as_fd), began);
            let back = self.line.call(|| patience.go_on());
            if !back {
                return Err(self.gave_up("bouncing a line"));
            }
            recorder.lap();
        }
        recorder.end_laps();
        Ok(())
    }

    /// Sends a frame there and back `count` times.
    pub(crate) fn frame(&mut self, count: u64, recorder: &mut Recorder) -> Result<(), BenchError> {
        let wanted = digest(&self.body);
        recorder.begin_laps();
        for aux in 0..count {
            let began = recorder.began();
            let mut patience = Patience::watching(self.relax, self.server.as_ref().map(AsFd::as_fd), began);
            self.frames.post(aux, &self.body);
            match self.frames.take(digest, || patience.go_on()) {
                Some(found) if found == wanted => recorder.lap(),
                Some(_) => return Err(BenchError::Wrong("another body in a frame")),
                None => return Err(self.gave_up("echoing a frame")),
            }
        }
        recorder.end_laps();
        Ok(())
    }

    /// Sends `count` frames there and back, a window of them in flight. Returns frames per second.
    pub(crate) fn frames(&mut self, count: u64) -> Result<f64, BenchError> {
        self.announce(Phase::Frame)?;
        let rate = rate(&mut self.frames, &self.body, count, (self.relax, self.server.as_ref()))?;
        rate.ok_or_else(|| self.gave_up("echoing frames"))
    }

    /// Echoes on the bare ring.
    pub(crate) fn ring(&mut self, count: u64) -> Result<f64, BenchError> {
        self.announce(Phase::Ring)?;
        let rate = rate(&mut self.queue, &self.body, count, (self.relax, self.server.as_ref()))?;
        rate.ok_or_else(|| self.gave_up("echoing on the bare ring"))
    }

    /// Writes a block and lets the other core read it, `count` times; per second.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
    pub(crate) fn block(&mut self, count: u64) -> Result<f64, BenchError> {
        let first = Stamp::now();
        for _ in 0..count {
            self.filling = self.filling.wrapping_add(1);
            let filling = self.filling;
            let mut patience = Patience::watching(self.relax, self.server.as_ref().map(AsFd::as_fd), first);
            if self.block.call(|block| block.fill(filling), || patience.go_on()).is_none() {
                return Err(self.gave_up("reading a block"));
            }
        }
        Ok(count as f64 * 1e9 / Stamp::now().nanos_since(first).max(1) as f64)
    }
}

/// Sends `body` there and back `count` times, a window at a time; per second, or `None` when nothing came back.
/// Nothing is
/// timed by itself: reading the clock would cost as much as a message.
#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
fn rate(
    echoes: &mut impl Echoes,
    body: &[u8],
    count: u64,
    (relax, server): (Relax, Option<&OwnedFd>),
) -> Result<Option<f64>, BenchError> {
    let (wanted, first) = (digest(body), Stamp::now());
    let mut sent = 0;
    for _ in 0..count {
        while sent < count && echoes.post(sent, body) {
            sent += 1;
        }
        let mut patience = Patience::watching(relax, server.map(AsFd::as_fd), first);
        match echoes.take(digest, || patience.go_on()) {
            Some(found) if found == wanted => {}
            Some(_) => return Err(BenchError::Wrong("another body on a bare ring")),
            None => return Ok(None),
        }
    }
    Ok(Some(count as f64 * 1e9 / Stamp::now().nanos_since(first).max(1) as f64))
}

/// The floor in `place`, made when it is first wanted.
fn made<T>(place: &mut Option<T>, make: impl FnOnce() -> io::Result<T>) -> Result<&mut T, BenchError> {
    match place {
        Some(made) => Ok(made),
        None => Ok(place.insert(make().map_err(BenchError::system("mapping the floors"))?)),
    }
}

/// Echoes frames for as long as the client wants the baseline of `word`.
fn echo_while(echoes: &mut impl Echoes, area: &Area, word: u64, relax: Relax) {
    echoes.echo(|| {
        relax.relax();
        area.phase() == word
    });
}

/// The server's half.
#[derive(Debug)]
pub(crate) struct FloorServer {
    area: Rc<Area>,
    line: Line,
    /// For the plan's frames, from their first phase on.
    frames: Option<Frames>,
    /// For the bare ring, likewise.
    queue: Option<Queue>,
    /// For the plan's blocks.
    block: Option<Block>,
}

impl FloorServer {
    /// The half of the client that made the file behind `fd`.
    pub(crate) fn attach(fd: BorrowedFd<'_>) -> Result<Self, BenchError> {
        let area = Area::attach(fd).map_err(BenchError::system("mapping the client's floors"))?;
        let area = Rc::new(area);
        Ok(Self { line: Line::new(&area), area, frames: None, queue: None, block: None })
    }

    /// What the client wants, with the word that said so.
    #[inline]
    pub(crate) fn phase(&self) -> (Phase, u64) {
        let word = self.area.phase();
        (Phase::of(word), word)
    }

    /// Whether it still wants what `word` said.
    #[inline]
    pub(crate) fn is_still(&self, word: u64) -> bool {
        self.area.phase() == word
    }

    /// We are there.
    pub(crate) fn answer(&self, word: u64) {
        self.area.answer(word);
    }

    /// Echoes lines until the client wants something else.
    pub(crate) fn line(&mut self, word: u64, relax: Relax) {
        let area = &self.area;
        self.line.echo(|| {
            relax.relax();
            area.phase() == word
        });
    }

    /// Echoes frames of `bytes`, at most `window` of them at once, until the client wants something else.
    pub(crate) fn frame(
        &mut self,
        word: u64,
        bytes: usize,
        window: usize,
        relax: Relax,
    ) -> Result<(), BenchError> {
        let Self { area, frames, .. } = self;
        let frames = made(frames, || Frames::new(area, bytes, window))?;
        echo_while(frames, area, word, relax);
        Ok(())
    }

    /// Echoes on the bare ring.
    pub(crate) fn ring(
        &mut self,
        word: u64,
        bytes: usize,
        window: usize,
        relax: Relax,
    ) -> Result<(), BenchError> {
        let Self { area, queue, .. } = self;
        let queue = made(queue, || Queue::new(area, bytes, window))?;
        echo_while(queue, area, word, relax);
        Ok(())
    }

    /// Reads blocks of `bytes` until the client wants something else.
    pub(crate) fn block(&mut self, word: u64, bytes: usize, relax: Relax) -> Result<(), BenchError> {
        let Self { area, block, .. } = self;
        let block = made(block, || Block::new(area, bytes))?;
        block.echo(total, || {
            relax.relax();
            area.phase() == word
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_survive_their_word() {
        for phase in PHASES.into_iter().chain([Phase::End]) {
            assert_eq!(Phase::of(phase.word(77)), phase);
            assert_ne!(phase.word(1), phase.word(2));
        }
        assert_eq!(Phase::of(u64::MAX), Phase::End);
        assert_eq!(Phase::of(0), Phase::Idle);
    }
}
