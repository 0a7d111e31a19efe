//! What the peer asks of this side: bytes of loans and of exposed memory, a piece of each in turn.

use std::{collections::VecDeque, sync::Arc};

use super::{
    gate::Shared,
    outgoing::{BulkPiece, Outgoing},
    record::{Ask, PIECE_BYTES, Record, SHORT_PIECE_BYTES},
    requests::NOT_EXPOSED,
};
use crate::{
    ConnId, OneSided, Violation,
    mem::{Accessed, Region, Words},
    pieces::Pieces,
};

/// Frames that come and go with each pull: its offer, its answer, and the word that it is done.
const FRAMES_OF_PULL: u64 = 3;

/// The peer's requests on one connection.
#[derive(Debug)]
pub(super) struct Serving {
    conn: ConnId,
    depth: usize,
    piece_bytes: u32,
    pieces: Pieces,
    /// Frames of the connection before the last piece, and how many more belong to its pulls.
    frames: u64,
    frames_of_pulls: u64,
    /// Answers that are not all out, in turn.
    answers: VecDeque<Answer>,
    /// The write whose bytes arrive.
    write: Option<Write>,
    staged: Vec<u8>,
    staged_got: usize,
}

#[derive(Debug)]
struct Answer {
    id: u32,
    from: From,
    at: u64,
    left: u64,
}

#[derive(Debug)]
enum From {
    Loan(Arc<Region>),
    Words(Arc<Words>),
}

#[derive(Debug)]
struct Write {
    id: u32,
    /// `None`: it is refused, and its bytes are dropped.
    to: Option<Arc<Words>>,
    at: u64,
    left: u64,
}

const TOO_MANY: Violation = Violation::Malformed { what: "number of requests: more than were granted" };
const UNANNOUNCED: Violation = Violation::Malformed { what: "write that was not announced" };

impl Serving {
    pub(super) fn new(conn: ConnId, depth: u32, piece_bytes: u32) -> Self {
        Self {
            conn,
            depth: depth as usize,
            piece_bytes,
            pieces: Pieces::default(),
            frames: 0,
            frames_of_pulls: 0,
            answers: VecDeque::new(),
            write: None,
            staged: Vec::new(),
            staged_got: 0,
        }
    }

    /// Whether an answer is not all out.
    pub(super) fn has_work(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Whether bytes are to come that do not belong in the ring.
    #[inline]
    pub(super) const fn expects_bulk(&self) -> bool {
        self.write.is_some()
    }

    /// Takes a request.
    ///
    /// # Errors
    /// What the peer did wrong.
    pub(super) fn asked(
        &mut self,
        id: u32,
        ask: Ask,
        shared: &Shared,
        out: &mut Outgoing,
    ) -> Result<(), Violation> {
        let waiting = self.answers.len() + usize::from(self.write.is_some());
        if waiting >= self.depth || self.write.is_some() {
            return Err(TOO_MANY);
        }
        let words = |key| shared.exposures.find(key, self.conn);
        let is_within = |at: u64, len: u64, words: &Arc<Words>| {
            !words.is_withdrawn() && at.checked_add(len).is_some_and(|end| end <= words.len())
        };
        let end = |status| Record::End { id, status };
        let said = match ask {
            Ask::Pull { key, at, len } => {
                let found = at.checked_add(len).and_then(|end| shared.memory.find(key, self.conn, end));
                self.frames_of_pulls += FRAMES_OF_PULL;
                found.map_or_else(
                    || out.say(end(NOT_EXPOSED), &[]),
                    |region| self.answer(id, From::Loan(region), at, len),
                )
            }
            Ask::Read { key, at, len } => {
                let found = words(key).filter(|words| is_within(at, len, words));
                found.map_or_else(
                    || out.say(end(NOT_EXPOSED), &[]),
                    |words| self.answer(id, From::Words(words), at, len),
                )
            }
            Ask::Write { key, at, len } => {
                let to = words(key).filter(|words| is_within(at, len, words));
                let status = if to.is_some() { 0 } else { NOT_EXPOSED };
                self.write = (len > 0).then_some(Write { id, to, at, left: len });
                len > 0 || out.say(end(status), &[])
            }
            Ask::Swap { key, at, expected, new } => {
                word(id, words(key), OneSided::CompareSwap { at, expected, new }, out)
            }
            Ask::Add { key, at, add } => word(id, words(key), OneSided::FetchAdd { at, add }, out),
        };
        if said { Ok(()) } else { Err(TOO_MANY) }
    }

    fn answer(&mut self, id: u32, from: From, at: u64, left: u64) -> bool {
        self.answers.push_back(Answer { id, from, at, left });
        true
    }

    /// Bytes of the next piece, when so many `frames` of the connection have come and gone.
    fn piece_bytes(&mut self, frames: u64) -> usize {
        let more = frames.saturating_sub(std::mem::replace(&mut self.frames, frames));
        let of_pulls = self.frames_of_pulls.min(FRAMES_OF_PULL * (self.answers.len() as u64 + 2));
        self.frames_of_pulls = of_pulls.saturating_sub(more);
        self.pieces.came(u32::try_from(more.saturating_sub(of_pulls)).unwrap_or(u32::MAX));
        self.pieces.next_bytes(self.piece_bytes, SHORT_PIECE_BYTES) as usize
    }

    /// The next piece of an answer. So many `frames` of the connection have come and gone.
    pub(super) fn next_piece(&mut self, frames: u64) -> Option<BulkPiece> {
        let Answer { id, from, at, left } = self.answers.pop_front()?;
        let piece_bytes = self.piece_bytes(frames);
        let bytes = usize::try_from(left).map_or(piece_bytes, |left| left.min(piece_bytes));
        let record = Record::Data { id, bytes: u32::try_from(bytes).ok()? };
        let piece = match &from {
            From::Loan(region) => {
                BulkPiece::of_region(record, Arc::clone(region), usize::try_from(at).ok()?, bytes)
            }
            From::Words(words) => {
                let mut copy = vec![0; bytes].into_boxed_slice();
                // Checked when it was asked for.
                let _ = words.read(at, &mut copy);
                BulkPiece::of_bytes(record, copy)
            }
        };
        let left = left - bytes as u64;
        if left > 0 {
            self.answers.push_back(Answer { id, from, at: at + bytes as u64, left });
        }
        Some(piece)
    }

    /// A piece of write `id` begins.
    ///
    /// # Errors
    /// It was not announced, or is too large.
    pub(super) fn expect(&mut self, id: u32, bytes: u32) -> Result<(), Violation> {
        let fits = |write: &Write| write.id == id && u64::from(bytes) <= write.left;
        if !self.write.as_ref().is_some_and(fits) || bytes as usize > PIECE_BYTES || bytes == 0 {
            return Err(UNANNOUNCED);
        }
        self.staged.resize(bytes as usize, 0);
        self.staged_got = 0;
        Ok(())
    }

    /// Gives the memory of pieces back. None is being received.
    pub(super) fn rest(&mut self) {
        (self.staged, self.staged_got) = (Vec::new(), 0);
    }

    /// Bytes of the memory for pieces.
    #[cfg(test)]
    pub(super) const fn staged_memory(&self) -> usize {
        self.staged.capacity()
    }

    /// What is missing of the piece.
    pub(super) fn sink(&mut self) -> &mut [u8] {
        &mut self.staged[self.staged_got..]
    }

    /// So many bytes of the piece came.
    pub(super) const fn came(&mut self, bytes: usize) {
        self.staged_got += bytes;
    }

    /// The piece is whole.
    ///
    /// # Errors
    /// What the peer did wrong.
    pub(super) fn piece_came(&mut self, out: &mut Outgoing) -> Result<(), Violation> {
        let write = self.write.as_mut().ok_or(UNANNOUNCED)?;
        if let Some(words) = &write.to
            && (words.is_withdrawn() || words.write(write.at, &self.staged).is_err())
        {
            write.to = None;
        }
        write.at += self.staged.len() as u64;
        write.left -= self.staged.len() as u64;
        if write.left == 0 {
            let (id, status) = (write.id, if write.to.is_some() { 0 } else { NOT_EXPOSED });
            self.write = None;
            if !out.say(Record::End { id, status }, &[]) {
                return Err(TOO_MANY);
            }
        }
        Ok(())
    }
}

/// Makes an atomic operation and answers with what the word was.
fn word(id: u32, words: Option<Arc<Words>>, op: OneSided, out: &mut Outgoing) -> bool {
    match words.map(|words| op.perform(&words)) {
        Some(Ok(Accessed::Word(word))) => out.say(Record::Data { id, bytes: 8 }, &word.to_le_bytes()),
        _ => out.say(Record::End { id, status: NOT_EXPOSED }, &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: usize = 256 << 10;
    const SHORT: usize = SHORT_PIECE_BYTES as usize;

    #[test]
    fn pieces_are_short_beside_frames_that_no_pull_brought() {
        let mut serving = Serving::new(ConnId::new(0, 1), 16, u32::try_from(LONG).unwrap());
        let mut frames = 0;
        for round in 0..64 {
            // A pull of four pieces alone, and the frames that come with it, in one order and the other.
            frames += 1;
            serving.frames_of_pulls += FRAMES_OF_PULL;
            for piece in 0..4 {
                let bytes = serving.piece_bytes(frames);
                assert_eq!(
                    bytes,
                    if round < 4 && round * 4 + piece < 15 { SHORT } else { LONG },
                    "{round}, {piece}"
                );
            }
            frames += 2;
        }
        // Of echoes, two at most are taken for what another pull brings.
        let lengths: Vec<usize> = (0..100)
            .map(|_| {
                frames += 2;
                serving.piece_bytes(frames)
            })
            .collect();
        assert!(lengths[4..].iter().all(|bytes| *bytes == SHORT), "{lengths:?}");
        assert_eq!(Serving::new(ConnId::new(0, 1), 16, 4096).piece_bytes(0), 4096);
    }
}
