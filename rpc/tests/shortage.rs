//! Descriptors, threads and listeners that are short for a while or break: what passes is waited out, what does not is told.
//!
//! Limits are the process's, so these tests run in processes of their own: this binary again, with one test that is ignored
//! otherwise.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use common::{Fixture, ProbeClient, Prober, address, config, serve_probe, until};
use gimmal_rpc::{
    Balanced, CallOptions, Client, Config, ConnectError, Reconnect, Resolver, Server,
    engine::{
        OpenError,
        transport::{self, Instant, RejectReason},
    },
    reflect::{Health, ReflectionClient},
};
use gimmal_testkit::{ChildGuard, child::this_program, skip};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Resource, Rlimit, getrlimit, prlimit, setrlimit};

for_each_scheme! {
    a_panic_of_admit_refuses_that_client_alone
    a_resolver_that_panics_is_asked_again
}

const ROLE: &str = "GIMMAL_SHORTAGE";
const STACK_BYTES: u64 = 256 << 20;

/// This binary, to run `test` with `role` for it to read.
fn this_binary(test: &str, role: &str) -> Command {
    let mut command = this_program().unwrap();
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    // Far more than anything else takes: a limit of memory forbids threads and nothing beside them.
    command.env("RUST_MIN_STACK", STACK_BYTES.to_string());
    command
}

fn role() -> Option<String> {
    let role = std::env::var(ROLE).ok();
    if role.is_none() {
        println!("SKIP: this test is the other process of another one");
    }
    role
}

/// Runs `test` in a process of its own to its end.
fn alone(test: &str, role: &str) {
    let output = this_binary(test, role).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let erred = String::from_utf8_lossy(&output.stderr);
    // A name that no test has would also be a success.
    assert!(output.status.success() && said.contains("1 passed"), "{said}\n{erred}");
}

/// A server in a process of its own.
struct Process(ChildGuard);

impl Process {
    /// A server at `url` with at most `descriptors`, when it listens.
    fn serve(url: &str, descriptors: u64) -> Self {
        let mut child = this_binary("child_server", &format!("{url} {descriptors}"));
        let child = child.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = Self(ChildGuard::spawn(child).unwrap());
        let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("it listens")), "the server did not start");
        child
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id().try_into().unwrap()).unwrap()
    }
}

fn descriptors(most: u64) -> Rlimit {
    Rlimit { current: Some(most), maximum: getrlimit(Resource::Nofile).maximum }
}

#[test]
#[ignore = "the other process of another test"]
fn child_server() {
    let Some(role) = role() else { return };
    let (url, most) = role.split_once(' ').unwrap();
    setrlimit(Resource::Nofile, descriptors(most.parse().unwrap())).unwrap();
    let builder = Server::builder().service(serve_probe(Prober::default())).config(config());
    let server = builder.listen(url).unwrap();
    println!("it listens");
    server.join();
}

fn eager() -> Config {
    let reconnect = Reconnect { max: Duration::from_millis(100), ..Reconnect::default() };
    Config { reconnect: Some(reconnect), ..config() }
}

fn patient(client: Client) -> ProbeClient {
    let options = CallOptions::default().timeout(Duration::from_secs(30)).wait_for_ready();
    ProbeClient::new(client).with_options(options)
}

const CLIENTS: usize = 60;

/// `ulimit -n 40` and 60 clients: those that fit are served, the others are refused by name, or wait after they lost their
/// connection for that reason. When there is room, all get in, with no restart of anything.
#[test]
fn sixty_clients_of_forty_descriptors_all_get_in_once_there_is_room() {
    let url = address("shm", "forty");
    let server = Process::serve(&url, 40);
    let connect = || Client::builder().config(eager()).connect(&url);
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        match connect() {
            Ok(client) => clients.push(client),
            Err(ConnectError::Open(OpenError::Connect(transport::ConnectError::Rejected {
                reason, ..
            }))) => assert_eq!(reason, RejectReason::Overloaded),
            Err(error) => panic!("{error}"),
        }
    }
    let served = clients.iter().filter(|client| {
        client.is_ready() && ProbeClient::new((*client).clone()).echo("a".into()).wait().is_ok()
    });
    let served = served.count();
    assert!((15..40).contains(&served), "{served} of {} are served", clients.len());
    // Long enough for a server that gave up to have given up.
    std::thread::sleep(Duration::from_millis(500));
    prlimit(Some(server.pid()), Resource::Nofile, descriptors(1024)).unwrap();
    while clients.len() < CLIENTS {
        clients.push(connect().unwrap());
    }
    for client in clients {
        assert_eq!(patient(client).echo("b".into()).wait().unwrap(), "b");
    }
}

/// Mappings of a process.
fn mappings(pid: u32) -> usize {
    std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap().lines().count()
}

/// Sets what is the whole machine's, and sets it back when it is dropped.
struct MaxMapCount(String);

impl MaxMapCount {
    const PATH: &str = "/proc/sys/vm/max_map_count";

    fn set(value: usize) -> Self {
        let old = std::fs::read_to_string(Self::PATH).unwrap();
        std::fs::write(Self::PATH, value.to_string()).unwrap();
        Self(old)
    }
}

impl Drop for MaxMapCount {
    fn drop(&mut self) {
        let _ = std::fs::write(Self::PATH, &self.0);
    }
}

#[test]
#[ignore = "needs the lab"] // It sets vm.max_map_count.
fn guest_sixty_clients_beyond_max_map_count_all_get_in_once_there_is_room() {
    if std::env::var_os("GIMMAL_RXE_ADDR").is_none() {
        return println!("SKIP: no guest");
    }
    let url = address("shm", "mappings");
    let server = Process::serve(&url, 1024);
    let mut clients = vec![Client::connect(&url).unwrap()];
    let now = mappings(std::process::id()).max(mappings(server.0.id()));
    let set = MaxMapCount::set(now + 100);
    let mut refused = 0;
    for _ in 1..CLIENTS {
        match Client::connect(&url) {
            Ok(client) => clients.push(client),
            Err(error) => {
                let said = error.to_string();
                assert!(
                    said.contains("vm.max_map_count is") || said.contains("the server is overloaded"),
                    "{said}"
                );
                refused += 1;
            }
        }
    }
    assert!(refused > 0 && clients.len() > 10, "{refused} of {CLIENTS} refused");
    let served = clients.iter().filter(|client| {
        client.is_ready() && ProbeClient::new((*client).clone()).echo("a".into()).wait().is_ok()
    });
    assert!(served.count() > 10);
    drop(set);
    while clients.len() < CLIENTS {
        clients.push(Client::connect(&url).unwrap());
    }
    for client in clients {
        assert_eq!(patient(client).echo("b".into()).wait().unwrap(), "b");
    }
}

/// Puts this process, and the children that it starts later, into the group of a container.
fn join_group(group: &Path) {
    std::fs::write(group.join("cgroup.procs"), std::process::id().to_string()).unwrap();
}

/// Allows the processes of `group` as many threads as they have and `more`.
fn allow_threads(group: &Path, more: usize) {
    let count: usize = std::fs::read_to_string(group.join("pids.current")).unwrap().trim().parse().unwrap();
    std::fs::write(group.join("pids.max"), (count + more).to_string()).unwrap();
}

fn allow_all_threads(group: &Path) {
    std::fs::write(group.join("pids.max"), "max").unwrap();
}

/// Forbids new threads; the returned closure allows them again.
fn forbid_threads(how: &str) -> Box<dyn FnOnce()> {
    if let Some(group) = how.strip_prefix("pids ") {
        let group = PathBuf::from(group);
        join_group(&group);
        allow_threads(&group, 0);
        return Box::new(move || allow_all_threads(&group));
    }
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = status.split(' ').next().unwrap().parse().unwrap();
    let old = getrlimit(Resource::As);
    let now = (pages * rustix::param::page_size() as u64) + STACK_BYTES / 2;
    setrlimit(Resource::As, Rlimit { current: Some(now), maximum: old.maximum }).unwrap();
    Box::new(move || setrlimit(Resource::As, old).unwrap())
}

#[test]
#[ignore = "the other process of another test"]
fn child_reconnects() {
    let Some(how) = role() else { return };
    let url = address("shm", "threads");
    let server = Process::serve(&url, 1024);
    let client = Client::builder().config(eager()).connect(&url).unwrap();
    assert_eq!(patient(client.clone()).echo("a".into()).wait().unwrap(), "a");
    let allow = forbid_threads(&how);
    assert!(std::thread::Builder::new().spawn(|| {}).is_err(), "a thread could start");
    drop(server);
    until("it is down", || !client.is_ready());
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(client.reconnects(), 0);
    allow();
    let _server = Process::serve(&url, 1024);
    assert_eq!(patient(client.clone()).echo("b".into()).wait().unwrap(), "b");
    assert_eq!(client.reconnects(), 1);
}

#[test]
fn a_client_without_a_thread_to_reconnect_with_comes_back() {
    alone("child_reconnects", "memory");
}

/// Runs `test` in a process of its own with a group of a container to limit threads by.
fn alone_in_a_group(test: &str) {
    let name = format!("gimmal-{}-{test}", std::process::id());
    let group = Path::new("/sys/fs/cgroup/pids").join(&name);
    let group =
        if group.parent().is_some_and(Path::is_dir) { group } else { Path::new("/sys/fs/cgroup").join(name) };
    if let Err(error) = std::fs::create_dir(&group) {
        return skip(&format!("no cgroup can be made: {error}"));
    }
    if group.join("pids.max").exists() {
        alone(test, &format!("pids {}", group.display()));
    } else {
        skip("the cgroup has no pids controller");
    }
    std::fs::remove_dir(&group).unwrap();
}

/// A client reaches the thread limit of its container.
#[test]
fn a_client_at_pids_max_comes_back() {
    alone_in_a_group("child_reconnects");
}

#[test]
#[ignore = "the other process of another test"]
fn child_sixty_clients() {
    let Some(role) = role() else { return };
    let group = PathBuf::from(role.strip_prefix("pids ").unwrap());
    join_group(&group);
    let url = address("shm", "pids");
    let server = Process::serve(&url, 1024);
    let connect = || Client::builder().config(eager()).connect(&url);
    let mut clients = vec![connect().unwrap()];
    allow_threads(&group, CLIENTS / 2);
    for _ in 1..CLIENTS {
        match connect() {
            Ok(client) => clients.push(client),
            Err(error) => {
                assert!(matches!(error, ConnectError::Open(_) | ConnectError::Start(_)), "{error:?}");
                assert!(error.to_string().contains("starting a thread failed"), "{error}");
            }
        }
    }
    assert!((15..CLIENTS - 15).contains(&clients.len()), "{} of {CLIENTS} are connected", clients.len());
    for client in &clients {
        assert_eq!(patient(client.clone()).echo("a".into()).wait().unwrap(), "a");
    }
    allow_all_threads(&group);
    while clients.len() < CLIENTS {
        clients.push(connect().unwrap());
    }
    for client in &clients {
        assert_eq!(patient(client.clone()).echo("b".into()).wait().unwrap(), "b");
        assert_eq!(client.reconnects(), 0);
    }
    drop(server);
}

/// 60 clients and their server in a container with room for 30 threads more: those that fit are served, the others are
/// refused by name. When there is room, all get in.
#[test]
fn sixty_clients_at_pids_max_all_get_in_once_there_is_room() {
    alone_in_a_group("child_sixty_clients");
}

/// Takes the last thread away while it is asked.
struct Takes(String);

impl Resolver for Takes {
    fn resolve(&self) -> Result<Vec<String>, String> {
        // Never allowed again: the process ends.
        let _ = forbid_threads("memory");
        Ok(vec![self.0.clone()])
    }
}

#[test]
#[ignore = "the other process of another test"]
fn child_balanced() {
    let Some(_) = role() else { return };
    let url = address("shm", "balanced");
    let _server = Process::serve(&url, 1024);
    let error = Balanced::builder().config(eager()).connect(Takes(url)).unwrap_err();
    assert!(matches!(error, ConnectError::Start(_)), "{error}");
    assert!(error.to_string().contains("starting a thread failed: to ask the resolver with"), "{error}");
}

/// It would never know a server that comes later.
#[test]
fn balanced_without_a_thread_for_its_resolver_does_not_start() {
    alone("child_balanced", "run");
}

/// Panics when it is asked the second time.
struct Panics {
    asked: Arc<AtomicU64>,
    urls: Vec<String>,
}

impl Resolver for Panics {
    fn resolve(&self) -> Result<Vec<String>, String> {
        match self.asked.fetch_add(1, Ordering::SeqCst) {
            0 => Ok(self.urls[..1].to_vec()),
            1 => panic!("as it was made to"),
            _ => Ok(self.urls.clone()),
        }
    }
}

fn a_resolver_that_panics_is_asked_again(scheme: &str) {
    let servers = [Fixture::new(scheme, "first"), Fixture::new(scheme, "second")];
    let urls = servers.iter().map(|server| server.url.clone()).collect();
    let resolver = Panics { asked: Arc::default(), urls };
    let balanced = Balanced::builder().config(eager()).refresh(Duration::from_millis(20));
    let balanced = balanced.connect(resolver).unwrap();
    until("both are known", || balanced.ready().len() == 2);
}

fn a_panic_of_admit_refuses_that_client_alone(scheme: &str) {
    let asked = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&asked);
    let builder = Server::builder().service(serve_probe(Prober::default())).config(config());
    let builder = builder.admit(move |_, _| {
        assert!(counted.fetch_add(1, Ordering::SeqCst) > 0, "the first one is too much");
        Ok(())
    });
    let server = builder.listen(&address(scheme, "panics")).unwrap();
    let url = server.address().to_string();
    let error = Client::builder().config(config()).connect(&url).unwrap_err();
    let ConnectError::Open(OpenError::Connect(transport::ConnectError::Rejected { reason, .. })) = error
    else {
        panic!("{error}")
    };
    assert_eq!(reason, RejectReason::Overloaded);
    let client = Client::builder().config(config()).connect(&url).unwrap();
    assert_eq!(ProbeClient::new(client).echo("x".into()).wait().unwrap(), "x");
    assert_eq!((asked.load(Ordering::SeqCst), server.not_listening()), (2, None));
}

#[test]
#[ignore = "the other process of another test"]
fn child_breaks() {
    let Some(_) = role() else { return };
    let fixture = Fixture::new("shm", "breaks");
    let client = Client::builder().config(config()).connect(&fixture.url).unwrap();
    let health = || ReflectionClient::new(client.clone()).health(String::new()).wait().unwrap();
    assert_eq!((health(), fixture.server.not_listening()), (Health::Serving, None));
    let started = Instant::now();
    std::thread::scope(|scope| {
        let joined = scope.spawn(|| fixture.server.join());
        break_listener();
        joined.join().unwrap();
    });
    assert!(started.elapsed() < Duration::from_secs(20));
    let why = fixture.server.not_listening().unwrap();
    assert!(why.contains(&fixture.url) && why.contains("accept4 failed"), "{why}");
    assert_eq!(health(), Health::NotServing);
    assert_eq!(ProbeClient::new(client.clone()).echo("x".into()).wait().unwrap(), "x");
}

/// Shuts the only listening socket of this process down.
fn break_listener() {
    let me = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
    let socket = (3..1024).find_map(|number| {
        let copy = rustix::process::pidfd_getfd(&me, number, PidfdGetfdFlags::empty()).ok()?;
        rustix::net::sockopt::socket_acceptconn(&copy).is_ok_and(|listens| listens).then_some(copy)
    });
    rustix::net::shutdown(socket.expect("a server listens"), rustix::net::Shutdown::Both).unwrap();
}

/// The program is told by the end of `join`, and others by the server's health; connections go on.
#[test]
fn a_listener_that_breaks_is_told_to_its_owner_and_by_its_health() {
    alone("child_breaks", "run");
}
