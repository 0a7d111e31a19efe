//! Whose word the bytes of what arrives rest on.

/// How far a peer is trusted with the bytes that it has sent. Each side chooses for what it receives.
///
/// Headers are copied and checked whatever is chosen; this is about payloads. It is not about what a peer can read: one that was
/// offered a [loan](crate::Loan) can read other loans of the same port, see there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Trust {
    /// Trusts the peer not to change bytes while they are read. A message is lent where it landed, a bulk in shared memory is read where the peer has it, and over
    /// verbs the peer writes our ring. One that cheats can change bytes while they are read: a `&str` that was checked may
    /// stop being one. For processes of one user, and for holders of one key.
    #[default]
    Peer,
    /// Trusts nobody. Over shared memory each message is copied once before it is looked at, and bulk too: what was checked stays
    /// as it is. Over verbs the peer gets no key to write with: messages come by send/recv, at most
    /// [`slot_bytes`](crate::PortConfig::slot_bytes) each, into receives of its connection's own, see [`Receives`](crate::Receives).
    /// On iWARP alone the sink of a pull must still be writable: who knows its key
    /// can change a bulk until it is dropped.
    None,
}
