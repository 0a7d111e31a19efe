//! What a work request of a connection does, and how it is posted.

use crate::{
    cm::{memory::RemoteBuffer, operation::Operation},
    sys,
    verbs::{gather::Verb, qp::RemoteBytes},
};

/// What a work request does with its pieces of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// Sends them to a receive of the peer's.
    Send,
    /// Sends them, with a number beside them. Not on iWARP.
    SendImm(u32),
    /// Writes them to the start of the peer's buffer.
    Write(RemoteBuffer),
    /// Writes them, and completes a receive of the peer's with a number. Not on iWARP.
    WriteImm(RemoteBuffer, u32),
    /// Fills them from the start of the peer's buffer.
    Read(RemoteBuffer),
    /// Sets the peer's 8 bytes to `new` if they are `expected`. What they were fills the one piece. Not on iWARP.
    CompareSwap {
        /// 8 bytes, at a multiple of 8.
        on: RemoteBuffer,
        /// What they must be, in the peer's byte order.
        expected: u64,
        /// What they become.
        new: u64,
    },
    /// Adds to the peer's 8 bytes. What they were fills the one piece. Not on iWARP.
    FetchAdd {
        /// 8 bytes, at a multiple of 8.
        on: RemoteBuffer,
        /// What is added; it wraps around.
        add: u64,
    },
}

impl Transfer {
    pub(crate) const fn operation(self) -> Operation {
        match self {
            Self::Send | Self::SendImm(_) => Operation::Send,
            Self::Write(_) | Self::WriteImm(..) => Operation::Write,
            Self::Read(_) => Operation::Read,
            Self::CompareSwap { .. } | Self::FetchAdd { .. } => Operation::Atomic,
        }
    }

    /// The memory of the peer that it names.
    pub(crate) const fn remote(self) -> Option<RemoteBuffer> {
        match self {
            Self::Send | Self::SendImm(_) => None,
            Self::Write(on) | Self::WriteImm(on, _) | Self::Read(on) => Some(on),
            Self::CompareSwap { on, .. } | Self::FetchAdd { on, .. } => Some(on),
        }
    }

    /// What iWARP lacks, by name.
    pub(crate) const fn beyond_iwarp(self) -> Option<&'static str> {
        match self {
            Self::SendImm(_) | Self::WriteImm(..) => Some("an immediate"),
            Self::CompareSwap { .. } | Self::FetchAdd { .. } => Some("an atomic operation"),
            Self::Send | Self::Write(_) | Self::Read(_) => None,
        }
    }

    pub(crate) const fn verb(self) -> Verb {
        const fn bytes(of: RemoteBuffer) -> RemoteBytes {
            RemoteBytes { address: of.address, rkey: of.rkey }
        }
        match self {
            Self::Send => Verb::Send(None),
            Self::SendImm(imm) => Verb::Send(Some(imm)),
            Self::Write(to) => Verb::Write(bytes(to), None),
            Self::WriteImm(to, imm) => Verb::Write(bytes(to), Some(imm)),
            Self::Read(from) => Verb::Read(bytes(from)),
            Self::CompareSwap { on, expected, new } => Verb::CompareSwap(bytes(on), expected, new),
            Self::FetchAdd { on, add } => Verb::FetchAdd(bytes(on), add),
        }
    }
}

/// How a work request is posted (`ibv_send_flags`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendFlags {
    /// Whether it completes by itself when it succeeds. Without, it is over when a later request completes; over iWARP, one
    /// that is no READ.
    pub signalled: bool,
    /// Whether the device takes the bytes with the request: they are free again at once.
    pub inline: bool,
    /// Whether it starts only after all earlier READs and atomics.
    pub fence: bool,
    /// Whether it wakes a peer that waits for solicited completions only.
    pub solicited: bool,
}

impl Default for SendFlags {
    /// Signalled, and nothing else.
    fn default() -> Self {
        Self { signalled: true, inline: false, fence: false, solicited: false }
    }
}

impl SendFlags {
    pub(crate) fn raw(self) -> sys::ibv_send_flags {
        use sys::ibv_send_flags as flags;
        let all = [
            (self.signalled, flags::IBV_SEND_SIGNALED),
            (self.inline, flags::IBV_SEND_INLINE),
            (self.fence, flags::IBV_SEND_FENCE),
            (self.solicited, flags::IBV_SEND_SOLICITED),
        ];
        sys::ibv_send_flags(all.iter().filter(|(set, _)| *set).fold(0, |bits, (_, flag)| bits | flag.0))
    }
}
