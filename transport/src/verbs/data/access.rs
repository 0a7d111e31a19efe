//! Bulk and one-sided operations: what may be done, where at the peer, and with which memory of ours.

use gimmal_rdma::verbs::RemoteBytes;

use crate::{
    AccessError, Bulk, BulkError, ConnId, Event, Offer, OneSided, Pulled, Refused, Remote, Transfer,
    Violation,
    mem::{Accessed, Exposed, Loan},
    verbs::{
        data::{conn::Conn, port::VerbsPort, pulls::What, table::open_in},
        memory::pool,
    },
};

/// Bytes of what an atomic operation changes.
const WORD_BYTES: usize = 8;

/// Returns the error of an operation on a connection that is not open.
fn not_open(refused: Refused) -> AccessError {
    if refused == Refused::Full { AccessError::Full } else { AccessError::Closed }
}

impl Conn {
    /// Checks `op`. Returns the peer's memory, the key of ours, and for an atomic operation the word for its result.
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

    /// Queues an operation. Returns the result of one without bytes, which is over.
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

impl Transfer for VerbsPort {
    fn offer(&mut self, conn: ConnId, loan: &Loan) -> Result<Offer, Refused> {
        let (open, _) = open_in(&mut self.slots, conn)?;
        let lane = open.lane.as_ref().ok_or(Refused::Closed)?;
        if !lane.holdings.device.has_lent(loan) {
            return Err(Refused::Foreign);
        }
        let address = loan.as_ptr().addr() as u64;
        Ok(Offer { address, key: pool::rkey_of(loan).into(), len: loan.len() as u64 })
    }

    fn pull(&mut self, conn: ConnId, offer: Offer, token: u64) -> Result<Option<Pulled>, Refused> {
        let limit = self.gate.shared.config.bulk_bytes_max;
        let (open, _) = open_in(&mut self.slots, conn)?;
        if open.pulls.depth() == 0 {
            return Err(Refused::NoReads);
        }
        let size = usize::try_from(offer.len).unwrap_or(usize::MAX);
        if offer.len > limit {
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            return Err(Refused::TooLarge { bytes: size, limit });
        }
        if open.pulls.is_full() {
            return Err(Refused::Full);
        }
        let Some(lane) = &open.lane else { return Err(Refused::Closed) };
        self.pieces.pulled();
        let result = match (u32::try_from(offer.key), offer.address.checked_add(offer.len)) {
            (Ok(rkey), Some(_)) => match lane.holdings.device.pool.lend(&open.fate.account, size) {
                Ok(sink) if size == 0 => Ok(Bulk::own(sink.loan)),
                Ok(sink) => {
                    let remote = RemoteBytes { address: offer.address, rkey };
                    open.pulls.add(token, What::Bulk, sink.loan, sink.lkey, remote);
                    open.list_pulls(&mut self.pulling);
                    return Ok(None);
                }
                Err(error) => Err(error.into()),
            },
            _ => Err(BulkError::Offer(Violation::Malformed { what: "bulk offer" })),
        };
        Ok(Some(result))
    }

    fn show(&mut self, conn: ConnId, exposed: &Exposed) -> Result<Remote, AccessError> {
        let (open, _) = open_in(&mut self.slots, conn).map_err(not_open)?;
        let lane = open.lane.as_ref().ok_or(AccessError::Closed)?;
        let rkey = lane.holdings.device.exposures.rkey(exposed).ok_or(AccessError::NotExposed)?;
        Ok(Remote(Offer { address: exposed.address(), key: rkey.into(), len: exposed.len() }))
    }

    fn access(
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
            // It is posted by a poll.
            open.list_pulls(&mut self.pulling);
        }
        Ok(())
    }
}
