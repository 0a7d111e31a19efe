//! A client that waits for one of its calls, as the inline client does: the answer is read where it landed.

use std::time::Duration;

use super::{Run, is_noted, read};
use crate::local::Wanted;

impl Run {
    /// A turn of the client; often it waits for one of its calls, or for those of its pipeline.
    pub(super) fn client_turn(&mut self) {
        let (conn, way) = (self.conn.filter(|_| !self.open.is_empty()), self.rng.below(4));
        let conn = match (conn, way) {
            (Some(conn), 0 | 1) => conn,
            (Some(conn), 2) => return self.sift(conn),
            _ => {
                self.client.at(self.now).turn();
                return;
            }
        };
        let at = self.rng.index(self.open.len());
        let (number, method, key) = self.open[at];
        let mut body = Vec::new();
        if self.client.at(self.now).seek(
            Duration::ZERO,
            Wanted { conn, key, read: |payload: &[u8]| body.extend_from_slice(payload) },
        ) {
            self.open.swap_remove(at);
            self.sought += 1;
            assert!(!is_noted(number), "an answer without its metadata");
            assert_eq!(read(number, method, &body), number, "another call's answer");
            assert!(self.ended.insert(number, Ok(())).is_none(), "call {number} ended twice");
        }
    }
}
