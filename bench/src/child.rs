//! The server process of `--loopback`: this program once more, on a private address.

use std::{
    io::{BufRead as _, BufReader},
    os::fd::{AsFd, OwnedFd},
    process::{Child, Command, Stdio},
    time::Duration,
};

use gimmal_engine::transport::{Address, Instant};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::{Pid, PidfdFlags},
};

use crate::{error::BenchError, leave::Folder, plan::ProviderName};

/// From its start to its listening.
const START: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
/// From our saying so to its end.
const END: Duration = Duration::from_secs(3);

/// What the server is to do besides.
#[derive(Debug, Default)]
pub(crate) struct ChildOptions<'a> {
    /// It sleeps as soon as it has nothing to do.
    pub(crate) is_asleep: bool,
    /// Sockets that it connects to, as in `tcp:127.0.0.1:4711`.
    pub(crate) beside: &'a [String],
    /// In which it pulls loans, bytes.
    pub(crate) piece: Option<usize>,
    /// In every second, milliseconds.
    pub(crate) stall_ms: u32,
    /// The number of the echo in which it turns a bit over.
    pub(crate) corrupt: Option<u64>,
}

/// A server of our own. It ends when it is told to, and when we do, however we do.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    address: Address,
    /// Of the rendezvous socket; goes when the connection stands.
    folder: Option<Folder>,
}

impl Server {
    /// Starts it, with `floors` as its standard input, and waits until it listens.
    pub(crate) fn start(
        provider: ProviderName,
        address: Option<&Address>,
        ring_bytes: u32,
        floors: OwnedFd,
        options: &ChildOptions<'_>,
    ) -> Result<Self, BenchError> {
        let (address, folder) = private_address(provider, address)?;
        let program = std::env::current_exe().map_err(BenchError::system("finding this program"))?;
        let mut child = Command::new(program)
            .args(["serve", "--child", "--provider", provider.name(), "--address", &address])
            .args(["--ring", &ring_bytes.to_string(), "--stall", &options.stall_ms.to_string()])
            .args(options.is_asleep.then_some("--asleep"))
            .args(options.beside.iter().flat_map(|place| ["--beside", place]))
            .args(options.piece.iter().flat_map(|bytes| ["--piece".to_owned(), bytes.to_string()]))
            .args(options.corrupt.iter().flat_map(|number| ["--corrupt".to_owned(), number.to_string()]))
            .stdin(Stdio::from(floors))
            .stdout(Stdio::piped())
            .spawn()
            .map_err(BenchError::system("starting the server process"))?;
        match listening(&mut child) {
            Ok(address) => Ok(Self { child, address, folder }),
            Err(error) => {
                // It may have ended by itself; both calls are bounded then.
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Its number.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// A descriptor that tells when it has ended.
    pub(crate) fn pidfd(&self) -> Result<OwnedFd, BenchError> {
        rustix::process::pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())
            .map_err(BenchError::system("pidfd_open"))
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// The connection stands: the place where the two met is not needed any more.
    pub(crate) fn connected(&mut self) {
        self.folder = None;
    }

    /// Ends it in the middle of whatever it does.
    pub(crate) fn kill(&mut self) {
        // It may have ended by itself; who waits for it finds out.
        let _ = self.child.kill();
    }

    /// It was told to end.
    pub(crate) fn end(mut self) -> Result<(), BenchError> {
        let deadline = Instant::now() + END;
        loop {
            match self.child.try_wait().map_err(BenchError::system("waiting for the server"))? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(BenchError::Server(format!("ended with {status}"))),
                None if Instant::now() > deadline => {
                    return Err(BenchError::Server(format!("did not end within {} s", END.as_secs())));
                }
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The first line it prints: where it listens.
pub(crate) fn listening(child: &mut Child) -> Result<Address, BenchError> {
    let output = child.stdout.take().ok_or_else(|| BenchError::Server("has no output".to_owned()))?;
    {
        let mut fds = [PollFd::from_borrowed_fd(output.as_fd(), PollFlags::IN)];
        let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&START)));
        if ready.map_err(BenchError::system("poll"))? == 0 {
            return Err(BenchError::Server(format!("did not listen within {} s", START.tv_sec)));
        }
    }
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).map_err(BenchError::system("reading the server's output"))?;
    if line.is_empty() {
        return Err(BenchError::Server("ended before it listened; its message is above".to_owned()));
    }
    Ok(line.trim().parse()?)
}

/// Where the two meet: for shm a folder that only this user enters, for tcp a free port, for verbs one of a device.
fn private_address(
    provider: ProviderName,
    address: Option<&Address>,
) -> Result<(String, Option<Folder>), BenchError> {
    if let Some(address) = address {
        return Ok((address.to_string(), None));
    }
    match provider {
        ProviderName::Shm => {
            let folder = Folder::new()?;
            Ok((format!("shm://{}", folder.path().join("socket").display()), Some(folder)))
        }
        ProviderName::Tcp => Ok(("tcp://127.0.0.1:0".to_owned(), None)),
        ProviderName::Verbs => {
            let found = ["GIMMAL_RXE_ADDR", "GIMMAL_SIW_ADDR"]
                .into_iter()
                .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
            let host = found.ok_or_else(|| {
                BenchError::Arguments(
                    "which device? give the address of one with --address rdma://HOST:0".to_owned(),
                )
            })?;
            Ok((format!("rdma://{host}:0"), None))
        }
    }
}
