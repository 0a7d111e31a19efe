//! A connection at rest on its way to another worker.

use std::sync::Arc;

use gimmal_transport::{Negotiated, Position, Time};

use super::Connection;
use crate::{
    config::Config,
    planted::{self, Bug},
    proto::{Check, RxLedger, State, TxWindow, bulk::Loans},
    worker::Duty,
};

/// What goes along when a connection at rest goes to another worker.
#[derive(Debug)]
pub(crate) struct Packed {
    negotiated: Arc<Negotiated>,
    window: TxWindow,
    check: Check,
    ledger: RxLedger,
    loans: Loans,
    count: Option<Arc<()>>,
}

impl Packed {
    /// The connection on its new worker.
    pub(crate) fn unpack(self, config: &Config, duty: &Arc<Duty>, now: Time) -> Connection {
        let Self { negotiated, window, check, ledger, loans, count } = self;
        let new = Connection::new(negotiated, Position::default(), config, duty, now);
        let new = Connection { window, check, loans, count, ..new };
        if planted::is(Bug::LedgerLeftBehind) { new } else { Connection { ledger, ..new } }
    }
}

impl Connection {
    /// Whether nothing is under way on it but frames.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.state == State::Open
            && self.loans.is_empty()
            && self.pulls.is_empty()
            && self.in_place.is_empty()
            && self.holds.is_empty()
            && self.control.is_empty()
            && self.blocked_bytes.is_none()
    }

    /// What goes along of one at rest.
    pub(crate) fn pack(self) -> Packed {
        let Self { negotiated, window, check, ledger, loans, count, .. } = self;
        Packed { negotiated, window, check, ledger, loans, count }
    }
}
