//! One-sided operations: who may, on what, and with which memory of ours.

use gimmal_rdma::verbs::RemoteBytes;

use crate::{
    AccessError, ConnId, Event, Offer, OneSided, Remote,
    mem::{Accessed, Exposed, Loan},
    verbs::data::{
        conn::{Conn, Phase},
        port::VerbsPort,
        pulls::What,
    },
};

/// Bytes of what an atomic operation changes.
const WORD_BYTES: usize = 8;

fn open(conn: Option<&mut Conn>) -> Result<&mut Conn, AccessError> {
    let conn = conn.ok_or(AccessError::Closed)?;
    match conn.phase {
        Phase::Open => Ok(conn),
        Phase::Opening { .. } => Err(AccessError::Full),
        Phase::Closing(_) => Err(AccessError::Closed),
    }
}

impl Conn {
    /// Where the peer has what `op` is for, if it can be made.
    fn place(&self, remote: &Remote, op: &OneSided) -> Result<RemoteBytes, AccessError> {
        if self.pulls.depth() == 0 {
            return Err(AccessError::Off);
        }
        op.check(remote, self.has_atomics())?;
        if self.pulls.is_full() {
            return Err(AccessError::Full);
        }
        // What a peer shows may be anything; its device checks the key, and the range again.
        let Offer { address, key, len } = remote.0;
        match (u32::try_from(key), address.checked_add(len)) {
            (Ok(rkey), Some(_)) => Ok(RemoteBytes { address: address + op.at(), rkey }),
            _ => Err(AccessError::NotExposed),
        }
    }

    /// Queues an operation; one of no bytes is over.
    fn add_access(
        &mut self,
        remote: &Remote,
        op: OneSided,
        token: u64,
    ) -> Result<Option<Accessed>, (AccessError, OneSided)> {
        let place = match self.place(remote, &op) {
            Ok(place) => place,
            Err(error) => return Err((error, op)),
        };
        let Some(belongings) = &self.belongings else { return Err((AccessError::Closed, op)) };
        let (holdings, pool) = (&belongings.holdings, belongings.holdings.pool());
        let lkey = |loan: &Loan| {
            let key = holdings.has_lent(loan).then(|| holdings.lkey(loan)).ok_or(AccessError::Foreign)?;
            // None of a device that was removed.
            key.ok_or(AccessError::Closed)
        };
        let (what, local, lkey) = match op {
            OneSided::Read { into: loan, .. } | OneSided::Write { from: loan, .. } if loan.is_empty() => {
                return Ok(Some(Accessed::Loan(loan)));
            }
            OneSided::Read { at, into } => match lkey(&into) {
                Ok(lkey) => (What::Read, into, lkey),
                Err(error) => return Err((error, OneSided::Read { at, into })),
            },
            OneSided::Write { at, from } => match lkey(&from) {
                Ok(lkey) => (What::Write, from, lkey),
                Err(error) => return Err((error, OneSided::Write { at, from })),
            },
            OneSided::CompareSwap { expected, new, .. } => match pool.allocate(WORD_BYTES) {
                Ok(word) => (What::CompareSwap { expected, new }, word.loan, word.lkey),
                Err(_) => return Err((AccessError::Full, op)),
            },
            OneSided::FetchAdd { add, .. } => match pool.allocate(WORD_BYTES) {
                Ok(word) => (What::FetchAdd { add }, word.loan, word.lkey),
                Err(_) => return Err((AccessError::Full, op)),
            },
        };
        self.pulls.add_access(token, what, local, lkey, place);
        Ok(None)
    }
}

impl VerbsPort {
    /// The steps of [`Port::show`](crate::Port::show).
    pub(crate) fn show_exposed(&mut self, conn: ConnId, exposed: &Exposed) -> Result<Remote, AccessError> {
        let open = open(self.conn(conn))?;
        let belongings = open.belongings.as_ref().ok_or(AccessError::Closed)?;
        let rkey = belongings.holdings.exposures().rkey(exposed).ok_or(AccessError::NotExposed)?;
        Ok(Remote(Offer { address: exposed.address(), key: rkey.into(), len: exposed.len() }))
    }

    /// The steps of [`Port::access`](crate::Port::access): it is posted by a poll.
    pub(crate) fn make_access(
        &mut self,
        conn: ConnId,
        remote: Remote,
        op: OneSided,
        token: u64,
    ) -> Result<(), (AccessError, OneSided)> {
        let open = match open(self.conn(conn)) {
            Ok(open) => open,
            Err(error) => return Err((error, op)),
        };
        if let Some(over) = open.add_access(&remote, op, token)? {
            self.backlog.push_back(Event::Accessed { conn, token, result: Ok(over) });
        } else if !std::mem::replace(&mut open.is_pulling, true) {
            self.pulling.push(conn.index() as usize);
        }
        Ok(())
    }
}
