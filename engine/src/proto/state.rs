//! A connection's life, as a table.
//!
//! ```text
//!   Opening ──opened──► Open ──say goodbye──► Draining ──acknowledged, or time is up──► Closed
//!                        └────── goodbye heard ──► Leaving ──────────────────────────────┘
//! ```

/// Where a connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The peer's grant is awaited.
    Opening,
    /// Messages flow.
    Open,
    /// We said goodbye and wait for the answer.
    Draining,
    /// The peer said goodbye; we answer, and it closes.
    Leaving,
    /// Gone.
    Closed,
}

/// What moves it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateEvent {
    /// The port said so.
    Opened,
    /// The user closes.
    Close,
    /// The peer closes.
    GoodbyeHeard,
    /// The peer's answer.
    AckHeard,
    /// The port closed it, for whatever reason.
    PortClosed,
}

impl State {
    /// The next state; `None`: the event has no place here (from a peer: a violation).
    #[must_use]
    pub const fn on(self, event: StateEvent) -> Option<Self> {
        use StateEvent::{AckHeard, Close, GoodbyeHeard, Opened, PortClosed};
        match (self, event) {
            (_, PortClosed) => Some(Self::Closed),
            (Self::Opening, Opened) => Some(Self::Open),
            (Self::Opening, Close) => Some(Self::Closed),
            (Self::Open, Close) | (Self::Draining, Close) => Some(Self::Draining),
            (Self::Open, GoodbyeHeard) | (Self::Leaving, Close) => Some(Self::Leaving),
            // Both said goodbye at once: each answers, each gets its answer.
            (Self::Draining, GoodbyeHeard) => Some(Self::Draining),
            (Self::Draining, AckHeard) | (Self::Closed, Close) => Some(Self::Closed),
            _ => None,
        }
    }

    /// Whether messages may be sent.
    #[inline]
    #[must_use]
    pub const fn may_send(self) -> bool {
        matches!(self, Self::Open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_in_every_state() {
        use State::*;
        use StateEvent::*;
        let table = [
            (Opening, [Some(Open), Some(Closed), None, None, Some(Closed)]),
            (Open, [None, Some(Draining), Some(Leaving), None, Some(Closed)]),
            (Draining, [None, Some(Draining), Some(Draining), Some(Closed), Some(Closed)]),
            (Leaving, [None, Some(Leaving), None, None, Some(Closed)]),
            (Closed, [None, Some(Closed), None, None, Some(Closed)]),
        ];
        for (state, row) in table {
            let events = [Opened, Close, GoodbyeHeard, AckHeard, PortClosed];
            assert_eq!(events.map(|event| state.on(event)), row, "{state:?}");
        }
    }
}
