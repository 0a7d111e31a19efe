//! Streams on simulated worlds: many seeds, every medium, slow readers, cancels, and the connection lost anywhere.
//!
//! Every reader gets a prefix of what was sent, in order, once · all of it when nothing was cancelled or lost · no sender
//! goes beyond its credit (the other side would end the connection) · nothing is left.

use std::{sync::Arc, task::Poll, time::Duration};

use gimmal_engine::{
    Inline,
    transport::{
        ConnId, Time,
        sim::{Fault, FaultKind, Sim, SimConfig, Step},
    },
};

use super::{
    Fresh, Node,
    sim_tests::{Rng, config, connect, each, node, seeds, turns, world},
};
use crate::{
    Cx, Sink, Stream,
    calls::{CallKey, Reply},
    cell::Outcome,
    codec::{Decode, Encoded, Postcard},
    config::Config,
    stats::{Counters, Stats},
    stream::{Woken, lanes},
};

#[gimmal_macros::service(crate = crate)]
trait Relay {
    async fn relay(&self, cx: &Cx, number: u32, items: Stream<u32>, out: Sink<u32>) -> u32;
}

struct Relayer;

impl Relay for Relayer {
    async fn relay(&self, _: &Cx, number: u32, mut items: Stream<u32>, mut out: Sink<u32>) -> u32 {
        let mut count = 0;
        while let Some(Ok(item)) = items.next().await {
            count += 1;
            if out.send(&(number + item)).await.is_err() {
                break;
            }
        }
        count
    }
}

struct Open {
    number: u32,
    key: CallKey,
    up: Option<Sink<u32>>,
    down: Stream<u32>,
    total: u32,
    sent: u32,
    read: u32,
    answer: Option<Result<u32, ()>>,
    is_cancelled: bool,
    is_read: bool,
}

struct Run {
    sim: Sim,
    rng: Rng,
    client: Inline<Sim, Node>,
    server: Inline<Sim, Node>,
    counters: [Arc<Counters>; 2],
    conn: ConnId,
    now: Time,
    open: Vec<Open>,
}

impl Run {
    fn new(seed: u64, sim: SimConfig) -> Self {
        let sim = Sim::new(sim);
        let config = Config { window: 5, ..config(8) };
        let (mut server, served) = node(&sim, &config, vec![Arc::new(serve_relay(Relayer))]);
        let (mut client, called) = node(&sim, &config, Vec::new());
        let (mut rng, mut now) = (Rng(seed * 2 + 1), Time(0));
        let conn = connect(&sim, &mut client, &mut server, &mut rng, &mut now);
        Self { sim, rng, client, server, counters: [called, served], conn, now, open: Vec::new() }
    }

    fn start(&mut self, number: u32) {
        let ends = lanes(true, true);
        let up = Sink::new::<Postcard>(ends.tx.clone().unwrap(), Woken);
        let down = Stream::new::<Postcard>(ends.rx.clone().unwrap(), Woken);
        let arguments = (number,);
        let value = Encoded::<Postcard, _>::new(&arguments);
        let (conn, method) = (self.conn, &__RELAY_METHODS[0]);
        let started = self.client.with(|node, io| {
            let streams = (None, Some(Box::new(ends)));
            let timeout = Some(Duration::from_secs(5));
            node.start(io, conn, method, timeout, Fresh::new(&value), streams, Reply::Local)
        });
        let Ok(key) = started else { return };
        let total = u32::try_from(self.rng.below(120)).unwrap();
        self.open.push(Open {
            number,
            key,
            up: Some(up),
            down,
            total,
            sent: 0,
            read: 0,
            answer: None,
            is_cancelled: false,
            is_read: false,
        });
    }

    fn step(&mut self) {
        turns(&self.sim, &mut self.client, &mut self.server, &mut self.rng, &mut self.now);
        let Self { client, rng, open, conn, .. } = self;
        for stream in open.iter_mut() {
            if rng.below(3) == 0
                && let Some(up) = &mut stream.up
            {
                if stream.sent == stream.total {
                    stream.up = None;
                } else if let Ok(true) = up.try_send(&stream.sent) {
                    stream.sent += 1;
                }
            }
            if rng.below(2 + u64::from(stream.number % 5) * 3) == 0 {
                match stream.down.try_next() {
                    Poll::Ready(Some(item)) => {
                        assert_eq!(item.unwrap(), stream.number + stream.read);
                        stream.read += 1;
                    }
                    Poll::Ready(None) => stream.is_read = true,
                    Poll::Pending => {}
                }
            }
            if stream.answer.is_none()
                && let Some(taken) = client.app_mut().take_outcome(*conn, stream.key)
            {
                stream.answer = Some(match taken {
                    Outcome::Answered { body, .. } => Ok(Postcard::decode(&body).unwrap()),
                    _ => Err(()),
                });
            }
        }
        if rng.below(400) == 0 && !open.is_empty() {
            let at = rng.index(open.len());
            let stream = &mut open[at];
            if stream.answer.is_none() {
                let (conn, key) = (*conn, stream.key);
                client.with(|node, io| node.cancel(io, conn, key));
                stream.answer = Some(Err(()));
                stream.is_cancelled = true;
            }
        }
    }

    fn run(&mut self, what: &str, faulty: bool) -> u32 {
        let mut next = 0;
        for _ in 0..60_000 {
            self.step();
            if next < 14 && self.rng.below(40) == 0 {
                self.start(next);
                next += 1;
            }
            if next == 14 && self.open.iter().all(|stream| stream.answer.is_some() && stream.is_read) {
                break;
            }
        }
        let mut whole = 0;
        for stream in self.open.drain(..) {
            assert!(stream.is_read, "{what}: stream {} never ended", stream.number);
            match stream.answer {
                Some(Ok(count)) => {
                    assert_eq!(
                        (count, stream.read),
                        (stream.total, stream.total),
                        "{what}: {}",
                        stream.number
                    );
                    whole += 1;
                }
                Some(Err(())) => assert!(stream.is_cancelled || faulty, "{what}: {}", stream.number),
                None => panic!("{what}: stream {} has no answer", stream.number),
            }
        }
        for _ in 0..3000 {
            self.step();
        }
        self.check(what);
        whole
    }

    fn check(&self, what: &str) {
        let mut served = Stats::default();
        self.counters[1].add_to(&mut served);
        let mut called = Stats::default();
        self.counters[0].add_to(&mut called);
        assert_eq!(called.calls, called.answered + called.failed + called.cancelled, "{what}: {called:?}");
        assert_eq!((served.serving, served.panics), (0, 0), "{what}: {served:?}");
        let (client, server) = (self.client.app(), self.server.app());
        assert_eq!((client.calls_live, server.tasks.len()), (0, 0), "{what}");
        assert_eq!(self.sim.rnr_count(), 0, "{what}: RNR");
        assert_eq!(self.sim.findings().misuses, [], "{what}");
    }
}

#[test]
fn streams_give_every_item_once_on_every_medium() {
    let mut whole = 0;
    each("streams_give_every_item_once_on_every_medium", seeds(), |what, seed, device| {
        whole += Run::new(seed, world(seed, device)).run(what, false);
    });
    assert!(whole > 0);
}

#[test]
fn r25_a_connection_lost_anywhere_ends_every_stream() {
    each("r25_a_connection_lost_anywhere_ends_every_stream", seeds(), |what, seed, device| {
        let mut config = world(seed, device);
        config.faults = vec![Fault::at(Step::Frame(5 + seed % 50 * 8), FaultKind::Lost)];
        let mut run = Run::new(seed, config);
        run.run(what, true);
        assert_eq!(run.sim.findings().injected.len(), 1, "{what}: not injected");
    });
}
