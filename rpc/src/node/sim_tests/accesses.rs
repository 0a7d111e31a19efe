//! One-sided accesses on a connection that is lost at any moment: each ends once, and its fate is true.

use gimmal_engine::transport::{AccessError, Exposed, OneSided};

use super::*;
use crate::{
    TransportError,
    cell::{CallCell, Responder},
    memory::{Ended, Handed, RemoteMemory},
};

const COUNT: u64 = 60;
/// That of the test's configuration.
const WINDOW: usize = 8;

/// Where the word of an access is.
const fn at(number: u64) -> u64 {
    number * 8
}

impl Run {
    /// Memory of the server, shown to the client.
    fn show(&mut self) -> (Arc<Exposed>, RemoteMemory) {
        while self.server.app_mut().conns.iter_mut().count() == 0 {
            self.turns();
        }
        let (conn, _) = self.server.app_mut().conns.iter_mut().next().unwrap();
        let exposed = Arc::new(self.server.handle().expose(conn, 4096).unwrap());
        let memory = self.server.with(|_, io| Node::show(io, conn, &exposed)).unwrap();
        (exposed, memory)
    }

    /// Starts to write 1 to the word of `number`.
    fn access(&mut self, memory: RemoteMemory, number: u64) -> Arc<CallCell<Ended>> {
        let (cell, conn) = (Arc::new(CallCell::new()), self.conn.unwrap());
        let responder = Responder::new(&cell);
        match self.client.handle().allocate(conn, size_of::<u64>()) {
            Ok(mut from) => {
                from.copy_from_slice(&1_u64.to_ne_bytes());
                let op = OneSided::Write { at: at(number), from };
                self.client.with(|node, io| node.access(io, conn, Handed { memory, op, responder }));
            }
            Err(error) => responder.complete(Err(TransportError::Memory(error))),
        }
        cell
    }

    /// Turns until every access has ended.
    fn end(&mut self, what: &str, cells: &[Arc<CallCell<Ended>>]) -> Vec<Ended> {
        let mut ended: Vec<Option<Ended>> = cells.iter().map(|_| None).collect();
        for _ in 0..20_000 {
            self.turns();
            for (cell, ended) in cells.iter().zip(&mut ended) {
                if let Poll::Ready(how) = cell.poll(&Context::from_waker(Waker::noop())) {
                    assert!(ended.replace(how).is_none(), "{what}: it ended twice");
                }
            }
            if ended.iter().all(Option::is_some) {
                break;
            }
        }
        ended.into_iter().map(|ended| ended.unwrap_or_else(|| panic!("{what}: it did not end"))).collect()
    }
}

#[test]
fn accesses_end_once_with_true_fates() {
    let mut sums = [0; 3];
    let all = each("accesses_end_once_with_true_fates", seeds(), |what, seed, device| {
        let mut config = world(seed, device);
        config.faults = vec![Fault::at(Step::Bulk(1 + seed % COUNT), FaultKind::Lost)];
        let mut run = Run::new(seed, config);
        let (exposed, memory) = run.show();
        let mut cells = Vec::new();
        for number in 0..COUNT {
            cells.push(run.access(memory, number));
            for _ in 0..run.rng.below(30) {
                run.turns();
            }
        }
        for (number, ended) in (0..COUNT).zip(run.end(what, &cells)) {
            let (index, is_true) = match (ended.map_err(|error| error.fate()), exposed.load(at(number))) {
                (Ok(_), word) => (0, word == Ok(1)),
                (Err(Fate::MaybeRan), _) => (1, true),
                (Err(_), word) => (2, word == Ok(0)),
            };
            assert!(is_true, "{what}: access {number}");
            sums[index] += 1;
        }
        assert!(run.client.app().accesses.is_empty(), "{what}: one is left");
    });
    assert!(!all || sums.iter().all(|sum| *sum > 0), "made, maybe, not: {sums:?}");
}

#[test]
fn a_connection_has_a_window_of_accesses_and_stays_until_they_end() {
    each("a_connection_has_a_window_of_accesses_and_stays_until_they_end", 5, |what, seed, device| {
        let mut run = Run::new(seed, world(seed, device));
        let (_exposed, memory) = run.show();
        let cells: Vec<_> = (0..=WINDOW as u64).map(|number| run.access(memory, number)).collect();
        let (conn, done) = (run.conn.unwrap(), Arc::new(AtomicBool::new(false)));
        run.client.with(|node, io| node.retire(io, conn, None, &done));
        assert!(!done.load(Ordering::Relaxed), "{what}: accesses are in flight");
        let mut ended = run.end(what, &cells);
        let last = ended.pop().unwrap();
        let refused = TransportError::Access { error: AccessError::Full, fate: Fate::NotRun };
        assert_eq!(last.unwrap_err(), refused, "{what}");
        assert!(ended.iter().all(Result::is_ok), "{what}");
        run.client.with(|node, io| node.retire(io, conn, None, &done));
        assert!(done.load(Ordering::Relaxed), "{what}: none is left");
    });
}
