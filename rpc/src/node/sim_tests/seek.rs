//! A client that waits for one of its calls, as the inline client does: the answer is read where it landed.

use gimmal_engine::{
    Io, Message, Pick,
    transport::{ConnId, Port},
};

use super::{CallKey, Node, Run, is_noted, read};

/// Who waits for the answer of one call.
struct Wanted<'a> {
    conn: ConnId,
    key: CallKey,
    body: &'a mut Vec<u8>,
}

impl Pick<Node> for Wanted<'_> {
    fn pick<P: Port>(
        &mut self,
        node: &mut Node,
        io: &mut Io<'_, P>,
        conn: ConnId,
        message: &Message<'_>,
    ) -> bool {
        let Self { key, body, .. } = self;
        conn == self.conn
            && node.read_answer(io, conn, *key, message, |payload| body.extend_from_slice(payload))
    }
}

impl Run {
    /// A turn of the client; as often as not it waits for one of its calls.
    pub(super) fn client_turn(&mut self) {
        let Some(conn) = self.conn.filter(|_| !self.open.is_empty() && self.rng.below(2) == 0) else {
            self.client.turn_at(self.now);
            return;
        };
        let at = self.rng.index(self.open.len());
        let (number, method, key) = self.open[at];
        let mut body = Vec::new();
        if self.client.seek_at(self.now, Wanted { conn, key, body: &mut body }) {
            self.open.swap_remove(at);
            self.sought += 1;
            assert!(!is_noted(number), "an answer without its metadata");
            assert_eq!(read(number, method, &body), number, "another call's answer");
            assert!(self.ended.insert(number, Ok(())).is_none(), "call {number} ended twice");
        }
    }
}
