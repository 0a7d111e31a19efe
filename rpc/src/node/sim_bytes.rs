//! Byte streams on simulated worlds: many seeds, every medium, writers, readers, resets, stops and cancels at random.
//!
//! Every reader gets all bytes, once and in order, and then the end that its writer said, unless it stopped the stream or its call was
//! dropped · a writer is stopped by its reader's code alone · nothing is left: no call, handler or part of a window.

use std::{
    cell::Cell,
    collections::HashMap,
    future::poll_fn,
    io::IoSlice,
    sync::{Arc, Mutex},
    task::{Poll, Waker},
    time::Duration,
};

use gimmal_engine::{
    Inline,
    transport::{ConnId, Time},
};
use gimmal_sim::{Sim, each, seeds, world};

use super::{
    Fresh, Node,
    sim_tests::{connect, turns},
    world::{Rng, config, node},
};
use crate::{
    Cx, ReadError, Sink, Stream, StreamError,
    calls::{CallKey, Reply},
    codec::{Encoded, Postcard},
    config::Config,
    stats::{Counters, Stats},
    stream::{ByteSink, ByteStream, Streams, Tie, Woken, lanes},
};

const STREAMS: u32 = 16;
/// Of the windows of a connection, bytes.
const BUDGET: i64 = 64 << 20;

#[gimmal_macros::service(crate = crate)]
trait Pipes {
    async fn pipe(&self, cx: &Cx, number: u32, up: Stream<Vec<u8>>, down: Sink<Vec<u8>>);
}

/// The ends that arrived, and the handlers that wait until theirs are over.
#[derive(Default)]
struct Accepted {
    ends: Vec<(u32, ByteStream, ByteSink)>,
    over: HashMap<u32, Option<Waker>>,
}

#[derive(Clone, Default)]
struct Piped(Arc<Mutex<Accepted>>);

impl Pipes for Piped {
    async fn pipe(&self, _: &Cx, number: u32, up: Stream<Vec<u8>>, down: Sink<Vec<u8>>) {
        self.0.lock().unwrap().ends.push((number, up.into(), down.into()));
        poll_fn(|context| {
            let mut here = self.0.lock().unwrap();
            match here.over.get(&number) {
                Some(None) => return Poll::Ready(()),
                _ => here.over.insert(number, Some(context.waker().clone())),
            };
            Poll::Pending
        })
        .await;
    }
}

impl Piped {
    /// Both ends of the handler's side are over.
    fn over(&self, number: u32) {
        if let Some(Some(waker)) = self.0.lock().unwrap().over.insert(number, None) {
            waker.wake();
        }
    }
}

/// What happens in one direction. Both its ends know it.
#[derive(Clone, Copy, Debug)]
struct Way {
    bytes: usize,
    /// The writer gives the stream up with this code.
    reset: Option<u32>,
    /// The reader wants no more behind so many bytes, and says so with this code, or is dropped.
    leave: Option<(usize, Option<u32>)>,
}

impl Way {
    fn draw(rng: &mut Rng) -> Self {
        let most = [1, 300, 8000, 8000, 60_000][rng.index(5)];
        let bytes = rng.index(most);
        let code = |rng: &mut Rng| (rng.below(3) == 0).then(|| u32::try_from(rng.below(1000)).unwrap());
        let (reset, stop) = (code(rng), code(rng));
        let leave = (rng.below(3) == 0).then(|| (rng.index(bytes + 1), stop));
        Self { bytes, reset, leave }
    }
}

/// Bytes whose place tells what they are.
fn bytes(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect()
}

struct Writer {
    sink: ByteSink,
    way: Way,
    sent: usize,
    is_over: bool,
}

impl Writer {
    fn new(sink: ByteSink, way: Way) -> Self {
        Self { sink, way, sent: 0, is_over: false }
    }

    fn step(&mut self, rng: &mut Rng, is_cancelled: bool) {
        if self.is_over || rng.below(3) > 0 {
            return;
        }
        if self.sent == self.way.bytes {
            self.is_over = true;
            return match self.way.reset {
                Some(code) => self.sink.reset(code),
                None => self.sink.finish(),
            };
        }
        // Some pieces are above what a message holds.
        let most = if rng.below(4) == 0 { 20_000 } else { 3000 };
        let piece = bytes(self.sent, (1 + rng.index(most)).min(self.way.bytes - self.sent));
        let (one, two) = piece.split_at(rng.index(piece.len() + 1));
        match self.sink.try_write(&[IoSlice::new(one), IoSlice::new(two)]) {
            Poll::Ready(Ok(written)) => self.sent += written,
            Poll::Ready(Err(error)) => {
                // The call may end before a writer whose reader was dropped.
                let stop =
                    self.way.leave.map(|(_, stop)| stop.map_or(StreamError::Over, StreamError::Stopped));
                assert!(is_cancelled || Some(&error) == stop.as_ref(), "{error}, {:?}", self.way);
                self.is_over = true;
            }
            Poll::Pending => {}
        }
    }
}

struct Reader {
    stream: Option<ByteStream>,
    way: Way,
    read: usize,
}

impl Reader {
    fn new(stream: ByteStream, way: Way) -> Self {
        Self { stream: Some(stream), way, read: 0 }
    }

    fn step(&mut self, rng: &mut Rng, is_cancelled: bool) {
        let Some(stream) = self.stream.as_mut().filter(|_| rng.below(4) == 0) else { return };
        if let Some((_, stop)) = self.way.leave.filter(|(after, _)| self.read >= *after) {
            if let Some(code) = stop {
                stream.stop(code);
            }
            self.stream = None;
            return;
        }
        let end = match stream.try_fill() {
            Poll::Pending => return,
            Poll::Ready(Ok([])) => None,
            Poll::Ready(Ok(here)) => {
                let taken = if rng.below(2) == 0 { here.len() } else { 1 + rng.index(here.len()) };
                assert_eq!(here[..taken], bytes(self.read, taken), "other bytes behind {}", self.read);
                self.read += taken;
                return stream.consume(taken);
            }
            Poll::Ready(Err(error)) => Some(error),
        };
        if end != Some(ReadError::Over) || !is_cancelled {
            assert_eq!((self.read, &end), (self.way.bytes, &self.way.reset.map(ReadError::Aborted)));
        }
        self.stream = None;
    }
}

/// A stream, from both its sides.
struct Pipe {
    number: u32,
    key: CallKey,
    ways: [Way; 2],
    tie: Option<Tie>,
    writers: Vec<Writer>,
    readers: Vec<Reader>,
    is_cancelled: bool,
    is_answered: bool,
}

impl Pipe {
    fn is_over(&self) -> bool {
        self.is_answered
            && self.writers.iter().all(|writer| writer.is_over)
            && self.readers.iter().all(|reader| reader.stream.is_none())
    }
}

struct Run {
    sim: Sim,
    rng: Rng,
    client: Inline<Sim, Node>,
    server: Inline<Sim, Node>,
    counters: [Arc<Counters>; 2],
    conn: ConnId,
    now: Time,
    pipes: Vec<Pipe>,
    piped: Piped,
}

impl Run {
    fn new(seed: u64, sim: gimmal_sim::SimConfig) -> Self {
        let (sim, streams) = (Sim::new(sim), STREAMS as usize);
        let config = Config {
            window: streams,
            tasks_max: streams,
            stream_window: 4 << 10,
            stream_budget: usize::try_from(BUDGET).unwrap(),
            ..config(streams)
        };
        let piped = Piped::default();
        let (mut server, served) = node(&sim, &config, vec![Arc::new(serve_pipes(piped.clone()))]);
        let (mut client, called) = node(&sim, &config, Vec::new());
        let (mut rng, mut now) = (Rng(seed * 2 + 1), Time(0));
        let conn = connect(&sim, &mut client, &mut server, &mut rng, &mut now);
        Self { sim, rng, client, server, counters: [called, served], conn, now, pipes: Vec::new(), piped }
    }

    fn open(&mut self, number: u32) {
        let ends = lanes(true, true);
        let tie = Some(ends.tie());
        let up = Sink::<Vec<u8>>::new::<Postcard>(ends.tx.clone().unwrap(), Woken);
        let down = Stream::<Vec<u8>>::new::<Postcard>(ends.rx.clone().unwrap(), Woken);
        let (up, down) = (ByteSink::from(up), ByteStream::from(down));
        let arguments = (number,);
        let (conn, method) = (self.conn, &__pipes_methods()[0]);
        let value = Encoded::<Postcard, _>::new(&arguments);
        let started = self.client.with(|node, io| {
            let streams = (None, Some(Streams::Made(Box::new(ends))));
            let timeout = Some(Duration::from_secs(5));
            node.start(io, conn, method, timeout, Fresh::new(&value), streams, Reply::Local)
        });
        let ways = [Way::draw(&mut self.rng), Way::draw(&mut self.rng)];
        self.pipes.push(Pipe {
            number,
            key: started.unwrap_or_else(|error| panic!("{error}")),
            ways,
            tie,
            writers: vec![Writer::new(up, ways[0])],
            readers: vec![Reader::new(down, ways[1])],
            is_cancelled: false,
            is_answered: false,
        });
    }

    fn step(&mut self) {
        turns(&self.sim, &mut self.client, &mut self.server, &mut self.rng, &mut self.now);
        for (number, up, down) in std::mem::take(&mut self.piped.0.lock().unwrap().ends) {
            let Some(pipe) = self.pipes.get_mut(number as usize) else { continue };
            pipe.readers.push(Reader::new(up, pipe.ways[0]));
            pipe.writers.push(Writer::new(down, pipe.ways[1]));
        }
        let Self { client, rng, pipes, conn, piped, .. } = self;
        for pipe in pipes.iter_mut() {
            pipe.writers.iter_mut().for_each(|writer| writer.step(rng, pipe.is_cancelled));
            pipe.readers.iter_mut().for_each(|reader| reader.step(rng, pipe.is_cancelled));
            if let ([_, writer], [_, reader]) = (&pipe.writers[..], &pipe.readers[..])
                && writer.is_over
                && reader.stream.is_none()
            {
                piped.over(pipe.number);
            }
            if !pipe.is_answered
                && let Some(taken) = client.app_mut().take(*conn, pipe.key, &Cell::default())
            {
                assert!(pipe.is_cancelled || taken.is_ok());
                pipe.is_answered = true;
            }
        }
        if rng.below(3000) == 0 && !pipes.is_empty() {
            let at = rng.index(pipes.len());
            let pipe = &mut pipes[at];
            if !pipe.is_answered {
                let (conn, key) = (*conn, pipe.key);
                // Either is how a call is dropped: by its thread's own worker, or by another's.
                if rng.below(2) == 0 {
                    client.with(|node, io| node.cancel(io, conn, key));
                } else {
                    pipe.tie = None;
                }
                (pipe.is_answered, pipe.is_cancelled) = (true, true);
            }
        }
    }

    fn run(&mut self, what: &str) -> usize {
        let mut next = 0;
        for _ in 0..200_000 {
            self.step();
            if next < STREAMS && self.rng.below(20) == 0 {
                self.open(next);
                next += 1;
            }
            if next == STREAMS && self.pipes.iter().all(Pipe::is_over) {
                break;
            }
        }
        let stuck: Vec<u32> =
            self.pipes.iter().filter(|pipe| !pipe.is_over()).map(|pipe| pipe.number).collect();
        assert_eq!(stuck, [0; 0], "{what}: streams that never ended");
        let whole = self.pipes.iter().filter(|pipe| !pipe.is_cancelled).count();
        self.pipes.clear();
        for _ in 0..3000 {
            self.step();
        }
        self.check(what);
        whole
    }

    fn check(&mut self, what: &str) {
        let [called, served] = self.counters.each_ref().map(|counters| {
            let mut stats = Stats::default();
            counters.add_to(&mut stats);
            stats
        });
        assert_eq!(called.calls, called.answered + called.failed + called.cancelled, "{what}: {called:?}");
        assert_eq!((served.serving, served.panics, served.violations), (0, 0, 0), "{what}: {served:?}");
        assert_eq!(self.client.app().calls_live, 0, "{what}");
        assert_eq!(self.server.app().tasks.len(), 0, "{what}");
        for side in [&mut self.client, &mut self.server] {
            for (_, here) in side.app_mut().conns.iter_mut() {
                assert_eq!(here.home.budget.left(), BUDGET, "{what}: a window was not given back");
            }
            let conns: Vec<_> = side.app_mut().conns.iter_mut().map(|(conn, _)| conn).collect();
            let lent =
                side.with(|_, io| conns.iter().map(|conn| io.port_counters(*conn).loan_bytes).sum::<u64>());
            assert_eq!(lent, 0, "{what}: a loan was not given back");
        }
        assert_eq!(self.sim.findings().misuses, [], "{what}");
    }
}

#[test]
fn byte_streams_give_every_byte_and_every_end_once_on_every_medium() {
    let mut whole = 0;
    each("byte_streams_give_every_byte_and_every_end_once_on_every_medium", seeds(), |what, seed, device| {
        whole += Run::new(seed, world(seed, device)).run(what);
    });
    assert!(whole > 0);
}
