//! Transfers from and to the peer's memory: bulk by RDMA READ, one-sided operations, reads of its pulse. The pieces of
//! several transfers take turns. No more are outstanding than the granted `initiator_depth`.

use std::collections::VecDeque;

use gimmal_rdma::verbs::{Flags, LocalBytes, PostError, Qp, RemoteBytes, SendList};

use crate::{
    Accessed, ConnId, Pulse, Time,
    mem::{Bulk, Loan},
    verbs::data::{
        tx::Tx,
        wr_id::{Kind, WrId},
    },
};

/// The most transfers of one connection at a time.
const PULLS: usize = 1024;

/// The bounds of one post.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) pieces: u32,
    pub(crate) piece_bytes: u32,
}

/// The kind of a transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Bulk,
    Read,
    Write,
    CompareSwap {
        expected: u64,
        new: u64,
    },
    FetchAdd {
        add: u64,
    },
    /// A read of the peer's pulse. The token is the time of the request.
    Pulse,
}

/// The result of a transfer.
#[derive(Debug)]
pub(crate) enum Ended {
    Pulled(Bulk),
    Accessed(Accessed),
    Pulse(Pulse),
}

#[derive(Debug)]
struct Pull {
    token: u64,
    what: What,
    /// Our memory.
    local: Loan,
    lkey: u32,
    remote: RemoteBytes,
    len: u64,
    posted: u64,
    done: u64,
}

impl Pull {
    /// Adds the next piece to `list`. Returns its bytes.
    fn push_piece(&self, id: WrId, piece_bytes: u32, list: &mut SendList) -> u32 {
        let left = u32::try_from(self.len - self.posted).unwrap_or(u32::MAX);
        let whole = matches!(self.what, What::CompareSwap { .. } | What::FetchAdd { .. } | What::Pulse);
        let bytes = if whole { left } else { left.min(piece_bytes) };
        let address = self.local.as_ptr().addr() as u64 + self.posted;
        // SAFETY: the loan is ours until the last piece has completed, and stays registered until the queue pair is
        // destroyed.
        let local = unsafe { LocalBytes::new(address, bytes, self.lkey) };
        let remote = RemoteBytes { address: self.remote.address + self.posted, rkey: self.remote.rkey };
        match self.what {
            What::Bulk | What::Read | What::Pulse => list.read(id, local, remote),
            What::Write => list.write(id, local, remote, Flags { signalled: true, inline: false }),
            What::CompareSwap { expected, new } => list.compare_swap(id, local, remote, expected, new),
            What::FetchAdd { add } => list.fetch_add(id, local, remote, add),
        }
        bytes
    }

    fn end(self) -> (u64, Ended) {
        let word = || self.local.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        let ended = match self.what {
            What::Bulk => Ended::Pulled(Bulk::own(self.local)),
            What::Read | What::Write => Ended::Accessed(Accessed::Loan(self.local)),
            What::CompareSwap { .. } | What::FetchAdd { .. } => Ended::Accessed(Accessed::Word(word())),
            What::Pulse => Ended::Pulse(Pulse { beat: word(), at: Time(self.token) }),
        };
        (self.token, ended)
    }
}

/// The transfers of a connection from and to its peer's memory.
#[derive(Debug)]
pub(crate) struct Pulls {
    table: Vec<Option<Pull>>,
    vacant: Vec<u16>,
    /// Transfers with pieces left to post, in turn.
    turns: VecDeque<u16>,
    /// The pieces of one doorbell. Empty between posts.
    pushed: Vec<(u16, u32)>,
    outstanding: u32,
    depth: u32,
}

impl Pulls {
    pub(crate) fn new(depth: u32) -> Self {
        Self {
            table: Vec::new(),
            vacant: Vec::new(),
            turns: VecDeque::new(),
            pushed: Vec::new(),
            outstanding: 0,
            depth,
        }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// Counts the pieces that are posted and not completed.
    pub(crate) fn outstanding(&self) -> u32 {
        self.outstanding
    }

    pub(crate) fn is_full(&self) -> bool {
        self.table.len() - self.vacant.len() >= PULLS
    }

    /// Adds a transfer between `local`, which is not empty, and `remote`.
    pub(crate) fn add(&mut self, token: u64, what: What, local: Loan, lkey: u32, remote: RemoteBytes) {
        let len = local.len() as u64;
        let pull = Pull { token, what, local, lkey, remote, len, posted: 0, done: 0 };
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.table[usize::from(slot)] = Some(pull);
                slot
            }
            None => {
                self.table.push(Some(pull));
                u16::try_from(self.table.len() - 1).expect("at most 1,024 transfers")
            }
        };
        self.turns.push_back(slot);
    }

    /// Returns whether a piece can be posted now.
    pub(crate) fn can_post(&self) -> bool {
        self.outstanding < self.depth && !self.turns.is_empty()
    }

    /// Returns whether no transfer is left.
    pub(crate) fn is_idle(&self) -> bool {
        self.turns.is_empty() && self.outstanding == 0
    }

    /// Posts pieces within `limit`, with one doorbell. With a full queue they wait, which is not an error.
    pub(crate) fn post(
        &mut self,
        limit: Limit,
        qp: &Qp,
        conn: ConnId,
        tx: &mut Tx,
        list: &mut SendList,
    ) -> Result<(), i32> {
        self.push(limit, conn, list);
        let (taken, result) = match list.post(qp) {
            Ok(()) => (self.pushed.len(), Ok(())),
            Err(PostError { posted, errno: libc::ENOMEM }) => (posted, Ok(())),
            Err(PostError { posted, errno }) => (posted, Err(errno)),
        };
        self.settle(taken, |piece| tx.posted_signal(Some(piece)));
        result
    }

    /// Adds pieces within `limit` to `list`, of the transfers in turn.
    fn push(&mut self, limit: Limit, conn: ConnId, list: &mut SendList) {
        for _ in 0..limit.pieces.min(self.depth.saturating_sub(self.outstanding)) {
            if list.is_full() {
                break;
            }
            let Some(slot) = self.turns.pop_front() else { break };
            let Some(Some(pull)) = self.table.get_mut(usize::from(slot)) else { continue };
            let bytes = pull.push_piece(WrId::new(Kind::Read, conn, slot), limit.piece_bytes.max(1), list);
            pull.posted += u64::from(bytes);
            self.pushed.push((slot, bytes));
            if pull.posted < pull.len {
                self.turns.push_back(slot);
            }
        }
    }

    /// Counts the first `taken` pieces as posted. The others are the next ones again.
    fn settle(&mut self, taken: usize, mut posted: impl FnMut((u16, u32))) {
        for piece in self.pushed.drain(..taken) {
            self.outstanding += 1;
            posted(piece);
        }
        while let Some((slot, bytes)) = self.pushed.pop() {
            if let Some(Some(pull)) = self.table.get_mut(usize::from(slot)) {
                pull.posted -= u64::from(bytes);
                self.turns.retain(|&other| other != slot);
                self.turns.push_front(slot);
            }
        }
    }

    /// Counts a completed piece. Returns the token and the result of the transfer that it ends.
    pub(crate) fn arrived(&mut self, slot: u16, bytes: u32) -> Option<(u64, Ended)> {
        self.outstanding = self.outstanding.saturating_sub(1);
        let place = self.table.get_mut(usize::from(slot))?;
        let pull = place.as_mut()?;
        pull.done += u64::from(bytes);
        if pull.done < pull.len {
            return None;
        }
        let pull = place.take()?;
        self.vacant.push(slot);
        Some(pull.end())
    }

    /// Returns the kind of the transfer in `slot`.
    pub(crate) fn what(&self, slot: u16) -> Option<What> {
        Some(self.table.get(usize::from(slot))?.as_ref()?.what)
    }

    /// Returns the tokens of all transfers, and whether each is a pull.
    pub(crate) fn tokens(&self) -> Vec<(u64, bool)> {
        let open = self.table.iter().flatten().filter(|pull| !matches!(pull.what, What::Pulse));
        open.map(|pull| (pull.token, matches!(pull.what, What::Bulk))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_full_queue_did_not_take_is_posted_next_and_in_the_same_order() {
        let limit = Limit { pieces: u32::MAX, piece_bytes: 4096 };
        let mut pulls = Pulls::new(4);
        for (token, len) in [(70, 10_000), (71, 5000)] {
            let local = Loan::anonymous(len, 0).expect("memory");
            pulls.add(token, What::Read, local, 1, RemoteBytes { address: 1 << 20, rkey: 2 });
        }
        assert_eq!(pulls.tokens(), [(70, false), (71, false)]);
        let mut posted = Vec::new();
        for taken in [1, 0, 2, 1] {
            let mut list = SendList::new(4);
            pulls.push(limit, ConnId::new(0, 0), &mut list);
            pulls.settle(taken, |piece| posted.push(piece));
        }
        assert_eq!(posted, [(0, 4096), (1, 4096), (0, 4096), (1, 904)]);
        assert_eq!(
            (posted.len(), pulls.outstanding(), pulls.can_post()),
            (4, 4, false),
            "no more than the depth"
        );
        assert!(pulls.arrived(0, 4096).is_none() && pulls.can_post());
        let mut list = SendList::new(4);
        pulls.push(limit, ConnId::new(0, 0), &mut list);
        pulls.settle(1, |piece| posted.push(piece));
        assert_eq!(posted[4..], [(0, 1808)]);
        assert!(pulls.arrived(1, 4096).is_none());
        assert!(matches!(pulls.arrived(1, 904), Some((71, Ended::Accessed(_)))));
        assert!(pulls.arrived(0, 4096).is_none());
        assert!(matches!(pulls.arrived(0, 1808), Some((70, _))));
        assert!(pulls.is_idle() && pulls.tokens().is_empty());
    }
}
