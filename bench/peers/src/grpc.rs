//! tonic over sockets, over byte streams of gimmal, over gimmal's calls, and over nothing, with a codec that leaves bytes as they are: no
//! protobuf is measured.

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    pin::Pin,
    task::{Context, Poll},
};

use anyhow::{Result, anyhow, ensure};
use bytes::{Buf as _, BufMut as _, Bytes};
use http::{Uri, uri::PathAndQuery};
use hyper_util::rt::TokioIo;
use tonic::{
    Request, Response, Status,
    body::Body,
    client::GrpcService,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server::{NamedService, UnaryService},
    transport::{Endpoint, Server},
};
use tower::Service;

use crate::{
    case::Way,
    link::{Dialer, Listener},
    measure::{Job, Times, runtime, windowed},
    ours::{config, driven},
    post::Post,
};

/// Bytes as they are.
#[derive(Debug, Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, dst: &mut EncodeBuf<'_>) -> Result<(), Status> {
        dst.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, src: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let bytes = src.remaining();
        Ok(Some(src.copy_to_bytes(bytes)))
    }
}

/// The service, without generated code.
#[derive(Debug, Clone, Copy)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "peers.Echo";
}

impl UnaryService<Bytes> for Echo {
    type Response = Bytes;
    type Future = Ready<Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner())))
    }
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move { Ok(tonic::server::Grpc::new(Raw).unary(Echo, request).await) })
    }
}

/// Until the other process ends.
pub(crate) async fn serve(way: Way, post: &Post) -> Result<()> {
    let (listener, host) = Listener::new(way, post).await?;
    let served = Server::builder().add_service(Echo).serve_with_incoming(listener.links());
    tokio::select! {
        served = served => Ok(served?),
        over = host.serve(post) => over,
    }
}

/// Echoes by tonic's own transport.
pub(crate) async fn call(job: &Job) -> Result<Times> {
    let dialer = Dialer::new(job).await?;
    // The address is not used: the dialer knows it.
    let connector = tower::service_fn(move |_: Uri| {
        let dialer = dialer.clone();
        async move { dialer.connect().await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://[::1]:1").connect_with_connector(connector).await?;
    echoes(channel, job).await
}

/// Echoes by tonic's own transport, over a byte stream that the calling thread moves, too.
pub(crate) fn call_over_local_stream(job: &Job) -> Result<Times> {
    driven(job, async |client| {
        let (stream, call) = gimmal_io::open_local(&client, "peers");
        drop(tokio::task::spawn_local(call));
        let mut stream = Some(TokioIo::new(stream));
        let connector = tower::service_fn(move |_: Uri| {
            let stream = stream.take().ok_or_else(|| std::io::Error::other("the stream is over"));
            std::future::ready(stream)
        });
        client
            .run_until(async {
                let endpoint = Endpoint::from_static("http://[::1]:1");
                echoes(endpoint.connect_with_connector(connector).await?, job).await
            })
            .await
    })
}

/// Echoes by the stub of a channel.
async fn echoes<C>(channel: C, job: &Job) -> Result<Times>
where
    C: GrpcService<Body, ResponseBody: http_body::Body<Data = Bytes> + Send + 'static> + Clone,
    <C::ResponseBody as http_body::Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    let client = tonic::client::Grpc::new(channel);
    let body = Bytes::from(vec![7; job.case.bytes]);
    windowed(job, async || {
        let mut client = client.clone();
        client.ready().await.map_err(|error| anyhow!(error.into()))?;
        let path = PathAndQuery::from_static("/peers.Echo/echo");
        let back = client.unary(Request::new(body.clone()), path, Raw).await?;
        ensure!(back.into_inner() == body, "another body");
        Ok(())
    })
    .await
}

/// Serves over gimmal until the other process ends.
pub(crate) async fn serve_over_gimmal(post: &Post) -> Result<()> {
    let server = gimmal_tonic::Server::builder().add_service(Echo);
    let builder = gimmal::Server::builder().config(config(post.idling));
    let server = server.listen_with(builder, &post.place.url_to_listen())?;
    post.place.tell(server.address())?;
    server.serve_until(post.until(), crate::ours::STOP).await;
    Ok(())
}

/// Calls by a channel that may be handed around.
pub(crate) async fn call_by_channel(job: &Job) -> Result<Times> {
    // The window is that of `gimmal_tonic::connect`.
    let builder = gimmal::Client::builder().config(config(job.case.idling)).window(256);
    let client = builder.connect_async(&job.place.url()?).await?;
    echoes(gimmal_tonic::Channel::new(gimmal_http::Client::new(client)), job).await
}

/// Calls by a channel that the calling thread drives.
pub(crate) fn call_driven(job: &Job) -> Result<Times> {
    driven(job, async |client| {
        let channel = gimmal_tonic::Channel::new(gimmal_http::Client::new(client.clone()));
        client.run_until(echoes(channel, job)).await
    })
}

/// Calls of the service itself.
pub(crate) fn call_alone(job: &Job) -> Result<Times> {
    runtime()?.block_on(echoes(Echo, job))
}
