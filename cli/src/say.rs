//! Lines of commands that run until a signal. Those commands go on when nobody reads what they say.

use std::io::{self, Write as _};

/// Prints a line on stdout.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Prints on stderr what is wrong.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "gimmal: {line}");
}
