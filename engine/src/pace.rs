//! Tuned constants of the turn loop. `bench/ledger.toml` says what each is worth.

/// Messages taken one by one before what was sent meanwhile is flushed.
pub(crate) const SOUGHT: u32 = 8; // ledger: flush_between
/// Messages taken one by one before a turn looks at everything else.
pub(crate) const SOUGHT_MAX: u32 = 256; // ledger: flush_between

/// Empty turns without a pause instruction: a response from a neighbouring core arrives after a few, and a pause takes as long as
/// several turns.
pub(crate) const BARE: u32 = 64; // ledger: bare_turns
/// Empty turns before an adaptive worker yields: the peer's response is often a few hundred nanoseconds away.
pub(crate) const SPINS: u32 = 256; // ledger: adaptive_spins
/// As many where each turn asks a device or a socket, which takes some 300 ns in place of 20.
pub(crate) const DEVICE_SPINS: u32 = SPINS / 16; // ledger: adaptive_spins

/// What a turn, and each message that it found, adds to the age of the time.
pub(crate) const TURN: usize = 16; // ledger: clock_age
/// What a turn adds that looks at everything, a device's queues among it.
pub(crate) const FULL_TURN: usize = 8 * TURN; // ledger: clock_age
/// What a turn adds that asked a device and found nothing: every reading of the clock delays a message.
pub(crate) const DEVICE_LOOK: usize = 1; // ledger: clock_age
/// The age at which the clock is read: 64 turns, which is well under a microsecond of empty ones; one full batch; or tens of
/// microseconds of looks at a device.
pub(crate) const OLD: usize = 64 * TURN; // ledger: clock_age
