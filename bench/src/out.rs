//! Standard output. A reader that has seen enough ends the program quietly (`BenchError::is_unread`).

use std::{
    fmt::Display,
    io::{self, Write as _},
};

use crate::error::{BenchError, PRINTING};

/// Prints `text` and a line's end.
pub(crate) fn line(text: impl Display) -> Result<(), BenchError> {
    writeln!(io::stdout(), "{text}").map_err(BenchError::system(PRINTING))
}

/// Prints `text`, which has its own lines' ends.
pub(crate) fn text(text: impl Display) -> Result<(), BenchError> {
    write!(io::stdout(), "{text}").map_err(BenchError::system(PRINTING))
}
