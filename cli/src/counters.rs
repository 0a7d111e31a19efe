//! What a command that ran until a signal counted, as text and as JSON.

use std::{
    io::Write as _,
    sync::atomic::{AtomicU64, Ordering},
};

/// Prints `all` counters by name, and whether everything had ended by itself. That nobody reads it is no error.
pub(crate) fn print(all: &[(&str, &AtomicU64)], is_drained: bool, as_json: bool) {
    let all = all.iter().map(|(name, counter)| (*name, counter.load(Ordering::Relaxed)));
    let text = if as_json {
        let counters: String = all.map(|(name, count)| format!("\"{name}\":{count},")).collect();
        format!("{{{counters}\"drained\":{is_drained}}}\n")
    } else {
        let drained = if is_drained { "yes" } else { "no" };
        let lines: String = all.map(|(name, count)| format!("{name:<12} {count:>16}\n")).collect();
        format!("{lines}{:<12} {drained:>16}\n", "drained")
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
}
