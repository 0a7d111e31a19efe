//! Tuned constants of the shared-memory data path. `bench/ledger.toml` says what each is worth.

/// The writer clears the first words of the lines ahead of its last frame: as far as it wrote since its last flush, but at least
/// and at most this many bytes.
pub(super) const CLEAR_BYTES_MIN: u64 = 256; // ledger: clear_ahead
pub(super) const CLEAR_BYTES_MAX: u64 = 576; // ledger: clear_ahead

/// Distance from a word that is cleared to the line that is prefetched for writing, bytes.
pub(super) const ASK_BYTES: u64 = 256; // ledger: prefetch_ahead

/// After a long frame, at most this many bytes behind it are prefetched for writing: the next frame is likely to be as long.
pub(super) const LIKELY_BYTES: u64 = 1024; // ledger: prefetch_next_frame

/// Frames taken from one connection in one turn, at most. A longer run delays the next request of a caller.
pub(super) const RUN_MAX: u32 = 8; // ledger: run_max

/// The longest stride: three runs of [`RUN_MAX`] frames were taken to their end, one right after the other. The peer is far
/// ahead then and waits for no single response.
pub(super) const STRIDE_MAX: u32 = 8 * RUN_MAX; // ledger: stride

/// The longest stride of a caller that takes single frames: it waits in between, so the peer is never far ahead.
pub(super) const ONE_STRIDE_MAX: u32 = RUN_MAX; // ledger: stride

/// Bytes of responses that are published together to a peer that is far ahead: eight messages of 64 bytes.
pub(super) const TOGETHER_BYTES: u64 = 640; // ledger: publish_together

/// Empty polls between two looks at the sockets, at first and at most: about 1 ms and 10 ms of spinning.
pub(super) const LOOK_POLLS: u32 = 1 << 16; // ledger: socket_looks
pub(super) const LOOK_POLLS_MAX: u32 = 1 << 19; // ledger: socket_looks
/// Time between two looks at the sockets while nothing arrives, for callers that poll seldom, ns.
pub(super) const LOOK_QUIET_NS: u64 = 10_000_000; // ledger: socket_looks
/// Time between two looks at the sockets while frames arrive, but perhaps not from every peer, ns.
pub(super) const LOOK_BUSY_NS: u64 = 50_000_000; // ledger: socket_looks

/// Empty polls between two looks at the closing words, which cost no system call.
pub(super) const GLANCE_POLLS: u32 = 16; // ledger: glances
/// Polls between two looks at the sockets during a handshake.
pub(super) const GREETING_POLLS: u32 = 32; // ledger: greeting_looks

/// Connections that stay polled although they are idle: polling them costs less than a system call.
pub(super) const POLLED_MIN: usize = 2; // ledger: parking
/// Time between two looks at the sockets of parked connections, ns: the delay of their first message.
pub(super) const LOOK_PARKED_NS: u64 = 50_000; // ledger: parking
