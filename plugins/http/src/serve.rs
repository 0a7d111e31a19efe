//! The server: a service of requests as one of gimmal.

use std::{
    fmt,
    future::poll_fn,
    mem,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use gimmal_rpc::{
    Cx, Method as CallMethod, ResponseWriter, Service, Sink, Status, Stream,
    engine::transport::Bulk,
    service::{Fallible, Plain, Seat},
};
use http::{HeaderMap, Request, Response, StatusCode, header, response};

use crate::{
    block,
    body::{Body, Streamed},
    head::{self, HEAD_BYTES_MAX, Unread},
    messages::{self, Answered, BESIDE, Broken, EXCHANGE, Item, METHODS, Piece, Wire},
    outgoing::{BoxError, Gathered, Pumped, Sent, gather},
    peer::Peer,
    pieces::Pieces,
    rules,
    timeout::Timeout,
};

/// Bytes of a frame beside an answer.
const FRAME_BYTES: usize = 64;

/// A service of requests, such as a router, as a service of gimmal: give it to
/// [`ServerBuilder::service`](gimmal::ServerBuilder::service).
///
/// Its futures run on the server's workers, inside the runtime of [`ServerBuilder::runtime`](gimmal::ServerBuilder::runtime).
/// Each is dropped when its caller has gone. Requests carry a [`Peer`] among their extensions, and a [`Timeout`] where the caller
/// waits for a limited time.
///
/// What the service's own future returns as an error, and a body that ends with one, abort the call.
#[derive(Clone)]
pub struct Serve<S> {
    service: S,
    running: Arc<AtomicUsize>,
    requests_max: usize,
    body_bytes_max: Option<u64>,
}

impl<S> fmt::Debug for Serve<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Serve({} requests)", self.running.load(Ordering::Relaxed))
    }
}

impl<S> Serve<S> {
    /// Makes a service of gimmal that answers each request by a clone of `service`.
    pub fn new(service: S) -> Self {
        Self { service, running: Arc::default(), requests_max: usize::MAX, body_bytes_max: None }
    }

    /// Answers a request with 503 while so many run. Default: no limit but gimmal's own.
    #[must_use]
    pub const fn requests_max(mut self, requests: usize) -> Self {
        self.requests_max = requests;
        self
    }

    /// Answers a request with 413 whose `content-length` is above `bytes`, and ends longer bodies with an error. Default: no limit.
    #[must_use]
    pub const fn body_bytes_max(mut self, bytes: u64) -> Self {
        self.body_bytes_max = Some(bytes);
        self
    }

    fn enter(&self) -> Option<Running> {
        let before = self.running.fetch_add(1, Ordering::Relaxed);
        let running = Running(Arc::clone(&self.running));
        (before < self.requests_max).then_some(running)
    }

    /// Reads a request.
    fn read(&self, cx: &Cx, arguments: &[u8], up: Option<Stream<Item>>) -> Result<Request<Body>, StatusCode> {
        let (mut parts, contents) =
            messages::request(block::copy_of(arguments)).map_err(|unread| match unread {
                Unread::TooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                Unread::Malformed(_) => StatusCode::BAD_REQUEST,
            })?;
        if rules::not_carried(&parts).is_some() {
            return Err(StatusCode::NOT_IMPLEMENTED);
        }
        let said = rules::content_length(&parts.headers).map_err(|_| StatusCode::BAD_REQUEST)?;
        let known = if up.is_none() { Some(contents.data.len() as u64) } else { said };
        if known.zip(self.body_bytes_max).is_some_and(|(known, max)| known > max) {
            return Err(StatusCode::PAYLOAD_TOO_LARGE);
        }
        if up.is_none() && said.is_some() && said != known {
            return Err(StatusCode::BAD_REQUEST);
        }
        parts.extensions.insert(Peer::new(Arc::clone(cx.negotiated())));
        if let Some(left) = cx.remaining() {
            parts.extensions.insert(Timeout(left));
        }
        let body = match up {
            None => Body::whole(contents),
            Some(items) => {
                let (first, trailers) = (contents.data, None);
                let (end, failed) = (None, None);
                let (is_ending, is_cut) = (false, false);
                let streamed =
                    Streamed { _tie: None, first, items, trailers, end, is_ending, is_cut, failed };
                Body::stream(streamed, said)
            }
        };
        Ok(Request::from_parts(parts, body.at_most(self.body_bytes_max)))
    }
}

/// A request that runs.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S, R> Service for Serve<S>
where
    S: tower_service::Service<Request<Body>, Response = Response<R>> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    R: http_body::Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    fn methods(&self) -> &'static [CallMethod] {
        &METHODS
    }

    fn call_raw(&self, _: usize, _: &Cx, _: &[u8], _: &mut ResponseWriter<'_>) -> Result<(), Status> {
        // A server that answers is there.
        Ok(())
    }

    fn start(
        &self,
        method: usize,
        cx: Cx,
        arguments: &[u8],
        _: Option<Bulk>,
        seat: &mut Seat,
    ) -> Result<(), Status> {
        let running = self.enter();
        let up = if method == EXCHANGE { Some(seat.stream::<Wire, Item>()?) } else { None };
        let mut down = seat.sink::<Wire, Piece>()?;
        let limit = (cx.negotiated().frame_bytes_max as usize).saturating_sub(FRAME_BYTES + BESIDE);
        let mut request = match &running {
            Some(_) => self.read(&cx, arguments, up),
            None => Err(StatusCode::SERVICE_UNAVAILABLE),
        };
        let mut service = self.service.clone();
        seat.put::<Wire, _>(async move {
            let _running = running;
            // Lent: a future has a place for what it is given, and another for what it makes of it, and it is moved with both.
            let answered = answer(&mut service, &mut request, &mut down, limit).await;
            Fallible(answered.map(Plain).map_err(|error| Broken(error.to_string())))
        });
        Ok(())
    }
}

/// A response without a body.
fn empty(status: StatusCode) -> Answered {
    let (mut parts, ()) = Response::new(()).into_parts();
    parts.status = status;
    Answered::Whole { parts, data: Pieces::default(), trailers: None }
}

async fn answer<S, R>(
    service: &mut S,
    request: &mut Result<Request<Body>, StatusCode>,
    down: &mut Sink<Piece>,
    limit: usize,
) -> Result<Answered, BoxError>
where
    S: tower_service::Service<Request<Body>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    R: http_body::Body<Error: Into<BoxError>>,
{
    if request.is_ok() {
        poll_fn(|context| service.poll_ready(context)).await.map_err(Into::into)?;
    }
    let request = match mem::replace(request, Err(StatusCode::OK)) {
        Ok(request) => request,
        Err(refused) => return Ok(empty(refused)),
    };
    let method = request.method().clone();
    let response = service.call(request).await.map_err(Into::into)?;
    let (mut parts, body) = response.into_parts();
    if parts.status.is_informational() {
        return Ok(empty(StatusCode::NOT_IMPLEMENTED));
    }
    let heads = head::response_bytes(&parts);
    if heads > HEAD_BYTES_MAX {
        return Err("the head of the response is above the limit of 16 KiB".into());
    }
    if parts.status == StatusCode::NO_CONTENT {
        parts.headers.remove(header::CONTENT_LENGTH);
    }
    let said = rules::content_length(&parts.headers).map_err(|_| lies())?;
    if rules::is_bodiless(&method, parts.status) {
        return Ok(Answered::Whole { parts, data: Pieces::default(), trailers: None });
    }
    respond(parts, said, body, down, (heads, limit)).await
}

/// Sends a response that has a body: at once, if all of it is there.
async fn respond<R>(
    parts: response::Parts,
    said: Option<u64>,
    body: R,
    down: &mut Sink<Piece>,
    (heads, limit): (usize, usize),
) -> Result<Answered, BoxError>
where
    R: http_body::Body<Error: Into<BoxError>>,
{
    let mut body = pin!(body);
    let room = limit.saturating_sub(heads);
    let mut gathered =
        poll_fn(|context| std::task::Poll::Ready(gather(body.as_mut(), context, room))).await?;
    if gathered.is_whole {
        if said.is_some_and(|said| said != gathered.bytes as u64) {
            return Err(lies());
        }
        let trailing = trailing(gathered.trailers.as_ref())?;
        if gathered.bytes + trailing <= room {
            return Ok(Answered::Whole { parts, data: gathered.data, trailers: gathered.trailers.take() });
        }
    }
    // In a box of its own: the future of every other call is moved more cheaply without it.
    Box::pin(stream(parts, body, gathered, down, limit)).await
}

/// Sends a response in items, whose body begins with `gathered`.
async fn stream<R>(
    parts: response::Parts,
    body: Pin<&mut R>,
    gathered: Gathered,
    down: &mut Sink<Piece>,
    limit: usize,
) -> Result<Answered, BoxError>
where
    R: http_body::Body<Error: Into<BoxError>>,
{
    if down.send(&Piece::Head(parts)).await.is_err() {
        return Ok(Answered::End(None));
    }
    let mut pumped = Pumped::new(body, gathered, limit);
    match poll_fn(|context| pumped.poll(context, down)).await {
        Sent::Whole(trailers) => {
            trailing(trailers.as_ref())?;
            Ok(Answered::End(trailers))
        }
        // Nobody reads it.
        Sent::Over => Ok(Answered::End(None)),
        Sent::Failed(error) => Err(error),
    }
}

fn lies() -> BoxError {
    "the response is not as long as its content-length says".into()
}

/// What trailers count, if they may travel.
fn trailing(trailers: Option<&HeaderMap>) -> Result<usize, BoxError> {
    let bytes = head::trailers_bytes(trailers);
    if bytes > HEAD_BYTES_MAX {
        return Err("the trailers are above the limit of 16 KiB".into());
    }
    Ok(bytes)
}
