//! Both halves of a stream.

use std::{error, fmt};

use crate::{recv::RecvStream, send::SendStream};

/// A stream of bytes in both directions: a [`RecvStream`] and a [`SendStream`]. It is read and written by tokio's `AsyncRead` and
/// `AsyncWrite`, by [`blocking`](Duplex::blocking), or by its [halves](Duplex::split).
///
/// Dropped, it finishes what it wrote if everything that arrived was read, and else gives it up with code 0.
#[derive(Debug)]
pub struct Duplex {
    // Dropped first: whether all was read decides about what was written.
    recv: RecvStream,
    send: SendStream,
}

/// The error of [`RecvStream::reunite`]: the two halves, which are of different streams.
#[derive(Debug)]
pub struct Foreign(pub RecvStream, pub SendStream);

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the halves are of different streams; put those together that were split")
    }
}

impl error::Error for Foreign {}

impl Duplex {
    pub(crate) const fn new(recv: RecvStream, send: SendStream) -> Self {
        Self { recv, send }
    }

    /// Lends both halves: to read and write in one task at once.
    pub const fn split(&mut self) -> (&mut RecvStream, &mut SendStream) {
        (&mut self.recv, &mut self.send)
    }

    /// Takes the halves apart, for two tasks or threads. Each ends on its own; [`RecvStream::reunite`] puts them together.
    #[must_use]
    pub fn into_split(self) -> (RecvStream, SendStream) {
        (self.recv, self.send)
    }
}

impl RecvStream {
    /// Puts two halves together that were split.
    ///
    /// # Errors
    /// [`Foreign`], with both, when they are of different streams.
    pub fn reunite(self, send: SendStream) -> Result<Duplex, Box<Foreign>> {
        if send.is_of(self.held()) {
            Ok(Duplex { recv: self, send })
        } else {
            Err(Box::new(Foreign(self, send)))
        }
    }
}
