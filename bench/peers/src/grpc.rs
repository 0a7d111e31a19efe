//! tonic over a unix socket, over gimmal, and over nothing, with a codec that leaves bytes as they are: no protobuf is measured.

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    path::Path,
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll},
    time::Duration,
};

use anyhow::{Result, anyhow, ensure};
use bytes::{Buf as _, BufMut as _, Bytes};
use http::{Uri, uri::PathAndQuery};
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
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
    measure::{BYTES, Times, runtime, windowed},
    ours::{until, url},
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

/// Until `stop`.
pub(crate) fn serve(place: &Path, stop: &AtomicBool) -> Result<()> {
    runtime()?.block_on(async {
        let incoming = UnixListenerStream::new(UnixListener::bind(place)?);
        let until = async {
            while !stop.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            served = Server::builder().add_service(Echo).serve_with_incoming(incoming) => Ok(served?),
            () = until => Ok(()),
        }
    })
}

/// `calls` after a tenth of that to warm up, `window` of them at once.
pub(crate) fn call(place: &Path, calls: usize, window: usize) -> Result<Times> {
    let place = place.to_owned();
    runtime()?.block_on(async {
        // The address is not used: the connector knows the socket.
        let channel = Endpoint::from_static("http://[::1]:1")
            .connect_with_connector(tower::service_fn(move |_: Uri| {
                let place = place.clone();
                async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(place).await?)) }
            }))
            .await?;
        echoes(channel, calls, window).await
    })
}

/// Echoes by the stub of a channel.
async fn echoes<C>(channel: C, calls: usize, window: usize) -> Result<Times>
where
    C: GrpcService<Body, ResponseBody: http_body::Body<Data = Bytes> + Send + 'static> + Clone,
    <C::ResponseBody as http_body::Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    let client = tonic::client::Grpc::new(channel);
    let body = Bytes::from(vec![7; BYTES]);
    windowed(calls, window, async || {
        let mut client = client.clone();
        client.ready().await.map_err(|error| anyhow!(error.into()))?;
        let path = PathAndQuery::from_static("/peers.Echo/echo");
        let back = client.unary(Request::new(body.clone()), path, Raw).await?;
        ensure!(back.into_inner() == body, "another body");
        Ok(())
    })
    .await
}

/// Serves over gimmal until `stop`.
pub(crate) fn serve_over_gimmal(place: &Path, stop: &AtomicBool) -> Result<()> {
    runtime()?.block_on(async {
        let server = gimmal_tonic::Server::builder().add_service(Echo);
        Ok(server.serve_with_shutdown(&url(place), until(stop)).await?)
    })
}

/// Calls by a channel that may be handed around.
pub(crate) fn call_by_channel(place: &Path, calls: usize, window: usize) -> Result<Times> {
    runtime()?.block_on(async {
        let channel = gimmal_tonic::connect(&url(place)).await?;
        echoes(channel, calls, window).await
    })
}

/// Calls by a channel that the calling thread drives.
pub(crate) fn call_driven(place: &Path, calls: usize, window: usize) -> Result<Times> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default())?;
    runtime.block_on(async {
        let client = gimmal::tokio::LocalClient::connect(&url(place)).await?;
        let channel = gimmal_tonic::Channel::new(gimmal_http::Client::new(client.clone()));
        client.run_until(echoes(channel, calls, window)).await
    })
}

/// Calls of the service itself.
pub(crate) fn call_alone(calls: usize, window: usize) -> Result<Times> {
    runtime()?.block_on(echoes(Echo, calls, window))
}
