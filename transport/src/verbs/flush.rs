//! The end of a turn: what is staged leaves, then receives that ended are posted again.

use crate::verbs::port::{Slot, VerbsPort};

impl VerbsPort {
    /// Posts what is staged.
    pub(super) fn flush_dirty(&mut self) {
        let mut at = 0;
        while let Some(&index) = self.dirty.get(at) {
            let Slot { conn, counters, .. } = &mut self.slots[index];
            let mut keep = false;
            if let Some(conn) = conn.as_deref_mut() {
                if let (true, Some(belongings)) = (conn.is_open(), &conn.belongings) {
                    let result = conn.tx.flush(&belongings.qp, conn.id, &mut self.sends, counters);
                    if let Err(errno) = result {
                        conn.fail_post("ibv_post_send", errno, self.now);
                        self.waiting.push(index);
                    }
                    keep = conn.tx.has_staged() && conn.post_failed.is_none();
                }
                conn.is_dirty = keep;
            }
            if keep {
                at += 1;
            } else {
                self.dirty.swap_remove(at);
            }
        }
    }

    /// Posts the receives again that completed: when the answers have left, which need not wait for it.
    #[inline]
    pub(super) fn repost(&mut self) {
        if !self.owing.is_empty() {
            self.repost_owed();
        }
    }

    /// The same when nothing has left, if they are many: a few wait for the frame that is sent next, or for a turn in which
    /// nothing came.
    #[inline]
    pub(super) fn repost_many(&mut self) {
        let owes_many =
            |&index: &usize| self.slots[index].conn.as_deref().is_none_or(|conn| conn.rx.owes_many());
        if self.owing.iter().any(owes_many) {
            self.repost_owed();
        }
    }

    fn repost_owed(&mut self) {
        for index in self.owing.drain(..) {
            let Some(conn) = self.slots[index].conn.as_deref_mut() else { continue };
            conn.is_owing = false;
            let Some(belongings) = &conn.belongings else { continue };
            if let Err(errno) = conn.rx.repost(&belongings.qp, conn.id, &mut self.recvs) {
                conn.fail_post("ibv_post_recv", errno, self.now);
                if !self.waiting.contains(&index) {
                    self.waiting.push(index);
                }
            }
        }
    }
}
