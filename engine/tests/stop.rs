//! Workers that are stopped while they are busy.

#![allow(clippy::unwrap_used, reason = "a failure of a test is a panic")]

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::Duration,
};

use gimmal_engine::{
    App, Config, Idle, Io, Message, Workers,
    transport::{ConnId, Port, shm::Shm},
};

const SOON: Duration = Duration::from_secs(60);

/// Blocks its worker when it is asked to. The test, at the other end of `_lives`, hears when it is dropped.
#[derive(Debug)]
struct Blocker {
    _lives: Sender<()>,
}

#[derive(Debug)]
enum Ask {
    /// Says that it blocks, and does so until the other end is dropped.
    Block(Sender<()>, Receiver<()>),
    Tell(Sender<()>),
}

impl App for Blocker {
    type Command = Ask;

    fn command<P: Port>(&mut self, _: &mut Io<'_, P>, command: Ask) {
        match command {
            Ask::Block(blocks, until) => {
                blocks.send(()).unwrap();
                let _ = until.recv();
            }
            Ask::Tell(told) => told.send(()).unwrap(),
        }
    }

    fn message<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, _: Message<'_>) {}
}

/// Drops workers on its own worker.
#[derive(Debug)]
struct Dropper {
    done: Sender<()>,
}

impl App for Dropper {
    type Command = Workers<Shm, Blocker>;

    fn command<P: Port>(&mut self, _: &mut Io<'_, P>, workers: Self::Command) {
        drop(workers);
        self.done.send(()).unwrap();
    }

    fn message<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, _: Message<'_>) {}
}

/// A worker waits for nobody, so it stops others in passing: they hear of it however full their inbox is, and do first what they
/// were asked before.
#[test]
fn workers_that_are_busy_with_a_full_inbox_stop_all_the_same() {
    for (idle, inbox) in [(Idle::Spin, 1), (Idle::default(), 1), (Idle::Event, 1), (Idle::Event, 200)] {
        let plan = Config { idle, inbox, ..Config::default() }.validate().unwrap();
        let (lives, ended) = channel::<()>();
        let busy = Workers::spawn(&Shm, &plan, move |_| Blocker { _lives: lives.clone() }).unwrap();
        let (done, is_done) = channel();
        let other = Workers::spawn(&Shm, &plan, move |_| Dropper { done: done.clone() }).unwrap();
        let handle = busy.handles().remove(0);
        let ((blocks, is_blocked), (go, until)) = (channel(), channel());
        handle.submit(Ask::Block(blocks, until)).unwrap();
        is_blocked.recv_timeout(SOON).unwrap();
        let (tell, told) = channel();
        let asked = (0..).take_while(|_| handle.submit(Ask::Tell(tell.clone())).is_ok()).count();
        assert_eq!(asked, inbox);
        drop(tell);
        other.handles()[0].submit(busy).unwrap();
        is_done.recv_timeout(SOON).unwrap();
        drop(go);
        assert_eq!(ended.recv_timeout(SOON), Err(RecvTimeoutError::Disconnected), "{idle:?}: it goes on");
        assert_eq!(told.iter().count(), asked, "{idle:?}");
        drop(other);
    }
}
