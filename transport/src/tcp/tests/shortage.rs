//! Descriptors that are short for a while. Limits are the process's, so each test has one of its own: this binary again, running one
//! test that is ignored otherwise.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    process::{Child, Stdio},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{burst::greeting, handover::taking, *};
use crate::{
    Key,
    testing::process::{role, this_binary},
};

const PATIENCE: Duration = Duration::from_secs(60);
/// That of a process which hears what the other one makes of its own.
const LONGER: Duration = Duration::from_secs(120);

/// Takes all descriptors below a small limit, but `left`.
pub(super) fn take_descriptors(left: usize) -> Vec<File> {
    let old = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: old.maximum }).unwrap();
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    assert!(taken.len() > left);
    taken.truncate(taken.len() - left);
    taken
}

/// A listener in a process of its own, which says what it does line by line.
struct Process {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Process {
    fn start(test: &str, role: &str) -> Self {
        let mut command = this_binary(test, role);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// What follows `word` in the next line that has it.
    fn hears(&mut self, word: &str) -> String {
        loop {
            let line = self.lines.next().unwrap_or_else(|| panic!("it ended and never said {word}")).unwrap();
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    fn says(&mut self, word: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{word}").unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until the other process says something.
fn wait_for_word() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

fn key() -> Key {
    Key::new(&[7; 32]).unwrap()
}

/// Has four descriptors for clients. Lets so many in and turns so many away, as its role says.
#[test]
#[ignore = "the other process of another test"]
fn child_listener() {
    let Some(role) = role() else { return };
    let mut counts = role.split(' ').map(|count| count.parse::<u64>().unwrap());
    let (clients, refused) = (counts.next().unwrap(), counts.next().unwrap());
    let options = ListenOptions { keys: vec![key()], handshake_timeout: PATIENCE, ..patient_listen() };
    let mut listener = listen(&options);
    let port = Tcp.open_port(&config(4096)).unwrap();
    println!("listens at {}", listener.address());
    wait_for_word();
    let taken = take_descriptors(4);
    let (mut let_in, until) = (Vec::new(), Instant::now() + PATIENCE);
    while (let_in.len() as u64, listener.rejections().count()) != (clients, refused) {
        let_in.extend(listener.accept(Duration::from_millis(20)).unwrap());
        let rejected = listener.rejections().count();
        assert!(rejected <= refused, "{} let in, {rejected} refused", let_in.len());
        assert!(Instant::now() < until, "{} let in, {rejected} refused", let_in.len());
    }
    drop(taken);
    let links: Vec<_> = let_in.into_iter().map(|incoming| incoming.accept(&port.gate()).unwrap()).collect();
    println!("let in");
    wait_for_word();
    drop(links);
}

/// Four clients with a key connect to a process that has four descriptors, before `others` do. The four get in.
fn four_get_in_before(others: usize) {
    let mut server = Process::start("tcp::tests::shortage::child_listener", &format!("4 {others}"));
    let address: Address = server.hears("listens at ").parse().unwrap();
    let port = Tcp.open_port(&config(4096)).unwrap();
    let options = ConnectOptions { key: Some(key()), connect_timeout: LONGER, ..patient_connect() };
    let mut clients = greeting(&address, &port, &options, 4);
    let _others = greeting(&address, &port, &options, others);
    server.says("go");
    let (mut links, until) = (Vec::new(), Instant::now() + LONGER);
    while links.len() < 4 {
        clients.retain_mut(|client| match client.poll(Duration::from_millis(5)) {
            None => true,
            Some(outcome) => {
                links.push(outcome.unwrap());
                false
            }
        });
        assert!(Instant::now() < until, "{} got in", links.len());
    }
    server.hears("let in");
}

/// accept(2) takes a descriptor before it looks for a client: a lack of which nobody suffers refuses nobody.
#[test]
fn a_client_that_proves_its_key_keeps_the_last_descriptor() {
    four_get_in_before(0);
}

/// Those that come later wait for a while, and then are told that the server is overloaded.
#[test]
fn clients_beyond_the_descriptors_do_not_keep_the_others_out() {
    four_get_in_before(40);
}

/// A descriptor of a client that says nothing is for one that does.
#[test]
fn a_silent_client_makes_room_when_there_are_no_descriptors() {
    let mut server = Process::start("tcp::tests::shortage::child_listener", "1 1");
    let address: Address = server.hears("listens at ").parse().unwrap();
    let Address::Tcp { host, port: number, .. } = &address else { panic!() };
    let _silent: Vec<_> = (0..4).map(|_| TcpStream::connect((host.as_str(), *number)).unwrap()).collect();
    let port = Tcp.open_port(&config(4096)).unwrap();
    let options = ConnectOptions { key: Some(key()), connect_timeout: LONGER, ..patient_connect() };
    let mut clients = greeting(&address, &port, &options, 1);
    server.says("go");
    clients[0].poll(LONGER).expect("the server answered").unwrap();
    server.hears("let in");
}

/// Stops without a descriptor once another process waits.
#[test]
#[ignore = "the other process of another test"]
fn child_that_stops() {
    let Some(_) = role() else { return };
    let listener = listen(&patient_listen());
    println!("listens at {}", listener.address());
    let until = Instant::now() + PATIENCE;
    while !listener.is_awaited() {
        assert!(Instant::now() < until, "nobody waits");
        std::thread::sleep(Duration::from_millis(1));
    }
    let taken = take_descriptors(0);
    drop(listener);
    println!("has stopped");
    drop(taken);
}

#[test]
fn a_listening_socket_is_handed_over_without_a_descriptor() {
    let mut old = Process::start("tcp::tests::shortage::child_that_stops", "run");
    let address: Address = old.hears("listens at ").parse().unwrap();
    let next = Tcp.listen(&address, &taking(LONGER)).unwrap();
    assert_eq!(next.address(), address);
    old.hears("has stopped");
}
