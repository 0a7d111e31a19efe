//! HTTP/2 in, gimmal out.

use std::{
    convert::Infallible,
    error::Error,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use gimmal_http::{Body, Client, Timeout};
use gimmal_transport::{Instant, parts::LogPace};
use http::{Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use http_body_util::Either;
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
};
use tower_service::Service as _;

use super::{
    failed::{Passed, failed, is_grpc, judged},
    options::{Counts, Edge, Http},
    secure,
};
use crate::{accept::accepted, credentials::in_options, signals::asked_to_end};

type Channel = Client<gimmal::Client>;

/// Accepts connections until a signal, then lets their requests end.
pub(super) async fn run(edge: &Edge, listen: Http<'_>, counts: &Arc<Counts>) -> Result<bool, Box<dyn Error>> {
    let tls = edge.tls(listen, &edge.to)?;
    if let Some(tls) = &tls {
        secure::check_server(tls)?;
    }
    let builder =
        edge.credentials.client(&[&edge.listen, &edge.to])?.window(edge.requests_max.clamp(1, 4096));
    let client = builder.connect_lazy(&edge.to)?;
    let client = Client::new(client);
    let listener = TcpListener::bind(listen.at).await?;
    println!("{}://{} -> {}", listen.scheme(), listener.local_addr()?, edge.to);
    let (connections, requests) =
        (Arc::new(Semaphore::new(edge.connections_max)), Arc::new(Semaphore::new(edge.requests_max)));
    let (stop, stopped) = watch::channel(());
    let mut serving = JoinSet::new();
    let log = Arc::new(LogPace::default());
    let mut end = std::pin::pin!(asked_to_end());
    loop {
        let accept = async {
            let place = Arc::clone(&connections).acquire_owned().await;
            (place, accepted(|| listener.accept(), &log).await)
        };
        let (place, (stream, peer)) = tokio::select! {
            () = &mut end => break,
            accepted = accept => accepted,
        };
        while serving.try_join_next().is_some() {}
        Counts::add(&counts.connections);
        let one = Serving {
            client: client.clone(),
            requests: Arc::clone(&requests),
            counts: Arc::clone(counts),
            stopped: stopped.clone(),
        };
        let (tls, log) = (tls.clone(), Arc::clone(&log));
        serving.spawn(async move {
            let _place = place;
            let _ = stream.set_nodelay(true);
            let Some(tls) = tls else { return one.serve(stream).await };
            match secure::accept(&tls, stream).await {
                Ok(stream) => one.serve(stream).await,
                Err(error) => {
                    Counts::add(&one.counts.untrusted);
                    if let Some(left_out) = log.line(Instant::now()) {
                        let error = in_options(&error.to_string());
                        tracing::warn!(%peer, error, left_out, "not accepted");
                    }
                }
            }
        });
    }
    drop((listener, stop));
    let all = async { while serving.join_next().await.is_some() {} };
    Ok(tokio::time::timeout(edge.drain(), all).await.is_ok())
}

/// What a connection's requests need.
struct Serving {
    client: Channel,
    requests: Arc<Semaphore>,
    counts: Arc<Counts>,
    stopped: watch::Receiver<()>,
}

impl Serving {
    /// Serves one connection until it ends, or until its requests have ended after a stop.
    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let Self { client, requests, counts, mut stopped } = self;
        let service = service_fn(move |request| {
            let (client, requests, counts) = (client.clone(), Arc::clone(&requests), Arc::clone(&counts));
            async move { Ok::<_, Infallible>(pass(client, requests, &counts, request).await) }
        });
        let connection =
            http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            _ = connection.as_mut() => return,
            // The sender is dropped.
            _ = stopped.changed() => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    }
}

/// A response's body, which has its request's place until it is dropped: a stream is in flight for as long as it lasts.
struct Placed {
    body: Body,
    _place: OwnedSemaphorePermit,
}

impl http_body::Body for Placed {
    type Data = Bytes;
    type Error = gimmal_http::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

async fn pass(
    mut client: Channel,
    requests: Arc<Semaphore>,
    counts: &Counts,
    mut request: Request<Incoming>,
) -> Response<Passed<Placed>> {
    let is_grpc = is_grpc(request.headers());
    let Ok(place) = requests.try_acquire_owned() else {
        Counts::add(&counts.refused);
        let why = "the edge has as many requests as it takes at once";
        return failed(is_grpc, StatusCode::SERVICE_UNAVAILABLE, gimmal::Code::ResourceExhausted, why);
    };
    Counts::add(&counts.requests);
    if let Some(timeout) = Timeout::of_grpc(request.headers()) {
        request.extensions_mut().insert(timeout);
    }
    match client.call(request).await {
        Ok(response) => response.map(|body| Either::Left(Placed { body, _place: place })),
        Err(error) => {
            Counts::add(&counts.failed);
            let (status, code) = judged(&error);
            failed(is_grpc, status, code, &error.to_string())
        }
    }
}
