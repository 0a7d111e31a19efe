//! What memory is registered for: no registration has more rights than its purpose needs.

use gimmal_rdma::verbs::Rights;

/// What a registration is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// The peer writes here (receive ring).
    ReceiveRing,
    /// Only our own device reads and writes (transmit ring, receive slots, grants).
    Local,
    /// The peer reads a loan, our device writes a pull.
    Bulk {
        /// iWARP: the sink of a READ needs remote write.
        iwarp: bool,
    },
    /// The peer reads user memory, which nobody writes.
    Lent,
    /// The peer reads a word that we move on.
    Pulse,
    /// The peer reads, writes and, where the device can, changes words.
    Exposed { atomics: bool },
}

impl Purpose {
    /// The least that it needs.
    pub(crate) const fn rights(self) -> Rights {
        match self {
            Self::ReceiveRing => Rights { remote_write: true, ..Rights::LOCAL },
            Self::Local => Rights::LOCAL,
            Self::Bulk { iwarp } => Rights { remote_read: true, remote_write: iwarp, ..Rights::LOCAL },
            Self::Lent | Self::Pulse => Rights { remote_read: true, ..Rights::READ },
            Self::Exposed { atomics } => {
                Rights { remote_read: true, remote_write: true, remote_atomic: atomics, ..Rights::LOCAL }
            }
        }
    }
}
