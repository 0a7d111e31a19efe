//! The table of the guide: what works in which kind of server, a test for each cell.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod tries;

use std::{cell::Cell, rc::Rc, sync::atomic::Ordering, time::Duration};

use gimmal::{
    CallError, Code, Cx, Fate, Instant, Server,
    runtime::Spawned,
    tokio::{Tokio, serve_until},
};
use tokio::{runtime::Builder, sync::oneshot};
use tries::{
    PATIENCE, SOON, TriedClient, Tries, client, driven, driven_with, runtime, serve_tried, server, spawning,
    spawning_only, subscribe, until,
};

/// Everything that works in every kind of server, by a client of another thread.
fn try_all(client: &TriedClient, other: &str) {
    assert_eq!(client.sleep(5).wait().unwrap(), 5);
    assert_eq!(client.spawn(21).wait().unwrap(), 42);
    assert_eq!(client.block(1).wait().unwrap(), 2);
    assert_eq!(client.socket("hello".to_owned()).wait().unwrap(), "hello");
    assert_eq!(client.fetch("hello".to_owned()).wait().unwrap(), "hellohello");
    let locks: Vec<_> = (0..8).map(|_| client.lock()).collect();
    let mut counts: Vec<u64> = locks.into_iter().map(|lock| lock.wait().unwrap()).collect();
    counts.sort_unstable();
    assert_eq!(counts, (1..=8).collect::<Vec<_>>());
    assert_eq!(client.nested(other.to_owned(), 4).wait().unwrap(), 8);
    assert!(client.spawn_inline().wait().unwrap());
    assert!(client.spawn_raw(b"").wait().unwrap() == b"spawned");
    let busy = client.busy();
    client.calm().wait().unwrap();
    busy.wait().unwrap();
}

/// What a cell of the guide's table says, for calls that do not work in every kind of server.
struct Cells {
    spawn_local: bool,
    block_in_place: bool,
    blocking_delays_others: bool,
}

/// The kinds of servers differ as `cells` say; what does not work is refused with words that name the method and what to do.
fn try_cells(client: &TriedClient, cells: &Cells) {
    let refused = |error: CallError, words: [&str; 2]| {
        assert_eq!((error.status().unwrap().code(), error.fate()), (Code::Internal, Fate::Ran));
        assert!(words.iter().all(|words| error.to_string().contains(words)), "{error}");
    };
    if cells.spawn_local {
        assert_eq!(client.spawn_here(4).wait().unwrap(), 7);
        assert!(client.spawn_here_inline().wait().unwrap());
    } else {
        let remedy = "works under tokio::serve_until in a LocalSet or LocalRuntime only";
        refused(client.spawn_here(4).wait().unwrap_err(), ["Tried.spawn_here", remedy]);
        refused(client.spawn_here_inline().wait().unwrap_err(), ["Tried.spawn_here_inline", remedy]);
    }
    match client.in_place(3).wait() {
        Ok(number) => assert!(cells.block_in_place && number == 7),
        Err(error) => {
            assert!(!cells.block_in_place, "{error}");
            refused(error, ["Tried.in_place", "await spawn_blocking"]);
        }
    }
    let ms = if cells.blocking_delays_others { 50 } else { 30_000 };
    let meet = [client.meet(ms), client.meet(ms)].map(|meet| meet.wait().unwrap());
    assert_eq!(meet, [!cells.blocking_delays_others; 2]);
}

#[test]
fn on_workers_with_the_runtime_entered() {
    let (runtime, tries) = (runtime(), Tries::default());
    let other = server(&runtime, &Tries::default()).listen("mem://tokio-workers-other").unwrap();
    let server = server(&runtime, &tries).listen("mem://tokio-workers").unwrap();
    let client = client("mem://tokio-workers");
    try_all(&client, &other.address().to_string());
    assert_eq!(client.block_on(2).wait().unwrap(), 2);
    assert_eq!(server.stats().panics, 0);
    try_cells(&client, &Cells { spawn_local: false, block_in_place: true, blocking_delays_others: true });
    assert!(server.shutdown(PATIENCE));
}

#[test]
fn a_current_thread_runtime_serves_workers_while_it_is_driven() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let other = server(&runtime, &Tries::default()).listen("mem://tokio-current-other").unwrap();
    let server = server(&runtime, &Tries::default()).listen("mem://tokio-current").unwrap();
    let calls = std::thread::spawn(move || {
        try_all(&client("mem://tokio-current"), &other.address().to_string());
    });
    runtime.block_on(async {
        while !calls.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    calls.join().unwrap();
    assert!(server.shutdown(PATIENCE));
}

#[test]
fn a_runtime_without_timers_or_io_is_told_apart() {
    let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let _server = server(&runtime, &Tries::default()).listen("mem://tokio-bare").unwrap();
    let client = client("mem://tokio-bare");
    assert_eq!(client.spawn(21).wait().unwrap(), 42);
    let error = client.sleep(1).wait().unwrap_err();
    assert!(error.to_string().contains("Tried.sleep panicked: it uses a timer"), "{error}");
    let error = client.socket(String::new()).wait().unwrap_err();
    assert!(error.to_string().contains("Tried.socket panicked: it uses a socket"), "{error}");
}

#[test]
fn a_server_without_a_runtime_says_what_it_needs() {
    let server = gimmal::serve("mem://tokio-none", serve_tried(Tries::default())).unwrap();
    let client = client("mem://tokio-none");
    let other = gimmal::serve("mem://tokio-none-other", serve_tried(Tries::default())).unwrap();
    let refused = [
        ("sleep", client.sleep(1).wait().unwrap_err()),
        ("spawn", client.spawn(1).wait().unwrap_err()),
        ("block", client.block(1).wait().unwrap_err()),
        ("socket", client.socket(String::new()).wait().unwrap_err()),
        ("spawn_inline", client.spawn_inline().wait().unwrap_err()),
        ("spawn_raw", client.spawn_raw(b"").wait().unwrap_err()),
        ("nested", client.nested(other.address().to_string(), 1).wait().unwrap_err()),
    ];
    for (method, error) in refused {
        assert_eq!((error.status().unwrap().code(), error.fate()), (Code::Internal, Fate::Ran));
        let remedy =
            format!("the handler of Tried.{method} panicked: it uses tokio, and its server has no runtime");
        assert!(error.to_string().contains(&remedy), "{error}");
        assert!(error.to_string().contains("give it one with ServerBuilder::runtime"), "{error}");
    }
    assert_eq!(client.lock().wait().unwrap_err().fate(), Fate::Ran);
    assert_eq!(server.stats().panics, 8);
    client.calm().wait().unwrap();
    let thread = client.beside(other.address().to_string()).wait().unwrap();
    assert!(thread.starts_with("gimmal"), "{thread}");
    try_cells(&client, &Cells { spawn_local: false, block_in_place: true, blocking_delays_others: true });
}

#[test]
fn driven_by_a_task_of_a_current_thread_runtime() {
    let other = Tries::default();
    let drained = driven("mem://tokio-driven-other", &other, PATIENCE, |other| {
        let tries = Tries::default();
        let mut ended = None;
        let drained = driven("mem://tokio-driven", &tries, PATIENCE, |url| {
            let client = client(url);
            try_all(&client, other);
            let cells = Cells { spawn_local: true, block_in_place: false, blocking_delays_others: true };
            try_cells(&client, &cells);
            // A runtime does not block on one of its own threads; nothing hangs.
            assert_eq!(client.block_on(2).wait().unwrap_err().fate(), Fate::Ran);
            ended = Some(subscribe(&client, &tries));
        });
        assert!(drained);
        ended.unwrap()();
    });
    assert!(drained);
}

#[test]
fn on_the_calling_thread_with_the_runtime_entered() {
    let (runtime, tries) = (runtime(), Tries::default());
    let other = server(&runtime, &Tries::default()).listen("mem://tokio-local-other").unwrap();
    let mut server = server(&runtime, &tries).listen_local("mem://tokio-local").unwrap();
    let calls = std::thread::spawn(move || {
        let client = client("mem://tokio-local");
        try_all(&client, &other.address().to_string());
        try_cells(&client, &Cells { spawn_local: false, block_in_place: true, blocking_delays_others: true });
        client.hang()
    });
    server.run_until(Duration::from_millis(1), || calls.is_finished());
    let hang = calls.join().unwrap();
    while tries.hanging.load(Ordering::SeqCst) == 0 {
        server.idle(Duration::from_millis(1));
    }
    drop(server);
    assert_ne!(hang.wait().unwrap_err().fate(), Fate::NotRun);
    assert_eq!((tries.hanging.load(Ordering::SeqCst), tries.lost.load(Ordering::SeqCst)), (0, 0));
}

/// Neither it nor its futures are `Send`.
#[gimmal::service(local)]
trait Homely {
    async fn add(&self, cx: &Cx, number: u64) -> u64;
    #[inline]
    fn sum(&self, cx: &Cx) -> u64;
}

#[derive(Default)]
struct Home(Rc<Cell<u64>>);

impl Homely for Home {
    async fn add(&self, _: &Cx, number: u64) -> u64 {
        let sum = Rc::clone(&self.0);
        let task = tokio::task::spawn_local(async move {
            tokio::task::yield_now().await;
            sum.set(sum.get() + number);
            sum.get()
        });
        task.await.unwrap()
    }

    fn sum(&self, _: &Cx) -> u64 {
        self.0.get()
    }
}

#[test]
fn a_local_service_is_served_by_the_thread_that_made_it() {
    let try_it = |url: &str| {
        let client = HomelyClient::new(gimmal::connect(url).unwrap());
        assert_eq!((client.add(3).wait().unwrap(), client.add(4).wait().unwrap()), (3, 7));
        assert_eq!(client.sum().wait().unwrap(), 7);
        drop(client.add(5));
    };
    let serve = || Server::builder().service(serve_homely(Home::default()));
    assert!(driven_with("mem://tokio-homely", serve, PATIENCE, try_it));
    // A layer that spawns leaves it where it is.
    let spawned = || {
        let service = Spawned::new(serve_homely(Home::default()), Tokio::current().unwrap());
        Server::builder().service(service)
    };
    assert!(driven_with("mem://tokio-homely-spawned", spawned, PATIENCE, try_it));
}

#[test]
fn a_local_service_is_refused_by_other_threads() {
    let serve = || Server::builder().service(serve_homely(Home::default()));
    let elsewhere = serve();
    let refused = std::thread::spawn(move || elsewhere.listen_local("mem://homely-elsewhere").unwrap_err());
    for error in [serve().listen("mem://homely-workers").unwrap_err(), refused.join().unwrap()] {
        let words = "Homely is a local service: serve it with listen_local, on the thread that made it";
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn outside_of_a_local_set_spawn_local_is_refused_with_words() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = server(&runtime, &Tries::default()).listen_local("mem://tokio-no-set").unwrap();
    let calls = std::thread::spawn(move || {
        let cells = Cells { spawn_local: false, block_in_place: false, blocking_delays_others: true };
        try_cells(&client("mem://tokio-no-set"), &cells);
        stop.send(()).unwrap();
    });
    assert!(runtime.block_on(serve_until(server, stopped, PATIENCE)).unwrap());
    calls.join().unwrap();
}

#[test]
fn a_spawned_handler_that_blocks_delays_no_other_call() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = gimmal::serve("mem://tokio-spawned-cells", spawning(&runtime, &Tries::default())).unwrap();
    let cells = Cells { spawn_local: false, block_in_place: true, blocking_delays_others: false };
    try_cells(&client("mem://tokio-spawned-cells"), &cells);
    assert!(server.shutdown(PATIENCE));
}

#[test]
fn spawned_for_each_call() {
    let (runtime, tries) = (runtime(), Tries::default());
    let other = gimmal::serve("mem://tokio-spawned-other", spawning(&runtime, &Tries::default())).unwrap();
    let server = gimmal::serve("mem://tokio-spawned", spawning(&runtime, &tries)).unwrap();
    let client = client("mem://tokio-spawned");
    assert_eq!(client.sleep(5).wait().unwrap(), 5);
    assert_eq!(client.nested(other.address().to_string(), 4).wait().unwrap(), 8);
    assert_eq!(client.socket("hello".to_owned()).wait().unwrap(), "hello");
    assert_eq!(client.fetch("hello".to_owned()).wait().unwrap(), "hellohello");
    let thread = client.stall(0).wait().unwrap();
    assert!(thread.starts_with("tokio"), "{thread}");
    assert_eq!(client.spawn(21).wait().unwrap(), 42);
    assert_eq!(client.block(1).wait().unwrap(), 2);
    assert_eq!(client.lock().wait().unwrap(), 1);
    let error = client.panic().wait().unwrap_err();
    assert_eq!((error.status().unwrap().code(), error.fate()), (Code::Internal, Fate::Ran));
    assert_eq!(server.stats().panics, 1);
    // A call that is given up cancels its task, and a handler in it may be dropped anywhere.
    let hang = client.hang();
    until("it hangs", || tries.hanging.load(Ordering::SeqCst) == 1);
    drop(hang);
    until("it is dropped", || tries.hanging.load(Ordering::SeqCst) == 0);
    let ended = subscribe(&client, &tries);
    let began = Instant::now();
    assert!(server.shutdown(PATIENCE));
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    ended();
}

#[test]
fn spawned_for_calls_of_one_method() {
    let runtime = runtime();
    let server = gimmal::serve("mem://tokio-some", spawning_only(&runtime, &["sleep"])).unwrap();
    let client = client("mem://tokio-some");
    assert_eq!(client.sleep(1).wait().unwrap(), 1);
    let thread = client.stall(0).wait().unwrap();
    assert!(thread.starts_with("gimmal"), "{thread}");
    assert!(server.shutdown(PATIENCE));
}
