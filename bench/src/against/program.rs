//! Starts a pair of programs, client and server, and waits for the number that one of them prints.

use std::{
    borrow::Cow,
    io::{BufRead as _, BufReader, Read},
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    time::Duration,
};

use gimmal_engine::transport::Instant;
use rustix::process::{Pid, Signal, kill_process};

use crate::error::BenchError;

/// A program's end is waited for this long after it printed what we want, then it is ended.
const GRACE: Duration = Duration::from_secs(2);
/// A server listens within this, as a rule; an emulated machine starts programs slowly.
pub(crate) const STARTING: Duration = Duration::from_secs(4);
/// Between two looks whether it does.
const LOOK: Duration = Duration::from_millis(5);
/// It ends itself when we are killed, seconds.
const ORPHAN_S: &str = "120";

/// One of the two.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Spec {
    /// The program.
    pub(crate) program: Cow<'static, str>,
    /// Its arguments.
    pub(crate) args: Vec<String>,
    /// Beside ours.
    pub(crate) env: Vec<(&'static str, String)>,
    /// Where it runs.
    pub(crate) core: usize,
}

impl Spec {
    /// As a person would type it.
    fn line(&self) -> String {
        let set = self.env.iter().map(|(name, value)| format!("{name}={value} "));
        let args = self.args.iter().map(|argument| format!(" {argument}"));
        let front: String = set.collect();
        format!("{front}taskset -c {} {}{}", self.core, self.program, args.collect::<String>())
    }
}

/// A pair that makes a number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PairSpec {
    /// Started first.
    pub(crate) server: Spec,
    /// Started second; it prints the number.
    pub(crate) client: Spec,
    /// When the client may come. At once then: who waits longer lets the cores go to sleep, and the host move them.
    pub(crate) ready: Ready,
    /// For the whole pair.
    pub(crate) limit: Duration,
}

/// How a server shows that it is ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ready {
    /// It prints this.
    Says(&'static str),
    /// It listens on this port, over TCP or the RDMA CM; or did not within [`STARTING`], and is tried anyway.
    Listens(u16),
}

/// A port that nobody listens on, as far as one can know.
///
/// # Errors
/// The kernel's.
pub(crate) fn free_port() -> Result<u16, BenchError> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(BenchError::system("looking for a free port"))?;
    Ok(listener.local_addr().map_err(BenchError::system("looking for a free port"))?.port())
}

/// Whether somebody listens on `port`.
fn is_listening(port: u16) -> bool {
    let tables =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| std::fs::read_to_string(table).unwrap_or_default());
    if tables.iter().any(|table| has_listener(table, port)) {
        return true;
    }
    // Of the RDMA CM only this program tells; without it the server is given its time.
    let ids = Command::new("rdma").args(["resource", "show", "cm_id"]).stderr(Stdio::null()).output();
    ids.is_ok_and(|ids| has_cm_listener(&String::from_utf8_lossy(&ids.stdout), port))
}

/// Whether a table of the kernel's has a socket in the state LISTEN, which is 0A, on `port`.
fn has_listener(table: &str, port: u16) -> bool {
    let end = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&end)) && words.nth(1) == Some("0A")
    })
}

/// Whether the output of `rdma resource show cm_id` has a listener on `port`.
fn has_cm_listener(ids: &str, port: u16) -> bool {
    let end = format!(":{port}");
    ids.lines()
        .any(|line| line.contains("state LISTEN") && line.split_whitespace().any(|word| word.ends_with(&end)))
}

/// Whether `program` can be started, that is, whether it is in one of `PATH`'s folders.
#[must_use]
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A program that runs; it ends with this.
#[derive(Debug)]
struct Running {
    child: Child,
    lines: Receiver<String>,
    said: String,
}

impl Running {
    fn start(spec: &Spec) -> Result<Self, BenchError> {
        // `timeout` ends what outlives us, `stdbuf` shows lines when they are printed.
        let mut child = Command::new("timeout")
            .args([
                "-k",
                "1",
                ORPHAN_S,
                "taskset",
                "-c",
                &spec.core.to_string(),
                "stdbuf",
                "-oL",
                &spec.program,
            ])
            .args(&spec.args)
            .envs(spec.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(BenchError::system("starting another program"))?;
        let (sender, lines) = mpsc::channel();
        let outputs: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|output| Box::new(output) as Box<dyn Read + Send>),
            child.stderr.take().map(|output| Box::new(output) as Box<dyn Read + Send>),
        ];
        for output in outputs.into_iter().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self { child, lines, said: String::new() })
    }

    /// What `find` sees in all that was printed; `Ok(None)` when the program ended without it.
    fn wait_for<T>(
        &mut self,
        deadline: Instant,
        find: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, String> {
        loop {
            match self.lines.recv_timeout(deadline.remaining()) {
                Ok(line) => {
                    self.said.push_str(&line);
                    self.said.push('\n');
                    if let Some(found) = find(&self.said) {
                        return Ok(Some(found));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => return Err("printed no result in time".to_owned()),
            }
        }
    }

    /// The last lines, in one.
    fn last_words(&self) -> String {
        let lines: Vec<&str> = self.said.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(2)..].join(" / ").trim().to_owned()
    }

    fn end(&mut self, grace: Duration) {
        let deadline = Instant::now() + grace;
        loop {
            // Its number may be another's by now.
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            if Instant::now() >= deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // To `timeout`, which passes it on and follows it with a kill.
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

impl PairSpec {
    /// Runs both; the number that `find` sees in what the client printed.
    ///
    /// # Errors
    /// [`BenchError::Program`], with the last output of the program that failed.
    pub(crate) fn run(&self, find: impl Fn(&str) -> Option<f64>) -> Result<f64, BenchError> {
        let started = Instant::now();
        // Once more: a client that came before its server listened gives up. Who hung would hang again.
        self.run_once(&find)
            .or_else(|error| if started.elapsed() < self.limit { self.run_once(&find) } else { Err(error) })
    }

    /// What is typed to do the same by hand: the server's command and the client's.
    #[must_use]
    pub(crate) fn lines(&self) -> Vec<String> {
        vec![self.server.line(), self.client.line()]
    }

    fn run_once(&self, find: impl Fn(&str) -> Option<f64>) -> Result<f64, BenchError> {
        let failed = |why: String| BenchError::Program { name: self.client.program.to_string(), why };
        let deadline = Instant::now() + self.limit;
        let mut server = Running::start(&self.server)?;
        match self.ready {
            Ready::Says(text) => {
                let ready = server.wait_for(deadline, |said| said.contains(text).then_some(()));
                if ready.map_err(|why| failed(format!("its server {why}")))?.is_none() {
                    return Err(failed(format!("its server ended: {}", server.last_words())));
                }
            }
            Ready::Listens(port) => {
                let until = Instant::now() + STARTING;
                while !is_listening(port) && Instant::now() < until {
                    // Its output ends with it.
                    if let Ok(None) = server.wait_for(Instant::now() + LOOK, |_| None::<()>) {
                        return Err(failed(format!("its server ended: {}", server.last_words())));
                    }
                }
            }
        }
        let mut client = Running::start(&self.client)?;
        let found = client.wait_for(deadline, find).map_err(failed)?;
        client.end(GRACE);
        server.end(GRACE.mul_f64(0.25));
        found.ok_or_else(|| failed(format!("ended without a result: {}", client.last_words())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Spec {
        Spec { program: "sh".into(), args: vec!["-c".to_owned(), script.to_owned()], env: vec![], core: 0 }
    }

    fn pair(server: &str, client: &str, ready: &'static str) -> PairSpec {
        let (ready, limit) = (Ready::Says(ready), Duration::from_secs(5));
        PairSpec { server: shell(server), client: shell(client), ready, limit }
    }

    fn number(said: &str) -> Option<f64> {
        said.lines().find_map(|line| line.strip_prefix("n=")?.parse().ok())
    }

    #[test]
    fn the_number_is_found_although_the_client_hangs_afterwards() {
        let started = Instant::now();
        let pair = pair("echo up; sleep 60", "echo n=4.5; sleep 60", "up");
        assert_eq!(pair.run(number).unwrap().to_bits(), 4.5f64.to_bits());
        assert!(started.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn failures_say_who_and_why() {
        let error =
            pair("echo up; sleep 60", "echo cannot do that >&2; exit 3", "up").run(number).unwrap_err();
        assert!(error.to_string().contains("without a result: cannot do that"), "{error}");
        let error = pair("echo no device; exit 1", "echo n=1", "up").run(number).unwrap_err();
        assert!(error.to_string().contains("its server ended: no device"), "{error}");
        let mut slow = pair("echo up; sleep 60", "sleep 60", "up");
        slow.limit = Duration::from_millis(300);
        let started = Instant::now();
        assert!(slow.run(number).unwrap_err().to_string().contains("no result in time"));
        assert!(started.elapsed() < Duration::from_secs(5), "who hangs is not asked twice");
        assert_eq!(slow.lines()[1], "taskset -c 0 sh -c sleep 60");
    }

    #[test]
    fn whoever_listens_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_listening(port));
        drop(listener);
        assert!(!is_listening(port));
        let table = "   0: 0100007F:B9E8 00000000:0000 01 00000000:00000000\n   1: 00000000:B9E9 00000000:0000 0A 0\n";
        assert!(has_listener(table, 0xb9e9) && !has_listener(table, 0xb9e8));
        let ids = "link rxe0/1 cm-idn 0 state LISTEN ps TCP pid 7 comm ib_send_lat src-addr 0.0.0.0:18515 dst-addr 0.0.0.0:0\n";
        assert!(has_cm_listener(ids, 18515) && !has_cm_listener(ids, 1851));
    }

    #[test]
    fn programs_are_looked_for() {
        assert!(is_installed("sh") && !is_installed("no-such-program-of-ours"));
        assert_ne!(free_port().unwrap(), 0);
    }
}
