//! Workers that panic, without a layer above: what is asked of them is refused, and a successor takes their place.

#![allow(clippy::unwrap_used, reason = "a failure of a test is a panic")]

use std::{
    sync::mpsc::{Receiver, Sender, channel},
    time::Duration,
};

use gimmal_engine::{
    App, Config, Idle, Io, Message, Workers,
    transport::{ConnId, Instant, Port, shm::Shm},
};

/// What the application hears, and what its commands do.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Made,
    Taken,
    Refused,
    Panicked(String),
}

#[derive(Debug)]
enum Ask {
    /// Blocks the worker until the other end is dropped, then panics.
    Panic(Receiver<()>),
    Tell(Sender<Heard>),
}

#[derive(Debug)]
struct Teller(Sender<Heard>);

impl App for Teller {
    type Command = Ask;

    fn command<P: Port>(&mut self, _: &mut Io<'_, P>, command: Ask) {
        match command {
            Ask::Panic(until) => {
                let _ = until.recv();
                panic!("as it was asked to");
            }
            Ask::Tell(heard) => heard.send(Heard::Taken).unwrap(),
        }
    }

    fn refused(command: Ask) {
        if let Ask::Tell(heard) = command {
            heard.send(Heard::Refused).unwrap();
        }
    }

    fn panicked(&mut self, words: &str) {
        self.0.send(Heard::Panicked(words.to_owned())).unwrap();
    }

    fn message<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, _: Message<'_>) {}
}

const SOON: Duration = Duration::from_secs(20);

fn workers() -> (Workers<Shm, Teller>, Receiver<Heard>) {
    let plan = Config { idle: Idle::Event, ..Config::default() }.validate().unwrap();
    let (tell, told) = channel();
    let make = move |_| {
        tell.send(Heard::Made).unwrap();
        Teller(tell.clone())
    };
    (Workers::spawn(&Shm, &plan, make).unwrap(), told)
}

#[test]
fn a_worker_that_panics_refuses_what_it_did_not_take() {
    let (workers, told) = workers();
    assert_eq!(told.recv_timeout(SOON), Ok(Heard::Made));
    for round in 1..=3 {
        let handle = workers.stations()[0].handle();
        let ((tell, heard), (go, until)) = (channel(), channel());
        handle.submit(Ask::Panic(until)).unwrap();
        // Behind it in the inbox; then it has panicked, and what is asked now is refused as well.
        handle.submit(Ask::Tell(tell.clone())).unwrap();
        drop(go);
        assert_eq!(heard.recv_timeout(SOON), Ok(Heard::Refused));
        handle.submit(Ask::Tell(tell.clone())).unwrap();
        assert_eq!(heard.recv_timeout(SOON), Ok(Heard::Refused));
        assert!(handle.is_gone());
        assert_eq!(told.recv_timeout(SOON), Ok(Heard::Panicked("as it was asked to".to_owned())));
        assert_eq!(told.recv_timeout(SOON), Ok(Heard::Made));
        let started = Instant::now();
        while workers.stations()[0].handle().is_gone() {
            assert!(started.elapsed() < SOON, "no successor");
            std::thread::yield_now();
        }
        workers.stations()[0].handle().submit(Ask::Tell(tell)).unwrap();
        assert_eq!(heard.recv_timeout(SOON), Ok(Heard::Taken));
        assert_eq!(workers.stations()[0].panics(), round);
    }
    assert_eq!(workers.stations()[0].last_panic().as_deref(), Some("as it was asked to"));
}

/// Between a panic and the successor a stop is heard as well.
#[test]
fn workers_that_panicked_stop_in_time() {
    for _ in 0..20 {
        let (workers, _told) = workers();
        let (go, until) = channel();
        workers.handles()[0].submit(Ask::Panic(until)).unwrap();
        drop(go);
        assert!(workers.shutdown(SOON), "it stopped by itself");
    }
}

/// A handle that outlives its workers refuses commands.
#[test]
fn workers_that_stopped_refuse() {
    let (workers, _told) = workers();
    let handle = workers.handles().remove(0);
    assert!(workers.shutdown(SOON));
    let (tell, heard) = channel();
    handle.submit(Ask::Tell(tell)).unwrap();
    assert_eq!(heard.recv_timeout(SOON), Ok(Heard::Refused));
}
