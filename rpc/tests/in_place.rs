//! Answers that an inline caller reads where they landed: in any order, through a small ring, and whatever the reader does.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc,
    time::Duration,
};

use common::config;
use gimmal_rpc::{Client, Config, Cx, LocalClient, ResponseWriter, Server};
use serde::{Deserialize, Deserializer, Serialize};

/// A number that is not read if it is 13.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, gimmal_rpc::Shape)]
#[shape(crate = gimmal_rpc)]
struct Picky(u64);

impl<'de> Deserialize<'de> for Picky {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u64::deserialize(deserializer)?;
        assert_ne!(number, 13, "not this one");
        Ok(Self(number))
    }
}

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Mirror {
    /// Returns the number.
    #[inline]
    fn same(&self, cx: &Cx, number: u64) -> u64;
    /// Returns the number if it is even.
    #[inline]
    fn even(&self, cx: &Cx, number: u64) -> Result<u64, u64>;
    /// The number, which few may like.
    #[inline]
    fn picky(&self, cx: &Cx, number: u64) -> Picky;
    /// So many letters.
    #[inline]
    fn letters(&self, cx: &Cx, count: usize) -> String;
    /// Returns the bytes.
    #[raw]
    fn raw(&self, cx: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>);
}

#[derive(Debug)]
struct Glass;

impl Mirror for Glass {
    fn same(&self, _: &Cx, number: u64) -> u64 {
        number
    }
    fn even(&self, _: &Cx, number: u64) -> Result<u64, u64> {
        if number.is_multiple_of(2) { Ok(number) } else { Err(number) }
    }
    fn picky(&self, _: &Cx, number: u64) -> Picky {
        Picky(number)
    }
    fn letters(&self, _: &Cx, count: usize) -> String {
        "x".repeat(count)
    }
    fn raw(&self, _: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>) {
        answer.write(request);
    }
}

fn small() -> Config {
    let mut config = config();
    config.engine.port.ring_bytes = 4096;
    config
}

/// Runs `with` beside a server on a thread of its own.
fn beside(name: &str, with: impl FnOnce(&MirrorClient<LocalClient>)) {
    let url = common::address("shm", name);
    let theirs = url.clone();
    let (ready, listening) = mpsc::channel();
    let (done, ended) = mpsc::channel::<()>();
    let server = std::thread::spawn(move || {
        let builder = Server::builder().service(serve_mirror(Glass)).config(small());
        let mut server = builder.listen_local(&theirs).unwrap();
        ready.send(()).unwrap();
        while ended.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
            server.idle(Duration::from_millis(1));
        }
        server.stats()
    });
    listening.recv().unwrap();
    let client = MirrorClient::new(Client::builder().config(small()).connect_local(&url).unwrap());
    with(&client);
    drop((client, done));
    assert_eq!(server.join().unwrap().serving, 0);
}

#[test]
fn answers_are_read_in_any_order_through_a_small_ring() {
    beside("any order", |client| {
        for round in 0..4_000_u64 {
            let calls: Vec<_> = (0..8).map(|number| client.same(round * 8 + number)).collect();
            let text = client.letters(usize::try_from(round % 300).unwrap());
            let odd = client.even(round);
            let mut calls: Vec<_> = (0..8).zip(calls).collect();
            // Forwards, backwards, and from the middle; some are never waited for.
            match round % 4 {
                0 => {}
                1 => calls.reverse(),
                2 => calls.rotate_left(5),
                _ => calls.truncate(3),
            }
            for (number, call) in calls {
                assert_eq!(call.wait(), Ok(round * 8 + number));
            }
            assert_eq!(odd.wait().ok(), round.is_multiple_of(2).then_some(round));
            assert_eq!(text.wait().map(|text| text.len() as u64), Ok(round % 300));
        }
        let stats = client.channel().stats();
        assert_eq!(stats.calls, 40_000);
        assert!(stats.copied_answers < 30_000, "{stats:?}");
    });
}

#[test]
fn a_reader_of_a_copy_may_use_the_client() {
    beside("a reader that calls", |client| {
        for round in 0..200_u64 {
            let (outer, inner) = (client.raw(&[1; 100]), client.raw(&[2; 50]));
            let read = outer.response().wait().bytes().map(|bytes| {
                let other = inner
                    .response()
                    .wait()
                    .bytes()
                    .map(|inner| (inner.len(), client.same(round).wait()))
                    .unwrap();
                (bytes.to_vec(), other)
            });
            assert_eq!(read.unwrap(), (vec![1; 100], (50, Ok(round))));
        }
    });
}

#[test]
fn a_panic_while_an_answer_is_read_costs_that_call_alone() {
    beside("a reader that panics", |client| {
        for round in 0..200_u64 {
            let before = client.same(round);
            let bad = client.picky(13);
            let after = client.picky(round + 14);
            assert!(catch_unwind(AssertUnwindSafe(|| bad.wait())).is_err());
            assert_eq!((before.wait(), after.wait()), (Ok(round), Ok(Picky(round + 14))));
        }
    });
}
