//! Connections of programs: by TCP or by a unix socket.

use std::{
    fmt,
    future::poll_fn,
    io::{self, ErrorKind},
    net::SocketAddr,
    path::PathBuf,
    str::FromStr,
    task::{Context, Poll, ready},
    time::Duration,
};

use rustix::net::{Shutdown, shutdown, sockopt::set_socket_linger};
use tokio::{
    io::{AsyncRead, Interest},
    net::{TcpListener, TcpStream, UnixListener, UnixStream, tcp, unix},
};

/// Where a program's server is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// host:port.
    Tcp(String),
    Unix(PathBuf),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("tcp", at)) if at.contains(':') => Ok(Self::Tcp(at.to_owned())),
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(path.into())),
            _ => Err(format!("`{text}` is no place; write tcp:address:port or unix:path")),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(at) => write!(f, "tcp:{at}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Place {
    pub(super) async fn connect(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(at) => Ok(Socket::of_tcp(TcpStream::connect(at.as_str()).await?)),
            Self::Unix(path) => Ok(Socket::Unix(UnixStream::connect(path).await?)),
        }
    }
}

/// Where programs connect to.
pub(super) enum Listener {
    Tcp(TcpListener),
    /// The path is unlinked at the end, if we made it.
    Unix(UnixListener, Option<PathBuf>),
}

impl Listener {
    /// Listens at `text`, or at the sockets that systemd hands over.
    pub(super) async fn all(text: &str) -> io::Result<Vec<Self>> {
        if text == "systemd" {
            return handed_over();
        }
        let place: Place = text.parse().map_err(io::Error::other)?;
        let listener = match &place {
            Place::Tcp(at) => TcpListener::bind(at.as_str()).await.map(Self::Tcp),
            Place::Unix(path) => UnixListener::bind(path).map(|it| Self::Unix(it, Some(path.clone()))),
        };
        listener
            .map(|listener| vec![listener])
            .map_err(|error| io::Error::new(error.kind(), format!("cannot listen at {place}: {error}")))
    }

    /// Where it listens, as a program would write it.
    pub(super) fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => {
                listener.local_addr().map_or_else(|_| "tcp:?".to_owned(), |at| format!("tcp:{at}"))
            }
            Self::Unix(listener, _) => {
                let at = listener.local_addr().ok();
                at.as_ref()
                    .and_then(|at| at.as_pathname())
                    .map_or_else(|| "unix:?".to_owned(), |path| format!("unix:{}", path.display()))
            }
        }
    }

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        Poll::Ready(Ok(match self {
            Self::Tcp(listener) => {
                let (stream, source) = ready!(listener.poll_accept(context))?;
                let ends = stream.local_addr().ok().map(|destination| (source, destination));
                (Socket::of_tcp(stream), ends)
            }
            Self::Unix(listener, _) => (Socket::Unix(ready!(listener.poll_accept(context))?.0), None),
        }))
    }
}

/// A program's connection, and the addresses of its two ends, if it has any.
pub(super) type Accepted = (Socket, Option<(SocketAddr, SocketAddr)>);

/// All places where programs connect, in turn.
#[derive(Default)]
pub(super) struct Listeners {
    all: Vec<Listener>,
    /// Looked at first.
    next: usize,
}

impl Listeners {
    pub(super) fn add(&mut self, listener: Listener) {
        self.all.push(listener);
    }

    /// Returns the next program's connection.
    pub(super) async fn accept(&mut self) -> io::Result<Accepted> {
        poll_fn(|context| {
            for step in 0..self.all.len() {
                let at = (self.next + step) % self.all.len();
                if let Poll::Ready(accepted) = self.all[at].poll_accept(context) {
                    self.next = at + 1;
                    return Poll::Ready(accepted);
                }
            }
            Poll::Pending
        })
        .await
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, Some(path)) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn handed_over() -> io::Result<Vec<Listener>> {
    let mut all = Vec::new();
    let mut sockets = listenfd::ListenFd::from_env();
    for at in 0..sockets.len() {
        if let Ok(Some(listener)) = sockets.take_tcp_listener(at) {
            listener.set_nonblocking(true)?;
            all.push(Listener::Tcp(TcpListener::from_std(listener)?));
        } else if let Some(listener) = sockets.take_unix_listener(at)? {
            listener.set_nonblocking(true)?;
            all.push(Listener::Unix(UnixListener::from_std(listener)?, None));
        }
    }
    if all.is_empty() {
        return Err(io::Error::new(
            ErrorKind::NotFound,
            "systemd handed no socket over; see sd_listen_fds(3)",
        ));
    }
    Ok(all)
}

/// A program's connection. Dropped, it ends by force: over TCP the program sees a reset, also if this process is killed.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What a program writes.
pub(super) type Reader<'a> = Box<dyn AsyncRead + Send + Unpin + 'a>;

/// What is written to a program.
#[derive(Debug)]
pub(super) enum Writer<'a> {
    Tcp(tcp::WriteHalf<'a>),
    Unix(unix::WriteHalf<'a>),
}

macro_rules! either {
    ($writer:expr, $half:ident => $do:expr) => {
        match $writer {
            Writer::Tcp($half) => $do,
            Writer::Unix($half) => $do,
        }
    };
}

impl Socket {
    fn of_tcp(stream: TcpStream) -> Self {
        // Each fails only if the connection has ended by force, which the first read says better.
        let _ = stream.set_nodelay(true);
        let _ = set_socket_linger(&stream, Some(Duration::ZERO));
        Self::Tcp(stream)
    }

    /// Lends both directions. A read that leaves room is not followed by one that finds nothing.
    pub(super) fn split(&mut self) -> (Reader<'_>, Writer<'_>) {
        match self {
            Self::Tcp(stream) => {
                let (read, write) = stream.split();
                (Box::new(read), Writer::Tcp(write))
            }
            Self::Unix(stream) => {
                let (read, write) = stream.split();
                (Box::new(read), Writer::Unix(write))
            }
        }
    }

    /// Both directions have ended: what the program was written is all of it.
    pub(super) fn end_in_order(&self) {
        if let Self::Tcp(stream) = self {
            let _ = set_socket_linger(stream, None);
        }
    }
}

impl Writer<'_> {
    /// Writes what there is room for, without waiting. None: there is no room.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        match either!(self, half => half.try_write(bytes)) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            written => written.map(Some),
        }
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        either!(self, half => half.writable().await)
    }

    /// Waits until the program has ended the connection by force.
    pub(super) async fn broken(&self) {
        let _ = either!(self, half => half.ready(Interest::ERROR).await);
    }

    /// Tells the program that nothing more comes.
    pub(super) fn finish(&self) {
        let _ = match self {
            Self::Tcp(half) => shutdown::<&TcpStream>(half.as_ref(), Shutdown::Write),
            Self::Unix(half) => shutdown::<&UnixStream>(half.as_ref(), Shutdown::Write),
        };
    }

    /// Writes all of `bytes`.
    pub(super) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.try_write(bytes)? {
                Some(written) => bytes = &bytes[written..],
                None => self.writable().await?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_and_printed() {
        for text in ["tcp:127.0.0.1:80", "tcp:[::1]:80", "tcp:localhost:80", "unix:/run/x.sock"] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), text);
        }
        for text in ["", "tcp:", "tcp:80", "unix:", "udp:127.0.0.1:1", "/run/x.sock"] {
            assert!(text.parse::<Place>().unwrap_err().contains("tcp:address:port"), "{text}");
        }
    }
}
