//! tonic's stubs on simulated worlds: many seeds, every medium, calls of every kind, and every way in which one ends.
//!
//! Some calls are dropped at any moment, have deadlines that pass at any moment, give their upload up, or read slowly. Servers refuse what is
//! above their limit, lose connections, go away, or are killed, and the next one comes.
//!
//! Every call ends · none runs twice · one that is said not to have run is in no server's journal, and one that was answered is in it once ·
//! items come in order, once, and the good end only behind all of them · nothing is left: no handler, no body, no call.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use common::{DemoServer, Note, Seen, demo::demo_client::DemoClient, note, numbered};
use gimmal::{CallOptions, Channel, Fate, Loan, UserBytes, error::LoanError, info::Method};
use gimmal_http::{Carrier, End, Spawn};
use gimmal_rpc::{
    channel::{Beside, Ticket as _},
    codec::Compose,
    engine::transport::Time,
    world::{Rng, World, WorldCall},
};
use gimmal_sim::{Fault, FaultKind, Sim, SimConfig, each, seeds, world};
use gimmal_tonic::{Server, fate};
use send_wrapper::SendWrapper;
use tonic::{Code, Request, Status};

const CALLS: u32 = 40;
/// Calls of a world at once.
const TOGETHER: usize = 8;

/// A world, and its client for a channel.
#[derive(Clone, Debug)]
struct Simulated {
    world: World<Sim>,
    sim: Sim,
    now_ns: Rc<Cell<u64>>,
}

impl Simulated {
    fn new(config: SimConfig) -> Self {
        let (seed, sim) = (config.seed, Sim::new(config));
        Self { world: World::new(sim.clone(), seed), sim, now_ns: Rc::default() }
    }

    fn now(&self) -> Time {
        Time(self.now_ns.get())
    }

    /// Time goes on by a microsecond.
    fn turn(&self) {
        self.now_ns.set(self.now_ns.get() + 1000);
        self.sim.advance(self.now());
        self.world.turn(self.now());
    }

    /// Takes turns until `is_over`, at most `limit`; whether it was.
    fn until(&self, limit: u32, mut is_over: impl FnMut() -> bool) -> bool {
        (0..limit).any(|_| {
            self.turn();
            is_over()
        })
    }

    /// Loses the connection.
    fn lose(&self) {
        self.sim.inject(Fault::at_time(self.now(), FaultKind::Lost));
    }

    fn client(&self) -> DemoClient<gimmal_tonic::Channel<Self>> {
        DemoClient::new(gimmal_tonic::Channel::new(gimmal_http::Client::new(self.clone())))
    }

    /// Nothing is left of calls that have ended, and neither side did what it must not.
    fn check(&self, what: &str) {
        self.world.check(what);
        assert_eq!(self.sim.rnr_count(), 0, "{what}: RNR");
        assert_eq!(self.sim.findings().misuses, [], "{what}");
    }
}

impl Channel for Simulated {
    type Ticket = WorldCall<Sim>;

    fn start<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        beside: Beside,
        arguments: &A,
    ) -> WorldCall<Sim> {
        self.world.start(method, options, beside, arguments)
    }

    fn default_timeout(&self) -> Option<Duration> {
        self.world.default_timeout()
    }

    fn drive(&self, idle: Duration) -> bool {
        self.world.drive(idle)
    }

    fn loan(&self, bytes: usize) -> Result<Loan, LoanError> {
        self.world.loan(bytes)
    }

    fn lend(&self, bytes: &UserBytes) -> Result<Loan, LoanError> {
        self.world.lend(bytes)
    }
}

impl Carrier for Simulated {
    fn is_ready(&self) -> bool {
        self.world.is_ready()
    }

    fn message_bytes_max(&self) -> usize {
        self.world.message_bytes_max()
    }

    fn end(ticket: WorldCall<Sim>) -> End {
        let mut ticket = SendWrapper::new(ticket);
        Box::pin(poll_fn(move |context| ticket.poll(context).map(Some)))
    }
}

impl<F: Future<Output = ()> + 'static> Spawn<F> for Simulated {
    fn spawn(&self, task: F) {
        self.world.spawn(task);
    }
}

/// So many turns of the world.
async fn turns(mut count: u64) {
    poll_fn(|context| {
        if count == 0 {
            return Poll::Ready(());
        }
        count -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// What of a call is not as usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Oddity {
    None,
    /// It is dropped after so many turns.
    Cancelled(u64),
    /// Its deadline.
    Deadline(Duration),
    /// Turns before each item is read.
    Slow(u64),
    /// The upload stops behind so many notes, and the call is dropped.
    GivenUp(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Unary,
    /// The handler waits for the test.
    Waits,
    Up,
    Down,
    Both,
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    number: u32,
    kind: Kind,
    oddity: Oddity,
    bytes: usize,
    notes: u32,
}

impl Plan {
    fn draw(rng: &mut Rng, number: u32) -> Self {
        let kind = [Kind::Unary, Kind::Unary, Kind::Waits, Kind::Up, Kind::Down, Kind::Both][rng.index(6)];
        let oddity = match rng.below(8) {
            0 | 1 => Oddity::Cancelled(rng.below(400)),
            2 | 3 => Oddity::Deadline(Duration::from_micros(1 + rng.below(600))),
            4 => Oddity::Slow(rng.below(120)),
            5 => Oddity::GivenUp(u32::try_from(rng.below(4)).unwrap()),
            _ => Oddity::None,
        };
        let bytes = [0, 64, 64, 3000, 20_000, 50_000][rng.index(6)];
        Self { number, kind, oddity, bytes, notes: u32::try_from(rng.below(6)).unwrap() }
    }

    fn note(&self, count: u32) -> Note {
        let text = if self.kind == Kind::Waits { "wait" } else { "" };
        Note { text: text.to_owned(), data: Bytes::from(vec![7; self.bytes]), count }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("x-number", self.number.into());
        if let Oddity::Deadline(deadline) = self.oddity {
            request.set_timeout(deadline);
        }
        request
    }

    /// Notes that go up, one now and then.
    fn upload(self) -> impl tokio_stream::Stream<Item = Note> + Send {
        let (mut at, mut pause) = (0, 0);
        let last = match self.oddity {
            Oddity::GivenUp(notes) => notes,
            _ => self.notes,
        };
        let is_given_up = matches!(self.oddity, Oddity::GivenUp(_));
        Stepwise(move |context: &mut std::task::Context<'_>| {
            if at == last {
                return if is_given_up { Poll::Pending } else { Poll::Ready(None) };
            }
            pause = (pause + 7 * at + 1) % 5;
            if pause == 3 {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            at += 1;
            Poll::Ready(Some(self.note(at - 1)))
        })
    }

    async fn run(self, mut client: DemoClient<gimmal_tonic::Channel<Simulated>>) -> Result<(), Status> {
        match self.kind {
            Kind::Unary | Kind::Waits => {
                let asked = self.note(self.number);
                let answered = client.unary(self.request(asked.clone())).await?.into_inner();
                assert_eq!(answered, asked, "another call's answer");
            }
            Kind::Up => {
                let answered = client.up(self.request(self.upload())).await?.into_inner();
                assert_eq!(answered.count, (0..self.notes).sum::<u32>());
            }
            Kind::Down => {
                let asked = self.note(self.notes);
                let down = client.down(self.request(asked)).await?.into_inner();
                self.read(down).await?;
            }
            Kind::Both => {
                let both = client.both(self.request(self.upload())).await?.into_inner();
                self.read(both).await?;
            }
        }
        Ok(())
    }

    async fn read(self, mut notes: tonic::Streaming<Note>) -> Result<(), Status> {
        for at in 0.. {
            if let Oddity::Slow(pause) = self.oddity {
                turns(pause).await;
            }
            let Some(note) = notes.message().await? else {
                assert_eq!(at, self.notes, "a good end before the last note");
                return Ok(());
            };
            assert_eq!((note.count, note.data.len()), (at, self.bytes), "out of order");
        }
        Ok(())
    }
}

struct Stepwise<F>(F);

impl<T, F: FnMut(&mut std::task::Context<'_>) -> Poll<Option<T>> + Unpin> tokio_stream::Stream
    for Stepwise<F>
{
    type Item = T;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> Poll<Option<T>> {
        (self.0)(context)
    }
}

/// How calls ended, by their numbers. None: dropped.
type Ends = Rc<RefCell<Vec<(Plan, Option<Result<(), Status>>)>>>;

struct Run {
    world: Simulated,
    rng: Rng,
    seen: Seen,
    ends: Ends,
    /// Calls that will be dropped: their tasks, and the turns left.
    doomed: Vec<(u64, u64, Plan)>,
    serving_max: usize,
}

impl Run {
    fn new(world: Simulated, seed: u64) -> Self {
        let rng = Rng(seed * 2 + 7);
        // Some servers take fewer calls than the client has in flight.
        let serving_max = if seed.is_multiple_of(3) { 4 } else { 16 };
        let run = Self {
            world,
            rng,
            seen: Seen::default(),
            ends: Ends::default(),
            doomed: Vec::new(),
            serving_max,
        };
        run.serve();
        run
    }

    fn serve(&self) {
        let service = Server::builder().add_service(DemoServer::new(self.seen.clone())).into_service();
        self.world.world.serve(self.serving_max, vec![Arc::new(service)]);
    }

    fn call(&mut self, number: u32) {
        let plan = Plan::draw(&mut self.rng, number);
        let (client, ends) = (self.world.client(), Rc::clone(&self.ends));
        let task = self.world.world.spawn(async move {
            let end = plan.run(client).await;
            ends.borrow_mut().push((plan, Some(end)));
        });
        let turns = match (plan.oddity, plan.kind) {
            (Oddity::Cancelled(turns), _) => turns,
            (Oddity::GivenUp(notes), Kind::Up | Kind::Both) => 200 + u64::from(notes) * 50,
            _ => return,
        };
        self.doomed.push((task, turns, plan));
    }

    fn turn(&mut self) {
        self.world.turn();
        let (world, ends) = (&self.world.world, &self.ends);
        self.doomed.retain_mut(|(task, turns, plan)| {
            if *turns > 0 {
                *turns -= 1;
                return world.is_running(*task);
            }
            if world.is_running(*task) {
                world.cancel(*task);
                ends.borrow_mut().push((*plan, None));
            }
            false
        });
        if self.rng.below(20) == 0 {
            self.seen.gate.notify_one();
        }
    }

    /// Makes all calls and waits for the end of each. `trouble` is asked every turn, until it says that it is over.
    fn run(&mut self, mut trouble: impl FnMut(&mut Self, u32) -> bool) {
        let (mut next, mut is_over) = (0, false);
        for turn in 0..200_000 {
            self.turn();
            if next < CALLS && self.world.world.running() < TOGETHER && self.rng.below(8) == 0 {
                self.call(next);
                next += 1;
            }
            is_over = is_over || trouble(self, turn);
            if is_over && next == CALLS && self.world.world.running() == 0 {
                break;
            }
        }
        // What was dropped last is on its way still.
        (0..3000).for_each(|_| self.turn());
    }

    fn check(&self, what: &str, sums: &mut Sums) {
        let ends = self.ends.borrow();
        assert_eq!(
            (ends.len(), self.world.world.running()),
            (CALLS as usize, 0),
            "{what}: calls never ended"
        );
        let journal = self.seen.journal.lock().unwrap();
        for (plan, end) in ends.iter() {
            let ran = journal.get(&plan.number).copied().unwrap_or(0);
            let what = format!("{what}: {plan:?} ended with {end:?} and ran {ran} times");
            match end {
                None => assert!(ran <= 1, "{what}"),
                Some(Ok(())) => assert_eq!(ran, 1, "{what}"),
                Some(Err(status)) => match fate(status) {
                    Fate::NotRun => assert_eq!(ran, 0, "{what}"),
                    _ => assert!(ran <= 1, "{what}"),
                },
            }
            sums.add(end);
        }
        let (began, dropped) = (&self.seen.began, &self.seen.dropped);
        assert_eq!(began.load(Ordering::SeqCst), dropped.load(Ordering::SeqCst), "{what}: handlers are left");
        self.world.check(what);
    }
}

/// How calls ended, over all worlds.
#[derive(Debug, Default)]
struct Sums {
    answered: u32,
    dropped: u32,
    late: u32,
    refused: u32,
    unavailable: u32,
    unsure: u32,
}

impl Sums {
    fn add(&mut self, end: &Option<Result<(), Status>>) {
        let sum = match end {
            None => &mut self.dropped,
            Some(Ok(())) => &mut self.answered,
            Some(Err(status)) => match (status.code(), fate(status)) {
                (Code::DeadlineExceeded, _) => &mut self.late,
                (Code::ResourceExhausted, Fate::NotRun) => &mut self.refused,
                (Code::Unavailable, Fate::NotRun) => &mut self.unavailable,
                (Code::Unavailable | Code::Cancelled, _) => &mut self.unsure,
                _ => panic!("{status:?}"),
            },
        };
        *sum += 1;
    }
}

#[test]
fn every_call_ends_as_it_must() {
    let mut sums = Sums::default();
    let all = each("every_call_ends_as_it_must", seeds(), |what, seed, device| {
        let mut run = Run::new(Simulated::new(world(seed, device)), seed);
        run.run(|_, _| true);
        run.check(what, &mut sums);
    });
    println!("{sums:?}");
    let Sums { answered, dropped, late, refused, unavailable, unsure } = sums;
    assert!(!all || seeds() < 8 || ![answered, dropped, late, refused].contains(&0));
    assert_eq!((unavailable, unsure), (0, 0));
}

#[test]
fn a_connection_lost_at_any_moment_ends_every_call_with_its_fate() {
    let mut sums = Sums::default();
    let all = each("a_connection_lost_at_any_moment", seeds(), |what, seed, device| {
        let mut run = Run::new(Simulated::new(world(seed, device)), seed);
        let mut moments: Vec<u32> = (0..4).map(|_| u32::try_from(run.rng.below(1500)).unwrap()).collect();
        run.run(|run, turn| {
            if moments.contains(&turn) && run.world.world.is_ready() {
                run.world.lose();
            }
            moments.retain(|moment| *moment > turn);
            moments.is_empty()
        });
        run.check(what, &mut sums);
    });
    println!("{sums:?}");
    assert!(!all || seeds() < 8 || sums.answered > 0 && sums.unsure > 0, "{sums:?}");
}

#[test]
fn servers_that_go_away_and_come_back_run_no_call_twice() {
    let mut sums = Sums::default();
    let all = each("servers_that_go_away_and_come_back", seeds(), |what, seed, device| {
        let mut run = Run::new(Simulated::new(world(seed, device)), seed);
        let (mut rounds, mut moment, mut is_killed) = (3, 100 + run.rng.below(600), run.rng.below(2) == 0);
        run.run(|run, turn| {
            if u64::from(turn) < moment {
                return false;
            }
            if is_killed || run.world.world.drain() {
                run.world.world.kill();
                run.serve();
                rounds -= 1;
                (moment, is_killed) = (u64::from(turn) + run.rng.below(600), run.rng.below(2) == 0);
            }
            rounds == 0
        });
        run.check(what, &mut sums);
    });
    println!("{sums:?}");
    assert!(!all || seeds() < 8 || sums.answered > 0 && sums.unsure > 0, "{sums:?}");
}

#[test]
fn a_reader_that_does_not_read_stops_its_sender_and_no_other_call() {
    each("a_reader_that_does_not_read", seeds(), |what, seed, device| {
        let run = Run::new(Simulated::new(world(seed, device)), seed);
        let (mut slow, mut quick) = (run.world.client(), run.world.client());
        let (held, answered) = (Rc::new(RefCell::new(None)), Rc::new(RefCell::new(0)));
        let (holds, counts) = (Rc::clone(&held), Rc::clone(&answered));
        run.world.world.spawn(async move {
            let asked = Note { data: Bytes::from(vec![7; 8 << 10]), ..numbered("", u32::MAX) };
            *holds.borrow_mut() = Some(slow.down(asked).await.unwrap());
        });
        assert!(run.world.until(20_000, || held.borrow().is_some()), "{what}: no response");
        let given = || run.seen.given.load(Ordering::SeqCst);
        let mut before = 0;
        let stopped = (0..100).any(|_| {
            (0..500).for_each(|_| run.world.turn());
            std::mem::replace(&mut before, given()) == given()
        });
        assert!(stopped && (1..2000).contains(&before), "{what}: {before} notes ahead of the reader");
        run.world.world.spawn(async move {
            for _ in 0..20 {
                quick.unary(note("echo")).await.unwrap();
                *counts.borrow_mut() += 1;
            }
        });
        assert!(run.world.until(20_000, || *answered.borrow() == 20), "{what}: others are stopped");
        assert_eq!(given(), before, "{what}: the sender goes on");
        drop(held.borrow_mut().take());
        assert!(run.world.until(20_000, || run.seen.dropped.load(Ordering::SeqCst) == 21), "{what}");
    });
}
