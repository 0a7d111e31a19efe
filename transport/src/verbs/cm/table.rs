//! What each event means in each state: one table, so that no pair is without an answer.
//!
//! Rows of `rdma_get_cm_event(3)`; the states are those of an id on the control thread.

use crate::verbs::cm::EventKind;

/// Where an id stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Bound and listening.
    Listening,
    /// `rdma_resolve_addr` runs.
    Resolving,
    /// Has a device and a queue pair; `rdma_resolve_route` runs.
    Routing,
    /// `rdma_connect` was called.
    Connecting,
    /// A request that nobody accepted yet.
    Requested,
    /// Belongs to a port: accepted, or established.
    Live,
    /// Only waits for `rdma_connect` to return.
    Dying,
}

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// A device is there: make the queue pair, resolve the route.
    HasDevice,
    /// The address leads nowhere from here: try the next one, or fail.
    NextAddress,
    /// The route is there: connect.
    HasRoute,
    /// Someone wants to connect.
    Request,
    /// The peer accepted: read its hello, hand the link over.
    Accepted,
    /// The peer refused: read why.
    Refused,
    /// No answer came.
    NoAnswer,
    /// The attempt or the connection fails with the event's name.
    Fail,
    /// The connection is down: the peer went away.
    PeerGone,
    /// The device goes away: everything on it must be destroyed.
    DeviceGone,
    /// The client of an unaccepted request gave up.
    Forget,
    /// Expected and without consequence.
    Note,
    /// A hint about a connection that stands: counted, nothing more.
    Hint,
    /// Has no place here: counted and logged, never acted on.
    Stray,
}

/// The table.
pub(crate) const fn action(state: State, event: EventKind) -> Action {
    use EventKind as E;
    use State as S;
    match (state, event) {
        // Whatever happens to an id that is only waiting to be destroyed changes nothing.
        (S::Dying, _) => Action::Note,
        (_, E::DeviceRemoval) => Action::DeviceGone,
        // A later bond failover or a move of the hardware address: the connection stays.
        (_, E::AddrChange) => Action::Hint,
        (_, E::TimewaitExit) => Action::Note,

        (S::Listening, E::ConnectRequest) => Action::Request,
        (S::Listening, _) => Action::Stray,

        (S::Resolving, E::AddrResolved) => Action::HasDevice,
        (S::Resolving, E::AddrError) => Action::NextAddress,
        (S::Routing, E::RouteResolved) => Action::HasRoute,
        (S::Routing, E::RouteError) => Action::NextAddress,

        (S::Connecting, E::Established) => Action::Accepted,
        (S::Connecting, E::Rejected) => Action::Refused,
        (S::Connecting, E::Unreachable) => Action::NoAnswer,
        // CONNECT_RESPONSE comes only without a queue pair of the CM's, and ours always has one.
        (S::Connecting, E::ConnectError | E::ConnectResponse | E::Disconnected) => Action::Fail,

        (S::Requested, E::Disconnected | E::Rejected | E::ConnectError | E::Unreachable | E::Established) => {
            Action::Forget
        }

        (S::Live, E::Established) => Action::Note,
        (S::Live, E::Disconnected) => Action::PeerGone,
        (S::Live, E::ConnectError | E::Rejected) => Action::Fail,
        // Since kernel 6.0 also sent when a neighbour entry changes: not the end of a connection that stands.
        (S::Live, E::Unreachable) => Action::Hint,

        // An attempt fails on anything that it does not expect, and says which event it was.
        (S::Resolving | S::Routing | S::Connecting, _) => Action::Fail,
        (S::Requested | S::Live, _) => Action::Stray,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 7] = [
        State::Listening,
        State::Resolving,
        State::Routing,
        State::Connecting,
        State::Requested,
        State::Live,
        State::Dying,
    ];

    /// Every event in every state, as a table that a reader can check by eye.
    #[test]
    fn every_event_in_every_state() {
        let mut table = String::new();
        for event in EventKind::ALL {
            table.push_str(event.name());
            for state in STATES {
                table.push_str(&format!(" {:?}", action(state, event)));
            }
            table.push('\n');
        }
        let expected = "\
ADDR_RESOLVED Stray HasDevice Fail Fail Stray Stray Note
ADDR_ERROR Stray NextAddress Fail Fail Stray Stray Note
ROUTE_RESOLVED Stray Fail HasRoute Fail Stray Stray Note
ROUTE_ERROR Stray Fail NextAddress Fail Stray Stray Note
CONNECT_REQUEST Request Fail Fail Fail Stray Stray Note
CONNECT_RESPONSE Stray Fail Fail Fail Stray Stray Note
CONNECT_ERROR Stray Fail Fail Fail Forget Fail Note
UNREACHABLE Stray Fail Fail NoAnswer Forget Hint Note
REJECTED Stray Fail Fail Refused Forget Fail Note
ESTABLISHED Stray Fail Fail Accepted Forget Note Note
DISCONNECTED Stray Fail Fail Fail Forget PeerGone Note
DEVICE_REMOVAL DeviceGone DeviceGone DeviceGone DeviceGone DeviceGone DeviceGone Note
MULTICAST_JOIN Stray Fail Fail Fail Stray Stray Note
MULTICAST_ERROR Stray Fail Fail Fail Stray Stray Note
ADDR_CHANGE Hint Hint Hint Hint Hint Hint Note
TIMEWAIT_EXIT Note Note Note Note Note Note Note
UNKNOWN Stray Fail Fail Fail Stray Stray Note
";
        assert_eq!(table, expected);
    }
}
