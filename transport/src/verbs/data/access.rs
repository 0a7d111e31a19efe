//! One-sided operations: who may, on what, and with which memory of ours.

use gimmal_rdma::verbs::RemoteBytes;

use crate::{
    AccessError, ConnId, Event, Offer, OneSided, Pulse, Refused, Remote, Time,
    mem::{Accessed, Exposed, Loan},
    verbs::{
        data::{conn::Conn, port::VerbsPort, pulls::What, table::open_in},
        memory::pulse,
    },
};

/// Bytes of what an atomic operation changes.
const WORD_BYTES: usize = 8;

fn not_open(refused: Refused) -> AccessError {
    if refused == Refused::Full { AccessError::Full } else { AccessError::Closed }
}

impl Conn {
    /// Where the peer has what `op` is for, the key of our memory, and that memory where `op` brings none; if it can be made.
    fn prepare(
        &self,
        remote: &Remote,
        op: &OneSided,
    ) -> Result<(RemoteBytes, u32, Option<Loan>), AccessError> {
        if self.pulls.depth() == 0 {
            return Err(AccessError::Off);
        }
        op.check(remote, self.has_atomics())?;
        if self.pulls.is_full() {
            return Err(AccessError::Full);
        }
        // What a peer shows may be anything; its device checks the key, and the range again.
        let Offer { address, key, len } = remote.0;
        let place = match (u32::try_from(key), address.checked_add(len)) {
            (Ok(rkey), Some(_)) => RemoteBytes { address: address + op.at(), rkey },
            _ => return Err(AccessError::NotExposed),
        };
        let device = &self.lane.as_ref().ok_or(AccessError::Closed)?.holdings.device;
        match op {
            OneSided::Read { into: loan, .. } | OneSided::Write { from: loan, .. } if loan.is_empty() => {
                Ok((place, 0, None))
            }
            OneSided::Read { into: loan, .. } | OneSided::Write { from: loan, .. } => {
                if !device.has_lent(loan) {
                    return Err(AccessError::Foreign);
                }
                // None of a device that was removed.
                Ok((place, device.lkey(loan).ok_or(AccessError::Closed)?, None))
            }
            OneSided::CompareSwap { .. } | OneSided::FetchAdd { .. } => {
                let word = device.pool.allocate(WORD_BYTES).map_err(|_| AccessError::Full)?;
                Ok((place, word.lkey, Some(word.loan)))
            }
        }
    }

    /// Queues an operation; one of no bytes is over.
    fn add_access(
        &mut self,
        remote: &Remote,
        op: OneSided,
        token: u64,
    ) -> Result<Option<Accessed>, (AccessError, OneSided)> {
        let (place, lkey, word) = match self.prepare(remote, &op) {
            Ok(prepared) => prepared,
            Err(error) => return Err((error, op)),
        };
        let (what, local) = match (op, word) {
            (OneSided::Read { into: loan, .. } | OneSided::Write { from: loan, .. }, _)
                if loan.is_empty() =>
            {
                return Ok(Some(Accessed::Loan(loan)));
            }
            (OneSided::Read { into, .. }, _) => (What::Read, into),
            (OneSided::Write { from, .. }, _) => (What::Write, from),
            (OneSided::CompareSwap { expected, new, .. }, Some(word)) => {
                (What::CompareSwap { expected, new }, word)
            }
            (OneSided::FetchAdd { add, .. }, Some(word)) => (What::FetchAdd { add }, word),
            (op, None) => return Err((AccessError::Full, op)),
        };
        self.pulls.add(token, what, local, lkey, place);
        Ok(None)
    }
}

impl VerbsPort {
    /// The steps of [`Transfer::show`](crate::Transfer::show).
    pub(crate) fn show_exposed(&mut self, conn: ConnId, exposed: &Exposed) -> Result<Remote, AccessError> {
        let (open, _) = open_in(&mut self.slots, conn).map_err(not_open)?;
        let lane = open.lane.as_ref().ok_or(AccessError::Closed)?;
        let rkey = lane.holdings.device.exposures.rkey(exposed).ok_or(AccessError::NotExposed)?;
        Ok(Remote(Offer { address: exposed.address(), key: rkey.into(), len: exposed.len() }))
    }

    /// The steps of [`Transfer::access`](crate::Transfer::access): it is posted by a poll.
    pub(crate) fn make_access(
        &mut self,
        conn: ConnId,
        remote: Remote,
        op: OneSided,
        token: u64,
    ) -> Result<(), (AccessError, OneSided)> {
        let open = match open_in(&mut self.slots, conn) {
            Ok((open, _)) => open,
            Err(refused) => return Err((not_open(refused), op)),
        };
        if let Some(over) = open.add_access(&remote, op, token)? {
            self.backlog.push_back(Event::Accessed { conn, token, result: Ok(over) });
        } else {
            open.list_pulls(&mut self.pulling);
        }
        Ok(())
    }

    /// The steps of [`Port::pulse`](crate::Port::pulse): a READ is posted by a poll, one at a time.
    pub(crate) fn look_at_pulse(&mut self, conn: ConnId, now: Time) -> Option<Pulse> {
        let (open, _) = open_in(&mut self.slots, conn).ok()?;
        let last = open.pulse.last?;
        if open.pulse.is_asked {
            return Some(last);
        }
        if open.pulls.is_full() {
            return None;
        }
        let sink = open.lane.as_ref()?.holdings.device.sinks.allocate(pulse::WORD_BYTES).ok()?;
        open.pulls.add(now.0, What::Pulse, sink.loan, sink.lkey, open.pulse.place);
        open.pulse.is_asked = true;
        open.list_pulls(&mut self.pulling);
        Some(last)
    }
}
