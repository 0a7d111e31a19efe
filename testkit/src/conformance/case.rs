//! A case: what it cannot do without, and what it says.

use gimmal_transport::{DataPath, Negotiated, Provider};

use super::{bench::Bench, outcome::Outcome};

/// What a case cannot do without.
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // a set of independent needs
pub(super) struct Needs {
    pub(super) ring: bool,
    pub(super) send_recv: bool,
    pub(super) arrivals: bool,
    pub(super) shared: bool,
    pub(super) words: bool,
    pub(super) bulk: bool,
    pub(super) reads: bool,
    pub(super) in_place: bool,
    pub(super) atomics: bool,
    pub(super) knock: bool,
}

pub(super) const ANY: Needs = Needs {
    ring: false,
    send_recv: false,
    arrivals: false,
    shared: false,
    words: false,
    bulk: false,
    reads: false,
    in_place: false,
    atomics: false,
    knock: false,
};
pub(super) const KNOCK: Needs = Needs { knock: true, ..ANY };
pub(super) const BULK: Needs = Needs { bulk: true, ..ANY };

impl Needs {
    pub(super) fn missing(self, seen: &Negotiated, can_knock: bool) -> Option<&'static str> {
        let bulk = seen.initiator_depth.granted > 0 && seen.responder_resources.granted > 0;
        [
            (self.ring && seen.path != DataPath::Ring, "needs a receive ring"),
            (self.send_recv && seen.path != DataPath::SendRecv, "needs the send/recv path"),
            (self.arrivals && !seen.arrivals_count, "needs receives that are used up"),
            (self.shared && !seen.rx_shared, "needs receives that connections share"),
            (self.words && !seen.credit_words, "needs credit in shared words"),
            (self.bulk && !bulk, "needs bulk"),
            (self.reads && (!bulk || seen.bulk_in_place), "needs bulk by READ"),
            (self.in_place && !seen.bulk_in_place, "needs bulk in place"),
            (self.atomics && !seen.atomics, "needs atomic operations"),
            (self.knock && !can_knock, "needs a harness that can speak foreign bytes"),
        ]
        .into_iter()
        .find_map(|(missing, what)| missing.then_some(what))
    }
}

/// A case of the suite.
pub(super) struct Case<P: Provider> {
    pub(super) name: &'static str,
    pub(super) needs: Needs,
    pub(super) run: fn(&mut Bench<'_, P>) -> Outcome,
}
