//! What commands print. Those that run until a signal go on when nobody reads it.

use std::{
    error::Error,
    io::{self, Write as _},
};

/// Prints a line on stdout.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Prints on stderr what is wrong.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "gimmal: {}", printable(line));
}

/// Whether the reader of our output has seen enough.
pub(crate) fn is_unread(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// The text without control characters but for ends of lines: a peer may have written it, and a terminal obeys them.
pub(crate) fn printable(text: &str) -> String {
    text.replace(|letter: char| letter.is_control() && letter != '\n', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_told_nothing_by_a_peer() {
        assert_eq!(printable("a\x1b[2Jb\r\n\u{9b}c\tä"), "a\u{fffd}[2Jb\u{fffd}\n\u{fffd}c\u{fffd}ä");
    }
}
