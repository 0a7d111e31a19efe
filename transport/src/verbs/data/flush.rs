//! The end of a turn: staged chains leave, then completed receives are posted again.

use crate::verbs::data::{
    port::VerbsPort,
    table::{Slot, list_once},
};

impl VerbsPort {
    /// Posts all staged chains.
    #[inline]
    pub(crate) fn flush_dirty(&mut self) {
        let mut at = 0;
        while let Some(&index) = self.dirty.get(at) {
            if self.flush_one(index) {
                self.dirty.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// Posts the staged chains of the connection at `index`. Returns whether none is left.
    pub(crate) fn flush_one(&mut self, index: usize) -> bool {
        let Some(Slot { conn: Some(conn), counters, .. }) = self.slots.get_mut(index) else { return true };
        let mut is_done = true;
        if let (true, Some(lane)) = (conn.is_open(), &conn.lane) {
            if let Err(errno) = conn.tx.flush(&lane.qp, &mut self.sends, counters) {
                conn.fail_post("ibv_post_send", errno, self.now);
                list_once(&mut self.waiting, index);
            }
            is_done = !(conn.tx.has_staged() && conn.is_open());
        }
        conn.is_dirty = !is_done;
        is_done
    }

    /// Posts all completed receives again.
    #[inline]
    pub(crate) fn repost(&mut self) {
        if !self.owing.conns.is_empty() {
            self.repost_owed();
        }
    }

    /// Posts completed receives again if they are many. Called after the answers have left, which do not wait for it.
    #[inline]
    pub(crate) fn repost_many(&mut self) {
        if self.owing.are_many {
            self.repost_owed();
        }
    }

    fn repost_owed(&mut self) {
        self.owing.are_many = false;
        for index in self.owing.conns.drain(..) {
            let Some(conn) = self.slots[index].conn.as_deref_mut() else { continue };
            conn.is_owing = false;
            let Some(lane) = &conn.lane else { continue };
            if let Err(errno) = conn.rx.repost(&lane.qp, conn.id, &mut self.recvs) {
                conn.fail_post("ibv_post_recv", errno, self.now);
                list_once(&mut self.waiting, index);
            }
        }
    }
}
