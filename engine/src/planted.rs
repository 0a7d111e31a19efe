//! Bugs on purpose, one at a time, to see that the simulation finds each (R118): built only with `--cfg planted`, chosen
//! by `GIMMAL_BUG`. Otherwise [`is`] is false when compiled, and nothing of this is in the program.

/// A bug, named by what goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// A chain is sent although the peer has no receive for it.
    ChainWithoutReceive,
    /// Chains grow beyond what was negotiated.
    EndlessChain,
    /// Our own device's progress is not waited for: what it still reads is written over.
    DeviceOverrun,
    /// Bytes behind a held frame are given back.
    HeldBytesGivenBack,
    /// Receives are credited that were never posted.
    InventedReceives,
    /// Credit only rides on messages, and is never sent alone.
    CreditOnlyRides,
    /// No slot is kept back for credit.
    NothingKeptForCredit,
    /// Who was blocked is not told of room.
    RoomNotTold,
    /// The peer is not told that its loan is free.
    LoanNotFreed,
    /// A close does not wait for what was sent before.
    AbruptGoodbye,
    /// A goodbye is not answered.
    GoodbyeUnanswered,
    /// A close is not told.
    CloseNotTold,
    /// Pings are not answered.
    PingUnanswered,
    /// A completion that a provider told twice is believed.
    DoubledBelieved,
    /// Sums are not looked at.
    SumUnread,
    /// A release of a held frame counts for the one behind it too.
    ReleaseCountedTwice,
    /// The receive of a run is not counted.
    RunNotCounted,
    /// An answer that left before its turn ended is taken for one that can still grow.
    LeftAnswerGrows,
    /// What is left of a run of which some was sought out is forgotten.
    SoughtRunForgotten,
    /// Receives that were given up are used all the same.
    UnusedUsed,
    /// Time in which we were away counts as the peer's silence.
    OwnAbsenceCounts,
}

/// Whether `bug` is in this program.
#[cfg(not(planted))]
#[inline]
pub(crate) const fn is(_bug: Bug) -> bool {
    false
}

/// Whether `bug` is in this run.
#[cfg(planted)]
pub(crate) fn is(bug: Bug) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| std::env::var("GIMMAL_BUG").ok());
    chosen.as_ref().is_some_and(|chosen| *chosen == format!("{bug:?}"))
}
