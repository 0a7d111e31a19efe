//! Ends of streams as errors of `std::io`.

use std::{error, fmt, io};

use gimmal_rpc::{ReadError, StreamError};

use crate::held::Held;

/// The code of an end that the other side said: what an [`io::Error`] of a stream holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code(pub u32);

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the other side ended the stream with code {}", self.0)
    }
}

impl error::Error for Code {}

impl Code {
    /// Returns the code that `error` holds, if the other side ended the stream with one.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<u32> {
        error.get_ref()?.downcast_ref::<Self>().map(|code| code.0)
    }
}

/// Why nothing can be read.
pub(crate) fn of_read(error: &ReadError, held: &Held) -> io::Error {
    match error {
        ReadError::Aborted(code) => io::Error::new(io::ErrorKind::ConnectionReset, Code(*code)),
        ReadError::Over => held.error(),
        _ => io::Error::new(io::ErrorKind::ConnectionReset, error.to_string()),
    }
}

/// Why nothing can be written, or the end did not leave.
pub(crate) fn of_write(error: &StreamError, held: &Held) -> io::Error {
    match error {
        StreamError::Stopped(code) => io::Error::new(io::ErrorKind::BrokenPipe, Code(*code)),
        _ => held.error(),
    }
}
