//! `kill -9` on a server in the middle of 100 calls: every call ends in time with its fate, no call that is said not to
//! have run is in the server's journal, nothing is left behind, and a restarted server is reachable.
//!
//! Then a server is killed in the middle of downloads: no reader is told that its stream has come to its end.
//!
//! Then the members of a balanced client are killed one after the other, one over shared memory and one over TCP.
//!
//! Then, over shared memory, `GIMMAL_KILLS` (100) servers are killed at random moments among calls that are answered.
//!
//! Over shared memory and TCP, or over the URL in `GIMMAL_KILL_URL` (`rdma://host:port`).

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::{
    collections::HashSet,
    fs::{self, OpenOptions},
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::Stdio,
    sync::mpsc,
    time::Duration,
};

use gimmal_rpc::{Balanced, CallError, Client, Config, Cx, Fate, Instant, Pick, Server, Sink, engine::Idle};
use gimmal_testkit::{
    ChildGuard,
    child::{descriptors, this_program},
    until,
};

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Journal {
    /// Writes `number` to the journal, then takes its time.
    async fn work(&self, cx: &Cx, number: u32) -> u32;
    /// Writes `number` to the journal, and answers.
    async fn note(&self, cx: &Cx, number: u32) -> u32;
    /// Sends numbers as long as somebody takes them.
    async fn pour(&self, cx: &Cx, numbers: Sink<u64>);
}

struct Journaler(PathBuf);

impl Journal for Journaler {
    async fn work(&self, _: &Cx, number: u32) -> u32 {
        self.write(number);
        if number < ANSWERED { number } else { std::future::pending().await }
    }

    async fn note(&self, _: &Cx, number: u32) -> u32 {
        self.write(number);
        number
    }

    async fn pour(&self, _: &Cx, mut numbers: Sink<u64>) {
        for number in 0.. {
            if numbers.send(&number).await.is_err() {
                return;
            }
        }
    }
}

impl Journaler {
    fn write(&self, number: u32) {
        let mut journal = OpenOptions::new().append(true).create(true).open(&self.0).unwrap();
        // One write, so that a line is whole or not there.
        journal.write_all(format!("{number}\n").as_bytes()).unwrap();
    }
}

/// Calls below this are answered, the others run when the server dies.
const ANSWERED: u32 = 10;
const CALLS: u32 = 100;
const WINDOW: usize = 64;
/// Far from the deadline: the kill ends the calls, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(10);

fn config() -> Config {
    let mut config = Config { window: WINDOW, deadline: Duration::from_secs(60), ..Config::default() };
    config.engine.idle = Idle::Adaptive { spin_us: 20 };
    config
}

/// The server's process.
fn serve(url: &str, journal: &str) {
    let journaler = Journaler(PathBuf::from(journal));
    let server = Server::builder().service(serve_journal(journaler)).config(config()).listen(url).unwrap();
    println!("listening on {}", server.address());
    server.join();
}

fn start(url: &str, journal: &Path) -> (ChildGuard, String) {
    let mut server = this_program().unwrap();
    server.env("GIMMAL_KILL_SERVE", url).env("GIMMAL_KILL_JOURNAL", journal).stdout(Stdio::piped());
    let mut child = ChildGuard::spawn(&mut server).unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let url = line.trim().strip_prefix("listening on ").expect("the server starts").to_owned();
    (child, url)
}

fn journaled(journal: &Path) -> HashSet<u32> {
    fs::read_to_string(journal).unwrap_or_default().lines().map(|line| line.parse().unwrap()).collect()
}

fn kill_in_the_middle(url: &str, folder: &Path) {
    let journal = folder.join("journal");
    let _ = fs::remove_file(&journal);
    let (server, url) = start(url, &journal);
    let client = JournalClient::new(Client::builder().config(config()).connect(&url).unwrap());
    let calls: Vec<_> = (0..CALLS).map(|number| client.work(number)).collect();
    // The answered ones have left the window, so as many more have come in.
    let running = WINDOW + ANSWERED as usize;
    until("the window is full of running calls", || journaled(&journal).len() == running);
    assert_eq!(client.channel().stats().answered, u64::from(ANSWERED));
    let killed = Instant::now();
    drop(server);
    let mut fates = [0; 3];
    let mut not_run = HashSet::new();
    for (number, call) in (0..CALLS).zip(calls) {
        match call.wait() {
            Ok(answer) => assert!(answer == number && number < ANSWERED),
            Err(error) => {
                assert!(error.to_string().contains("the connection ended"), "{error}");
                match error.fate() {
                    Fate::NotRun => drop(not_run.insert(number)),
                    fate => assert_eq!(fate, Fate::MaybeRan),
                }
                fates[usize::from(error.fate() == Fate::MaybeRan)] += 1;
                continue;
            }
        }
        fates[2] += 1;
    }
    let took = killed.elapsed();
    assert!(took < LIMIT, "the last call ended after {took:?}");
    let [not_ran, maybe_ran, answered] = fates;
    println!("not run {not_ran}, may have run {maybe_ran}, answered {answered}, all ended within {took:?}");
    assert_eq!((not_ran, maybe_ran, answered), (26, 64, ANSWERED));
    let ran = journaled(&journal);
    assert!(ran.is_disjoint(&not_run), "ran, and said not to have: {:?}", ran.intersection(&not_run));

    let (server, url) = start(&url, &journal);
    let again = JournalClient::new(Client::builder().config(config()).connect(&url).unwrap());
    assert_eq!(again.work(0).wait().unwrap(), 0);
    drop((server, client, again));
    let _ = fs::remove_file(&journal);
    if let Some(path) = url.strip_prefix("shm://") {
        // The killed server's socket was taken over by its successor, which was killed too.
        let _ = fs::remove_file(path);
    }
}

/// Downloads of a server that is killed in the middle of them.
const DOWNLOADS: usize = 8;

/// Kills a server in the middle of downloads, some of which are read. Each reader gets the items that arrived, in order,
/// then an error however often it asks, and never the end.
fn kill_in_downloads(url: &str, folder: &Path) {
    let (server, url) = start(url, &folder.join("journal"));
    let client = JournalClient::new(Client::builder().config(config()).connect(&url).unwrap());
    let downloads: Vec<_> = (0..DOWNLOADS).map(|_| client.pour()).collect();
    let (reads, in_the_middle) = mpsc::channel();
    let readers: Vec<_> = (0..)
        .zip(downloads)
        .map(|(at, (mut numbers, call))| {
            let reads = reads.clone();
            std::thread::spawn(move || {
                let first = if at % 2 == 0 { 1000 } else { 0 };
                (0..first).for_each(|number| assert_eq!(numbers.blocking_next().unwrap().unwrap(), number));
                reads.send(()).unwrap();
                let result = (at % 4 > 1).then(|| call.wait());
                let mut read = first;
                let error = loop {
                    match numbers.blocking_next().expect("the stream of a killed server looks whole") {
                        Ok(number) => assert_eq!(number, read),
                        Err(error) => break error,
                    }
                    read += 1;
                };
                println!("{read} read, then: {error}");
                assert!(numbers.blocking_next().is_some_and(|item| item.is_err()), "an end after the error");
                result.into_iter().for_each(|result| assert_eq!(result.unwrap_err().fate(), Fate::MaybeRan));
            })
        })
        .collect();
    (0..DOWNLOADS).for_each(|_| in_the_middle.recv_timeout(Duration::from_secs(60)).unwrap());
    // The requests of those that read nothing have left by then, too.
    std::thread::sleep(Duration::from_millis(300));
    drop(server);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    if let Some(path) = url.strip_prefix("shm://") {
        let _ = fs::remove_file(path);
    }
}

/// Calls of a server that is killed at a random moment.
const NOTES: u32 = 400;

/// Kills a server within `after` of the first of many calls. Answered calls ran, `NotRun` ones did not, all have ended.
/// Returns how many were not run, may have run, and were answered.
fn kill_at_random(url: &str, journal: &Path, after: Duration) -> [u64; 3] {
    let _ = fs::remove_file(journal);
    let (server, url) = start(url, journal);
    let client = JournalClient::new(Client::builder().config(config()).connect(&url).unwrap());
    assert_eq!(client.note(NOTES).wait().unwrap(), NOTES);
    let killer = std::thread::spawn(move || {
        std::thread::sleep(after);
        drop(server);
        Instant::now()
    });
    let calls: Vec<_> = (0..NOTES).map(|number| client.note(number)).collect();
    let outcomes: Vec<_> = (0..NOTES).zip(calls.into_iter().map(gimmal_rpc::Call::wait)).collect();
    let ended = Instant::now();
    let took = ended - killer.join().unwrap();
    assert!(took < LIMIT, "the last call ended {took:?} after the kill");
    fates_of(outcomes, &journaled(journal))
}

/// How many were not run, may have run, and were answered, which agrees with what `ran`.
fn fates_of(outcomes: Vec<(u32, Result<u32, CallError>)>, ran: &HashSet<u32>) -> [u64; 3] {
    let mut fates = [0; 3];
    for (number, outcome) in outcomes {
        let fate = match outcome {
            Ok(answer) => {
                assert!(answer == number && ran.contains(&number), "{number} was answered and never ran");
                2
            }
            Err(error) => match error.fate() {
                Fate::NotRun => {
                    assert!(!ran.contains(&number), "{number} ran, and is said not to have");
                    0
                }
                fate => {
                    assert_eq!(fate, Fate::MaybeRan);
                    1
                }
            },
        };
        fates[fate] += 1;
    }
    fates
}

/// Kills one member of a balanced client among its calls, then the other. Calls in flight end with their fates; later ones
/// go to the member that is left, until the killed one is started again.
fn kill_members(folder: &Path) {
    let urls = [format!("shm://{}/member", folder.display()), format!("tcp://127.0.0.1:{}", free_port())];
    let journals = ["shm", "tcp"].map(|name| folder.join(format!("journal-of-{name}")));
    let started = |at: usize| start(&urls[at], &journals[at]).0;
    let mut servers = [0, 1].map(|at| Some(started(at)));
    let builder = Balanced::builder().config(config()).pick(Pick::RoundRobin);
    let balanced = builder.refresh(Duration::from_millis(20)).connect(urls.to_vec()).unwrap();
    until("both are members", || balanced.ready().len() == 2);
    let client = JournalClient::new(balanced.clone());
    let mut numbers = 0..;
    for at in [0, 1] {
        let calls: Vec<_> =
            numbers.by_ref().take(NOTES as usize).map(|number| (number, client.note(number))).collect();
        drop(servers[at].take());
        let killed = Instant::now();
        let outcomes = calls.into_iter().map(|(number, call)| (number, call.wait())).collect();
        assert!(killed.elapsed() < LIMIT, "the last call ended {:?} after the kill", killed.elapsed());
        let ran = journals.each_ref().map(|journal| journaled(journal));
        let fates = fates_of(outcomes, &(&ran[0] | &ran[1]));
        println!("{} killed: not run, may have run, answered: {fates:?}", urls[at]);
        assert!(fates[2] >= u64::from(NOTES) / 2, "calls to the other member failed");
        until("one is left", || balanced.ready() == [urls[1 - at].as_str()]);
        for number in numbers.by_ref().take(20) {
            assert_eq!(client.note(number).wait().unwrap(), number);
            assert!(journaled(&journals[1 - at]).contains(&number));
        }
        servers[at] = Some(started(at));
        until("it is a member again", || balanced.ready().len() == 2);
        let last: HashSet<u32> = numbers.by_ref().take(20).collect();
        last.iter().for_each(|number| assert_eq!(client.note(*number).wait().unwrap(), *number));
        assert_eq!(journaled(&journals[at]).intersection(&last).count(), 10, "calls go to both again");
    }
}

fn kills_at_random(kills: u64, folder: &Path) {
    let journal = folder.join("journal-at-random");
    let url = format!("shm://{}/at-random", folder.display());
    let (mut fates, mut before) = ([0; 3], None);
    for round in 0..kills {
        // Golden-ratio steps: every part of the first 4 ms gets its share.
        let after = Duration::from_nanos(round.wrapping_mul(2_472_135_955) % 4_000_000);
        let these = kill_at_random(&url, &journal, after);
        for (sum, fate) in fates.iter_mut().zip(these) {
            *sum += fate;
        }
        before.get_or_insert_with(|| descriptors().unwrap());
    }
    let [not_ran, maybe_ran, answered] = fates;
    println!("{kills} kills: not run {not_ran}, may have run {maybe_ran}, answered {answered}");
    assert_eq!(not_ran + maybe_ran + answered, kills * u64::from(NOTES));
    assert!(kills < 50 || (maybe_ran > 0 && answered > 0), "no kill came in the middle");
    until("every descriptor is closed", || before.is_none_or(|before| descriptors().unwrap() <= before));
}

/// A port that nobody has, for servers that follow each other on it.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn kill(url: &str, folder: &Path) {
    // What librdmacm opens once for the process is open after the first time.
    kill_in_the_middle(url, folder);
    let before = descriptors().unwrap();
    kill_in_downloads(url, folder);
    kill_in_the_middle(url, folder);
    until("every descriptor is closed", || descriptors().unwrap() <= before);
}

fn main() {
    if let (Ok(url), Ok(journal)) = (std::env::var("GIMMAL_KILL_SERVE"), std::env::var("GIMMAL_KILL_JOURNAL"))
    {
        return serve(&url, &journal);
    }
    // Servers that are killed leave their socket and its lock behind, for the next one to take over.
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let url = std::env::var("GIMMAL_KILL_URL").unwrap_or_else(|_| format!("shm://{}/kill", folder.display()));
    kill(&url, folder);
    if url.starts_with("shm") {
        kill(&format!("tcp://127.0.0.1:{}", free_port()), folder);
        kill_members(folder);
        let kills = std::env::var("GIMMAL_KILLS").map_or(100, |kills| kills.parse().expect("a number"));
        kills_at_random(kills, folder);
    }
    println!("1 passed, 0 failed");
}
