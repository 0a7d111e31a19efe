//! Streams on simulated worlds: many seeds, every medium, slow readers, cancels, and the connection lost anywhere.
//!
//! Every reader gets a prefix of what was sent, in order, once · all of it, and the good end, when it was finished and nothing was
//! cancelled or lost · an error otherwise: no handler is told of a good end of an upload that was given up before it was finished, and no
//! caller of one of a download that was not answered · no sender goes beyond its credit (the other side would end the connection) ·
//! nothing is left.

use std::{
    cell::Cell,
    collections::HashSet,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use gimmal_engine::{
    Inline,
    transport::{ConnId, Time},
};
use gimmal_sim::{Fault, FaultKind, Sim, SimConfig, Step, each, seeds, world};

use super::{
    Fresh, Node,
    sim_tests::{connect, turns},
    world::{Rng, config, node},
};
use crate::{
    Cx, ReadError, Sink, Stream,
    calls::{CallKey, Reply},
    codec::{Decode, Encoded, Postcard},
    config::Config,
    response::ResponseStatus,
    stats::{Counters, Stats},
    stream::{Streams, Tie, Woken, lanes},
};

/// A number, and bytes that it says: some numbers have more than a message holds.
type Item = (u32, Vec<u8>);

fn item(number: u32) -> Item {
    let bytes = if number.is_multiple_of(7) { 3000 + number as usize * 50 } else { 0 };
    (number, vec![number.to_le_bytes()[0]; bytes])
}

#[gimmal_macros::service(crate = crate)]
trait Relay {
    /// How many items there were; an error when the caller gave up.
    async fn relay(&self, cx: &Cx, number: u32, items: Stream<Item>, out: Sink<Item>) -> Result<u32, u32>;
}

#[derive(Clone, Default)]
struct Relayer {
    /// The numbers of the uploads that came to their good end.
    committed: Arc<Mutex<HashSet<u32>>>,
    /// Items that are brought may be lost with the connection. Then later ones, and the end, are lost too.
    may_lose: bool,
}

impl Relay for Relayer {
    async fn relay(
        &self,
        _: &Cx,
        number: u32,
        mut items: Stream<Item>,
        mut out: Sink<Item>,
    ) -> Result<u32, u32> {
        let mut count = 0;
        loop {
            match items.next().await {
                Some(Ok(came)) => {
                    assert_eq!(came, item(came.0));
                    count += 1 + u32::from(out.send(&item(number + came.0)).await.is_err()) * 1000;
                }
                Some(Err(error)) => {
                    let given_up = ReadError::Aborted(if number.is_multiple_of(2) { 0 } else { number });
                    assert!(error == given_up || self.may_lose && error == ReadError::Over, "{error}");
                    return Err(count);
                }
                None => {
                    self.committed.lock().unwrap().insert(number);
                    return Ok(count);
                }
            }
        }
    }
}

/// What an upload comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Finish,
    /// The sink is dropped, or reset with a code.
    Drop,
    /// The call is dropped, then the sink is finished.
    DropCall,
}

struct Open {
    number: u32,
    key: CallKey,
    up: Option<Sink<Item>>,
    down: Stream<Item>,
    total: u32,
    sent: u32,
    read: u32,
    end: End,
    /// With the call, as its user has it.
    tie: Option<Tie>,
    answer: Option<Answer>,
    is_cancelled: bool,
    /// What the reader was told last.
    told: Option<Result<(), ReadError>>,
}

/// What a call came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Good(u32),
    /// The method's error.
    GivenUp(u32),
    None,
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
    relayer: Relayer,
}

impl Run {
    fn new(seed: u64, sim: SimConfig) -> Self {
        let relayer = Relayer { may_lose: !sim.faults.is_empty(), ..Relayer::default() };
        let sim = Sim::new(sim);
        // A stream's items do not fit in its window.
        let config = Config { window: 5, stream_window: 4 << 10, ..config(8) };
        let (mut server, served) = node(&sim, &config, vec![Arc::new(serve_relay(relayer.clone()))]);
        let (mut client, called) = node(&sim, &config, Vec::new());
        let (mut rng, mut now) = (Rng(seed * 2 + 1), Time(0));
        let conn = connect(&sim, &mut client, &mut server, &mut rng, &mut now);
        Self { sim, rng, client, server, counters: [called, served], conn, now, open: Vec::new(), relayer }
    }

    fn start(&mut self, number: u32) {
        let ends = lanes(true, true);
        let tie = Some(ends.tie());
        let up = Sink::new::<Postcard>(ends.tx.clone().unwrap(), Woken);
        let down = Stream::new::<Postcard>(ends.rx.clone().unwrap(), Woken);
        let arguments = (number,);
        let value = Encoded::<Postcard, _>::new(&arguments);
        let (conn, method) = (self.conn, &__relay_methods()[0]);
        let started = self.client.with(|node, io| {
            let streams = (None, Some(Streams::Made(Box::new(ends))));
            let timeout = Some(Duration::from_secs(5));
            node.start(io, conn, method, timeout, Fresh::new(&value), streams, Reply::Local)
        });
        let Ok(key) = started else { return };
        let total = u32::try_from(self.rng.below(120)).unwrap();
        let end = [End::Finish, End::Finish, End::Drop, End::DropCall][self.rng.index(4)];
        self.open.push(Open {
            number,
            key,
            up: Some(up),
            down,
            total,
            sent: 0,
            read: 0,
            end,
            tie,
            answer: None,
            is_cancelled: false,
            told: None,
        });
    }

    fn step(&mut self) {
        turns(&self.sim, &mut self.client, &mut self.server, &mut self.rng, &mut self.now);
        let Self { client, rng, open, conn, .. } = self;
        for stream in open.iter_mut() {
            if rng.below(3) == 0
                && let Some(mut up) = stream.up.take()
            {
                if stream.sent < stream.total {
                    if let Ok(true) = up.try_send(&item(stream.sent)) {
                        stream.sent += 1;
                    }
                    stream.up = Some(up);
                } else if stream.end != End::Drop {
                    if stream.end == End::DropCall {
                        (stream.tie, stream.is_cancelled) = (None, true);
                    }
                    up.finish();
                } else if stream.number % 2 == 1 {
                    up.reset(stream.number);
                }
            }
            if rng.below(2 + u64::from(stream.number % 5) * 3) == 0 {
                match stream.down.try_next() {
                    Poll::Ready(Some(Ok(came))) => {
                        assert_eq!(stream.told, None, "an item after the end");
                        assert!(came == item(stream.number + stream.read));
                        stream.read += 1;
                    }
                    Poll::Ready(None) => stream.told = Some(Ok(())),
                    Poll::Ready(Some(Err(error))) => stream.told = Some(Err(error)),
                    Poll::Pending => {}
                }
            }
            if stream.answer.is_none()
                && let Some(taken) = client.app_mut().take(*conn, stream.key, &Cell::default())
            {
                let body = taken.body.bytes();
                stream.answer = Some(match taken.status {
                    ResponseStatus::Ok => Answer::Good(Postcard::decode(body).unwrap()),
                    ResponseStatus::Error => Answer::GivenUp(Postcard::decode(body).unwrap()),
                    ResponseStatus::Failed(_) | ResponseStatus::Begun(_) => Answer::None,
                });
            } else if stream.tie.is_none() && stream.answer.is_none() {
                stream.answer = Some(Answer::None);
            }
        }
        if rng.below(400) == 0 && !open.is_empty() {
            let at = rng.index(open.len());
            let stream = &mut open[at];
            if stream.answer.is_none() {
                let (conn, key) = (*conn, stream.key);
                // Either is how a call is dropped: by its thread's own worker, or by another's.
                if rng.below(2) == 0 {
                    client.with(|node, io| node.cancel(io, conn, key));
                } else {
                    stream.tie = None;
                }
                stream.answer = Some(Answer::None);
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
            if next == 14 && self.open.iter().all(|stream| stream.answer.is_some() && stream.told.is_some()) {
                break;
            }
        }
        let mut whole = 0;
        for stream in self.open.drain(..) {
            let what = format!("{what}: stream {}, {:?}", stream.number, stream.end);
            let told = stream.told.unwrap_or_else(|| panic!("{what} never ended"));
            let is_committed = self.relayer.committed.lock().unwrap().contains(&stream.number);
            match stream.answer {
                // Its last items were still on their way.
                Some(Answer::Good(_)) if faulty && told == Err(ReadError::Over) => {
                    assert!(is_committed, "{what}")
                }
                Some(Answer::Good(count)) => {
                    assert_eq!((stream.end, told, is_committed), (End::Finish, Ok(()), true), "{what}");
                    assert_eq!((count, stream.read), (stream.total, stream.total), "{what}");
                    whole += 1;
                }
                Some(Answer::GivenUp(count)) => {
                    let is_cut = faulty && stream.read < stream.total;
                    assert_eq!(
                        (stream.end, told, is_committed),
                        (End::Drop, Err(ReadError::Over), false),
                        "{what}"
                    );
                    assert!(is_cut || stream.read == stream.total, "{what}");
                    assert_eq!(count, stream.total, "{what}");
                }
                Some(Answer::None) => {
                    assert!(stream.is_cancelled || faulty, "{what}");
                    assert_eq!(told, Err(ReadError::Over), "{what}");
                    assert!(!is_committed || stream.end == End::Finish, "{what}: committed");
                }
                None => panic!("{what} has no answer"),
            }
        }
        for _ in 0..3000 {
            self.step();
        }
        self.check(what);
        whole
    }

    fn check(&mut self, what: &str) {
        for side in [&mut self.client, &mut self.server] {
            let conns: Vec<_> = side.app_mut().conns.iter_mut().map(|(conn, _)| conn).collect();
            let lent =
                side.with(|_, io| conns.iter().map(|conn| io.port_counters(*conn).loan_bytes).sum::<u64>());
            assert_eq!(lent, 0, "{what}: a loan was not given back");
        }
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
