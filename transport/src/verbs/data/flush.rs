//! The end of a turn: what is staged leaves, then receives that ended are posted again.

use crate::verbs::data::{
    conn::Conn,
    port::{Slot, VerbsPort},
};

/// Connections with receives to post, and whether one has so many that its peer could miss them.
#[derive(Debug)]
pub(crate) struct Owing {
    pub(crate) conns: Vec<usize>,
    pub(crate) are_many: bool,
}

impl Owing {
    /// Lists the connection at `index` once, if it has some.
    #[inline]
    pub(crate) fn note(&mut self, index: usize, conn: &mut Conn) {
        if conn.rx.owes() && !std::mem::replace(&mut conn.is_owing, true) {
            self.conns.push(index);
        }
        self.are_many |= conn.rx.owes_many();
    }
}

impl VerbsPort {
    /// Posts what is staged.
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

    /// Posts what is staged on the connection at `index`. Whether nothing is left.
    pub(crate) fn flush_one(&mut self, index: usize) -> bool {
        let Some(Slot { conn: Some(conn), counters, .. }) = self.slots.get_mut(index) else { return true };
        let mut is_done = true;
        if let (true, Some(belongings)) = (conn.is_open(), &conn.belongings) {
            let result = conn.tx.flush(&belongings.qp, &mut self.sends, counters);
            if let Err(errno) = result {
                conn.fail_post("ibv_post_send", errno, self.now);
                self.waiting.push(index);
            }
            is_done = !conn.tx.has_staged() || conn.post_failed.is_some();
        }
        conn.is_dirty = !is_done;
        is_done
    }

    /// Posts all receives again that completed.
    #[inline]
    pub(crate) fn repost(&mut self) {
        if !self.owing.conns.is_empty() {
            self.repost_owed();
        }
    }

    /// Posts receives again once they are many and the answers have left: answers need not wait for it, and a few
    /// receives wait for more.
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
