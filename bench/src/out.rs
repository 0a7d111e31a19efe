//! Standard output. A reader that has seen enough ends the program quietly (`BenchError::is_unread`).

use std::{
    fmt::Display,
    io::{self, Write as _},
};

use serde::Serialize;

use crate::error::{BenchError, PRINTING};

/// Prints `text` and a line's end.
pub(crate) fn line(text: impl Display) -> Result<(), BenchError> {
    writeln!(io::stdout(), "{text}").map_err(BenchError::system(PRINTING))
}

/// Prints `text`, which has its own lines' ends.
pub(crate) fn text(text: impl Display) -> Result<(), BenchError> {
    write!(io::stdout(), "{text}").map_err(BenchError::system(PRINTING))
}

/// Prints `value` as a line of JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<(), BenchError> {
    let text = serde_json::to_string(value);
    line(text.map_err(|error| BenchError::system("writing JSON")(error))?)
}
