//! Registered memory of an endpoint, named by ranges, and who has which range.
//!
//! No reference into it is ever made: bytes are copied in and out with volatile accesses, because a device, or a
//! peer that holds a key, may change them at any time. A range that is posted is the device's until its completion:
//! touching it is refused.

use std::{
    ops::Range,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    cm::{
        error::{CmError, above},
        operation::Operation,
    },
    memory::{Mapping, Memory},
    verbs::{
        context::Pd,
        mr::{Mr, Rights},
        qp::LocalBytes,
    },
};

/// What the peer may do with a buffer, and what our own device may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Sends, receives, and the source of our WRITEs.
    Local,
    /// Also where our READs put what they bring; iWARP gives the peer the right to write there for that.
    ReadSink,
    /// Also what the peer may READ.
    RemoteRead,
    /// Also where the peer may WRITE.
    RemoteWrite,
    /// Also what the peer may change by atomic operations, and READ.
    RemoteAtomic,
}

impl Access {
    fn rights(self, iwarp: bool) -> Rights {
        Rights {
            remote_read: matches!(self, Self::RemoteRead | Self::RemoteAtomic),
            remote_write: self == Self::RemoteWrite || (self == Self::ReadSink && iwarp),
            remote_atomic: self == Self::RemoteAtomic,
            ..Rights::LOCAL
        }
    }
}

/// Names a buffer of one endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffer {
    endpoint: u64,
    index: usize,
    bytes: usize,
}

impl Buffer {
    /// All of it.
    #[must_use]
    pub fn all(self) -> Span {
        Span { buffer: self, start: 0, end: self.bytes }
    }

    /// A part of it. A range that is outside is refused where it is used.
    #[must_use]
    pub fn range(self, range: Range<usize>) -> Span {
        Span { buffer: self, start: range.start, end: range.end }
    }

    /// Its length, bytes.
    #[must_use]
    pub fn len(self) -> usize {
        self.bytes
    }

    /// Buffers are never empty; this exists for symmetry.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.bytes == 0
    }
}

/// A part of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    buffer: Buffer,
    start: usize,
    end: usize,
}

impl Span {
    /// No memory.
    pub const NONE: Self = Self { buffer: Buffer { endpoint: 0, index: 0, bytes: 0 }, start: 0, end: 0 };

    /// Its length, bytes.
    #[must_use]
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Its first `bytes` bytes, or all if it has fewer.
    #[must_use]
    pub fn first(self, bytes: usize) -> Self {
        Self { end: self.start + bytes.min(self.len()), ..self }
    }
}

/// Memory of a peer, as it told us: nothing here is checked but the length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteBuffer {
    /// Its address there.
    pub address: u64,
    /// The key for it.
    pub rkey: u32,
    /// Bytes behind the address that the key is good for.
    pub bytes: u64,
}

/// Deregistered before it is unmapped.
#[derive(Debug)]
struct Block {
    mr: Mr,
    region: Mapping,
    access: Access,
}

/// Work that the device has, and with it the range.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) operation: Operation,
    pub(crate) token: u64,
    /// The first piece.
    pub(crate) span: Span,
    more: Vec<Span>,
    /// Whether the device has the pieces; it has copied inline ones.
    is_held: bool,
}

impl Work {
    pub(crate) fn new(operation: Operation, token: u64, pieces: &[Span]) -> Self {
        let (first, more) =
            pieces.split_first().map_or((Span::NONE, &[][..]), |(first, more)| (*first, more));
        Self { operation, token, span: first, more: more.to_vec(), is_held: true }
    }

    /// Of bytes that the device takes with the request.
    pub(crate) fn inline(self) -> Self {
        Self { is_held: false, ..self }
    }

    /// The pieces, none of them [`Span::NONE`].
    fn pieces(&self) -> impl Iterator<Item = Span> {
        std::iter::once(self.span).chain(self.more.iter().copied()).filter(|piece| *piece != Span::NONE)
    }

    /// Bytes of all pieces.
    pub(crate) fn bytes(&self) -> u64 {
        self.pieces().map(|piece| piece.len() as u64).sum()
    }
}

/// Registered memory of an endpoint, named by ranges, and who has which range.
#[derive(Debug)]
pub(crate) struct Blocks {
    endpoint: u64,
    blocks: Vec<Block>,
    /// By the number that the request is posted with.
    work: Vec<Option<Work>>,
}

impl Blocks {
    pub(crate) fn new() -> Self {
        static ENDPOINTS: AtomicU64 = AtomicU64::new(1);
        let endpoint = ENDPOINTS.fetch_add(1, Ordering::Relaxed);
        Self { endpoint, blocks: Vec::new(), work: Vec::new() }
    }

    pub(crate) fn add(
        &mut self,
        pd: &Arc<Pd>,
        bytes: usize,
        access: Access,
        iwarp: bool,
    ) -> Result<Buffer, CmError> {
        if bytes == 0 {
            return Err(above("the length of a buffer (at least 1)", 0, 1));
        }
        let region = Mapping::new(bytes)?;
        let mr = Mr::new(pd, &region, access.rights(iwarp))?;
        self.blocks.push(Block { mr, region, access });
        Ok(Buffer { endpoint: self.endpoint, index: self.blocks.len() - 1, bytes })
    }

    /// Where `span` is, if it is ours and inside its buffer.
    fn block(&self, span: Span) -> Result<&Block, CmError> {
        let foreign = CmError::Unsupported { what: "the buffer", why: "it belongs to another endpoint" };
        let block = self.blocks.get(span.buffer.index).filter(|_| span.buffer.endpoint == self.endpoint);
        let block = block.ok_or(foreign)?;
        if span.start > span.end || span.end > block.region.bytes() {
            return Err(above("the end of a range", span.end as u64, block.region.bytes() as u64));
        }
        Ok(block)
    }

    /// Refuses what the device has: everything for `exclusive`, otherwise what it may write.
    fn is_free(&self, span: Span, exclusive: bool) -> Result<(), CmError> {
        let counts = |work: &&Work| work.is_held && (exclusive || work.operation.writes());
        let is_taken = |posted: &Span| {
            posted.buffer.index == span.buffer.index && posted.start < span.end && span.start < posted.end
        };
        match self.work.iter().flatten().filter(counts).flat_map(Work::pieces).find(is_taken) {
            Some(Span { start, end, .. }) => Err(CmError::Posted { start, end }),
            None => Ok(()),
        }
    }

    /// Gives the pieces of `work` to the device, under the number that is returned.
    pub(crate) fn post(&mut self, work: Work) -> Result<(u64, Vec<LocalBytes>), CmError> {
        let mut pieces = Vec::with_capacity(1 + work.more.len());
        for span in work.pieces() {
            let block = self.block(span)?;
            self.is_free(span, work.operation.writes())?;
            let bytes = u32::try_from(span.len())
                .map_err(|_| above("bytes of one work request", span.len() as u64, u32::MAX.into()))?;
            // SAFETY: the block is registered until after the queue pair is destroyed, and no reference into it is ever made.
            pieces.push(unsafe { LocalBytes::of(&block.region, span.start, bytes, block.mr.lkey()) });
        }
        let free = self.work.iter().position(Option::is_none).unwrap_or_else(|| {
            self.work.push(None);
            self.work.len() - 1
        });
        self.work[free] = Some(work);
        Ok((free as u64, pieces))
    }

    /// The device is done with it, whatever came of it.
    pub(crate) fn end(&mut self, wr_id: u64) -> Option<Work> {
        self.work.get_mut(usize::try_from(wr_id).ok()?)?.take()
    }

    /// What a peer needs to reach `span`.
    pub(crate) fn expose(&self, span: Span) -> Result<RemoteBuffer, CmError> {
        let block = self.block(span)?;
        if !matches!(block.access, Access::RemoteRead | Access::RemoteWrite | Access::RemoteAtomic) {
            return Err(CmError::Unsupported {
                what: "a key for the peer",
                why: "the buffer was made without RemoteRead, RemoteWrite or RemoteAtomic",
            });
        }
        Ok(RemoteBuffer {
            address: block.region.place(span.start, span.len()).as_ptr().addr() as u64,
            rkey: block.mr.rkey(),
            bytes: span.len() as u64,
        })
    }

    pub(crate) fn write(&self, span: Span, bytes: &[u8]) -> Result<(), CmError> {
        self.block(span)?;
        let span = exactly(span, bytes.len())?;
        let place = self.block(span)?.region.place(span.start, span.len());
        self.is_free(span, true)?;
        for (at, byte) in bytes.iter().enumerate() {
            // SAFETY: `place` checked that all of the span lies inside the mapping; no reference to it exists.
            unsafe { volatile(place, at).write_volatile(*byte) };
        }
        Ok(())
    }

    pub(crate) fn read(&self, span: Span, into: &mut [u8]) -> Result<(), CmError> {
        self.block(span)?;
        let span = exactly(span, into.len())?;
        let place = self.block(span)?.region.place(span.start, span.len());
        self.is_free(span, false)?;
        for (at, byte) in into.iter_mut().enumerate() {
            // SAFETY: as in `write`; every bit pattern is a byte.
            *byte = unsafe { volatile(place, at).read_volatile() };
        }
        Ok(())
    }
}

fn volatile(place: NonNull<u8>, at: usize) -> *mut u8 {
    place.as_ptr().wrapping_add(at)
}

fn exactly(span: Span, bytes: usize) -> Result<Span, CmError> {
    if bytes <= span.len() {
        return Ok(span.first(bytes));
    }
    Err(above("bytes of a copy", bytes as u64, span.len() as u64))
}
