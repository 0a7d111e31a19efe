//! Server and client as two processes, over shared memory, TCP or the RDMA CM of the lab.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use gimmal::Instant;

use crate::{client, tree};

/// What is fetched at most over an emulated fabric, bytes: its software moves some ten MB a second.
const FABRIC_BYTES: u64 = 48 << 20;

/// What the two processes are connected by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Provider {
    Shm,
    Tcp,
    Verbs,
}

pub(crate) fn run(
    folder: Option<PathBuf>,
    provider: Provider,
    fabric: &str,
    mut options: client::Options,
) -> anyhow::Result<()> {
    let folder = folder.unwrap_or_else(tree::default_folder);
    if !folder.is_dir() {
        bail!("{} is not a folder; name one that is", folder.display());
    }
    let address = match provider {
        Provider::Shm => format!("shm://files-{}", std::process::id()),
        Provider::Tcp => "tcp://127.0.0.1:0".to_owned(),
        Provider::Verbs => {
            let variable = format!("GIMMAL_{}_ADDR", fabric.to_uppercase());
            let host = std::env::var(&variable)
                .with_context(|| format!("{variable} does not say where {fabric} is; run this in the lab: ./x demo --fabric {fabric}"))?;
            options.bytes_max = options.bytes_max.min(FABRIC_BYTES);
            format!("rdma://{host}:0")
        }
    };
    eprintln!("serving {} on {address}", folder.display());
    let mut server = Server::start(&folder, &address)?;
    let address = server.address()?;
    options.original = Some(folder);
    let outcome = client::run(&address, &options);
    let ended = server.stop();
    outcome?;
    ended
}

/// The server's process; ended on every way out.
struct Server {
    child: Child,
}

impl Server {
    fn start(folder: &Path, address: &str) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("this program's own path")?;
        let child = Command::new(program)
            .args(["serve", "--address", address])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the server")?;
        Ok(Self { child })
    }

    /// The line it prints when it listens.
    fn address(&mut self) -> anyhow::Result<String> {
        let stdout = self.child.stdout.take().context("the server's output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).context("reading the server's address")?;
        match line.trim().strip_prefix("listening on ") {
            Some(address) => Ok(address.to_owned()),
            None => bail!("the server did not start; its message is above"),
        }
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        drop(self.child.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                if status.success() {
                    return Ok(());
                }
                bail!("the server ended with {status}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("the server did not end within 10 s of being asked")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
