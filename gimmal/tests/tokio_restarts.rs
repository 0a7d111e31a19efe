//! Servers that are restarted, drained and killed under load, and every kind of client on tokio: no idempotent call fails.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod probe;

use std::{
    cell::Cell,
    io::{BufRead, BufReader},
    process::Stdio,
    rc::Rc,
    sync::{Arc, Mutex},
    time::Duration,
};

use gimmal::{
    Channel, Config, Reconnect, Server,
    balance::{Balanced, BalancedBuilder, Pick},
    layer::{Hedge, Layered, Log},
    tokio::LocalClient,
};
use gimmal_testkit::{ChildGuard, child::this_program, until};
use probe::{ProbeClient, Prober, address, builder, config, local, nap, patient, serve};
use rustix::{
    process::{Resource, Rlimit, getrlimit, setrlimit},
    time::{ClockId, Timespec, clock_gettime},
};
use tokio::task::spawn_local;

/// Calls without a pause while `disturb` runs, which returns the last server. None may fail.
async fn under_load<C: Channel + 'static>(channel: C, disturb: impl AsyncFnOnce(&dyn Fn() -> u64) -> Server) {
    let client = patient(channel);
    let (stop, made) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let (client, stop, made) = (client.clone(), Rc::clone(&stop), Rc::clone(&made));
            spawn_local(async move {
                while !stop.get() {
                    assert_eq!(client.square(12).await.expect("no idempotent call fails"), 144);
                    made.set(made.get() + 1);
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let _server = disturb(&|| made.get()).await;
    stop.set(true);
    for task in tasks {
        task.await.unwrap();
    }
}

async fn more(made: &dyn Fn() -> u64, calls: u64) {
    let before = made();
    while made() < before + calls {
        nap(1).await;
    }
}

/// Drained and replaced, cut off and replaced, and killed.
async fn disturbances<C: Channel + 'static>(name: &str, connect: impl AsyncFnOnce(&str) -> C) {
    let url = address(name);
    let mut server = Child::start(&url);
    let channel = connect(&url).await;
    under_load(channel, async |made| {
        more(made, 200).await;
        // Killed.
        server.process.kill().unwrap();
        drop(server);
        let mut server = serve(&url, &Prober::default());
        more(made, 200).await;
        for patience in [Duration::from_secs(30), Duration::ZERO] {
            let gone = tokio::task::spawn_blocking(move || server.shutdown(patience));
            assert!(gone.await.unwrap() || patience.is_zero());
            server = serve(&url, &Prober::default());
            more(made, 200).await;
        }
        server
    })
    .await;
}

/// A server in another process, which is killed at the end.
struct Child {
    process: ChildGuard,
}

const SERVE: &str = "GIMMAL_TOKIO_CLIENT_SERVE";

impl Child {
    fn start(url: &str) -> Self {
        let mut command = this_program().unwrap();
        let command = command.args(["--exact", "in_the_other_process", "--nocapture"]).env(SERVE, url);
        let mut process = ChildGuard::spawn(command.stdout(Stdio::piped())).unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("listening")), "the server starts");
        Self { process }
    }
}

#[test]
fn in_the_other_process() {
    if let Ok(url) = std::env::var(SERVE) {
        let _server = serve(&url, &Prober::default());
        println!("listening");
        std::thread::sleep(Duration::from_secs(600));
    }
}

#[test]
fn no_idempotent_call_of_a_local_client_fails() {
    local().block_on(disturbances("restart-local", async |url| {
        LocalClient::connect_with(builder(), url).await.unwrap()
    }));
}

#[test]
fn no_idempotent_call_of_a_client_fails() {
    local().block_on(disturbances("restart-client", async |url| builder().connect(url).unwrap()));
}

#[test]
fn no_idempotent_call_of_a_lazy_client_fails() {
    local().block_on(disturbances("restart-lazy", async |url| builder().connect_lazy(url).unwrap()));
}

#[test]
fn no_idempotent_call_of_balanced_clients_fails() {
    local().block_on(disturbances("restart-balanced", async |url| {
        Balanced::builder().config(config()).connect(vec![url.to_owned()]).unwrap()
    }));
}

/// Layers around the client of a runtime: a second attempt beside the first, and a log.
#[test]
fn no_idempotent_call_of_a_hedged_local_client_fails() {
    local().block_on(disturbances("restart-hedged", async |url| {
        let channel = LocalClient::connect_with(builder(), url).await.unwrap();
        Layered::new(Hedge::new(channel, Duration::from_millis(20)), Log)
    }));
}

fn balanced() -> BalancedBuilder {
    Balanced::builder().config(config()).refresh(Duration::from_millis(20))
}

/// Of several servers one after the other is killed, drained and cut off, and comes back.
async fn disturbances_of_some<C: Channel + 'static>(name: &str, connect: impl AsyncFnOnce(Vec<String>) -> C) {
    let urls = [0, 1, 2].map(|number| address(&format!("{name}-{number}")));
    let mut killed = Child::start(&urls[0]);
    let mut servers: Vec<Server> = urls[1..].iter().map(|url| serve(url, &Prober::default())).collect();
    let channel = connect(urls.to_vec()).await;
    under_load(channel, async |made| {
        more(made, 200).await;
        killed.process.kill().unwrap();
        drop(killed);
        more(made, 200).await;
        servers.push(serve(&urls[0], &Prober::default()));
        for (url, patience) in urls[1..].iter().zip([Duration::from_secs(30), Duration::ZERO]) {
            more(made, 200).await;
            let server = servers.remove(0);
            let gone = tokio::task::spawn_blocking(move || server.shutdown(patience));
            assert!(gone.await.unwrap() || patience.is_zero());
            more(made, 200).await;
            servers.push(serve(url, &Prober::default()));
        }
        more(made, 200).await;
        let last = servers.pop().unwrap();
        drop(servers);
        more(made, 200).await;
        last
    })
    .await;
}

#[test]
fn no_idempotent_call_of_balanced_local_clients_fails() {
    local().block_on(disturbances("restart-balanced-local", async |url| {
        LocalClient::balanced(balanced(), vec![url.to_owned()]).await.unwrap()
    }));
    for (name, pick) in [("least", Pick::LeastLoaded), ("turns", Pick::RoundRobin)] {
        local().block_on(disturbances_of_some(name, async |urls| {
            LocalClient::balanced(balanced().pick(pick), urls).await.unwrap()
        }));
    }
}

const SHORT: &str = "GIMMAL_TOKIO_CLIENT_SHORT";
/// Far more than anything else takes: a limit of memory forbids threads and nothing beside them.
const STACK_BYTES: u64 = 256 << 20;

/// Whether the thread of a connect runs, which ends soon and leaves its stack to the next thread.
fn one_ends() -> bool {
    let mut threads = std::fs::read_dir("/proc/self/task").unwrap();
    threads.any(|thread| {
        let name = std::fs::read_to_string(thread.unwrap().path().join("comm"));
        name.is_ok_and(|name| name.trim() == "gimmal-dial")
    })
}

/// Forbids new threads in this process; the returned closure allows them again.
fn forbid_threads() -> impl FnOnce() {
    until("no thread ends", || !one_ends());
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = status.split(' ').next().unwrap().parse().unwrap();
    let old = getrlimit(Resource::As);
    let now = (pages * rustix::param::page_size() as u64) + STACK_BYTES / 2;
    setrlimit(Resource::As, Rlimit { current: Some(now), maximum: old.maximum }).unwrap();
    // Stacks of threads that have ended are kept for the next ones.
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = Arc::new(Mutex::new(held));
    let takes_one = || {
        let held = Arc::clone(&held);
        std::thread::Builder::new().spawn(move || held.lock().unwrap().recv()).is_ok()
    };
    while takes_one() {}
    move || {
        drop(release);
        setrlimit(Resource::As, old).unwrap();
    }
}

/// The last thread is gone when the connection is lost, for longer than a few attempts to connect again take.
#[test]
fn local_clients_without_a_thread_to_connect_with_come_back() {
    if std::env::var(SHORT).is_err() {
        // The limit is the process's.
        let mut command = this_program().unwrap();
        let name = "local_clients_without_a_thread_to_connect_with_come_back";
        let command = command.args(["--exact", name, "--nocapture"]).env(SHORT, "1");
        let output = command.env("RUST_MIN_STACK", STACK_BYTES.to_string()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let erred = String::from_utf8_lossy(&output.stderr);
        return assert!(output.status.success() && said.contains("1 passed"), "{said}\n{erred}");
    }
    let url = address("short");
    let first = Child::start(&url);
    let other = address("short-other");
    let _other = Child::start(&other);
    local().block_on(async {
        // Keeps the thread that shared memory has while there is a connection: the place of one that ends would be a thread's.
        let _connected = LocalClient::connect_with(builder(), &other).await.unwrap();
        let reconnect = Reconnect { max: Duration::from_secs(1), ..Reconnect::default() };
        let slow = builder().config(Config { reconnect: Some(reconnect), ..config() });
        let channel = LocalClient::connect_with(slow, &url).await.unwrap();
        let allow = forbid_threads();
        drop(first);
        while channel.is_ready() {
            nap(1).await;
        }
        let before = clock_gettime(ClockId::ThreadCPUTime);
        nap(2000).await;
        let busy = clock_gettime(ClockId::ThreadCPUTime) - before;
        assert!(busy < Timespec { tv_sec: 0, tv_nsec: 400_000_000 }, "it waits busily: {busy:?} in 2 s");
        let lazy = LocalClient::connect_lazy(builder().reconnect(None), &url).unwrap();
        let error = LocalClient::balanced(balanced(), vec![url.clone()]).await.unwrap_err();
        assert!(error.to_string().contains("no thread to ask the resolver with"), "{error}");
        nap(100).await;
        assert!(!lazy.is_ready() && !channel.is_ready());
        allow();
        let _server = serve(&url, &Prober::default());
        let back = async {
            assert_eq!(patient(channel).square(3).await, Ok(9));
            assert_eq!(patient(lazy).square(3).await, Ok(9));
        };
        tokio::time::timeout(Duration::from_secs(60), back).await.expect("one did not come back");
    });
}

/// Layers around driven clients of several servers.
#[test]
fn no_idempotent_call_of_hedged_balanced_local_clients_fails() {
    local().block_on(disturbances_of_some("restart-hedged-balanced", async |urls| {
        let channel = LocalClient::balanced(balanced(), urls).await.unwrap();
        Layered::new(Hedge::new(channel, Duration::from_millis(20)), Log)
    }));
}

#[test]
fn balanced_local_clients_spread_their_calls_and_end() {
    let urls = [0, 1].map(|number| address(&format!("spread-{number}")));
    let servers = urls.each_ref().map(|url| serve(url, &Prober::default()));
    local().block_on(async {
        let absent = address("spread-absent");
        let known = [&urls[0], &absent, &urls[1]].map(String::clone).to_vec();
        let channel = LocalClient::balanced(balanced(), known).await.unwrap();
        assert_eq!(channel.ready(), urls);
        let client = ProbeClient::new(channel.clone());
        for number in 0..10 {
            assert_eq!(client.square(number).await, Ok(number * number));
        }
        assert_eq!(servers.each_ref().map(|server| server.stats().requests), [5, 5]);
        assert!(channel.ordered("key").is_some_and(|client| client.is_ready()));
        // It comes later.
        let _late = serve(&absent, &Prober::default());
        while channel.ready().len() < 3 {
            nap(1).await;
        }
        // With their last user the connections end.
        drop((client, channel));
        while servers.iter().any(|server| server.duty()[0].connections > 0) {
            nap(1).await;
        }
        let error = LocalClient::balanced(balanced(), vec![address("nobody")]).await.unwrap_err();
        assert!(error.to_string().contains("no server is listening"), "{error}");
    });
}

/// A caller that blocks its thread moves the calls itself, whichever client they are on.
#[test]
fn a_thread_waits_for_calls_of_balanced_local_clients() {
    let urls = [0, 1].map(|number| address(&format!("blocks-{number}")));
    let _servers = urls.each_ref().map(|url| serve(url, &Prober::default()));
    let runtime = local();
    let channel = runtime.block_on(LocalClient::balanced(balanced(), urls.to_vec())).unwrap();
    let hedged = ProbeClient::new(Hedge::new(channel.clone(), Duration::from_millis(5)));
    for number in 0..10 {
        assert_eq!(ProbeClient::new(channel.clone()).square(number).wait(), Ok(number * number));
        assert_eq!(hedged.later(10).wait(), Ok(10));
    }
    drop((channel, hedged));
}
