//! SIGINT and SIGTERM, remembered: every wait of the lab looks here, so that guests end and folders go.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

static SEEN: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// The signal that ends the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signal(usize);

impl Signal {
    /// As a shell reports it.
    pub(crate) fn exit_code(self) -> u8 {
        u8::try_from(128 + self.0).unwrap_or(u8::MAX)
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ended by signal {}", self.0)
    }
}

impl std::error::Error for Signal {}

/// Once, at the start of the program.
pub(crate) fn catch() -> std::io::Result<()> {
    let seen = SEEN.get_or_init(Arc::default);
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        let number = usize::try_from(signal).unwrap_or_default();
        signal_hook::flag::register_usize(signal, Arc::clone(seen), number)?;
    }
    Ok(())
}

pub(crate) fn seen() -> Option<Signal> {
    match SEEN.get()?.load(Ordering::Relaxed) {
        0 => None,
        number => Some(Signal(number)),
    }
}
