//! Bulk by RDMA READ: pieces of several pulls in turn, never more outstanding than the granted `initiator_depth`.

use std::collections::VecDeque;

use crate::{
    BulkError, ConnId, Offer,
    mem::Loan,
    verbs::{
        qp::{LocalBytes, Qp, RemoteBytes, SendList},
        sys,
        tx::Tx,
        wr_id::{Kind, WrId},
    },
};

/// Pulls of one connection at a time; more are refused as full.
const PULLS: usize = 1024;

#[derive(Debug)]
struct Pull {
    token: u64,
    sink: Loan,
    lkey: u32,
    offer: Offer,
    rkey: u32,
    posted: u64,
    done: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Pulls {
    table: Vec<Option<Pull>>,
    vacant: Vec<u16>,
    /// Pulls with pieces left to post, in turn.
    turns: VecDeque<u16>,
    outstanding: u32,
    depth: u32,
    piece_bytes: u32,
    /// Pulls that ended without a READ.
    ended: VecDeque<(u64, Result<Loan, BulkError>)>,
}

impl Pulls {
    pub(crate) fn new(depth: u32, piece_bytes: u32) -> Self {
        Self {
            table: Vec::new(),
            vacant: Vec::new(),
            turns: VecDeque::new(),
            outstanding: 0,
            depth,
            piece_bytes: piece_bytes.max(1),
            ended: VecDeque::new(),
        }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// READs posted and not completed.
    pub(crate) fn outstanding(&self) -> u32 {
        self.outstanding
    }

    pub(crate) fn is_full(&self) -> bool {
        self.table.len() - self.vacant.len() + self.ended.len() >= PULLS
    }

    /// Nothing to bring, or no memory to bring it to.
    pub(crate) fn end(&mut self, token: u64, result: Result<Loan, BulkError>) {
        self.ended.push_back((token, result));
    }

    pub(crate) fn next_ended(&mut self) -> Option<(u64, Result<Loan, BulkError>)> {
        self.ended.pop_front()
    }

    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    pub(crate) fn add(&mut self, token: u64, sink: Loan, lkey: u32, offer: Offer, rkey: u32) {
        let pull = Pull { token, sink, lkey, offer, rkey, posted: 0, done: 0 };
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.table[usize::from(slot)] = Some(pull);
                slot
            }
            None => {
                self.table.push(Some(pull));
                u16::try_from(self.table.len() - 1).expect("at most 1,024 pulls")
            }
        };
        self.turns.push_back(slot);
    }

    /// Whether a piece could be posted now.
    pub(crate) fn can_post(&self) -> bool {
        self.outstanding < self.depth && !self.turns.is_empty()
    }

    /// Whether anything is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.turns.is_empty() && self.outstanding == 0 && self.ended.is_empty()
    }

    /// Posts at most `limit` pieces. A full queue is not an error: they wait.
    pub(crate) fn post(
        &mut self,
        limit: u32,
        qp: &Qp,
        conn: ConnId,
        tx: &mut Tx,
        list: &mut SendList,
    ) -> Result<(), i32> {
        for _ in 0..limit.min(self.depth.saturating_sub(self.outstanding)) {
            let Some(slot) = self.turns.pop_front() else { break };
            let Some(Some(pull)) = self.table.get_mut(usize::from(slot)) else { continue };
            let left = pull.offer.len - pull.posted;
            let bytes = u32::try_from(left).unwrap_or(u32::MAX).min(self.piece_bytes);
            let into = LocalBytes {
                address: pull.sink.as_ptr().addr() as u64 + pull.posted,
                bytes,
                lkey: pull.lkey,
            };
            let from = RemoteBytes { address: pull.offer.address + pull.posted, rkey: pull.rkey };
            list.read(WrId::new(Kind::Read, conn, slot), into, from);
            match list.post(qp) {
                Ok(()) => {}
                Err(error) if error.errno == sys::errno::ENOMEM => {
                    self.turns.push_front(slot);
                    break;
                }
                Err(error) => return Err(error.errno),
            }
            tx.posted_other(Some((slot, bytes)));
            pull.posted += u64::from(bytes);
            self.outstanding += 1;
            if pull.posted < pull.offer.len {
                self.turns.push_back(slot);
            }
        }
        Ok(())
    }

    /// A piece arrived; the pull that it completed.
    pub(crate) fn arrived(&mut self, slot: u16, bytes: u32) -> Option<(u64, Loan)> {
        self.outstanding = self.outstanding.saturating_sub(1);
        let place = self.table.get_mut(usize::from(slot))?;
        let pull = place.as_mut()?;
        pull.done += u64::from(bytes);
        if pull.done < pull.offer.len {
            return None;
        }
        let pull = place.take()?;
        self.vacant.push(slot);
        Some((pull.token, pull.sink))
    }

    /// The queue pair is destroyed: no sink is written any more. All tokens, for their last event.
    pub(crate) fn abandon(&mut self) -> Vec<u64> {
        let ended = self.ended.drain(..).map(|(token, _)| token);
        let open = self.table.drain(..).flatten().map(|pull| pull.token);
        let tokens = ended.chain(open).collect();
        self.vacant.clear();
        self.turns.clear();
        self.outstanding = 0;
        tokens
    }
}
