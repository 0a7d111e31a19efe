//! The floors in both processes, and the words by which the client says what comes next.

use std::{
    os::fd::{BorrowedFd, OwnedFd},
    rc::Rc,
};

use gimmal_transport::floor::{Area, Frames, Line};

use crate::{
    clock::{Patience, Relax, Stamp},
    error::BenchError,
    recorder::Recorder,
    target::digest,
};

/// What both processes do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Nothing: connections come and go.
    Idle,
    /// The line floor.
    Line,
    /// The frame floor.
    Frame,
    /// The layer under test.
    Test,
    /// The end.
    End,
}

impl Phase {
    /// As a word: every announcement has a number, so that two of one kind differ.
    const fn word(self, number: u64) -> u64 {
        number << 8
            | match self {
                Self::Idle => 0,
                Self::Line => 1,
                Self::Frame => 2,
                Self::Test => 3,
                Self::End => 4,
            }
    }

    /// What a word says; a word that is none of ours ends it.
    const fn of(word: u64) -> Self {
        match word & 0xff {
            0 => Self::Idle,
            1 => Self::Line,
            2 => Self::Frame,
            3 => Self::Test,
            _ => Self::End,
        }
    }
}

/// The client's half.
#[derive(Debug)]
pub(crate) struct Floors {
    area: Rc<Area>,
    line: Line,
    frames: Frames,
    body: Vec<u8>,
    relax: Relax,
    number: u64,
}

impl Floors {
    /// The half that measures frames of `body`, and the descriptor for the server.
    pub(crate) fn create(body: Vec<u8>, relax: Relax) -> Result<(Self, OwnedFd), BenchError> {
        let (area, fd) = Area::create(body.len()).map_err(BenchError::system("creating the floors"))?;
        let area = Rc::new(area);
        let frames = Frames::new(&area, body.len()).map_err(BenchError::system("mapping the floors"))?;
        Ok((Self { line: Line::new(&area), area, frames, body, relax, number: 0 }, fd))
    }

    /// Says what comes next and waits until the server is there.
    pub(crate) fn announce(&mut self, phase: Phase) -> Result<(), BenchError> {
        self.number += 1;
        let word = phase.word(self.number);
        self.area.announce(word);
        let mut patience = Patience::new(self.relax);
        while self.area.heard() != word {
            if !patience.go_on() {
                return Err(BenchError::stalled("waiting for the server to change what it does"));
            }
        }
        Ok(())
    }

    /// Bounces a line `count` times.
    pub(crate) fn line(&mut self, count: u64, recorder: &mut Recorder) -> Result<(), BenchError> {
        for _ in 0..count {
            let mut patience = Patience::new(self.relax);
            let start = Stamp::now();
            let back = self.line.call(|| patience.go_on());
            let end = Stamp::now();
            if !back {
                return Err(BenchError::stalled("bouncing a line"));
            }
            recorder.record(end.nanos_since(start));
        }
        Ok(())
    }

    /// Sends a frame there and back `count` times.
    pub(crate) fn frame(&mut self, count: u64, recorder: &mut Recorder) -> Result<(), BenchError> {
        let wanted = digest(&self.body);
        for aux in 0..count {
            let mut patience = Patience::new(self.relax);
            let start = Stamp::now();
            let back = self.frames.call(aux, &self.body, digest, || patience.go_on());
            let end = Stamp::now();
            match back {
                Some(found) if found == wanted => recorder.record(end.nanos_since(start)),
                Some(_) => return Err(BenchError::Wrong("another body on the bare ring")),
                None => return Err(BenchError::stalled("echoing on the bare ring")),
            }
        }
        Ok(())
    }
}

/// The server's half.
#[derive(Debug)]
pub(crate) struct FloorServer {
    area: Rc<Area>,
    line: Line,
    frames: Option<(usize, Frames)>,
}

impl FloorServer {
    /// The half of the client that made the file behind `fd`.
    pub(crate) fn attach(fd: BorrowedFd<'_>) -> Result<Self, BenchError> {
        let area = Area::attach(fd).map_err(BenchError::system("mapping the client's floors"))?;
        let area = Rc::new(area);
        Ok(Self { line: Line::new(&area), area, frames: None })
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

    /// Echoes frames of `bytes` until the client wants something else.
    pub(crate) fn frame(&mut self, word: u64, bytes: usize, relax: Relax) -> Result<(), BenchError> {
        if self.frames.is_none() {
            let frames = Frames::new(&self.area, bytes).map_err(BenchError::system("mapping the floors"))?;
            self.frames = Some((bytes, frames));
        }
        let area = &self.area;
        match &mut self.frames {
            Some((known, frames)) if *known == bytes => frames.echo(|| {
                relax.relax();
                area.phase() == word
            }),
            _ => return Err(BenchError::Wrong("another size on the bare ring")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_survive_their_word() {
        for phase in [Phase::Idle, Phase::Line, Phase::Frame, Phase::Test, Phase::End] {
            assert_eq!(Phase::of(phase.word(77)), phase);
            assert_ne!(phase.word(1), phase.word(2));
        }
        assert_eq!(Phase::of(u64::MAX), Phase::End);
    }
}
