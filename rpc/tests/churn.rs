//! Calls by the hundred thousand among random cancels, deadlines and servers that go away: each ends exactly once, none
//! runs twice, every fate is true, and nothing is left behind.
//!
//! `GIMMAL_CALLS` says how many calls a test makes, `GIMMAL_SEED` which, `GIMMAL_RESTART_MS` how long a server lives.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    future::poll_fn,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    task::Poll,
    thread,
    time::Duration,
};

use common::{address, config, pattern, sum, until};
use gimmal_rpc::{
    Bulk, CallError, CallOptions, Channel, Client, Config, Cx, Fate, Reconnect, Server, TransportError,
    WithLoan,
};

extern crate gimmal_rpc as gimmal;

#[gimmal_rpc::service(crate = gimmal_rpc, codec = common::Chosen)]
trait Work {
    /// Notes that `number` ran, is pending for `polls` polls (255: for ever), and returns it.
    async fn run(&self, cx: &Cx, number: u64, polls: u8) -> u64;
    /// Lends bulk both ways.
    async fn lend(&self, cx: &Cx, number: u64, bytes: Bulk) -> Result<WithLoan<u64>, String>;
}

/// How often each call ran, and how many handlers are alive.
#[derive(Clone)]
struct Worker {
    runs: Arc<[AtomicU8]>,
    alive: Arc<AtomicU64>,
}

struct Alive(Arc<AtomicU64>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Worker {
    fn begin(&self, number: u64) -> Alive {
        self.runs[usize::try_from(number).unwrap()].fetch_add(1, Ordering::SeqCst);
        self.alive.fetch_add(1, Ordering::SeqCst);
        Alive(Arc::clone(&self.alive))
    }
}

impl Work for Worker {
    async fn run(&self, _: &Cx, number: u64, mut polls: u8) -> u64 {
        let _alive = self.begin(number);
        poll_fn(|context| {
            match polls {
                0 => return Poll::Ready(()),
                u8::MAX => {}
                _ => {
                    polls -= 1;
                    context.waker().wake_by_ref();
                }
            }
            Poll::Pending
        })
        .await;
        number
    }

    async fn lend(&self, cx: &Cx, number: u64, bytes: Bulk) -> Result<WithLoan<u64>, String> {
        let _alive = self.begin(number);
        let mut loan = cx.loan(bytes.len()).map_err(|error| error.to_string())?;
        loan.copy_from_slice(&bytes);
        Ok(WithLoan::new(sum(&bytes), loan))
    }
}

/// A small generator: the same seed makes the same calls.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// What all threads share.
struct Churn {
    worker: Worker,
    next: AtomicU64,
    total: u64,
    url: String,
    ends: Mutex<Ends>,
}

/// How calls ended, as their callers were told.
#[derive(Default, Debug)]
struct Ends {
    answered: u64,
    cancelled: u64,
    not_run: u64,
    maybe_ran: u64,
    ran: u64,
}

impl Ends {
    fn sum(&self) -> u64 {
        self.answered + self.cancelled + self.not_run + self.maybe_ran + self.ran
    }
}

const WINDOW: usize = 24;
/// Of all loans together: enough for those in flight, and far less than what a leak would take.
const BULK_BYTES: usize = 2048;

fn limits() -> Config {
    let reconnect = Reconnect { max: Duration::from_millis(20), ..Reconnect::default() };
    let mut config = Config { reconnect: Some(reconnect), ..config() };
    config.engine.port.bulk_bytes_max = 1 << 20;
    config
}

impl Churn {
    fn number(&self) -> Option<u64> {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        (number < self.total).then_some(number)
    }

    fn runs(&self, number: u64) -> u8 {
        self.worker.runs[usize::try_from(number).unwrap()].load(Ordering::SeqCst)
    }

    /// What a failed call says must be true for ever: that it did not run is checked again at the end.
    fn failed<E: std::fmt::Debug>(&self, number: u64, error: &CallError<E>, not_run: &mut Vec<u64>) -> bool {
        let mut ends = self.ends.lock().unwrap();
        match error.fate() {
            Fate::NotRun => {
                not_run.push(number);
                ends.not_run += 1;
            }
            Fate::MaybeRan => ends.maybe_ran += 1,
            Fate::Ran => {
                assert_eq!(self.runs(number), 1, "it is said to have run: {error:?}");
                ends.ran += 1;
            }
        }
        drop(ends);
        matches!(error, CallError::Transport(TransportError::Closed { .. }))
    }

    fn answered(&self, number: u64) {
        assert_eq!(self.runs(number), 1);
        self.ends.lock().unwrap().answered += 1;
    }

    /// Calls until they are all made; `redial`: with a new client when this one's connection has ended.
    fn call<C: Channel + Clone>(&self, seed: u64, redial: bool, dial: impl Fn() -> Option<C>) -> Vec<u64> {
        let mut random = Random(seed);
        let (mut not_run, mut flying) = (Vec::new(), Vec::new());
        let mut clients = clients(&dial);
        loop {
            let mut is_closed = false;
            let has_room = flying.len() < WINDOW;
            match random.below(16) {
                0 if !flying.is_empty() => {
                    let place = usize::try_from(random.below(flying.len() as u64)).unwrap();
                    drop(flying.swap_remove(place));
                    self.ends.lock().unwrap().cancelled += 1;
                }
                1 => {
                    let Some(number) = self.number() else { break };
                    is_closed = self.lend(&clients[3], number, &mut not_run);
                }
                2..=9 if has_room => {
                    let Some(number) = self.number() else { break };
                    // One that never ends has a deadline.
                    let (client, polls) = match random.below(32) {
                        0 => (random.below(3), u8::MAX),
                        1..=8 => (random.below(4), 0),
                        _ => (3, u8::try_from(random.below(4)).unwrap()),
                    };
                    let client = &clients[usize::try_from(client).unwrap()];
                    flying.push((number, client.run(number, polls)));
                }
                _ if !flying.is_empty() => {
                    let place = usize::try_from(random.below(flying.len() as u64)).unwrap();
                    let (number, call) = flying.swap_remove(place);
                    match call.wait() {
                        Ok(answer) => {
                            assert_eq!(answer, number);
                            self.answered(number);
                        }
                        Err(error) => is_closed = self.failed(number, &error, &mut not_run),
                    }
                }
                _ => {}
            }
            if is_closed {
                thread::sleep(Duration::from_millis(5));
                if redial {
                    clients = self::clients(&dial);
                }
            }
        }
        for (number, call) in flying {
            match call.wait() {
                Ok(_) => self.answered(number),
                Err(error) => {
                    self.failed(number, &error, &mut not_run);
                }
            }
        }
        not_run
    }

    fn lend<C: Channel>(&self, client: &WorkClient<C>, number: u64, not_run: &mut Vec<u64>) -> bool {
        let Ok(mut loan) = client.channel().loan(BULK_BYTES) else {
            // The connection is gone; the call is not made.
            self.ends.lock().unwrap().not_run += 1;
            not_run.push(number);
            return true;
        };
        loan.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(at));
        let expected = sum(&loan);
        match client.lend(number, loan).wait() {
            Ok(back) => {
                assert_eq!((back.value, sum(&back)), (expected, expected));
                self.answered(number);
                false
            }
            Err(error) => self.failed(number, &error, not_run),
        }
    }
}

/// One for each kind of deadline; the last one's is never reached.
fn clients<C: Channel + Clone>(dial: impl Fn() -> Option<C>) -> [WorkClient<C>; 4] {
    loop {
        if let Some(channel) = dial() {
            return [1, 3, 20, 10_000].map(|ms| {
                let options = CallOptions::default().timeout(Duration::from_millis(ms));
                WorkClient::new(channel.clone()).with_options(options)
            });
        }
        thread::sleep(Duration::from_millis(1));
    }
}

for_each_scheme! {
    every_call_ends_once_and_none_runs_twice
}

fn every_call_ends_once_and_none_runs_twice(scheme: &str) {
    let total = from_env("GIMMAL_CALLS", 20_000);
    let seed = from_env("GIMMAL_SEED", 1);
    let life = Duration::from_millis(from_env("GIMMAL_RESTART_MS", 400));
    let runs = (0..total).map(|_| AtomicU8::new(0)).collect();
    let worker = Worker { runs, alive: Arc::default() };
    let listen =
        |url: &str| Server::builder().service(serve_work(worker.clone())).config(limits()).listen(url);
    let first = listen(&address(scheme, "churn")).unwrap();
    let url = first.address().to_string();
    let mut server = Some(first);
    let churn = Churn { worker: worker.clone(), next: AtomicU64::new(0), total, url, ends: Mutex::default() };
    let mut restarts = 0;
    thread::scope(|scope| {
        let handed = |seed| {
            let churn = &churn;
            scope.spawn(move || {
                churn.call(seed, false, || Client::builder().config(limits()).connect(&churn.url).ok())
            })
        };
        let inline = |seed| {
            let churn = &churn;
            scope.spawn(move || {
                churn.call(seed, true, || Client::builder().config(limits()).connect_local(&churn.url).ok())
            })
        };
        let callers = [handed(3 * seed), handed(3 * seed + 1), inline(3 * seed + 2)];
        until("calls go through", || churn.next.load(Ordering::SeqCst) > 500);
        while churn.next.load(Ordering::SeqCst) < total {
            thread::sleep(life);
            let stopped = server.take().unwrap();
            let _ = stopped.shutdown(Duration::ZERO); // calls are in flight: that is the point
            server = Some(listen(&churn.url).unwrap());
            restarts += 1;
        }
        for caller in callers {
            for number in caller.join().unwrap() {
                assert_eq!(churn.runs(number), 0, "call {number} ran, and was said not to have");
            }
        }
    });
    assert!(worker.runs.iter().all(|runs| runs.load(Ordering::SeqCst) <= 1), "a call ran twice");
    let ends = churn.ends.into_inner().unwrap();
    println!("{scheme}: {total} calls, {restarts} restarts, seed {seed}: {ends:?}");
    assert_eq!(ends.sum(), total);
    let server = server.unwrap();
    until("no handler is left, and none is counted", || {
        worker.alive.load(Ordering::SeqCst) == 0 && server.stats().serving == 0
    });
}
