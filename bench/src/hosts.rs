//! Servers on other hosts, started by ssh and ended with the run.
//!
//! ```text
//!  hosts file:  node2  rdma://10.0.0.2:0  /opt/gimmal-bench        HOST ADDRESS [PROGRAM]; # begins a remark
//!
//!  here ── ssh HOST PROGRAM serve --tied --address ADDRESS ──► there: prints where it listens, serves
//!    └──── closes its standard input when the run has ended ──► ends
//! ```

use std::{
    path::Path,
    process::{self, Child, Stdio},
    time::Duration,
};

use gimmal_engine::transport::{Address, Instant};

use crate::{args::Command, child::listening, error::BenchError, plan::ProviderName};

/// From our saying so to the end of ssh.
const END: Duration = Duration::from_secs(5);

/// A line of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Host {
    /// As ssh knows it.
    name: String,
    /// Where the server listens; port 0 lets it choose.
    address: Address,
    /// Its program there.
    program: String,
}

/// All lines; at least one.
fn parse(text: &str, place: &str) -> Result<Vec<Host>, BenchError> {
    let mut hosts = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        let bad = |why: &str| BenchError::Arguments(format!("{place}:{}: {why}", number + 1));
        match &*words {
            [] => {}
            [name, ..] if name.starts_with('-') => return Err(bad("a host, no option")),
            [name, address, program @ ..] if program.len() <= 1 => hosts.push(Host {
                name: (*name).to_owned(),
                address: address.parse().map_err(|error| bad(&format!("{address}: {error}")))?,
                program: program.first().copied().unwrap_or("gimmal-bench").to_owned(),
            }),
            _ => return Err(bad("HOST ADDRESS [PROGRAM], as in: node2 rdma://10.0.0.2:0")),
        }
    }
    if hosts.is_empty() {
        return Err(BenchError::Arguments(format!("{place}: names no host")));
    }
    Ok(hosts)
}

/// A word of a command that a shell there takes apart again.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A server there. It ends when this does, and when this process does.
struct Remote {
    host: String,
    ssh: Child,
    address: Address,
}

impl Remote {
    fn start(host: &Host, ring_bytes: u32) -> Result<Self, BenchError> {
        let Host { name, address, program } = host;
        let url = address.to_string();
        let command = [program.as_str(), "serve", "--tied", "--address", &url].map(quoted).join(" ");
        let failed = |why: String| BenchError::Host { host: name.clone(), why };
        let mut ssh = process::Command::new("ssh")
            // Nobody is there to type a password.
            .args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=8", name])
            .arg(format!("{command} --ring {ring_bytes}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(format!("cannot be reached: ssh: {error}")))?;
        match listening(&mut ssh) {
            Ok(address) => Ok(Self { host: name.clone(), ssh, address }),
            Err(error) => {
                let _ = ssh.kill();
                let _ = ssh.wait();
                Err(failed(format!("was not started by ssh: {error}")))
            }
        }
    }

    /// Tells it to end, and waits.
    fn end(mut self) -> Result<(), BenchError> {
        drop(self.ssh.stdin.take());
        let failed = |why: String| BenchError::Host { host: self.host.clone(), why };
        let deadline = Instant::now() + END;
        loop {
            match self.ssh.try_wait().map_err(BenchError::system("waiting for ssh"))? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(failed(format!("ended with {status}"))),
                None if Instant::now() > deadline => {
                    return Err(failed(format!("did not end within {} s", END.as_secs())));
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if let Ok(None) = self.ssh.try_wait() {
            let _ = self.ssh.kill();
            let _ = self.ssh.wait();
        }
    }
}

/// Hands `command` to `run` for each host of the file, one after the other, with a server there.
pub(crate) fn each(
    file: &Path,
    command: &Command,
    mut run: impl FnMut(Command) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let place = file.display().to_string();
    let text =
        std::fs::read_to_string(file).map_err(|error| BenchError::Arguments(format!("{place}: {error}")))?;
    for host in parse(&text, &place)? {
        let mut command = command.clone();
        let Some(options) = command.run_mut() else { continue };
        let largest = options.sizes().into_iter().max().unwrap_or(0);
        let remote = Remote::start(&host, options.ring_for(largest, 256 << 10))?;
        options.provider = match &remote.address {
            Address::Rdma { .. } => ProviderName::Verbs,
            Address::Tcp { .. } => ProviderName::Tcp,
            Address::Shm { .. } | Address::Mem { .. } => ProviderName::Shm,
        };
        options.address = Some(remote.address.clone());
        eprintln!("gimmal-bench: {} serves at {}", remote.host, remote.address);
        run(command)?;
        remote.end()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_hosts_addresses_and_programs() {
        let text = "# two of them\nnode2 rdma://10.0.0.2:0\n\n  near shm:///tmp/x /opt/my-bench # here\n";
        let hosts = parse(text, "hosts").unwrap();
        let told: Vec<_> = hosts.iter().map(|host| (&*host.name, &*host.program)).collect();
        assert_eq!(told, [("node2", "gimmal-bench"), ("near", "/opt/my-bench")]);
        for (text, words) in [
            ("", "names no host"),
            ("node2", "hosts:1: HOST ADDRESS"),
            ("\nnode2 rdma://10.0.0.2:0 a b", "hosts:2: HOST ADDRESS"),
            ("node2 tcp://x", "hosts:1: tcp://x"),
            ("-oProxyCommand=x rdma://10.0.0.2:0", "no option"),
        ] {
            let error = parse(text, "hosts").unwrap_err();
            assert!(error.to_string().contains(words) && error.exit_code() == 2, "{error}");
        }
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
