//! A server that goes away at any moment: running calls are answered, later ones are refused and did not run, and
//! the client
//! leaves when its calls have ended.

use gimmal_engine::{
    App as _,
    transport::{CloseReason, ConnId},
};

use super::*;
use crate::{TransportError, command::Command};

/// Hears what a client's line would.
#[derive(Debug, Default)]
struct Watched {
    leaving: AtomicBool,
    ended: AtomicBool,
}

impl super::super::Watcher for Watched {
    fn ended(&self, _: &CloseReason) {
        self.ended.store(true, Ordering::Relaxed);
    }

    fn leaving(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    fn is_moving(&self) -> bool {
        false
    }
}

#[test]
fn a_server_that_drains_answers_what_runs_and_refuses_the_rest() {
    let mut sums = [0; 3];
    let all = each(
        "a_server_that_drains_answers_what_runs_and_refuses_the_rest",
        all_met(),
        |what, seed, device| {
            let mut run = Run::new(seed, world(seed, device));
            let conn = run.conn.unwrap();
            let watched = Arc::new(Watched::default());
            let watcher: Arc<dyn super::super::Watcher> = Arc::clone(&watched) as _;
            run.client.with(|node, _| node.conns.get_mut(conn).unwrap().watcher = Some(watcher));
            let moment = u32::try_from(run.rng.below(150)).unwrap();
            let (mut number, mut drains) = (0, false);
            while number < 150 {
                run.step();
                if run.rng.below(2) == 0 {
                    run.call(number);
                    number += 1;
                }
                if number >= moment && !drains {
                    drains = true;
                    run.server.app().shared.draining.store(true, Ordering::Relaxed);
                    let _ = run.server.with(|node, io| node.drain(io));
                }
            }
            // The rest of the calls end, and nothing is left.
            for _ in 0..40_000 {
                run.step();
                if run.open.is_empty() {
                    break;
                }
            }
            for _ in 0..3000 {
                run.step();
            }
            run.check(what, 150);
            assert!(watched.leaving.load(Ordering::Relaxed), "{what}: the client was not told");
            assert!(
                !watched.ended.load(Ordering::Relaxed),
                "{what}: the connection stands until somebody leaves"
            );
            add(&mut sums, &run);
            let done = Arc::new(AtomicBool::new(false));
            run.client.with(|node, io| node.retire(io, conn, None, &done));
            assert!(done.load(Ordering::Relaxed), "{what}: no call is on it");
            for _ in 0..3000 {
                run.turns();
            }
            assert!(watched.ended.load(Ordering::Relaxed), "{what}: it was not closed");
            assert_eq!(run.server.app_mut().conns.iter_mut().count(), 0, "{what}");
        },
    );
    assert!(!all || (sums[0] > 100 && sums[1] > 100), "{sums:?}");
}

/// The server's end of the connection, which may open after the client's.
fn servers_end(run: &mut Run) -> ConnId {
    let end = (0..1000).find_map(|_| {
        run.step();
        run.server.app_mut().conns.iter_mut().next().map(|(conn, _)| conn)
    });
    end.expect("the server has the connection")
}

#[test]
fn a_client_that_looks_late_is_told_that_its_server_goes() {
    each("a_client_that_looks_late_is_told_that_its_server_goes", 10, |what, seed, device| {
        let mut run = Run::new(seed, world(seed, device));
        let conn = run.conn.unwrap();
        servers_end(&mut run);
        run.server.app().shared.draining.store(true, Ordering::Relaxed);
        let _ = run.server.with(|node, io| node.drain(io));
        let told = (0..40_000).any(|_| {
            run.turns();
            run.client.app_mut().conns.get_mut(conn).unwrap().has_left
        });
        assert!(told, "{what}: the server said nothing");
        let watched = Arc::new(Watched::default());
        let watcher: Arc<dyn super::super::Watcher> = Arc::clone(&watched) as _;
        run.client.with(|node, io| node.command(io, Command::Watch(conn, watcher)));
        assert!(watched.leaving.load(Ordering::Relaxed), "{what}");
        assert!(!watched.ended.load(Ordering::Relaxed), "{what}: it stands");
    });
}

#[test]
fn a_call_after_the_goodbye_says_that_the_peer_closed() {
    each("a_call_after_the_goodbye_says_that_the_peer_closed", 10, |what, seed, device| {
        let mut run = Run::new(seed, world(seed, device));
        let conn = run.conn.unwrap();
        let theirs = servers_end(&mut run);
        run.server.with(|_, io| io.close(theirs));
        let (arguments, mut refused) = ((1u32,), 0);
        let value = &Encoded::<Postcard, _>::new(&arguments);
        while run.client.app_mut().conns.get_mut(conn).is_some() {
            let called = run.client.with(|node, io| {
                io.ending(conn)?;
                let (method, source) = (&__world_methods()[0], Fresh::new(value));
                Some(node.start(io, conn, method, None, source, (None, None), Reply::Local))
            });
            if let Some(called) = called {
                let by_peer = TransportError::Closed { reason: CloseReason::Peer, fate: Fate::NotRun };
                assert_eq!(*called.unwrap_err(), by_peer, "{what}");
                refused += 1;
            }
            run.turns();
        }
        assert!(refused > 0, "{what}: no call between the goodbye and the end");
    });
}

#[test]
fn r98_a_server_that_has_drained_cuts_nothing_off() {
    let mut answered = 0;
    let all = each("r98_a_server_that_has_drained_cuts_nothing_off", all_met(), |what, seed, device| {
        let mut run = Run::new(seed, world(seed, device));
        let (conn, moment) = (run.conn.unwrap(), 5 + run.rng.below(30));
        let theirs = servers_end(&mut run);
        let mut calls = Vec::new();
        for step in 0.. {
            run.step();
            if step < moment {
                let number = u32::try_from(step).unwrap();
                // Within `message_bytes_max`, both ways.
                let is_huge = huge_bytes(number).max(huge_bytes(number + 31)) < 29_000;
                let at = [1, 2, 3, HUGE][run.rng.index(if is_huge { 4 } else { 3 })];
                let arguments = (number, vec![3u8; huge_bytes(number)]);
                let key = run.client.with(|node, io| {
                    let method = &__world_methods()[at];
                    if at == HUGE {
                        let value = &Encoded::<Postcard, _>::new(&arguments);
                        node.start(io, conn, method, None, Fresh::new(value), (None, None), Reply::Local)
                    } else {
                        let arguments = (number,);
                        let value = &Encoded::<Postcard, _>::new(&arguments);
                        node.start(io, conn, method, None, Fresh::new(value), (None, None), Reply::Local)
                    }
                });
                calls.extend(key.map(|key| (number, at, key)));
                continue;
            }
            run.server.app().shared.draining.store(true, Ordering::Relaxed);
            if run.server.with(|node, io| node.drain(io)) {
                break;
            }
            assert!(step < 40_000, "{what}: it never drained");
        }
        run.server.with(|_, io| io.close(theirs));
        while run.client.app_mut().conns.get_mut(conn).is_some() {
            run.turns();
        }
        for (number, at, key) in calls {
            let response = run.client.app_mut().take(conn, key, &Cell::default()).expect("it ended");
            match judge(number, at, response) {
                Ok(()) => answered += 1,
                // It met the goodbye on its way.
                lost => {
                    assert!(!run.handlers.journal.lock().unwrap().contains_key(&number), "{what}: {lost:?}")
                }
            }
        }
    });
    assert!(!all || answered > 100, "{answered}");
}
