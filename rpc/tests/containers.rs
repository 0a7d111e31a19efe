//! Shared memory between containers: processes with PID, IPC and mount namespaces of their own, and one folder that they
//! share. Neither has a number in the other's PID namespace.
//!
//! A program of its own: it starts itself again inside, as the server or as the client.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, ExitCode, Output, Stdio},
    time::Duration,
};

use common::{ProbeClient, Prober, config, pattern, serve_probe, sum};
use gimmal_rpc::{Channel, Client, Instant, Server};

const ROLE: &str = "GIMMAL_CONTAINER_ROLE";
const URL: &str = "GIMMAL_CONTAINER_URL";
/// Whatever hangs is over then.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Host,
    /// A container of its own.
    Inside,
}

/// `program` with its arguments, in namespaces of its own if it is to run inside: no process, no `/dev/shm` and no runtime folder
/// in common with this one, but the root folder, and in it the folder that is shared.
fn in_place(place: Place, program: &Path) -> Command {
    let mut command = match place {
        Place::Host => Command::new(program),
        Place::Inside => {
            let mut command = Command::new("unshare");
            command.args(["--pid", "--ipc", "--mount", "--fork", "--kill-child", "--mount-proc"]);
            let own = "mount -t tmpfs none /dev/shm && mount -t tmpfs none /run && exec \"$0\" \"$@\"";
            command.args(["sh", "-c", own]).arg(program);
            command
        }
    };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// This program, in another role.
fn again(place: Place, role: &str, url: &str) -> Command {
    let mut command = in_place(place, &std::env::current_exe().unwrap());
    command.env(ROLE, role).env(URL, url);
    command
}

/// Killed when the test ends, whatever its end.
struct Process(Option<Child>);

impl Process {
    fn start(command: &mut Command) -> Self {
        Self(Some(command.spawn().unwrap()))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let output = self.0.as_mut().unwrap().stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Waits for its end.
    fn output(mut self) -> Output {
        let started = Instant::now();
        while self.0.as_mut().unwrap().try_wait().unwrap().is_none() {
            assert!(started.elapsed() < PATIENCE, "it hangs");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Serves until it is killed.
fn serve(url: &str) {
    let service = serve_probe(Prober::default());
    let server = Server::builder().service(service).config(config()).listen(url).unwrap();
    println!("listening");
    server.join();
}

/// Messages, a loan and an answer's loan; and what the kernel says of the server.
fn call(url: &str) {
    let channel = Client::builder().config(config()).connect(url).unwrap();
    let client = ProbeClient::new(channel.clone());
    for number in 0..100 {
        let text = format!("message {number}");
        assert_eq!(client.echo(text.clone()).wait().unwrap(), text);
    }
    let mut loan = channel.loan(3 << 20).unwrap();
    loan.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(at));
    let wanted = sum(&loan) + 7;
    assert_eq!(client.sum(7, loan).wait().unwrap(), wanted);
    let pulled = client.lend((1 << 20) + 3).wait().unwrap();
    assert_eq!((pulled.len(), sum(&pulled)), ((1 << 20) + 3, pulled.value));
    let negotiated = channel.negotiated().unwrap();
    let server = negotiated.credentials.expect("the kernel names it");
    println!("{:?} {}", server.pid, negotiated.peer);
}

fn one_serves_the_other(folder: &Path, server_at: Place, client_at: Place) {
    let url = format!("shm://{}/{server_at:?}-{client_at:?}", folder.display());
    let mut server = Process::start(&mut again(server_at, "server", &url));
    let said = server.line();
    if said != "listening" {
        let output = server.output();
        panic!("{said}\n{}", String::from_utf8_lossy(&output.stderr));
    }
    let output = Process::start(&mut again(client_at, "client", &url)).output();
    let (said, erred) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "server {server_at:?}, client {client_at:?}:\n{said}\n{erred}");
    // A process inside has a number outside, and nowhere else.
    let is_seen = client_at == Place::Host;
    let unseen = "None a process of another PID namespace, of uid 0";
    assert_eq!(said.trim() == unseen, !is_seen, "server {server_at:?}, client {client_at:?}: {said}");
    drop(server);
}

fn a_server_in_a_container_serves_the_host(folder: &Path) {
    one_serves_the_other(folder, Place::Inside, Place::Host);
}

fn a_client_in_a_container_calls_the_host(folder: &Path) {
    one_serves_the_other(folder, Place::Host, Place::Inside);
}

fn two_containers_talk(folder: &Path) {
    one_serves_the_other(folder, Place::Inside, Place::Inside);
}

/// Why no container can be made here, if none can.
fn lack() -> Option<String> {
    let output = match in_place(Place::Inside, Path::new("true")).output() {
        Ok(output) => output,
        Err(error) => return Some(format!("unshare(1): {error}")),
    };
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    (!output.status.success()).then(|| format!("unshare(1): {said}"))
}

fn main() -> ExitCode {
    if let (Ok(role), Ok(url)) = (std::env::var(ROLE), std::env::var(URL)) {
        match role.as_str() {
            "server" => serve(&url),
            _ => call(&url),
        }
        return ExitCode::SUCCESS;
    }
    type Test = fn(&Path);
    let tests: [(&str, Test); 3] = [
        ("a_server_in_a_container_serves_the_host", a_server_in_a_container_serves_the_host),
        ("a_client_in_a_container_calls_the_host", a_client_in_a_container_calls_the_host),
        ("two_containers_talk", two_containers_talk),
    ];
    if let Some(lack) = lack() {
        for (name, _) in tests {
            println!("SKIP {name}: {lack}");
        }
        println!("0 passed, 0 failed, {} skipped", tests.len());
        return ExitCode::SUCCESS;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut failed = 0;
    for (name, test) in tests {
        let outcome = std::panic::catch_unwind(|| test(folder.path()));
        println!("test {name} ... {}", if outcome.is_ok() { "ok" } else { "FAILED" });
        failed += usize::from(outcome.is_err());
    }
    println!("{} passed, {failed} failed, 0 skipped", tests.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
