//! The names of `tokio::net`.

use std::{
    future::{Future as _, poll_fn},
    io::{self, IoSlice, IoSliceMut},
    net::{Ipv4Addr, SocketAddr, ToSocketAddrs},
    pin::Pin,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU16, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use gimmal::Instant;
use gimmal_io::{Duplex, Incoming, RecvStream, SendStream};
use tokio_itself::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};

/// Connections outlive their streams, as those of a kernel do.
static KEPT: Mutex<Vec<(Option<gimmal::Server>, Option<gimmal::Client>)>> = Mutex::new(Vec::new());

fn keep(server: Option<gimmal::Server>, client: Option<gimmal::Client>) {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push((server, client));
}

/// Whether the test that runs is one of the module `mem`.
fn is_in_memory() -> bool {
    std::thread::current().name().is_some_and(|name| name.starts_with("mem::"))
}

fn url(address: SocketAddr) -> String {
    match address.ip().to_string().as_str() {
        "127.0.0.2" => format!("mem://suite-{}", address.port()),
        _ => format!("tcp://{address}"),
    }
}

/// A server that takes streams.
#[derive(Debug)]
pub struct TcpListener {
    address: SocketAddr,
    incoming: Mutex<Incoming>,
}

impl TcpListener {
    /// Listens in memory or at a port of TCP, whatever `address` says.
    pub async fn bind(address: &str) -> io::Result<Self> {
        Self::listen(address)
    }

    pub(crate) fn listen(_: &str) -> io::Result<Self> {
        static PORT: AtomicU16 = AtomicU16::new(1);
        let (streams, incoming) = gimmal_io::serve(1024);
        let memory = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), PORT.fetch_add(1, Ordering::Relaxed)));
        let wanted = if is_in_memory() { url(memory) } else { "tcp://127.0.0.1:0".to_owned() };
        let server = gimmal::serve(&wanted, streams).map_err(io::Error::other)?;
        let address = match server.address().to_string().strip_prefix("tcp://") {
            Some(address) => address.parse().map_err(io::Error::other)?,
            None => memory,
        };
        keep(Some(server), None);
        Ok(Self { address, incoming: Mutex::new(incoming) })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    /// Takes the next stream.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let accepted = poll_fn(|context| {
            self.incoming.lock().unwrap_or_else(PoisonError::into_inner).poll_accept(context)
        });
        let (_, stream) = accepted.await.ok_or(io::ErrorKind::NotConnected)?;
        Ok((TcpStream::of(stream, true), self.address))
    }
}

/// How long a buffer stays full before a write that finds no room says so. A kernel moves what is written to the other socket at
/// once; here a worker does, so that a full buffer may have room a moment later.
const FULL: Duration = Duration::from_millis(50);

/// A stream.
#[derive(Debug)]
pub struct TcpStream {
    stream: Option<Mutex<Duplex>>,
    /// What tokio keeps of a socket: ready until an operation finds that it is not.
    is_readable: AtomicBool,
    is_writable: AtomicBool,
    linger: Mutex<Option<Duration>>,
}

impl TcpStream {
    fn of(stream: Duplex, is_readable: bool) -> Self {
        Self {
            stream: Some(Mutex::new(stream)),
            is_readable: AtomicBool::new(is_readable),
            is_writable: AtomicBool::new(true),
            linger: Mutex::default(),
        }
    }

    /// Connects, and opens a stream.
    pub async fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        let address = address.to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let url = url(address);
        let client = Box::pin(async move { gimmal::Client::connect_async(&url).await });
        let client = client.await.map_err(io::Error::other)?;
        let stream = gimmal_io::open(&client, "");
        keep(None, Some(client));
        Ok(Self::of(stream, false))
    }

    fn stream(&mut self) -> &mut Duplex {
        let stream = self.stream.as_mut().expect("only `into_split` and `drop` take it");
        stream.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Duplex> {
        let stream = self.stream.as_ref().expect("only `into_split` and `drop` take it");
        stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Both halves, lent.
    pub fn split(&mut self) -> (&mut RecvStream, &mut SendStream) {
        self.stream().split()
    }

    /// Both halves.
    pub fn into_split(mut self) -> (RecvStream, SendStream) {
        let stream = self.stream.take().expect("only `into_split` and `drop` take it");
        stream.into_inner().unwrap_or_else(PoisonError::into_inner).into_split()
    }

    /// Shows bytes that a later read returns again.
    pub async fn peek(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.split().0.peek(out).await
    }

    /// Reads what is here.
    pub fn try_read(&self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.lock().split().0.try_read(out);
        self.is_readable.store(!would_block(&read), Ordering::Relaxed);
        read
    }

    /// Reads what is here into the first of `pieces` that has room.
    pub fn try_read_vectored(&self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let piece = pieces.iter_mut().find(|piece| !piece.is_empty());
        piece.map_or(Ok(0), |piece| self.try_read(piece))
    }

    /// Reads what is here into the room that is left.
    pub fn try_read_buf(&self, out: &mut Vec<u8>) -> io::Result<usize> {
        let mut read = vec![0; out.capacity() - out.len()];
        let bytes = self.try_read(&mut read)?;
        out.extend_from_slice(&read[..bytes]);
        Ok(bytes)
    }

    /// Writes what there is room for.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.try_write_vectored(&[IoSlice::new(bytes)])
    }

    /// Writes what there is room for.
    pub fn try_write_vectored(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let until = Instant::now() + FULL;
        loop {
            let wrote = self.lock().split().1.try_write_pieces(pieces);
            if !would_block(&wrote) || until.remaining().is_zero() {
                self.is_writable.store(!would_block(&wrote), Ordering::Relaxed);
                return wrote;
            }
            std::thread::yield_now();
        }
    }

    /// Waits until an operation may find bytes or room, and says what of `interest` that is.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        if interest.is_writable() {
            poll_fn(|context| self.poll_write_ready(context)).await?;
            return Ok(Ready::WRITABLE);
        }
        poll_fn(|context| self.poll_read_ready(context)).await?;
        let is_over = self.lock().split().0.try_peek().is_ok_and(<[u8]>::is_empty);
        Ok(if is_over { Ready::READABLE | Ready::READ_CLOSED } else { Ready::READABLE })
    }

    /// Waits for bytes.
    pub async fn readable(&self) -> io::Result<()> {
        self.ready(Interest::READABLE).await.map(drop)
    }

    /// Waits for room.
    pub async fn writable(&self) -> io::Result<()> {
        self.ready(Interest::WRITABLE).await.map(drop)
    }

    /// Waits for bytes, or an end of any kind.
    pub fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_readable.load(Ordering::Relaxed) {
            let _ = ready!(self.lock().split().0.poll_peek(context));
            self.is_readable.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }

    /// Waits for room, or an end of any kind.
    pub fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_writable.load(Ordering::Relaxed) {
            let mut stream = self.lock();
            let _ = ready!(std::pin::pin!(stream.split().1.writable()).poll(context));
            self.is_writable.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }

    /// What [`TcpStream::linger`] returns.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        *self.linger.lock().unwrap_or_else(PoisonError::into_inner) = linger;
        Ok(())
    }

    /// Gives the stream up when it is dropped.
    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.set_linger(Some(Duration::ZERO))
    }

    /// What [`TcpStream::set_linger`] was given.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(*self.linger.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Whether an operation found nothing to do.
fn would_block(result: &io::Result<usize>) -> bool {
    matches!(result, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        if self.stream.is_some() && matches!(self.linger(), Ok(Some(Duration::ZERO))) {
            self.split().1.reset(0);
        }
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(self.stream()).poll_read(context, out)
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.stream()).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.stream()).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream()).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream()).poll_shutdown(context)
    }
}
