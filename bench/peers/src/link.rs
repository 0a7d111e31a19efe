//! What tarpc and tonic run on: a unix socket, a socket of TCP, or a byte stream of gimmal.

use std::io;

use anyhow::Result;
use futures::{Stream, stream};
use gimmal::{
    Client, Server,
    local::LocalServer,
    tokio::{Tokio, serve_until},
};
use gimmal_io::{Incoming, open, serve};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};
use tonic::transport::server::Connected;

use crate::{
    case::Way,
    measure::Job,
    ours::{STOP, config},
    place::{Over, Place},
    post::Post,
};

/// Streams that wait to be accepted.
const BACKLOG: usize = 16;

pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// A connection. The same box for all, so that none pays more for it.
pub(crate) type Link = Box<dyn Io>;

impl Connected for Link {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

/// Where connections come from.
pub(crate) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
    Streams(Incoming),
}

/// What moves them.
pub(crate) enum Host {
    Kernel,
    /// A part of the runtime's thread.
    Server(Box<LocalServer>),
}

impl Host {
    /// Until the other process ends.
    pub(crate) async fn serve(self, post: &Post) -> Result<()> {
        match self {
            Self::Kernel => post.until().await,
            Self::Server(server) => drop(serve_until(*server, post.until(), STOP).await?),
        }
        Ok(())
    }
}

impl Listener {
    pub(crate) async fn new(way: Way, post: &Post) -> Result<(Self, Host)> {
        let place = &post.place;
        if way.is_over_streams() {
            let (streams, incoming) = serve(BACKLOG);
            let builder =
                Server::builder().service(streams).config(config(post.idling)).runtime(Tokio::current()?);
            let server = builder.listen_local(&place.url_to_listen())?;
            place.tell(server.address())?;
            return Ok((Self::Streams(incoming), Host::Server(Box::new(server))));
        }
        if place.over == Over::Shm {
            return Ok((Self::Unix(UnixListener::bind(place.path())?), Host::Kernel));
        }
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        place.tell(listener.local_addr()?)?;
        Ok((Self::Tcp(listener), Host::Kernel))
    }

    pub(crate) async fn accept(&mut self) -> io::Result<Link> {
        Ok(match self {
            Self::Unix(listener) => Box::new(listener.accept().await?.0),
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Self::Streams(incoming) => match incoming.accept().await {
                Some((_, stream)) => Box::new(stream),
                None => return Err(io::ErrorKind::ConnectionAborted.into()),
            },
        })
    }

    pub(crate) fn links(self) -> impl Stream<Item = io::Result<Link>> + Send {
        stream::unfold(self, |mut listener| async move { Some((listener.accept().await, listener)) })
    }
}

/// What opens connections. It is kept as long as they are.
#[derive(Clone)]
pub(crate) enum Dialer {
    Sockets(Place),
    Streams(Client),
}

impl Dialer {
    pub(crate) async fn new(job: &Job) -> Result<Self> {
        if !job.case.way.is_over_streams() {
            return Ok(Self::Sockets(job.place.clone()));
        }
        let builder = Client::builder().config(config(job.case.idling));
        Ok(Self::Streams(builder.connect_async(&job.place.url()?).await?))
    }

    pub(crate) async fn connect(&self) -> io::Result<Link> {
        Ok(match self {
            Self::Streams(client) => Box::new(open(client, "peers")),
            Self::Sockets(place) if place.over == Over::Shm => {
                Box::new(UnixStream::connect(place.path()).await?)
            }
            Self::Sockets(place) => {
                let stream = TcpStream::connect(place.told().map_err(io::Error::other)?).await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
        })
    }
}
