//! The ways of an echo, and what is measured of each.

use clap::ValueEnum;
use gimmal::config::Idle;

/// Calls at once, of the rows that have many.
pub(crate) const WINDOW: usize = 32;
/// Of one echo, each way.
pub(crate) const BYTES: usize = 64;
/// Of a large one.
pub(crate) const LARGE: usize = 1 << 20;
/// Of a write to a stream.
pub(crate) const BLOCK: usize = 64 << 10;

/// Ways of an echo.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// gimmal's engine.
    Engine,
    /// Typed, inline at both ends.
    Inline,
    /// Typed, inline, by the codec of zerocopy: read in place.
    Flat,
    /// Typed, inline, with an owned vector and an async handler.
    Vectors,
    /// Typed, with an async handler, polled in a loop without a runtime.
    Polled,
    /// Typed, driven by tokio's current thread.
    Driven,
    /// Typed, on tokio's current thread at both ends.
    Tokio,
    /// Typed, handed off and awaited on tokio's current thread.
    Handoff,
    /// Typed, handed off and awaited on a multi-thread runtime; handlers run inside one.
    Threads,
    /// Typed, handed off and waited for.
    Blocking,
    /// Two threads of one process, one of which blocks: what a hand-off costs at least.
    Exchange,
    Tarpc,
    /// tarpc on multi-thread runtimes.
    TarpcThreads,
    /// tarpc over byte streams of gimmal.
    TarpcStreams,
    Tonic,
    /// tonic's own transport, HTTP/2 and all, over byte streams of gimmal.
    TonicStreams,
    /// tonic's own transport as by `TonicStreams`, with one thread at either end.
    TonicLocalStreams,
    /// tonic's stubs over gimmal's worker.
    TonicChannel,
    /// tonic's stubs over a driven client of gimmal.
    TonicDriven,
    /// tonic's client and server in one process, without a transport: what its code takes.
    TonicAlone,
    Iceoryx2,
    /// Active messages of UCX, by a program in C.
    Ucx,
    /// Bytes one way through a byte stream of gimmal, taken out of it by `read_chunk`.
    StreamChunks,
    /// Bytes one way as by `StreamChunks`, with one thread at either end.
    StreamLocalChunks,
    /// Bytes one way through a byte stream of gimmal, by `AsyncRead`.
    StreamBlocks,
    /// Bytes one way as by `StreamBlocks`, with one thread at either end.
    StreamLocalBlocks,
    /// Bytes one way through a socket.
    SocketBlocks,
    /// Bytes one way by two threads that copy through a ring.
    Copies,
    /// Bytes one way by iperf3, over TCP.
    Iperf3,
    /// Pieces there and back through a byte stream of gimmal.
    StreamEchoes,
    /// Pieces there and back as by `StreamEchoes`, with one thread at either end.
    StreamLocalEchoes,
    /// Pieces there and back through a socket.
    SocketEchoes,
}

impl Way {
    /// Whether what carries it is a byte stream of gimmal.
    pub(crate) const fn is_over_streams(self) -> bool {
        use Way::{StreamBlocks, StreamChunks, StreamEchoes, TarpcStreams, TonicLocalStreams, TonicStreams};
        matches!(
            self,
            TarpcStreams | TonicStreams | TonicLocalStreams | StreamBlocks | StreamChunks | StreamEchoes
        ) || matches!(self, Self::StreamLocalChunks | Self::StreamLocalBlocks | Self::StreamLocalEchoes)
    }

    pub(crate) const fn is_ours(self) -> bool {
        match self {
            Self::Exchange | Self::Copies | Self::SocketBlocks | Self::SocketEchoes | Self::TonicAlone => {
                false
            }
            Self::Tarpc | Self::TarpcThreads | Self::Tonic | Self::Iceoryx2 | Self::Ucx | Self::Iperf3 => {
                false
            }
            _ => true,
        }
    }
}

/// What gimmal's threads do at both ends while they have nothing to do.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Idling {
    /// They never sleep.
    Spinning,
    /// The default of the configuration.
    Default,
    /// They sleep at once.
    Asleep,
}

impl Idling {
    pub(crate) fn idle(self) -> Idle {
        match self {
            Self::Spinning => Idle::Spin,
            Self::Default => Idle::default(),
            Self::Asleep => Idle::Event,
        }
    }
}

/// What else is on the cores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cores {
    /// Nothing.
    Free,
    /// A process each that computes all the time.
    Busy,
    /// Nothing, and no calls are made: what an established connection takes.
    AtRest,
}

/// One measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Case {
    pub(crate) way: Way,
    pub(crate) idling: Idling,
    pub(crate) cores: Cores,
    /// Of a body.
    pub(crate) bytes: usize,
    /// Calls at once.
    pub(crate) window: usize,
}

impl Case {
    pub(crate) const fn of(way: Way) -> Self {
        Self { way, idling: Idling::Default, cores: Cores::Free, bytes: BYTES, window: 1 }
    }

    pub(crate) const fn spinning(self) -> Self {
        Self { idling: Idling::Spinning, ..self }
    }

    pub(crate) const fn asleep(self) -> Self {
        Self { idling: Idling::Asleep, ..self }
    }

    pub(crate) const fn busy(self) -> Self {
        Self { cores: Cores::Busy, ..self }
    }

    pub(crate) const fn at_rest(self) -> Self {
        Self { cores: Cores::AtRest, ..self }
    }

    pub(crate) const fn large(self) -> Self {
        Self { bytes: LARGE, ..self }
    }

    pub(crate) const fn blocks(self) -> Self {
        Self { bytes: BLOCK, ..self }
    }

    pub(crate) const fn with(self, window: usize) -> Self {
        Self { window, ..self }
    }

    /// Of `calls` of a small echo on free cores, as many as take a similar time.
    pub(crate) fn calls(self, calls: usize) -> usize {
        let share = if self.bytes == LARGE || self.cores == Cores::Busy { 100 } else { 1 };
        (calls / share).max(10 * self.window)
    }

    /// As targets name it.
    pub(crate) fn name(self) -> String {
        let mut name = format!("{:?}", self.way).to_lowercase();
        match self.idling {
            Idling::Spinning => name += " spinning",
            Idling::Default => {}
            Idling::Asleep => name += " asleep",
        }
        match self.cores {
            Cores::Free => {}
            Cores::Busy => name += " on busy cores",
            Cores::AtRest => name += " at rest",
        }
        match self.bytes {
            LARGE => name += ", 1 MiB",
            BLOCK => name += ", 64 KiB",
            _ => {}
        }
        name
    }
}
