//! What each event means in each state: one table, so that no pair is without an answer.
//!
//! Rows of `rdma_get_cm_event(3)` and `ibv_get_async_event(3)`; the states are those of an id on the control thread.
//!
//! ```text
//!  Resolving ─HasDevice─► Routing ─HasRoute─► Connecting ─Accepted─► Live ─► (the port gives the licence back)
//!                                                 Requested ─(accept)─┘
//!  an attempt that fails while a helper thread runs, or while iWARP's kernel waits ─► Dying ─End─► gone
//! ```

use gimmal_rdma::{id::EventKind, verbs::DeviceEvent};

/// The state of an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Bound and listening, or only bound, to hear of its device's removal.
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
    /// Only waits for its helper thread to return, or for the kernel to say how it went.
    Dying,
}

/// An event of the CM or of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Happening {
    Cm(EventKind),
    Device(DeviceEvent),
}

/// What to do about an event.
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
    /// The attempt or the connection fails with the event's name.
    Fail,
    /// The connection is down: the peer went away.
    PeerGone,
    /// The device goes away: everything on it must be destroyed.
    DeviceGone,
    /// The client of an unaccepted request gave up, or an attempt that was given up has ended: destroy its id.
    End,
    /// Data came before the CM's last message: tell the CM (`rdma_notify`).
    Establish,
    /// The device took its last shared receive for this queue pair.
    LastReceive,
    /// The shared receive queue runs low: post more.
    Refill,
    /// Casts doubt on an established connection: the engine asks the peer.
    Probe,
    /// Expected and without consequence.
    Note,
    /// Has no place here: counted and logged, never acted on.
    Stray,
}

/// The state after an action.
#[cfg(test)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Nowhere.
    Stay,
    To(State),
    /// The id goes, or waits as [`State::Dying`] for what holds it.
    End,
    /// Its port is told why; the id goes when the port gave the licence back.
    Down,
}

/// The table.
pub(crate) const fn action(state: State, happening: Happening) -> Action {
    match happening {
        Happening::Cm(event) => cm_action(state, event),
        Happening::Device(event) => device_action(state, event),
    }
}

/// Whether the kernel has let go of an attempt that was given up.
pub(crate) const fn answers(event: EventKind) -> bool {
    use EventKind as E;
    matches!(
        event,
        E::Established
            | E::Rejected
            | E::Unreachable
            | E::ConnectError
            | E::ConnectResponse
            | E::Disconnected
            | E::DeviceRemoval
    )
}

const fn cm_action(state: State, event: EventKind) -> Action {
    use EventKind as E;
    use State as S;
    match (state, event) {
        (S::Dying, event) if answers(event) => Action::End,
        (_, E::DeviceRemoval) => Action::DeviceGone,
        // Since kernel 6.0 UNREACHABLE is also sent when a neighbour entry changes; ADDR_CHANGE when a bond fails
        // over. Neither is the end of a connection that stands.
        (S::Live, E::Unreachable | E::AddrChange) => Action::Probe,
        (_, E::AddrChange | E::TimewaitExit) => Action::Note,

        (S::Listening, E::ConnectRequest) => Action::Request,

        (S::Resolving, E::AddrResolved) => Action::HasDevice,
        (S::Resolving, E::AddrError) | (S::Routing, E::RouteError) => Action::NextAddress,
        (S::Routing, E::RouteResolved) => Action::HasRoute,

        (S::Connecting, E::Established) => Action::Accepted,
        (S::Connecting, E::Rejected) => Action::Refused,

        (S::Requested, E::Disconnected | E::Rejected | E::ConnectError | E::Unreachable | E::Established) => {
            Action::End
        }

        (S::Live, E::Established) => Action::Note,
        // Rejected: it went while its CM, or ours, still waited for the last message of the handshake. Data needs neither.
        (S::Live, E::Disconnected | E::Rejected) => Action::PeerGone,
        (S::Live, E::ConnectError) => Action::Fail,

        // A doubled step of the way is harmless; what is not known to this program is, too.
        (S::Routing, E::AddrResolved) | (S::Connecting, E::AddrResolved | E::RouteResolved) => Action::Stray,
        (_, E::AddrinfoResolved | E::AddrinfoError | E::User | E::Internal | E::Other(_)) => Action::Stray,

        // An attempt fails on anything else that it does not expect, and says which event it was. CONNECT_RESPONSE
        // is among it: it comes only without a queue pair of the CM's, and ours always has one.
        (S::Resolving | S::Routing | S::Connecting, _) => Action::Fail,
        (S::Listening | S::Requested | S::Live | S::Dying, _) => Action::Stray,
    }
}

const fn device_action(state: State, event: DeviceEvent) -> Action {
    use DeviceEvent as D;
    use State as S;
    match (state, event) {
        (_, D::Other(_)) => Action::Stray,
        (S::Listening | S::Resolving | S::Requested | S::Dying, _) => Action::Note,

        (S::Live, D::CommEst) => Action::Establish,
        (S::Live, D::LastWqe) => Action::LastReceive,
        (S::Routing | S::Connecting | S::Live, D::SrqLimit) => Action::Refill,
        // The removal follows as a CM event; only then may the device be let go of.
        (S::Live, D::DeviceFatal) => Action::Fail,
        (S::Live, D::PortErr | D::GidChange | D::PathMigErr | D::LidChange) => Action::Probe,
        (
            S::Routing | S::Connecting | S::Live,
            D::QpFatal | D::QpReqErr | D::QpAccessErr | D::CqErr | D::SrqErr | D::WqFatal,
        )
        | (S::Routing | S::Connecting, D::DeviceFatal) => Action::Fail,
        // Drained, migrated, active again: nothing of ours hangs on it; connects have their deadline.
        (S::Routing | S::Connecting | S::Live, _) => Action::Note,
    }
}

/// Where `action` leads from `state`, if it can be carried out. A step that cannot be fails, which is `End`.
#[cfg(test)]
pub(crate) const fn next(state: State, action: Action) -> Next {
    use State as S;
    match (state, action) {
        (_, Action::Note | Action::Stray | Action::Probe | Action::Establish | Action::Request) => Next::Stay,
        (_, Action::LastReceive | Action::Refill) => Next::Stay,
        (_, Action::HasDevice) => Next::To(S::Routing),
        (_, Action::HasRoute) => Next::To(S::Connecting),
        (_, Action::Accepted) => Next::To(S::Live),
        (S::Live, _) => Next::Down,
        _ => Next::End,
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

    fn happenings() -> Vec<Happening> {
        let cm = EventKind::ALL.into_iter().map(Happening::Cm);
        cm.chain(DeviceEvent::ALL.into_iter().map(Happening::Device)).collect()
    }

    /// Every event in every state, as a table that a reader can check by eye.
    #[test]
    fn every_event_in_every_state() {
        let mut table = String::new();
        for happening in happenings() {
            table.push_str(match happening {
                Happening::Cm(event) => event.name(),
                Happening::Device(event) => event.name(),
            });
            for state in STATES {
                table.push_str(&format!(" {:?}", action(state, happening)));
            }
            table.push('\n');
        }
        let expected = "\
ADDR_RESOLVED Stray HasDevice Stray Stray Stray Stray Stray
ADDR_ERROR Stray NextAddress Fail Fail Stray Stray Stray
ROUTE_RESOLVED Stray Fail HasRoute Stray Stray Stray Stray
ROUTE_ERROR Stray Fail NextAddress Fail Stray Stray Stray
CONNECT_REQUEST Request Fail Fail Fail Stray Stray Stray
CONNECT_RESPONSE Stray Fail Fail Fail Stray Stray End
CONNECT_ERROR Stray Fail Fail Fail End Fail End
UNREACHABLE Stray Fail Fail Fail End Probe End
REJECTED Stray Fail Fail Refused End PeerGone End
ESTABLISHED Stray Fail Fail Accepted End Note End
DISCONNECTED Stray Fail Fail Fail End PeerGone End
DEVICE_REMOVAL DeviceGone DeviceGone DeviceGone DeviceGone DeviceGone DeviceGone End
MULTICAST_JOIN Stray Fail Fail Fail Stray Stray Stray
MULTICAST_ERROR Stray Fail Fail Fail Stray Stray Stray
ADDR_CHANGE Note Note Note Note Note Probe Note
TIMEWAIT_EXIT Note Note Note Note Note Note Note
ADDRINFO_RESOLVED Stray Stray Stray Stray Stray Stray Stray
ADDRINFO_ERROR Stray Stray Stray Stray Stray Stray Stray
USER Stray Stray Stray Stray Stray Stray Stray
INTERNAL Stray Stray Stray Stray Stray Stray Stray
UNKNOWN Stray Stray Stray Stray Stray Stray Stray
CQ_ERR Note Note Fail Fail Note Fail Note
QP_FATAL Note Note Fail Fail Note Fail Note
QP_REQ_ERR Note Note Fail Fail Note Fail Note
QP_ACCESS_ERR Note Note Fail Fail Note Fail Note
COMM_EST Note Note Note Note Note Establish Note
SQ_DRAINED Note Note Note Note Note Note Note
PATH_MIG Note Note Note Note Note Note Note
PATH_MIG_ERR Note Note Note Note Note Probe Note
DEVICE_FATAL Note Note Fail Fail Note Fail Note
PORT_ACTIVE Note Note Note Note Note Note Note
PORT_ERR Note Note Note Note Note Probe Note
LID_CHANGE Note Note Note Note Note Probe Note
PKEY_CHANGE Note Note Note Note Note Note Note
SM_CHANGE Note Note Note Note Note Note Note
SRQ_ERR Note Note Fail Fail Note Fail Note
SRQ_LIMIT_REACHED Note Note Refill Refill Note Refill Note
QP_LAST_WQE_REACHED Note Note Note Note Note LastReceive Note
CLIENT_REREGISTER Note Note Note Note Note Note Note
GID_CHANGE Note Note Note Note Note Probe Note
WQ_FATAL Note Note Fail Fail Note Fail Note
UNKNOWN Stray Stray Stray Stray Stray Stray Stray
";
        assert_eq!(table, expected);
    }

    /// An id's life by the table alone.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Life {
        /// `None`: gone; events for it are strays.
        state: Option<State>,
        /// How the attempt or the connection ended, told once.
        told: Option<Happening>,
        tellings: u32,
    }

    impl Life {
        fn new(state: State) -> Self {
            Self { state: Some(state), told: None, tellings: 0 }
        }

        fn tell(&mut self, happening: Happening) {
            // As `Fate::down`: the first cause stays.
            if self.told.is_none() {
                self.told = Some(happening);
                self.tellings += 1;
            }
        }

        fn on(&mut self, happening: Happening) {
            let Some(state) = self.state else { return };
            let action = action(state, happening);
            match next(state, action) {
                Next::Stay => {}
                Next::To(to) => self.state = Some(to),
                Next::Down => self.tell(happening),
                Next::End => {
                    if matches!(state, State::Resolving | State::Routing | State::Connecting) {
                        self.tell(happening);
                    }
                    self.state = None;
                }
            }
        }
    }

    /// R17, R18, R19, R43: every three events in a row in every state – doubled, late, out of order among them: at
    /// most one end is told, the first; nothing acts on what is gone; and hints never
    /// end a connection.
    #[test]
    fn r18_any_three_events_tell_one_end_and_never_hang() {
        let happenings = happenings();
        let (mut sequences, mut ends) = (0u64, 0u64);
        for start in STATES {
            for &first in &happenings {
                for &second in &happenings {
                    for &third in &happenings {
                        let mut life = Life::new(start);
                        let mut cause = None;
                        for happening in [first, second, third] {
                            let before = life;
                            life.on(happening);
                            assert!(
                                before.state.is_some() || life == before,
                                "{start:?}: acted on what is gone"
                            );
                            cause = cause.or(life.told);
                        }
                        assert!(life.tellings <= 1, "{start:?} {first:?} {second:?} {third:?}");
                        assert_eq!(life.told, cause, "{start:?}: not the first cause");
                        sequences += 1;
                        ends += u64::from(life.state.is_none() || life.told.is_some());
                    }
                }
            }
        }
        assert_eq!(sequences, 7 * (happenings.len() as u64).pow(3));
        assert!(ends > sequences / 3, "few sequences end anything: {ends} of {sequences}");
    }

    /// R17: what is only a hint leaves a connection as it was, however often it comes.
    #[test]
    fn r17_hints_are_survived() {
        let is_hint = |&happening: &Happening| {
            matches!(
                action(State::Live, happening),
                Action::Probe
                    | Action::Note
                    | Action::Stray
                    | Action::Establish
                    | Action::LastReceive
                    | Action::Refill
            )
        };
        let hints: Vec<_> = happenings().into_iter().filter(is_hint).collect();
        assert!(hints.contains(&Happening::Cm(EventKind::Unreachable)));
        assert!(hints.contains(&Happening::Device(DeviceEvent::PortErr)));
        for &first in &hints {
            for &second in &hints {
                let mut life = Life::new(State::Live);
                for happening in [first, second, second, first] {
                    life.on(happening);
                }
                assert_eq!(life, Life::new(State::Live), "{first:?}, {second:?}");
            }
        }
    }
}
