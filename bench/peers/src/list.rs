//! What is measured, in the order of a round, and what it is to reach.

use crate::{
    case::{Case, WINDOW, Way},
    place::Over,
};

/// Rows that stand in one table.
pub(crate) struct Section {
    /// Without one, they are for targets only.
    pub(crate) title: &'static str,
    /// What all are compared with.
    pub(crate) reference: Case,
    pub(crate) lines: &'static [Line],
}

/// One row: a case, and how many calls at once.
pub(crate) struct Line {
    pub(crate) case: Case,
    pub(crate) windows: &'static [usize],
    pub(crate) what: &'static str,
}

/// One at a time, and many at once.
const BOTH: &[usize] = &[1, WINDOW];
const ONE: &[usize] = &[1];
const MANY: &[usize] = &[WINDOW];

const fn line(case: Case, windows: &'static [usize], what: &'static str) -> Line {
    Line { case, windows, what }
}

const TARPC: Case = Case::of(Way::Tarpc);
const TONIC: Case = Case::of(Way::Tonic);
const DRIVEN: Case = Case::of(Way::Driven);
const CHANNEL: Case = Case::of(Way::TonicChannel);
const TONIC_DRIVEN: Case = Case::of(Way::TonicDriven);
const TONIC_STREAMS: Case = Case::of(Way::TonicStreams);
const TONIC_LOCAL_STREAMS: Case = Case::of(Way::TonicLocalStreams);
const PIECES: Case = Case::of(Way::StreamEchoes);
const CHUNKS: Case = Case::of(Way::StreamChunks).blocks();
const LOCAL_PIECES: Case = Case::of(Way::StreamLocalEchoes);
const LOCAL_CHUNKS: Case = Case::of(Way::StreamLocalChunks).blocks();
const LOCAL_BLOCKS: Case = Case::of(Way::StreamLocalBlocks).blocks();
const BLOCKS: Case = Case::of(Way::StreamBlocks).blocks();
const SOCKET: Case = Case::of(Way::SocketBlocks).blocks();
const COPIES: Case = Case::of(Way::Copies).blocks();
const IPERF3: Case = Case::of(Way::Iperf3).blocks();

/// iceoryx2's clients have one request in flight each.
const OVER_SHM: [Section; 3] = [
    Section {
        title: "64-byte echoes by client, beside other libraries",
        reference: TARPC,
        lines: &[
            line(Case::of(Way::Engine).spinning(), ONE, "gimmal, engine's echo, shm"),
            line(Case::of(Way::Inline).spinning(), ONE, "gimmal, inline, postcard, shm"),
            line(Case::of(Way::Flat).spinning(), ONE, "gimmal, inline, zerocopy, shm"),
            line(Case::of(Way::Vectors).spinning(), ONE, "gimmal, inline, async handler, shm"),
            line(Case::of(Way::Polled).spinning(), BOTH, "gimmal, polled without a runtime"),
            line(DRIVEN, BOTH, "gimmal, driven on tokio, shm"),
            line(Case::of(Way::Tokio), BOTH, "gimmal, tokio's thread at both ends"),
            line(Case::of(Way::Handoff), BOTH, "gimmal, handed off, tokio, shm"),
            line(Case::of(Way::Threads), BOTH, "gimmal, multi-thread runtimes, shm"),
            line(Case::of(Way::Blocking), ONE, "gimmal, handed off, blocking, shm"),
            line(Case::of(Way::Exchange), ONE, "two threads, one core"),
            line(TARPC, BOTH, "tarpc, unix socket"),
            line(Case::of(Way::TarpcThreads), BOTH, "tarpc, multi-thread runtimes"),
            line(Case::of(Way::TarpcStreams), BOTH, "tarpc over gimmal's byte streams, shm"),
            line(TONIC, BOTH, "tonic, unix socket"),
            line(TONIC_STREAMS, BOTH, "tonic over gimmal's byte streams, shm"),
            line(TONIC_LOCAL_STREAMS, BOTH, "tonic over gimmal's byte streams, one thread at either end"),
            line(CHANNEL, BOTH, "tonic over gimmal, channel, shm"),
            line(TONIC_DRIVEN, BOTH, "tonic over gimmal, driven, shm"),
            line(Case::of(Way::TonicAlone), BOTH, "tonic in one process, no transport"),
            line(Case::of(Way::Iceoryx2), ONE, "iceoryx2, request-response, polled"),
            line(Case::of(Way::Ucx), BOTH, "UCX, active messages (mean)"),
            line(PIECES, ONE, "gimmal's byte stream"),
            line(LOCAL_PIECES, ONE, "gimmal's byte stream, one thread at either end"),
            line(Case::of(Way::SocketEchoes), ONE, "a unix socket"),
        ],
    },
    Section {
        title: "Writes of 64 KiB to a byte stream over shared memory",
        reference: COPIES,
        lines: &[
            line(COPIES, MANY, "two threads that copy through a ring"),
            line(CHUNKS, MANY, "gimmal, `read_chunk`"),
            line(LOCAL_CHUNKS, MANY, "gimmal, `read_chunk`, one thread at either end"),
            line(LOCAL_BLOCKS, MANY, "gimmal, `AsyncRead`, one thread at either end"),
            line(BLOCKS, MANY, "gimmal, `AsyncRead`"),
            line(SOCKET, MANY, "unix socket, `AsyncRead`"),
        ],
    },
    Section {
        title: "Echoes of 1 MiB by tonic's stubs over shared memory",
        reference: TONIC.large(),
        lines: &[
            line(TONIC.large(), BOTH, "tonic, unix socket"),
            line(TONIC_STREAMS.large(), BOTH, "tonic over gimmal's byte streams, shm"),
            line(CHANNEL.large(), BOTH, "tonic over gimmal, channel, shm"),
            line(TONIC_DRIVEN.large(), BOTH, "tonic over gimmal, driven, shm"),
            line(Case::of(Way::TonicAlone).large(), BOTH, "tonic in one process, no transport"),
        ],
    },
];

const OVER_TCP: [Section; 5] = [
    Section {
        title: "64-byte echoes over TCP, beside other libraries",
        reference: TARPC,
        lines: &[
            line(DRIVEN.spinning(), BOTH, "gimmal, driven on tokio, spinning"),
            line(DRIVEN, BOTH, "gimmal, driven on tokio"),
            line(DRIVEN.asleep(), BOTH, "gimmal, driven on tokio, without spinning"),
            line(Case::of(Way::Tokio), BOTH, "gimmal, tokio's thread at both ends"),
            line(
                Case::of(Way::Tokio).asleep(),
                BOTH,
                "gimmal, tokio's thread at both ends, without spinning",
            ),
            line(Case::of(Way::Handoff), BOTH, "gimmal, handed off, tokio"),
            line(TARPC, BOTH, "tarpc"),
            line(Case::of(Way::TarpcStreams), BOTH, "tarpc over gimmal's byte streams"),
            line(TONIC, BOTH, "tonic"),
            line(TONIC_STREAMS, BOTH, "tonic over gimmal's byte streams"),
            line(TONIC_LOCAL_STREAMS, BOTH, "tonic over gimmal's byte streams, one thread at either end"),
            line(CHANNEL, BOTH, "tonic over gimmal, channel"),
            line(CHANNEL.asleep(), BOTH, "tonic over gimmal, channel, without spinning"),
            line(TONIC_DRIVEN.spinning(), BOTH, "tonic over gimmal, driven, spinning"),
            line(TONIC_DRIVEN, BOTH, "tonic over gimmal, driven"),
            line(TONIC_DRIVEN.asleep(), BOTH, "tonic over gimmal, driven, without spinning"),
            line(PIECES, ONE, "gimmal's byte stream"),
            line(Case::of(Way::SocketEchoes), ONE, "a socket"),
        ],
    },
    Section {
        title: "64-byte echoes over TCP while a process computes on each core",
        reference: TARPC.busy(),
        lines: &[
            line(DRIVEN.busy(), ONE, "gimmal, driven on tokio"),
            line(DRIVEN.asleep().busy(), ONE, "gimmal, driven on tokio, without spinning"),
            line(TARPC.busy(), ONE, "tarpc"),
            line(TONIC.busy(), ONE, "tonic"),
            line(TONIC_DRIVEN.busy(), ONE, "tonic over gimmal, driven"),
        ],
    },
    Section {
        title: "Echoes of 1 MiB by tonic's stubs over TCP",
        reference: TONIC.large(),
        lines: &[
            line(TONIC.large(), BOTH, "tonic"),
            line(TONIC_STREAMS.large(), BOTH, "tonic over gimmal's byte streams"),
            line(CHANNEL.large(), BOTH, "tonic over gimmal, channel"),
            line(TONIC_DRIVEN.large(), BOTH, "tonic over gimmal, driven"),
        ],
    },
    Section {
        title: "Writes of 64 KiB to a byte stream over TCP",
        reference: IPERF3,
        lines: &[
            line(IPERF3, MANY, "iperf3, writes of 128 KiB"),
            line(CHUNKS, MANY, "gimmal, `read_chunk`"),
            line(BLOCKS, MANY, "gimmal, `AsyncRead`"),
            line(SOCKET, MANY, "a socket, `AsyncRead`"),
        ],
    },
    Section {
        title: "",
        reference: DRIVEN.at_rest(),
        lines: &[line(DRIVEN.at_rest(), ONE, ""), line(CHANNEL.at_rest(), ONE, "")],
    },
];

/// What is to be reached.
pub(crate) struct Target {
    pub(crate) ours: Case,
    pub(crate) theirs: Case,
    pub(crate) bound: Bound,
}

#[derive(Clone, Copy)]
pub(crate) enum Bound {
    /// At most this share of a round trip, with one call at a time.
    RoundTrip(f64),
    /// At most this share, after the round trip of another case was taken off ours.
    RoundTripBeyond(Case, f64),
    /// At least this multiple of the rate, with a window.
    Rate(f64),
    /// At most this share of a core on either side.
    Core(f64),
}

const fn target(ours: Case, theirs: Case, bound: Bound) -> Target {
    Target { ours, theirs, bound }
}

const INLINE: Case = Case::of(Way::Inline).spinning();
const HANDOFF: Case = Case::of(Way::Handoff);
const THREADS: Case = Case::of(Way::Threads);
const EXCHANGE: Case = Case::of(Way::Exchange);

const OF_SHM: [Target; 31] = [
    target(Case::of(Way::Flat).spinning(), Case::of(Way::Engine).spinning(), Bound::RoundTrip(1.25)),
    target(INLINE, Case::of(Way::Engine).spinning(), Bound::RoundTrip(1.25)),
    target(DRIVEN, TONIC, Bound::RoundTrip(1.0 / 20.0)),
    target(DRIVEN, TARPC, Bound::RoundTrip(1.0 / 10.0)),
    target(DRIVEN, TARPC, Bound::Rate(10.0)),
    target(Case::of(Way::Tokio), INLINE, Bound::RoundTrip(3.0)),
    target(Case::of(Way::Tokio), Case::of(Way::Polled).spinning(), Bound::Rate(0.6)),
    target(HANDOFF, TARPC, Bound::RoundTrip(0.5)),
    target(HANDOFF, EXCHANGE, Bound::RoundTripBeyond(INLINE, 1.5)),
    target(HANDOFF, TARPC, Bound::Rate(5.0)),
    target(THREADS, Case::of(Way::TarpcThreads), Bound::RoundTrip(0.4)),
    target(THREADS, Case::of(Way::TarpcThreads), Bound::Rate(5.0)),
    target(Case::of(Way::Blocking), EXCHANGE, Bound::RoundTrip(1.5)),
    target(CHANNEL, TONIC, Bound::RoundTrip(0.2)),
    target(CHANNEL, TONIC, Bound::Rate(4.0)),
    target(TONIC_DRIVEN, TONIC, Bound::Rate(8.0)),
    target(TONIC_STREAMS, TONIC, Bound::RoundTrip(1.0)),
    target(TONIC_STREAMS, TONIC, Bound::Rate(1.0)),
    target(TONIC_LOCAL_STREAMS, TONIC, Bound::RoundTrip(1.0)),
    target(TONIC_LOCAL_STREAMS, TONIC, Bound::Rate(1.0)),
    target(CHANNEL.large(), TONIC.large(), Bound::Rate(2.0)),
    target(TONIC_DRIVEN.large(), TONIC.large(), Bound::Rate(2.0)),
    target(CHUNKS, COPIES, Bound::Rate(0.8)),
    target(LOCAL_CHUNKS, COPIES, Bound::Rate(0.8)),
    target(LOCAL_BLOCKS, COPIES, Bound::Rate(0.5)),
    target(BLOCKS, COPIES, Bound::Rate(0.5)),
    target(CHUNKS, SOCKET, Bound::Rate(1.0)),
    target(BLOCKS, SOCKET, Bound::Rate(1.0)),
    target(PIECES, DRIVEN, Bound::RoundTrip(1.5)),
    target(PIECES, HANDOFF, Bound::RoundTrip(1.5)),
    target(LOCAL_PIECES, DRIVEN, Bound::RoundTrip(1.5)),
];

const OF_TCP: [Target; 23] = [
    target(DRIVEN.spinning(), TARPC, Bound::RoundTrip(0.5)),
    target(DRIVEN.spinning(), TONIC, Bound::RoundTrip(0.25)),
    target(DRIVEN, TARPC, Bound::RoundTrip(0.7)),
    target(DRIVEN.asleep(), TARPC, Bound::RoundTrip(1.0)),
    target(DRIVEN.spinning(), TARPC, Bound::Rate(4.0)),
    target(DRIVEN, TARPC, Bound::Rate(4.0)),
    target(DRIVEN.asleep(), TARPC, Bound::Rate(4.0)),
    target(TONIC_DRIVEN.spinning(), TONIC, Bound::RoundTrip(0.15)),
    target(TONIC_DRIVEN.asleep(), TONIC, Bound::RoundTrip(0.7)),
    target(CHANNEL.asleep(), TONIC, Bound::RoundTrip(0.7)),
    target(TONIC_DRIVEN.spinning(), TONIC, Bound::Rate(3.0)),
    target(TONIC_DRIVEN.asleep(), TONIC, Bound::Rate(3.0)),
    target(CHANNEL, TONIC, Bound::Rate(3.0)),
    target(TONIC_STREAMS, TONIC, Bound::RoundTrip(1.0)),
    target(TONIC_STREAMS, TONIC, Bound::Rate(1.0)),
    target(TONIC_LOCAL_STREAMS, TONIC, Bound::RoundTrip(1.0)),
    target(TONIC_LOCAL_STREAMS, TONIC, Bound::Rate(1.0)),
    target(CHANNEL.large(), TONIC.large(), Bound::Rate(2.0)),
    target(TONIC_DRIVEN.large(), TONIC.large(), Bound::Rate(2.0)),
    target(CHUNKS, IPERF3, Bound::Rate(0.6)),
    target(BLOCKS, IPERF3, Bound::Rate(0.6)),
    target(DRIVEN.at_rest(), DRIVEN.at_rest(), Bound::Core(0.01)),
    target(CHANNEL.at_rest(), CHANNEL.at_rest(), Bound::Core(0.01)),
];

impl Over {
    pub(crate) const fn sections(self) -> &'static [Section] {
        match self {
            Self::Shm => &OVER_SHM,
            Self::Tcp => &OVER_TCP,
        }
    }

    pub(crate) const fn targets(self) -> &'static [Target] {
        match self {
            Self::Shm => &OF_SHM,
            Self::Tcp => &OF_TCP,
        }
    }

    /// Of the table of targets.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Shm => "Targets of these echoes",
            Self::Tcp => "Targets over TCP",
        }
    }
}
