//! A client with a pipeline: its answers are shown where they landed, or are taken by their tags when they came otherwise.

use gimmal_engine::transport::ConnId;

use super::*;
use crate::{calls::Tagged, node::Common, pipeline::Shown};

/// In the place of a method: the raw one, by the pipeline.
pub(super) const PIPED: usize = 9;
/// Its number.
const PIPELINE: u32 = 7;

/// What the raw method is called with.
pub(super) fn raw_request(number: u32) -> Vec<u8> {
    let mut request = number.to_le_bytes().to_vec();
    request.resize(4 + huge_bytes(number), 5);
    request
}

impl Run {
    /// Starts a call of it.
    pub(super) fn pipe(&mut self, conn: ConnId, number: u32) {
        let request = raw_request(number);
        let reply = Reply::Tagged(Tagged { pipeline: PIPELINE, tag: number.into() });
        let timeout = (self.rng.below(3) > 0).then(|| Duration::from_micros(1 + self.rng.below(2000)));
        let (method, source) = (&__world_methods()[RAW], Fresh::new(&request[..]));
        let started =
            self.client.with(|node, io| node.start(io, conn, method, timeout, source, (None, None), reply));
        match started {
            Ok(key) => self.open.push((number, PIPED, key)),
            Err(error) => drop(self.ended.insert(number, Err(error.fate()))),
        }
    }

    /// Starts several at once.
    pub(super) fn pipe_all(&mut self, numbers: std::ops::Range<u32>) {
        let Some(conn) = self.conn else { return };
        // Often the same, so that they say it once.
        let timeout = (self.rng.below(4) == 0).then(|| Duration::from_micros(1 + self.rng.below(2000)));
        let common =
            Common { conn, method: &__world_methods()[RAW], timeout: timeout.into(), pipeline: PIPELINE };
        let requests: Vec<_> = numbers.map(|number| (u64::from(number), raw_request(number))).collect();
        let (mut refused, mut started) = (None, 0);
        self.client.with(|node, io| {
            let mut calls = requests.iter().map(|(tag, request)| (*tag, &request[..]));
            let ended = node.post_tagged(io, &common, &mut calls, &mut started);
            refused = ended.err().map(|error| error.fate());
        });
        for (at, (tag, _)) in requests.iter().enumerate() {
            let number = u32::try_from(*tag).unwrap();
            if at < started {
                let key = self.client.app_mut().key_tagged(conn, PIPELINE, *tag);
                self.open.push((number, PIPED, key.expect("a call that was started")));
            } else {
                assert_eq!(refused, Some(Fate::NotRun));
                self.ended.insert(number, Err(Fate::NotRun));
            }
        }
    }

    /// A turn that shows its answers.
    pub(super) fn sift(&mut self, conn: ConnId) {
        let mut seen = Vec::new();
        let read = |tag: u64, answer: &[u8]| seen.push((tag, answer.to_vec()));
        self.client.at(self.now).sift(Duration::ZERO, Shown { conn, pipeline: PIPELINE, read });
        self.shown += seen.len();
        for (tag, body) in seen {
            self.end_piped(tag, Response::owned(false, body));
        }
    }

    /// What came in the turns of others, or is no answer.
    pub(super) fn take_piped(&mut self, conn: ConnId) {
        while let Some((tag, response)) = self.client.app_mut().take_tagged(conn, PIPELINE, &mut Vec::new()) {
            self.end_piped(tag, response);
        }
    }

    fn end_piped(&mut self, tag: u64, response: Response) {
        let number = u32::try_from(tag).unwrap();
        let at = self.open.iter().position(|(open, at, _)| (*open, *at) == (number, PIPED));
        self.open.swap_remove(at.expect("a call that is under way"));
        let result = judge(number, RAW, response);
        assert!(self.ended.insert(number, result).is_none(), "call {number} ended twice");
    }
}
